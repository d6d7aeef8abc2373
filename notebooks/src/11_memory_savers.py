# %% [markdown]
# # 11 · Memory savers and fine-tuning: which bytes can you refuse?
#
# You have one card with 24 GB<!-- =load_device("rtx_4090").memory_gb --> of memory, and you want to teach Llama 3.1 8B something of your own. No second card is coming. Lesson 01 says what training asks for: 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> for each of eight billion parameters, before the first token is read.
#
# Now there is nobody to share this bill with. **Which of these bytes can you refuse to keep, and what does each refusal cost?**
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from copy import deepcopy
from functools import partial

import torch
import torch.nn.functional as F

from course_lib import predict, run_ranks, score, viz
from course_lib.costs import (
    GB,
    Adapters,
    Recipe,
    load_device,
    load_model,
    recipe_memory,
)
from course_lib.gauges import own_seconds, peak_bytes, saved_bytes
from course_lib.savers import (
    ChunkedLoss,
    LossScaler,
    absmax_int8,
    add_ia3,
    add_lora,
    attention_with_scores,
    checkpoint_layers,
    encode_nf4,
    nf4_levels,
    quantise,
    rounded_by_chance,
)
from course_lib.training import (
    Batches,
    Decoder,
    ModelConfig,
    TrainConfig,
    Trainer,
    fully_shard,
    load_text,
    load_tokens,
    make_mesh,
    replicate,
    tensor,
)
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum

torch.set_num_threads(1)  # so that this thread's seconds are all that is computed

# %%
LLAMA, CARD = load_model("llama3_1_8b"), load_device("rtx_4090")
bill = {"full training": recipe_memory(LLAMA, Recipe(), sequence=2048)}
draw = partial(
    viz.plot_gpu_memory,
    device=CARD,
    unit="GB",
    title="Llama 3.1 8B on one card: one sequence of 2,048 tokens",
    subtitle="what lasts from step to step, and what waits for backward",
)
draw(bill)

# %% [markdown]
# The dashed line is your card, and the bar is almost six times as long. The yellow part alone, Adam's states and the precise copy of the weights, would fill four cards. The activations of one sequence are the short blue piece near the end.
#
# We take this bar apart, one refusal after the other, until it ends before the dashed line. You will be able to
# - say which bytes each saver removes, and which it leaves alone.
# - use activation checkpointing, attention in tiles, LoRA and 4-bit weights, prove each, and build them in the exercises.
# - say before you run it whether a model fits on one card, and at what price.
# - find adapters that each rank trains for itself.
#
# *Fifty minutes; the exercises come on top. You need no GPU.*
#
# <details><summary>Before you start</summary>You need the bill of lesson 01, the ladder of lesson 03, FSDP from lesson 06 and the online softmax of lesson 09. Everything here ran on CPUs, over gloo.</details>

# %% [markdown]
# ## Who needs this byte?
#
# Ask of each byte what it is kept for. Some are kept *for the next step*: weights, gradients and the optimizer's states. Some are kept *for backward*: the activations, which grow with every token. And some exist only by *habit*, because of the way we compute, like the logits, which nobody wants once the loss is known.
#
# You can pay in three ways. You can keep fewer *digits*. You can compute something a second time, and pay with *time*. Or you can give up the *freedom* to change every weight.
#
# > **To keep.** A byte is kept for the next step, for backward, or by habit. A saver pays for it with digits, with time or with freedom.

# %% [markdown]
# ## Half the bits
#
# The obvious idea is to write numbers with sixteen bits instead of 32. Our bill has already done so for weights and gradients. But among the optimizer's bytes there is one more copy of each weight, in float32. So refuse it.
#
# Take many weights, all exactly 1, and a thousand updates that add 0.001 to each, so that every weight should become 2.

# %%
torch.manual_seed(0)
short, precise, by_chance = (
    torch.ones(4096, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.bfloat16)
)
for _ in range(1000):
    short = (short.float() + 0.001).bfloat16()  # to the nearest bfloat16 number
    precise = precise + 0.001
    by_chance = rounded_by_chance(by_chance.float() + 0.001)
for name, weights in (("bfloat16", short), ("float32", precise), ("by chance", by_chance)):
    print(f"{name:10} {weights.float().mean():.3f}")

# %% [markdown]
# The weights in bfloat16 have not moved at all! A bfloat16 number has eight significant bits, so the next one above 1 is about 1.008. An update of 0.001 does not reach half of the way, so the sum is rounded back to 1, a thousand times.
#
# This is why the optimizer keeps a precise copy, the *master weights*: the update goes into the copy, and the weight that computes is rounded from it anew in each step. Now count again. In float32 weight, gradient and Adam's two averages take 4 bytes<!-- =4 --> each. In mixed precision weight and gradient shrink to half, the averages stay, and the master copy comes on top. Both make 16!
#
# The third line shows a way out. **Stochastic rounding** goes up or down by chance, more often to the nearer side. An update of an eighth of the gap moves one weight in eight, so on average nothing is lost, and the master copy can go.
#
# > **To keep.** Mixed precision shortens activations, and saves time on GPUs, but nothing of the states: 16 bytes<!-- =16 --> stay 16, because short weights need a long copy.

# %% [markdown]
# ## Compute twice
#
# For backward a layer keeps its input, and much that it made of it: queries, keys and values, what the norms read, and four large tensors of the feed-forward block. In our Llama that is about 21 times as much as the input alone, and in the next cell's small model 20 times.
#
# All of it follows from the input. So keep that, forget the rest, and when backward comes to this layer run its forward once more. Lesson 01 called it activation checkpointing. A step of three parts, one forward and a backward of two, becomes one of four.
#
# You may also keep only the input of every third layer, and recompute a *group* of three at a time. The larger the groups, the fewer inputs are kept. A well-known paper recommends $\sqrt{L}$ layers in a group.
#
# **Predict.** Our model has nine layers. With groups of 1, of 3, which is $\sqrt{9}$, or of all 9: which size makes the *highest moment* of a step lowest?

# %% varies="measured times, and the last bytes that PyTorch allocates"
torch.manual_seed(0)
DEEP = ModelConfig(
    name="deep",
    hidden_size=64,
    n_layers=9,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=176,
    vocab_size=256,
    tied=False,
)
inputs, targets = torch.randint(256, (2, 4, 64))


def loss_on(model):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train_step(model):
    loss_on(model).backward()
    model.zero_grad()


peaks, seconds = {}, {}
for group in (0, 1, 3, 9):
    model = Decoder(DEEP)
    if group:
        checkpoint_layers(model.layers, group=group)
    train_step(model)
    peaks[group] = peak_bytes(partial(train_step, model))
    seconds[group] = own_seconds(partial(train_step, model))
predict(
    "layers in a group",
    guess=None,
    answer=min(peaks, key=peaks.get),
    think="how many inputs are kept, and what is there at once while a group is recomputed",
)
for group, peak in peaks.items():
    name = f"groups of {group}" if group else "nothing recomputed"
    print(f"{name:20} {peak / 1e6:5.1f} MB at most, {seconds[group] / seconds[0]:.2f} times as long")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Count in inputs. With groups of $n$ layers, $9/n$ inputs are kept. While a group is recomputed, everything that its $n$ layers keep is there again, 20 inputs each. For groups of one that makes 9 + 20, for groups of three 3 + 60. What you measured is more, by the gradients of the weights.
#
# With one group of all layers hardly anything is kept when forward ends. But then backward runs the whole model again, and everything is there at once. It saves nothing and pays in full: in layers as small as these, a second forward takes more than a third. The paper's root is right for layers that keep about as much as their input.
#
# </details>
#
# So every layer is a group of its own. What does it do for our card?

# %%
bill["layers recomputed"] = recipe_memory(LLAMA, Recipe(recompute=True), sequence=2048)
draw(bill)

# %% [markdown]
# The blue part has nearly gone, but there was little of it. Activations grow with the sequence, and at 32,768 tokens this saver takes away half of the bill, 163 GB<!-- =(recipe_memory(load_model("llama3_1_8b"), Recipe(), sequence=32768).total - recipe_memory(load_model("llama3_1_8b"), Recipe(recompute=True), sequence=32768).total) / GB --> of 323 GB<!-- =recipe_memory(load_model("llama3_1_8b"), Recipe(), sequence=32768).total / GB -->. In full training it is for long sequences, with frozen weights it decides much earlier.
#
# > **To keep.** Recompute each layer by itself: what counts is the highest moment, and a group is whole again when it is recomputed.

# %% [markdown]
# ## Scores never whole
#
# One thing is not in our bar, although at 32,768 tokens it would be the largest of all. Attention computes a score for every pair of a query and a key. For 32,768 tokens those of all heads and layers would take 2,199 GB<!-- =load_model("llama3_1_8b").n_layers * load_model("llama3_1_8b").n_heads * 2 * 32768**2 / GB -->. Why do they not stand in the bill?
#
# Because attention does not need them all at once. In lesson 09 you have put two softmaxes together with a maximum and a sum. Here the halves are two pieces of one sequence, one after the other.

# %%
viz.plot_tiles(sequence=2048, tile=512)

# %% [markdown]
# Some queries, a row, meet some keys at a time. The orange **tile** is the only one whose scores exist. The pale ones have left nothing behind but what is written at the right.
#
# Backward needs the softmax's weights again. It makes them a second time, tile by tile, from queries, keys and the sum that forward has kept. That is recomputation inside attention, and it is called **flash attention**.

# %% varies="measured times, and what PyTorch allocates while it computes"
from course_lib.savers.tiled_attention import tiled_attention

q, k, v = (torch.randn(1, 4, 1024, 32, requires_grad=True) for _ in range(3))
ways = {
    "all scores": attention_with_scores,
    "in tiles": tiled_attention,
    "PyTorch's kernel": partial(F.scaled_dot_product_attention, is_causal=True),
}
times = {}
right = torch.autograd.grad(attention_with_scores(q, k, v).square().sum(), (q, k, v))
for name, attention in ways.items():
    found = torch.autograd.grad(attention(q, k, v).square().sum(), (q, k, v))
    equal = all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, right, strict=True))

    def both(way=attention):
        return torch.autograd.grad(way(q, k, v).square().sum(), (q, k, v))

    kept, peak = saved_bytes(torch.nn.Module(), partial(attention, q, k, v)), peak_bytes(both)
    times[name] = own_seconds(both)
    print(
        f"{name:17} gradients equal: {equal}, keeps {kept / 1e6:5.1f} MB, at most {peak / 1e6:5.1f} MB,",
        end=" ",
    )
    print(f"{times[name] / times['all scores']:.2f} times as long")

# %% [markdown]
# All three have the same gradients. But scores grow with the square of the sequence, and what the tiles keep grows with the sequence, so with twice as many tokens what the first line keeps nearly quadruples, and what the others keep doubles.
#
# No digit and no freedom is lost. Tiles in the future are skipped, so no time is lost either. You have used PyTorch's since lesson 01, so our bill never had this line.
#
# > **To keep.** Scores are kept by habit. Attention in tiles needs them one tile at a time, forward and backward.
#
# ## Logits never whole
#
# The other tensor that nobody wants stands at the end. For each token the head computes a number for every word of the vocabulary, and the loss makes one number of them all.
#
# **Predict.** Recompute all 32 layers, for a sequence of 32,768 tokens. The layers then keep 14.1 GB<!-- =recipe_memory(load_model("llama3_1_8b"), Recipe(recompute=True), sequence=32768).activations / GB -->. (8.6 GB<!-- =32 * 32768 * 4096 * 2 / GB --> of inputs, and one layer made again.) How many GB do head and loss keep? The vocabulary has 128,256 words, and the loss computes in float32.

# %%
long = recipe_memory(LLAMA, Recipe(recompute=True), sequence=32768)
predict(
    "GB of head and loss",
    guess=None,
    answer=long.head / GB,
    unit="GB",
    tolerance=0.1,
    think="one number of 4 bytes for each token and each word",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The logits alone are 32,768 times 128,256 numbers of 4 bytes<!-- =4 -->, 16.8 GB<!-- =32768 * 128256 * 4 / GB -->. The rest is what the last norm and the head keep. That is more than all recomputed layers.
#
# </details>
#
# The way out is the same as before, because a loss is a sum over tokens. Take some tokens, make their logits, find their loss, and forget the logits. Backward makes them once more. This is a **chunked loss**.

# %% varies="measured times, and what PyTorch allocates while it computes"
hidden, words = torch.randn(1, 512, 64, requires_grad=True), torch.randint(8192, (1, 512))
head = torch.nn.Linear(64, 8192, bias=False)
its_copy = deepcopy(head)
summed = partial(F.cross_entropy, reduction="sum")
in_pieces = ChunkedLoss(its_copy, 16, summed)
losses = {
    "whole": (head, lambda: summed(head(hidden).flatten(0, 1), words.flatten())),
    "in 16 pieces": (its_copy, lambda: in_pieces(hidden, words)),
}


def both(of_head, loss):
    return torch.autograd.grad(loss(), (hidden, of_head.weight))


gradients = [both(*way) for way in losses.values()]
print("both gradients equal:", [torch.allclose(*pair, atol=1e-3) for pair in zip(*gradients, strict=True)])
bill["and the loss in 16 pieces"] = recipe_memory(LLAMA, Recipe(recompute=True, pieces=16), sequence=2048)
before, after = (bill[name].total / GB for name in ("layers recomputed", "and the loss in 16 pieces"))
print(f"our bill: {before:.1f} GB with the loss as a whole, {after:.1f} GB in pieces")
for name, way in losses.items():
    times[name] = own_seconds(partial(both, *way))
    peak, ratio = peak_bytes(partial(both, *way)), times[name] / times["whole"]
    print(f"{name:13} at most {peak / 1e6:5.1f} MB, {ratio:.2f} times as long")

# %% [markdown]
# The logits, their softmax and its gradient take a sixteenth each, but the gradient of the head stays whole. The price is a fourth product of the head.
#
# > **To keep.** When an 8B's layers are recomputed the loss is most of what waits. A loss is a sum over tokens, so its logits need never be whole.
#
# ## Train beside
#
# So much for backward. What lasts is still five times too long, and neither digits nor time helped. We have to pay with freedom.
#
# A weight that is *trained* takes 16 bytes<!-- =find_convention("zero").bytes_per_parameter -->, and a frozen one takes 2. You could train the last layers alone, but what you want to teach may not sit there. Can we change every layer, and yet train little?
#
# Take one matrix $W$, 4,096 by 4,096, and freeze it. The change that you would train has the same size. But ask for a change that is a product of two narrow matrices: $A$ with 16 rows, which reads the input, and $B$ with 16 columns, which writes to the output.
#
# $$y = W x + s\, B A x \qquad s \text{: a fixed number}$$
#
# Both together have less than a hundredth of the numbers. This is **LoRA**, *low-rank adaptation*. $A$ and $B$ are an **adapter**, and 16 is its *rank*, which here has nothing to do with processes.
#
# The model is good as it is, so at first the adapter must change nothing, and $BA$ has to be 0. Could both begin at 0? Then nothing would ever move, because the gradient of $B$ contains $A$, and that of $A$ contains $B$. So $B$ is born 0, and $A$ random.

# %%
SMALL = ModelConfig(
    name="small",
    hidden_size=128,
    n_layers=4,
    n_heads=4,
    n_kv_heads=4,
    ffn_size=344,
    vocab_size=256,
    tied=False,
)
torch.manual_seed(0)
whole = Decoder(SMALL)
with_lora = add_lora(deepcopy(whole), rank=8)
print("the same output, bit by bit:", torch.equal(whole(inputs), with_lora(inputs)))
loss_on(with_lora).backward()
adapter = with_lora.layers[0].attention.q_proj
print("A has a gradient:", bool(adapter.A.grad.any()), "and B:", bool(adapter.B.grad.any()))
trained = sum(x.numel() for x in with_lora.parameters() if x.requires_grad)
print(
    f"{trained:,} numbers are trained, beside {sum(x.numel() for x in whole.parameters()):,} frozen ones"
)

# %% [markdown]
# **Predict** two things. On the 8B such adapters are half a percent of all parameters. Of the *activations* of full training, which share does this small model keep for backward now? And how many times as long as with full training do forward and backward take?

# %% varies="measured times"
everything = saved_bytes(whole, partial(loss_on, whole))
predict(
    "share of the activations",
    guess=None,
    answer=round(saved_bytes(with_lora, partial(loss_on, with_lora)) / everything, 2),
    tolerance=0.115,  # a norm on a CPU keeps a copy, which nobody can know
    think="through which layers the gradient has to go to reach the first adapter",
)
predict(
    "times as long",
    guess=None,
    answer=round(own_seconds(partial(train_step, with_lora)) / own_seconds(partial(train_step, whole)), 2),
    tolerance=0.15,
    think="what a frozen matrix no longer computes, and what stands beside it instead",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Hardly any activation is saved! To reach the adapters of the first layer, the gradient has to pass all layers above it, and for that backward needs what it always needed. What is saved is a copy that frozen norms do not need; on a GPU there is none.
#
# And time? Each matrix has three products: one forward, one for the gradient of its input, one for its own. A frozen one does without the third, so by the formula two thirds are left. But each adapter brings six small products. In a small model that takes back what was saved; in the 8B the formula comes closer.
#
# </details>
#
# Why can a frozen matrix not forget its input? Look at one with and without an adapter.

# %%
lora = Adapters(rank=16)
bill["and LoRA"] = recipe_memory(LLAMA, Recipe(recompute=True, pieces=16, adapters=lora), sequence=2048)
before, after = (bill[name].total / GB for name in ("and the loss in 16 pieces", "and LoRA"))
print(f"our bill: {before:.1f} GB without adapters, {after:.1f} GB with them")
viz.plot_frozen()

# %% [markdown]
# In the second row nobody asks for the gradient of $W$, so $x$ may go. Still the gradient passes $W$ on its way down, and needs $W$ itself. In the third row $A$ reads the same $x$, and $A$ is trained: $x$ is back.
#
# So LoRA saves neither activations nor, in small models, time. It saves what lasts: our bar fits!
#
# > **To keep.** LoRA takes away 14 of every 16 bytes<!-- =16 --> of nearly every parameter, and leaves the activations as they are.


# %% [markdown]
# ## Four bits
#
# Nearly all that is left are frozen weights. Nobody updates them, so they only have to be *read*. How short may they be?
#
# Begin with eight bits. Take the largest weight, by size, and divide the way from 0 to it into 127 even steps. A weight becomes the number of its step, in one byte, and the length of a step is kept once, as the **scale**. This is **quantisation**, of the kind called *absmax*.
#
# **Predict.** "Eight bits save four times", people say. Your model is in bfloat16, and each 64 weights share one scale in float32. How many times fewer bytes do you keep?

# %%
torch.manual_seed(0)
weight = 0.02 * torch.randn(1024, 1024)
predict(
    "times fewer bytes",
    guess=None,
    answer=2 * weight.numel() / absmax_int8(weight, 64).nbytes,
    think="four times fewer than what",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The four are against float32. Against bfloat16 a byte is half, and the scales take 4 bytes<!-- =4 --> for each 64 weights, half a bit a weight.
#
# </details>
#
# Why a scale for so few weights, when one for the whole tensor would cost nothing? Put a single large weight among a million others.

# %%
outlier = weight.clone()
outlier[3, 5] = 2.0
print("relative error            as it is   with one outlier")
for name, code in {
    "int8, one scale": absmax_int8,
    "int8, a scale each row": partial(absmax_int8, group="row"),
    "int8, each 64 weights": partial(absmax_int8, group=64),
    "NF4, each 64 weights": encode_nf4,
}.items():
    off = [(code(x).decode() - x).norm() / x.norm() for x in (weight, outlier)]
    print(f"{name:24} {off[0]:9.1%} {off[1]:14.1%}")
even = [step / 7.5 - 1 for step in range(16)]
viz.plot_levels({"even steps": even, "NF4": nf4_levels().tolist()})

# %% [markdown]
# With one scale the **outlier** makes every step twenty times as long, and a million weights pay for it: eight bits with one scale are worse than four in blocks. In blocks it spoils its own block and no other.
#
# The last line has only four bits, so where should the sixteen levels lie? In the picture a stripe holds the weights that become the same level. With even steps the middle is crowded. Below, the levels lie at *quantiles*, so that they are used more evenly, and one is exactly 0. This format is called **NF4**. Its scales are quantised as well: that is **double quantisation**. Together a weight takes 4.13 bits<!-- =8 * nf4_bytes(2**24) / 2**24 -->.
#
# A layer turns its codes back into bfloat16 where it uses them, forward and backward, and forgets the result each time. LoRA on frozen weights in NF4 is **QLoRA**.
#
# > **To keep.** Frozen weights need few bits, and they need them in blocks: an outlier spoils whatever shares its scale.

# %%
qlora = Recipe(recompute=True, pieces=16, adapters=lora, nf4=True)
bill["and frozen weights in NF4: QLoRA"] = recipe_memory(LLAMA, qlora, sequence=2048)
draw(bill)

# %% [markdown]
# ## All together
#
# From 141 GB<!-- =recipe_memory(load_model("llama3_1_8b"), Recipe(), sequence=2048).total / GB --> to 7.4 GB<!-- =recipe_memory(load_model("llama3_1_8b"), Recipe(recompute=True, pieces=16, adapters=Adapters(rank=16), nf4=True), sequence=2048).total / GB -->, on the same card. Let us use the free two thirds for a sequence 16 times as long.

# %%
steps = {
    "QLoRA alone": Recipe(adapters=lora, nf4=True),
    "and layers recomputed": Recipe(adapters=lora, nf4=True, recompute=True),
    "and the loss in 16 pieces": qlora,
    "full training, with all other savers": Recipe(recompute=True, pieces=16),
}
draw(
    {name: recipe_memory(LLAMA, recipe, sequence=32768) for name, recipe in steps.items()},
    title="Llama 3.1 8B on one card: one sequence of 32,768 tokens",
)

# %% [markdown]
# QLoRA alone does not help here, because activations are nearly everything. Recomputation takes them away, and the loss is left as the longest part. In pieces it is gone, and the third bar fits.
#
# The last bar says what cannot be refused. Whoever trains *all* weights keeps 16 bytes<!-- =16 --> of each; rounding by chance and 8-bit Adam leave 6<!-- =2 + 2 + 2 -->, still 48 GB<!-- =6 * model_parameters(load_model("llama3_1_8b")) / GB -->. At 2,048 tokens, with FSDP, each of eight such cards would keep 16 GB<!-- =state_bytes(model_parameters(load_model("llama3_1_8b")), find_convention("zero")).total / 8 / GB --> of them, and so lesson 06 comes back.
#
# > **To keep.** Most savers remove different bytes, so they add up. What must be trained must be kept, and only ranks can share that.

# %% [markdown]
# ## Prove it
#
# Under FSDP frozen weights are sharded like all others, but only adapters have gradients and states. Four ranks train them beside weights in NF4, and climb the ladder.

# %% varies="the last digits of rounding differ between processors"
TINY = ModelConfig(
    name="tiny",
    hidden_size=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=64,
    vocab_size=512,
    tied=False,
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32, ragged=True)


def adapted(codes=False):
    model = Decoder(TINY)
    for weight in model.parameters():
        weight.data.mul_(2.0)  # nobody has trained them, and adapters change only what matters already
    maps = ("layers.*.attention.*_proj", "layers.*.ffn.*_proj", "head")
    return add_lora(quantise(model) if codes else model, rank=4, alpha=16, targets=maps)


def one_device(train):
    return Trainer(adapted(codes=True), train)


def sharded(train):
    return Trainer(adapted(codes=True), train, mesh=make_mesh(dp=4), apply=(fully_shard(),))


report = assert_parallel_equals(one_device, sharded, text, world_size=4)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# On every rung the four ranks are one device. FSDP gathers the codes as they are.

# %% [markdown]
# ## Bug museum
#
# Two more trainings of adapters, on four ranks and without codes. One is sound, and the other has a bug that was found in a well-known library. Would you trust A or B?


# %% varies="thirty steps of rounding differ between processors"
def plain_alone(train):
    return Trainer(adapted(), train)


def plain_on_ranks(train, *bugs):
    return Trainer(adapted(), train, mesh=make_mesh(dp=4), apply=(replicate(), *bugs))


bug = museum.ADAPTER_BUGS[sorted(museum.ADAPTER_BUGS)[1]]
makers = {"A": bug.planted(plain_on_ranks), "B": plain_on_ranks}
curves = {"one device": museum.curve_alone(plain_alone, text.batch, 30)}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, text.batch, world_size=4, steps=30)
losses = {name: curve.losses for name, curve in curves.items()}
subtitle = "loss in nats; the broad grey line is one device"
viz.plot_loss_curves(losses, title="Which of these runs would you trust?", subtitle=subtitle)

# %% [markdown]
# Suppose that one of the two runs has an adapter of its own on each rank, and nobody averages its gradients. On which rung would you look for it, if all outputs are right?

# %%
from textwrap import fill

falls = dict.fromkeys(makers)
for run, make in makers.items():
    try:
        assert_parallel_equals(plain_alone, make, text, world_size=4, rungs=RUNGS[:5])
    except NotEqual as error:
        falls[run] = error
for run, error in falls.items():
    print(f"run {run}", f"falls on: {error.rung}" if error else "is equal on every rung")
    if error:
        for words_of_it in str(error).split("; ", 2)[1:]:
            print(fill(words_of_it[:440], 105, initial_indent="    ", subsequent_indent="    "))

# %% [markdown]
# $B$ is born 0 on every rank, so it does not matter which $A$ stands behind it, and every output is right. The gradients of $B$ are the first thing that differs.
#
# The model was shared out first, and the adapters came [afterwards](https://github.com/huggingface/transformers/pull/48792), so nobody told the ranks of them. Each trains one on a quarter of the rows, and rank 0 saves its own.
#
# > **To keep.** Add adapters before you share out the model, and look at gradients: with $B = 0$ every output is right.
#
# ## In PyTorch alone
#
# [`scripts/11_adapters.py`](scripts/11_adapters.py) has LoRA by hand under PyTorch's FSDP, and compares each adapter with one device's. [`scripts/11_checkpoint_and_accumulate.py`](scripts/11_checkpoint_and_accumulate.py) recomputes layers under DDP with gradient accumulation, and counts what waits for backward:
#
# `torchrun --nproc-per-node 4 scripts/11_adapters.py`
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `checkpoint_layers` | `torch.utils.checkpoint.checkpoint` | one call of a function; say `use_reentrant=False` |
# | `tiled_attention` | `scaled_dot_product_attention` | leaves its kernel without a word for some arguments |
# | `add_lora` | `peft.get_peft_model` | a library of Hugging Face's |
# | `quantise` | `bitsandbytes`, `load_in_4bit` | there the 4-bit default is another format, FP4 |
#
# Your turn: in the first script, let each rank draw the model from a seed of its own. Which difference does the assertion name?
#
# ## When to use which
#
# | what hurts | take | it costs |
# | --- | --- | --- |
# | scores | attention in tiles, always | nothing |
# | activations, and more than one sequence at a time | gradient accumulation | hardly anything |
# | activations of a single sequence | recompute each layer | a third more computing |
# | logits, once layers are recomputed | the loss in pieces | the head's product once more |
# | what lasts, and a small change will do | LoRA | freedom; it saves time only in large models |
# | frozen weights | NF4 in blocks | digits, and some time |
# | what lasts, and everything is to be trained | more ranks, lesson 06 | a network |
#
# ## The file behind this lesson
#
# [`course_lib/savers/lora.py`](../course_lib/savers/lora.py), about 80 lines, is the adapter that you have just proven. Beside the formula it has an error for a pattern that names no map.
#
# ## What still hurts
#
# One card is enough now. But elsewhere somebody's sixteen GPUs stand still, and nobody says why. Lesson 12 goes there.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/11_memory_savers.ipynb), then [lesson 12](12_on_the_cluster.ipynb).
#
# <details><summary>1. Somebody trains in pure bfloat16, and the loss falls well for a day and then stops. What would you look at?</summary>
# The share of weights that no longer move in a step. If it is large, the updates are rounded away: master weights, or stochastic rounding.
# </details>
#
# <details><summary>2. A colleague recomputes the whole model as one function, and is out of memory as before. Why?</summary>
# When backward begins the function runs again, and then all that it keeps is there at once.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## One saver after another, in one training
#
# A small model has read Shakespeare for a while, and shall now learn Python, from a file of PyTorch's own. The first row is not trained at all. Nine runs then read the same rows, and in every one but the first, one saver is on. Four of them compute in sixteen bits: **autocast** keeps the weights in float32 and shortens what goes into a product, a **policy** shortens the weights and keeps a master copy of each, and *pure* bfloat16 has none: its weights are rounded to the nearest number, or by chance.

# %% varies="measured times, and rounding that differs between processors"
from dataclasses import replace
from pathlib import Path

from course_lib.gauges import plain_run
from course_lib.savers import AdamW8bit

torch.manual_seed(0)
tuned, rows_of = (
    Decoder(replace(SMALL, vocab_size=512, n_layers=2)),
    partial(Batches, batch_size=4, sequence=64),
)
plain_run(tuned, rows_of(text=tokens), steps=60, rate=3e-3)  # Shakespeare
python = rows_of(text=tokenizer.encode(Path(F.__file__).read_bytes()))
recomputed, RATE = deepcopy(tuned), 1e-4
checkpoint_layers(recomputed.layers)
runs = {
    "not trained": (deepcopy(tuned), {"rate": 0.0}),
    "full, in float32": (deepcopy(tuned), {}),
    "autocast": (deepcopy(tuned), {"autocast": True}),
    "policy, with master copies": (deepcopy(tuned).bfloat16(), {"rounding": "master"}),
    "pure bfloat16": (deepcopy(tuned).bfloat16(), {}),
    "rounded by chance": (deepcopy(tuned).bfloat16(), {"rounding": "stochastic"}),
    "Adam in 8 bits": (deepcopy(tuned), {"optimizer": AdamW8bit}),
    "layers recomputed": (recomputed, {}),
    "LoRA": (add_lora(deepcopy(tuned), rank=8), {"rate": 10 * RATE}),
    "QLoRA": (add_lora(quantise(deepcopy(tuned)), rank=8), {"rate": 10 * RATE}),
}
found = {
    name: plain_run(model, python, steps=30, **{"rate": RATE, **how})
    for name, (model, how) in runs.items()
}
print(f"{'':26}     lasts      waits   times as long   loss of the last ten")
for name, run in found.items():
    ratio, end = run.seconds / found["full, in float32"].seconds, sum(run.losses[-10:]) / 10
    print(f"{name:26} {run.lasting_bytes / 1e6:6.2f} MB  {run.waiting_bytes / 1e6:6.2f} MB", end="")
    print(f" {ratio:13.2f} {end:15.3f}")
same = found["layers recomputed"].losses == found["full, in float32"].losses
print("with and without recomputation the losses are equal, bit by bit:", same)
shown = ("full, in float32", "layers recomputed", "pure bfloat16", "Adam in 8 bits", "LoRA", "QLoRA")
viz.plot_loss_curves({name: found[name].losses for name in shown}, title="One saver after another")

# %% [markdown]
# Compare the three rows below *not trained*: autocast and the policy change what waits, and not one byte of what lasts. The policy shortens more, because autocast leaves the norms in float32 and keeps a short copy of each weight. Pure bfloat16 halves what lasts, for its averages are short as well, and its loss stays behind, for small updates are rounded away. Rounded by chance the loss is back, with 4 bytes<!-- =4 --> a parameter fewer than with a master copy.
#
# So five savers cannot be told from full training by their loss, and recomputed layers not in a single digit. LoRA learns less in these thirty steps, although its learning rate is ten times as large, and QLoRA nearly as much as LoRA: four bits cost hardly any loss here. What they cost is seconds, like 8-bit Adam, which on a CPU encodes and decodes its averages in each step.
#
# Each saver is a word of `train`, on any number of ranks, and all but the loss in pieces also on a folder of Hugging Face. `doctor` takes the same words, and prints the bill before anything starts:
#
# ```text
# python -m course_lib train model=tiny_llama adapter=lora rank=8 precision=autocast recompute=layers loss_chunks=16 dp=2
# ```
#
# ## What it forgets
#
# One price stands in no bar. The model could read Shakespeare, and while it learns Python it forgets some of that. Let it read a little longer first. Then teach it Python in four ways, and ask for two losses: on Python, and on Shakespeare, both on rows that no run has read.
#
# **Predict.** Which way forgets least: full training, LoRA of rank 8, LoRA of rank 1, or (IA)³, which trains one factor for each key, value and inner feature?

# %% varies="rounding that differs between processors"
plays = rows_of(text=tokens)
plain_run(tuned, plays, steps=60, rate=3e-3)


@torch.no_grad()
def new_rows_loss(model, rows):
    pairs = [rows.batch(step) for step in range(100, 108)]  # the runs read the first sixty
    return sum(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in pairs) / len(pairs)


learners = {
    "full training": (deepcopy(tuned), 1e-3),
    "LoRA, rank 8": (add_lora(deepcopy(tuned), rank=8), 1e-2),
    "LoRA, rank 1": (add_lora(deepcopy(tuned), rank=1), 1e-2),
    "(IA)^3": (add_ia3(deepcopy(tuned)), 1e-2),
}
for model, rate in learners.values():
    plain_run(model, python, steps=60, rate=rate)
both = {
    name: (new_rows_loss(model, python), new_rows_loss(model, plays))
    for name, (model, _) in learners.items()
}
predict(
    "forgets least",
    guess=None,
    answer=min(both, key=lambda name: both[name][1]),
    think="how far a model can go from where it was",
)
before = new_rows_loss(tuned, python), new_rows_loss(tuned, plays)
for name, (new, old) in {"before": before, **both}.items():
    print(f"{name:15} Python {new:.2f}, Shakespeare {old:.2f}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Read the two columns against each other: here, whatever learns more Python forgets more Shakespeare. The ends are clear. Between the two ranks it is close, and another model may have it the other way round. Full training may go anywhere, and goes farthest. An adapter of rank 1 adds to each matrix a single direction, so most of what the matrix did is still there, and (IA)³ only makes louder or softer what the model can do already.
#
# So a small adapter is not merely a saving. If a model shall keep what it can, choose the smallest that learns enough.
#
# </details>
#
# ## Guidelines, checked
#
# Practical guides for fine-tuning give advice like that in the table. Whether it holds depends on the model and on the sequence, so the cell computes what each saver takes off the bill of three Llamas.

# %%
savers = {
    "recompute layers (full training)": (Recipe(), Recipe(recompute=True)),
    "loss in 16 pieces (layers recomputed)": (Recipe(recompute=True), Recipe(recompute=True, pieces=16)),
    "attention in tiles": (Recipe(scores=True), Recipe()),
    "LoRA, r = 16": (Recipe(), Recipe(adapters=lora)),
    "NF4 under LoRA": (Recipe(adapters=lora), Recipe(adapters=lora, nf4=True)),
}
for name, (before, after) in savers.items():
    print(f"{name}: GB saved of how many, for 2,048, 8,192 and 32,768 tokens")
    for size in ("llama3_2_1b", "llama3_1_8b", "llama3_1_70b"):
        pairs = [
            [recipe_memory(load_model(size), r, sequence=s).total / GB for r in (before, after)]
            for s in (2048, 8192, 32768)
        ]
        print(f"    {size:13}", ", ".join(f"{full - less:8,.1f} of {full:8,.1f}" for full, less in pairs))

# %% [markdown]
# | guideline | verdict | because |
# | --- | --- | --- |
# | use sixteen bits by default | holds for bfloat16 | GPUs multiply it faster, and up to half of the activations go; float16 needs loss scaling |
# | sixteen bits halve the memory | refuted | of the states not a byte goes: 16 stay 16 |
# | use flash attention if the GPU supports it | holds | it needs no GPU; on a CPU it needs calls without dropout |
# | use gradient checkpointing for large models | holds if sequences are long | at 2,048 tokens it saves little of an 8B, at 32,768 half |
# | checkpoint every $\sqrt{L}$ layers | refuted | a layer keeps 20 inputs, so groups of one or two are best |
# | put LoRA on all linear layers | holds if memory allows | the adapters keep all inputs; queries and values alone keep a fifth less |
# | LoRA is faster | holds if matrices are large | two thirds by the formula; in a small model about as long, as you measured |
# | 8-bit weights save four times | refuted | twice, against the sixteen bits that you have |
# | 4-bit weights save four times | holds, for frozen maps; embedding and head stay in bfloat16 | 3.9 times with their scales, and nothing of the activations |
# | raise accumulation to fit a larger batch | holds | activations are those of one micro-batch, if each has its own backward |
#
# ## Which adapters keep what
#
# (IA)³ trains no matrix at all. LoRA may stand beside queries and values only. And one may freeze all but the last layer. Which one keeps the smallest share of the activations?

# %%
last_alone = deepcopy(whole).requires_grad_(False)
last_alone.layers[3].requires_grad_(True)
variants = {
    "LoRA, all maps": with_lora,
    "LoRA, rank 64": add_lora(deepcopy(whole), rank=64),
    "LoRA, queries and values": add_lora(
        deepcopy(whole), targets=("layers.*.attention.q_proj", "layers.*.attention.v_proj")
    ),
    "(IA)^3": add_ia3(deepcopy(whole)),
    "the last layer alone": last_alone,
}
for name, model in variants.items():
    share = saved_bytes(model, partial(loss_on, model)) / everything
    numbers = sum(x.numel() for x in model.parameters() if x.requires_grad)
    print(f"{name:25} trains {numbers:7,} numbers, keeps {share:.2f} of the activations")

# %% [markdown]
# Where an adapter sits decides, and not how small it is. (IA)³ trains least and keeps nearly all. Freezing *lower* layers saves what no adapter does, because the gradient need not go there.
#
# ## Adapters where ranks share matrices
#
# Where tensor parallelism gives each rank some *columns* of the output, $B$ is cut as $W$ is, and every rank has all of $A$. Where it cuts the input, $A$ is cut and $B$ is whole. So the sum over the ranks that is missing lies between the two, where a token has only $r$ numbers.


# %%
def cut_adapter():
    model = add_lora(Decoder(TINY), rank=4)
    trainer = Trainer(model, TrainConfig(), mesh=make_mesh(tp=2), apply=(tensor(),))
    return {name: tuple(x.shape) for name, x in trainer.local.parameters.items() if name[-1] in "AB"}


whole_shapes = {name: tuple(x.shape) for name, x in add_lora(Decoder(TINY), rank=4).named_parameters()}
shapes = run_ranks(cut_adapter, 2)[0]
for name in ("attention.q_proj.A", "attention.q_proj.B", "attention.o_proj.A", "attention.o_proj.B"):
    name = f"layers.0.{name}"
    print(f"{name:27} {whole_shapes[name]!s:8} on each of two ranks: {shapes[name]}")

# %% [markdown]
# Queries are cut by columns, so the half of $B$ that a rank has makes its half of the output, and in backward the gradients of the $r$ numbers are added up. The output matrix is cut by its input, so there the $r$ numbers themselves are added up, forward. No gradient of $A$ or $B$ is sent, unless ranks share positions as well, and whoever forgets that has a bug of our museum.
#
# ## Loss scaling
#
# The other 16-bit format, float16, has more digits than bfloat16 and a smaller range: it ends at 65,504, and small gradients become 0. So the loss is multiplied by a large number, its **loss scale**, and the gradients are divided by it before the update. If one overflows, the step is skipped and the scale is halved. After many good steps it is doubled. What if it overflows on one rank alone, as may happen where ranks share a matrix?


# %%
def one_overflows():
    rank = torch.distributed.get_rank()
    said = []
    for group in (None, torch.distributed.group.WORLD):
        scaler = LossScaler(scale=4.0)
        gradient = torch.tensor([torch.inf if rank == 1 else 8.0])
        scaler.unscale_([gradient], group)
        said.append(f"{'skips' if scaler.skips else 'steps'}, scale {scaler.scale:g}")
    return said


for rank, (without, with_group) in enumerate(run_ranks(one_overflows, 2)):
    print(f"rank {rank}: asks nobody: {without:15} asks the others: {with_group}")

# %% [markdown]
# If each rank asks only itself, one makes the step and the other does not, and from then on they hold parts of two different models. One all-reduce of a single number mends it. PyTorch's `GradScaler` makes it under FSDP, and not where you cut matrices yourself.
#
# ## When attention leaves its kernel
#
# `scaled_dot_product_attention` chooses a kernel for itself. For some arguments there is none, and then it makes all scores and says nothing.

# %% varies="which kernels there are differs between processors"
from course_lib.gauges.attention_kernels import attention_calls

for call in attention_calls(heads=4, sequence=512, head_size=32):
    print(f"{call.arguments:32} {call.kernel:24} keeps {call.kept_bytes / 1e6:5.1f} MB")

# %% [markdown]
# Look at the last lines. On a CPU a little dropout, or a mask that is learnt, brings the scores back; a GPU has other kernels with other rules.
#
# ## A compiler that chooses what to keep
#
# In *Compute twice* a layer kept its input alone or everything. `torch.compile` sees each operation of a layer, so it can choose among them: it weighs the bytes of each result against the operations that it cost. How much may be kept is its **memory budget**, a number between 0 and 1. At 1 the compiler decides as it does by default, and at 0 it keeps only what goes into the function. A number between moves the limit between these two, so that one half allows half of the difference.
#
# We compile the nine layers of *Compute twice* one by one, and at the end the whole model as one function. The back end here generates no code of its own, so you need no C++ compiler, and it saves bytes but no time. For a GPU leave `backend=` out.

# %% varies="measured times, and the last bytes that PyTorch allocates"
from torch._functorch import config as compiler

print(f"{'nothing recomputed':27} keeps all,     {peaks[0] / 1e6:4.1f} MB at most")
print(f"{'layers recomputed by hand':27} keeps inputs,  {peaks[1] / 1e6:4.1f} MB at most")
for budget, as_one in ((1.0, False), (0.5, False), (0.1, False), (0.0, False), (0.0, True)):
    torch.compiler.reset()  # forget what was compiled with another budget
    model = Decoder(DEEP)
    for part in [model] if as_one else model.layers:
        part.compile(backend="aot_eager_decomp_partition")
    with compiler.patch(activation_memory_budget=budget):  # a function is compiled when it first runs
        train_step(model)
        kept = saved_bytes(model, partial(loss_on, model))
        peak, time = peak_bytes(partial(train_step, model)), own_seconds(partial(train_step, model))
    name = f"{'as one' if as_one else 'layer by layer'}, budget {budget}"
    print(f"{name:27} keeps {kept / 1e6:4.1f} MB, {peak / 1e6:4.1f} MB at most, ", end="")
    print(f"{time / seconds[0]:.1f} times as long")

# %% [markdown]
# At a budget of 1 the compiler already stands lower than a model in which nothing is recomputed, because it makes again what is cheap, element by element. At one half the peak has fallen by two fifths. At one tenth it is down to about what layers recomputed by hand need, and stays there. This lowest peak is reached when backward has made one layer whole again, on top of the gradients of the weights.
#
# The last line keeps least of all and stands highest of those compiled. The compiler took the whole model for a single function, which is the group of nine layers once more.
#
# > **To keep.** Within each function that you compile, the compiler chooses what is kept, and the budget limits it. If it is well below one half, compile layer by layer.
#
# ## The bill, paid on a GPU
#
# `make gpu` trains Llama 1B and 8B under the recipes of this page, two micro-batches a step, and asks PyTorch what is allocated when the second loss is there. On an H200 (29 November 2026) the formula was off by at most 0.54 %<!-- =100 * max(abs(one.off) for one in gauges.savers_on_gpu.recorded()) --> in all nineteen cases. Only cuBLAS's rooms to work in are left out, which are the same whatever is trained.
#
# Backward goes higher, for a while: beside the log-probabilities, which it keeps, it makes their gradient and then the logits', both as large and in float32. With 8,192 tokens the 1B stands at 24.6 GB<!-- =next(one.found.loss for one in gauges.savers_on_gpu.recorded() if one.sequence == 8192 and one.recipe == "all weights, recomputed") / GB --> when its loss is there, and climbs to 33.0 GB<!-- =next(one.found.peak for one in gauges.savers_on_gpu.recorded() if one.sequence == 8192 and one.recipe == "all weights, recomputed") / GB -->. With the loss in sixteen pieces it is 20.4<!-- =next(one.found.loss for one in gauges.savers_on_gpu.recorded() if one.sequence == 8192 and one.recipe == "all weights, recomputed, loss in 16 pieces") / GB --> and 22.0 GB<!-- =next(one.found.peak for one in gauges.savers_on_gpu.recorded() if one.sequence == 8192 and one.recipe == "all weights, recomputed, loss in 16 pieces") / GB -->: on a GPU the pieces save more than the bar shows.
#
# ## What else is there
#
# **The end of an adapter**: after training you may add $s\,BA$ to $W$, and the adapter costs nothing any more. This is called **merging**. But if $W$ lies in bfloat16, an update of a few thousandths is rounded when it is merged, as our weights were at the beginning. Keep the adapter beside its matrix, or merge in float32; in exercise 11.6 you measure what is lost.
#
# **Dropout under recomputation**: a layer that draws new random numbers when it is recomputed has gradients of a forward that never was, and nothing says so. `checkpoint_layers` puts the random state back, and so does PyTorch's `checkpoint`, unless `preserve_rng_state=False`. In exercise 11.3 you write it.
#
# **Selective checkpointing** keeps what took long to compute and recomputes the rest: `checkpoint_layers(…, keep="matmuls")`. On a GPU that is a good compromise.
#
# **8-bit Adam** keeps its two averages in codes of eight bits, in blocks: 6 bytes<!-- =6 --> fewer a parameter. It is for those who train everything.
#
# **The scale of an adapter** is $\alpha/r$ in the paper. For large $r$ that is too small, and $\alpha/\sqrt{r}$ holds better.
#
# **Averaging adapters** that each rank trained for itself repairs nothing: the product of two means is not the mean of the products. Two bugs of adapters in real libraries stand in [the wild wing](../wild/RESULTS.md): each rank's own, with a loss that is off by a fiftieth of a per cent, and a checkpoint that held the first rank's part alone.
#
# **Merging QLoRA**: an adapter was learnt beside the weights that the *codes* say. Merged onto the original weights it meets another model, and the error may be larger than what was learnt.
#
# References: Chen et al. 2016, *Training deep nets with sublinear memory cost*; Micikevicius et al. 2018, *Mixed precision training*; Gupta et al. 2015, *Deep learning with limited numerical precision*; Dao et al. 2022, *FlashAttention*; Wijmans et al. 2024, *Cut your losses in large-vocabulary language models*; Hu et al. 2021, *LoRA*; Liu et al. 2022, *Few-shot parameter-efficient fine-tuning*; Dettmers et al. 2022, *LLM.int8()* and *8-bit optimizers*; Dettmers et al. 2023, *QLoRA*; Korthikanti et al. 2022, *Reducing activation recomputation*; Kalajdzievski 2023, *rsLoRA*.
