# %% [markdown]
# # 01 · Why distributed: two GPUs, one Llama
#
# A colleague has a plan. In bfloat16 each parameter of Llama 3.1 70B takes 2 bytes<!-- =find_convention("zero").weights -->, which makes 141 GB<!-- =2 * model_parameters(load_model("llama3_1_70b")) / GB --> for all. An H100 has 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB -->, and the lab has two of them. "So they hold the model. Let us train it."
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, costs, predict, run_ranks, score, viz
from course_lib.costs import GB, LLAMA_3_1_8B, ModelConfig, ParallelConfig, load_device, load_model
from course_lib.gauges import saved_bytes
from course_lib.training import Decoder

# %%
LLAMA, H100 = load_model("llama3_1_70b"), load_device("h100_sxm_80")
P = costs.model_parameters(LLAMA)
half_each = costs.StateBytes(weights=P, gradients=0, optimizer=0)  # 2 bytes a parameter, on two GPUs

viz.plot_states(
    {"GPU 0": half_each, "GPU 1": half_each},
    memory_bytes=H100.memory_bytes(),
    title="The weights of Llama 3.1 70B on two GPUs",
)

# %% [markdown]
# Both bars end before the dashed line, where a GPU is full. So on two GPUs this model could answer questions, but training takes more.
#
# You will learn to
# - say what fills a GPU, from a model's shape alone.
# - share the optimizer's memory among GPUs, and test that the training stays the same.
# - say how many GPUs a model needs to fit, and how many to be ready in time.
#
# *Fifty minutes; the exercises take over three hours.*
#
# <details><summary>Before you start</summary>You need lesson 00, training with Adam, and a rough idea of attention. Everything ran on CPUs; numbers for GPUs are formulas.</details>

# %% [markdown]
# ## How many numbers is a Llama?
#
# Is the colleague's count right? We practise on a smaller Llama, the 8B. A **token**, about a word, becomes a vector of H numbers. Each of L layers adds to it twice, first in **attention**, then in **feed-forward**.
#
# A common rule counts 12 H² a layer, because attention has four matrices of H×H and feed-forward two of H×4H. With H 4096 and L 32 that is 6.4<!-- =12 * 32 * 4096**2 / 1e9 --> billion, not 8.
#
# The rule leaves out two tables. The **embedding** turns a token into its vector, and the **head** scores the next token. Each has a vector for each of 128,256 tokens. **Predict** their parameters. Do they close the gap?

# %%
exact, parts = costs.model_parameters(LLAMA_3_1_8B), costs.parameters_by_part(LLAMA_3_1_8B)
predict(
    "parameters of the two tables",
    guess=None,
    answer=parts["embedding"] + parts["head"],
    tolerance=0.02,
    think="how long a vector is in this model, and how many vectors there are",
)
viz.plot_anatomy(LLAMA_3_1_8B)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The tables add only 1.05<!-- =2 * 128256 * 4096 / 1e9 --> billion, so half a billion is missing. Look at the two largest counts:
#
# - Feed-forward has **three** matrices of H×F, and its inner size F is 14,336. That is almost a third more than the rule's two matrices of H×4H.
# - In attention, keys and values are only a quarter of H wide, because four heads of queries share one of keys and values. So attention has five eighths of what the rule counts.
#
# Feed-forward is the larger part, so it adds more than attention takes away: just the half billion.
#
# </details>
#
# The next cell writes the count down for any shape, beside that of the library's `costs` and that of a decoder which is really built.

# %%
L, H, F_inner, V = (
    LLAMA_3_1_8B.n_layers,
    LLAMA_3_1_8B.hidden_size,
    LLAMA_3_1_8B.ffn_size,
    LLAMA_3_1_8B.vocab_size,
)
K = (
    LLAMA_3_1_8B.n_kv_heads * H // LLAMA_3_1_8B.n_heads
)  # the width of keys and values, here a quarter of H

attention = 2 * H**2 + 2 * H * K  # query and output, then key and value
feed_forward = 3 * H * F_inner
norms = 2 * H  # each rescales a vector by H learned numbers
by_hand = (
    L * (attention + feed_forward + norms) + 2 * V * H + H
)  # the two tables, and a norm before the head
with torch.device("meta"):  # a tensor on this device has a shape and no data
    built = sum(p.numel() for p in Decoder(LLAMA_3_1_8B).parameters())
print(f"by hand {by_hand:,}\ncosts   {exact:,}\nbuilt   {built:,}")

# %% [markdown]
# The three counts agree to the last parameter, so we trust `costs` with the 70B.
#
# > **To keep.** A layer's matrices and two tables: with these you can count any Llama's parameters yourself.
#
# ## How many bytes is a number?
#
# The colleague counted in **bfloat16**, or bf16 for short. Of its sixteen bits, the first is the sign. Eight are the **exponent**, which finds the power of two at or below the number. The last seven are the **mantissa**, which says where the number lies between that power and the next.
#
# What do seven bits mean for training? A bf16 weight is 256, and the optimizer adds 0.9. **Predict** what the weight is now.

# %%
weight = torch.tensor(256.0, dtype=torch.bfloat16)
predict(
    "256 + 0.9 in bf16",
    guess=None,
    answer=(weight + 0.9).item(),
    tolerance=0,
    think="how far apart two neighbours are between 256 and 512, if seven bits number them",
)
for start, update in ((256, 1.1), (256, 1), (1, 0.001)):
    print(f"{start} + {update} = {(torch.tensor(float(start), dtype=torch.bfloat16) + update).item():g}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The weight has not moved, and nothing warned you. From 256 on, neighbours in bf16 are 2 apart, and a sum is rounded to the nearer one. So an update of less than half that distance is lost, like yours, while the slightly larger one of the first printed line moves the weight by a whole 2. The second line is a tie, which goes to the neighbour whose last bit is zero.
#
# The last printed line is the one that hurts. Above 1 the neighbours are closer, 1/128 apart, but a thousandth is still less than half of that. The update is rounded away, in every step.
#
# </details>

# %% [markdown]
# So the optimizer keeps a second copy of each weight in **fp32**, which is twice as long, and adds its updates to this copy. For forward and backward the copy is rounded to bf16, because GPUs multiply matrices faster in bf16. Training in this way is called **mixed precision**.
#
# > **To keep.** Forward and backward compute in bf16, and the optimizer adds up in fp32.
#
# ## What does one parameter cost?
#
# The colleague counted the weights alone. In training, each parameter also has a gradient, which is in bf16 too. The optimizer, Adam, keeps the fp32 copy and two averages in fp32, one of the gradients and one of their squares.
#
# The colleague's 2 bytes<!-- =find_convention("zero").weights --> are a part of that. **Predict** how many times as much one parameter takes in training.

# %%
zero = costs.find_convention("zero")
predict(
    "times the bytes of the weights alone",
    guess=None,
    answer=zero.bytes_per_parameter / zero.weights,
    think="how many numbers belong to one parameter now, and how long each of them is",
)
viz.plot_states(
    {
        "to answer": costs.StateBytes(weights=2 * P, gradients=0, optimizer=0),
        "to train": costs.state_bytes(P, zero),
    },
    title="Llama 3.1 70B: the bytes of all its parameters",
    subtitle=f"one H100 has {H100.memory_bytes() / GB:g} GB",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The lower bar is eight times as long, because a parameter takes 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> in training. Three quarters of them are Adam's, the **optimizer states**: 12 bytes<!-- =find_convention("zero").optimizer -->, for three numbers in fp32. Weights, gradients and optimizer states together are called the model's **states**. For the 70B they are 1129 GB<!-- =16 * model_parameters(load_model("llama3_1_70b")) / GB -->, so they need at least 15<!-- =gpus_needed(16 * model_parameters(load_model("llama3_1_70b")), load_device("h100_sxm_80").memory_bytes()) --> H100s.
#
# > **To keep.** Training takes eight times the bytes of the weights, and most of them are the optimizer's.
#
# </details>

# %% [markdown]
# ## How do GPUs share?
#
# The simplest way to use many GPUs, say 64, shares nothing. In **data parallelism** each GPU has the whole model and reads its own **sequences**, rows of tokens. So each number is stored 64 times, and a model that is too large for one GPU is too large for all.
#
# Why should 64 GPUs keep the same number? Let each keep a part. **ZeRO** does so in three stages: the first shares out the optimizer states, the second also the gradients, the third also the weights.
#
# **Predict** how many GB of the 70B's states each GPU keeps under ZeRO-1. Does that fit?

# %%
stages = [costs.state_bytes(P, zero, zero_stage=stage, shards=64) for stage in range(4)]
predict(
    "GB on each of 64 GPUs under ZeRO-1",
    guess=None,
    answer=stages[1].total / GB,
    unit="GB",
    think="which of the 16 bytes stay whole on each GPU, and which are divided by 64",
)
viz.plot_states(
    dict(zip(("all on each", "ZeRO-1", "ZeRO-2", "ZeRO-3"), stages, strict=True)),
    memory_bytes=H100.memory_bytes(),
    title="The states of Llama 3.1 70B on each of 64 GPUs",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In ZeRO-1's bar the optimizer states have nearly vanished, and in ZeRO-2's the gradients too. Still both end beyond the line, because each GPU still has 4 bytes<!-- =find_convention("zero").weights + find_convention("zero").gradients --> of every parameter in ZeRO-1, and 2 in ZeRO-2. Only ZeRO-3 shares everything, so it ends before the line, at 17.6 GB<!-- =16 * model_parameters(load_model("llama3_1_70b")) / 64 / GB -->. To compute a layer, a GPU borrows the rest for a moment, which the bar leaves out.
#
# > **To keep.** ZeRO-1 and ZeRO-2 leave something whole on every GPU, and only ZeRO-3 shares all of the states.
#
# </details>
#
# ## ZeRO-1 on real ranks
#
# Is a training under ZeRO-1 still the same? Cut the weights into chunks, one for each rank. After backward, a rank needs only its chunk of the summed gradient. After its step, everybody needs all new weights. Two collectives do just that.

# %%
display(viz.who_holds_what("reduce_scatter", 3), viz.who_holds_what("all_gather", 3))

# %% [markdown]
# Each row is a rank, and each column a chunk. The first picture, a **reduce-scatter**, shows what happens to the gradients. On its right every rank has one finished chunk, in all colours because every rank has added to it. Rank 1 has chunk 1, so its Adam changes chunk 1 of the weights, and keeps averages for it alone. Before the reduce-scatter each rank still held its whole gradient, which ZeRO-2 will avoid.
#
# The second picture, an **all-gather**, shows what happens to the new weights. A rank has made only the coloured chunk new, and its grey ones are still the old weights. Then everybody gets all new chunks for the next forward.


# %%
def train_zero_1(weights, gradients, make_optimizer):
    """`gradients` are this rank's own, one for each step."""
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].clone())  # this rank's chunk
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = comm.reduce_scatter(gradient) / p  # the average of all ranks, for this chunk
        optimizer.step()
        weights = comm.all_gather(mine.detach(), length=len(weights))
    return weights, optimizer.state[mine]  # the latter is what the optimizer keeps


# %% [markdown]
# To know whether that is right, we let one device take the same steps alone, with the average of all gradients. There are three steps, and 13 weights, which three ranks cannot share evenly. SGD goes first, because Adam divides each gradient by its own recent size, which would hide a forgotten `/ p`. We may make the gradients up, because ZeRO-1 changes only what comes after backward.

# %%
torch.manual_seed(0)
weights, gradients = torch.randn(13), torch.randint(-4, 5, (3, 3, 13)).float()  # [rank][step][weight]


def train_alone(make_optimizer):
    alone = torch.nn.Parameter(weights.clone())
    optimizer = make_optimizer([alone])
    for gradient in gradients.mean(dim=0):
        alone.grad = gradient
        optimizer.step()
    return alone.detach()


def count_who_agree(name, results, alone):
    agree = sum(torch.allclose(new, alone, atol=1e-6) for new in results)
    same = sum(torch.equal(new, results[0]) for new in results)
    print(f"{name:13} of 3 ranks, {agree} agree with one device, and {same} with rank 0")


def train_together(make_optimizer):
    return train_zero_1(weights, gradients[dist.get_rank()], make_optimizer)


for make in (torch.optim.SGD, torch.optim.AdamW):
    pairs = run_ranks(train_together, 3, make)
    count_who_agree(make.__name__, [new for new, _ in pairs], train_alone(make))
print(
    "numbers in Adam's two averages:",
    *((len(state["exp_avg"]), len(state["exp_avg_sq"])) for _, state in pairs),
)

# %% [markdown]
# So in fp32 the steps are the same, up to rounding, and yet each of Adam's two averages has only 5 or 4 numbers on a rank, instead of 13.
#
# A rank may update its chunk alone, because Adam looks at one weight at a time. *Going deeper* has a step that looks at all of them.
#
# > **To keep.** ZeRO-1 is data parallelism with a reduce-scatter before the optimizer, and an all-gather after it.
#
# ## What does backward need?
#
# The states are not all that fills a GPU. Backward computes with numbers that forward has found on its way, so these have to be kept. They are called **activations**, and unlike the states they grow with the sequence.
#
# We test the library's formula on a small fp32 decoder, and count what autograd really keeps, without the weights.

# %%
small = ModelConfig(
    name="small",
    hidden_size=256,
    n_layers=4,
    n_heads=8,
    n_kv_heads=2,
    ffn_size=704,
    vocab_size=1000,
    tied=False,
)
torch.manual_seed(0)
model = Decoder(small)
tokens, targets = torch.randint(1000, (2, 2, 64)).unbind()  # two sequences of 64 tokens


def small_loss(model):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


shape = {"batch": 2, "sequence": 64, "itemsize": 4}
layer = costs.layer_activations(small, **shape)
head = sum(kept.nbytes for kept in costs.head_activations(small, **shape))
formula = small.n_layers * sum(kept.nbytes for kept in layer) + head
print(f"kept by autograd {saved_bytes(model, lambda: small_loss(model)):,}\nformula          {formula:,}")
viz.plot_saved(layer, title="What one layer of the small decoder keeps for backward")

# %% [markdown]
# The missing 4 bytes<!-- =4 --> are one number, the count of targets, which the loss keeps. The picture leaves out head and loss.
#
# Why keep these tensors? The gradient of a product needs both factors, so forward keeps what each matrix reads and what each product multiplies. The four longest bars belong to feed-forward, where a token's vector has not H but F numbers. Its first two matrices make *gate* and *up*. A function, silu, bends *gate*, and the result times *up* is *gated*, which the third reads.
#
# Attention's scores, one for each pair of tokens, are missing, because PyTorch computes them again in backward. So activations grow with the sequence's length, not with its square.

# %% [markdown]
# How much is that for the 70B, in bf16? It has 80 layers, its H is 8192 and its F is 28,672, while *key* and *value* have 1024 numbers for each token.
#
# Find in the picture how many tensors of each width a layer keeps. Leave out the two *normalised* ones, which a GPU computes again in backward, and the last two bars, which together are below half a percent in the 70B. A sequence has 4096 tokens. **Predict** what all layers keep of it for backward.

# %%
one = costs.layer_activations(LLAMA, batch=1, sequence=4096, itemsize=2, fused_norms=True)  # as on GPUs
predict(
    "GB of activations, all layers",
    guess=None,
    answer=LLAMA.n_layers * sum(kept.nbytes for kept in one) / GB,
    unit="GB",
    tolerance=0.02,
    think="which bars have F numbers for each token, and which have H; then tokens, layers and bytes",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Four tensors have F numbers for each token, six have H, and two have 1024. Times the tokens, the layers and 2 bytes<!-- =2 --> for each number, that makes 108.7 GB<!-- =(4 * 28672 + 6 * 8192 + 2 * 1024) * 2 * 4096 * 80 / GB -->, and the small bars are the rest. That is more than an H100 has, for a single sequence, and the states come on top!
#
# Yet a layer's forward starts from its input alone: H numbers for each token, a twentieth of what is kept. So keep the input, throw the rest away, and run the layer's forward once more when backward reaches it. This is **activation checkpointing**, or **recomputation**. Its price is a second forward of all layers in every step.
#
# > **To keep.** Activations grow with the sequence, and activation checkpointing trades most of them for a second forward.
#
# </details>

# %% [markdown]
# ## So, how many GPUs?
#
# Now put states and activations of the 70B together, on 64 GPUs under ZeRO-3. Each GPU reads a sequence of its own. It keeps 17.6 GB<!-- =16 * model_parameters(load_model("llama3_1_70b")) / 64 / GB --> of states, and the sequence's activations, or only the layers' inputs if it recomputes. **Before you run the next cell**, say how many GB recomputing needs at least.

# %%
from dataclasses import replace

sixty_four = ParallelConfig(dp=64, zero_stage=3)
text = costs.Work(sequence=4096, microbatch=1)
rows = {
    "everything is kept": costs.tensor_memory(LLAMA, sixty_four, text, zero),
    "layers are recomputed": costs.tensor_memory(
        LLAMA, sixty_four, replace(text, recompute="layers"), zero
    ),
}
viz.plot_gpu_memory(rows, H100, unit="GB", title="Llama 3.1 70B on each of 64 GPUs, under ZeRO-3")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In the first bar the light blue activations end far beyond the line, because each GPU has its own sequence, and ZeRO shares only states. In the second, each layer keeps its input alone, which makes 5.4 GB<!-- =80 * 4096 * 8192 * 2 / GB --> on top of the states. So you could say at least 23.0 GB<!-- =(16 * model_parameters(load_model("llama3_1_70b")) / 64 + 80 * 4096 * 8192 * 2) / GB -->.
#
# What is the rest of that bar? While a layer runs again, what it keeps beside its input adds some light blue. The dark grey **gathered** weights are those that ZeRO-3 borrows for a moment, at most embedding and head together. And head and loss keep something for backward.
#
# > **To keep.** ZeRO shares the states, and recomputation shrinks the activations. A large model needs both.
#
# </details>

# %% [markdown]
# Recomputing is not the only way out. Several GPUs can work on one sequence together, if each computes with a part of every matrix. Then each also keeps only a part of the activations. This is **tensor parallelism**, and it costs messages inside each layer.
#
# Your turn: in JupyterLab the next cell has sliders. `tp` is how many GPUs share a sequence, and `dp` how many sequences are read side by side. You may also recompute. Leave `pp` and the micro-batch at 1. You start on 32 GPUs, with a little too much. **On how few H100s can you make it fit, with 4096 tokens?** The states alone needed 15<!-- =gpus_needed(16 * model_parameters(load_model("llama3_1_70b")), load_device("h100_sxm_80").memory_bytes()) -->; a question at the end has an answer.

# %%
viz.memory_explorer()

# %% [markdown]
# ## How long does it take?
#
# So much for memory. Now time. To know when a training ends, we count operations. Follow one number of a matrix and one token. Forward multiplies the number by an entry of the token's vector and adds, which makes 2 operations. Backward makes two gradients: one for the matrix, and one for the layer's input, which the layer before waits for.
#
# PyTorch will count them in the small model, on one sequence. We leave the embedding out, because its rows are only looked up.
#
# **Predict** how many operations forward and backward together make with the matrices, for each number and each token.

# %%
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

in_matrices = sum(
    p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name
)
# not every fast attention is counted, so here it runs as plain products, which always are
with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
    F.cross_entropy(model(tokens[:1]).flatten(0, 1), targets[:1].flatten()).backward()
counts = counter.get_flop_counts()["Global"]
with_weights, tokens_with_tokens = counts[torch.ops.aten.mm], counts[torch.ops.aten.bmm]
predict(
    "operations for each number and each token",
    guess=None,
    answer=with_weights / (in_matrices * 64),
    tolerance=0,
    think="what forward does for each number, and how much work each of the two gradients is beside it",
)
print(
    f"with the matrices:    {with_weights:13,} operations\ntokens with tokens: "
    f"  {tokens_with_tokens:13,} operations"
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# It is exactly six, because each gradient is a product as large as forward's. In attention tokens also meet tokens, which the second line counts. That is little here, and 8 %<!-- =(lambda once: 100 * once.scores / (once.matrices + once.head))(costs.forward_flops(load_model("llama3_1_70b"), sequence=4096)) --> more in the 70B with 4096 tokens. The rule of thumb leaves this out: **6 operations for each parameter and token**, or 8 if all layers are recomputed, because then forward comes twice.
#
# </details>
#
# Suppose that the colleague's two GPUs had the memory. Llama 3 read 15 trillion tokens. An H100 promises 989<!-- =load_device("h100_sxm_80").peak_flops_per_s() / 1e12 --> · 10¹² operations a second, but a training reaches only a share of that, its **model FLOPs utilisation** or **MFU**: about 0.4 for the largest Llama 3.
#
# **Predict** how many years the two GPUs would need for the 70B.

# %%
peak, tokens_read = H100.peak_flops_per_s(), 15e12
flops = costs.rule_of_thumb_flops(P, tokens_read)
predict(
    "years of training on two GPUs",
    guess=None,
    answer=costs.training_seconds(flops=flops, gpus=2, peak_flops_per_s=peak, utilisation=0.4)
    / 86400
    / 365,
    tolerance=0.1,
    think="all operations of the training, and those that two GPUs do in a year of some 3 · 10⁷ seconds",
)
print(f"operations needed: {flops:.2e}")
for gpus in (2, 15, 64, 6200):
    seconds = costs.training_seconds(flops=flops, gpus=gpus, peak_flops_per_s=peak, utilisation=0.4)
    print(f"{gpus:6} GPUs: {seconds / 86400 / 365:7.2f} years = {seconds / 86400:7,.0f} days")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# It is 254<!-- =training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_70b")), 15e12), gpus=2, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 365 --> years. You divided the operations of P parameters and T tokens by those that G GPUs do in a second. Each promises R and reaches the share U:
#
# $$\text{time} = \frac{6\,P\,T}{G\,R\,U}$$
#
# How many tokens they read in a second, $G\,R\,U / 6P$, is their **throughput**.
#
# By the printed lines even 64 GPUs would need years, and more if they recompute. A month asks for about 6,200<!-- =round(training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_70b")), 15e12), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 30, -2) -->. So the states ask for fifteen GPUs, but time for thousands.
#
# > **To keep.** Six operations for each parameter and token: with the GPUs' peak and their MFU, that is the time of a training.
#
# </details>

# %% [markdown]
# ## When to use what
#
# Look for your own trouble on the left. The 70B has all of them but the third, because an H100 holds the 13.7 GB<!-- =16 * costs.layer_parameters(load_model("llama3_1_70b")) / GB --> of a layer's states.
#
# | what hurts | what helps | lesson |
# | --- | --- | --- |
# | it takes too long | more GPUs, each with its own sequences | 03 |
# | all layers together are too large | some layers on each GPU, or ZeRO-3 | 04, 06 |
# | one layer is too large | several GPUs share each matrix | 05 |
# | all GPUs store the same states | each GPU keeps a part: ZeRO | 06 |
# | one sequence's activations are too large | recompute, or share each matrix | 01, 05 |
#
# > **To keep.** Ask first what hurts: time, states or activations. Each has its own remedy.

# %% [markdown]
# ## What still hurts
#
# The colleague's two H100s hold the weights and little more. Training takes eight times as much, so the states alone need 15<!-- =gpus_needed(16 * model_parameters(load_model("llama3_1_70b")), load_device("h100_sxm_80").memory_bytes()) --> such GPUs. A sequence's activations fit only if they are recomputed or shared. And even with memory enough, two GPUs would train for 254<!-- =training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_70b")), 15e12), gpus=2, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 365 --> years.
#
# All these GPUs have to talk. Our ZeRO-1 talks in only two lines, a reduce-scatter and an all-gather. But for the 70B each line works on two bytes of every parameter, 141 GB<!-- =2 * model_parameters(load_model("llama3_1_70b")) / GB --> in every step. Who sends what to whom, and how long does that take? Lesson 02 opens the box.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/01_why_distributed.ipynb), then [lesson 02](02_collectives.ipynb).
#
# <details><summary>1. Why does the 70B not fit on a million H100s with ZeRO-1?</summary>
# Weights and gradients stay whole on every GPU, and for the 70B these two alone are more than an H100 has.
# </details>
#
# <details><summary>2. On how few H100s did it fit?</summary>
# On 16: with `tp` 2, ZeRO-3 and full recomputation each takes 76.6 GB<!-- =tensor_memory(load_model("llama3_1_70b"), ParallelConfig(dp=8, tp=2, zero_stage=3, sequence_parallel=True), Work(sequence=4096, microbatch=1, recompute="layers"), find_convention("zero")).total / GB -->. On 15 `tp` must be 1, because the 64 heads can be shared by neither three GPUs nor five, and then each takes 87.3 GB<!-- =tensor_memory(load_model("llama3_1_70b"), ParallelConfig(dp=15, zero_stage=3), Work(sequence=4096, microbatch=1, recompute="layers"), find_convention("zero")).total / GB -->.
# </details>
#
# <details><summary>3. A run that recomputes everything reports 52 %<!-- =52 --> utilisation, and counts its second forward. What is its MFU?</summary>
# Three quarters of that, 39 %<!-- =52 * 6 / 8 -->, because the model needs six of the eight operations.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## Five formats, bit by bit
#
# fp16 is as short as bf16, and its mantissa has three bits more. Is it the better format? Run the cell to see 65520 in five formats. In JupyterLab you can type other numbers.

# %%
viz.float_bits_explorer()

# %% [markdown]
# Each box is a bit: first the sign, then the exponent, then the mantissa. fp16 has only five bits for the exponent, so it ends at 65504, and our number becomes infinity. bf16 has eight exponent bits, as many as the longer fp32, so it reaches about as far. But its neighbours are 256 apart here, and our number became 65536. Both fp8 formats end sooner. e4m3 has no infinity: here PyTorch cuts to 448, where older versions gave nan.
#
# ## The step that looks at everything
#
# Under ZeRO-1 a rank may update its chunk alone, because Adam looks at one weight at a time. Not every step is like that. One odd sequence can make the gradient, taken as one vector, far too long. **Clipping**, PyTorch's `clip_grad_norm_`, then scales all of it down to a limit.
#
# The gradients are those of *ZeRO-1 on real ranks*. With the limit 1, one device scales its gradient to length 1. Now three ranks each clip their own chunk instead. All three chunks are longer than 1. **Predict** how long the whole gradient is then.

# %%
whole = gradients.mean(dim=0)[0]  # of the first step
chunks = whole.tensor_split(3)
print("each chunk's length:", *(f"{chunk.norm():.2f}" for chunk in chunks))
predict(
    "length of the whole gradient",
    guess=None,
    answer=torch.cat([chunk / max(1, chunk.norm()) for chunk in chunks]).norm().item(),
    tolerance=0.02,
    think="Pythagoras: the squares of all 13 numbers add up, and each chunk brings a part of that sum",
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The length is √3, because three squares of 1 make 3. The whole gradient also points elsewhere, because each chunk was scaled by its own factor.
#
# Pythagoras has the remedy too. Each rank adds up the squares of its own numbers, and one all-reduce adds the three sums. The root of the result is the length of the whole, its **norm**.
#
# </details>
#
# The next cell takes the same step of SGD twice, in ZeRO-1's way. The first time each rank clips by its own chunk's length, the second time by that of the whole. **Before you run it**, say how many ranks agree with one device each time, and how many with rank 0.


# %%
def norm_of_chunk(chunk):
    return chunk.norm()


def norm_of_whole(chunk):
    return comm.all_reduce(chunk.square().sum().reshape(1)).sqrt()


def clipped_step(norm_of):
    rank, p = dist.get_rank(), dist.get_world_size()
    chunk = comm.reduce_scatter(gradients[rank][0]) / p
    mine = weights.tensor_split(p)[rank] - 0.1 * chunk / max(1, norm_of(chunk))
    return comm.all_gather(mine, length=len(weights))


alone = weights - 0.1 * whole / max(1, whole.norm())
for norm_of in (norm_of_chunk, norm_of_whole):
    count_who_agree(norm_of.__name__, run_ranks(clipped_step, 3, norm_of), alone)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look at the second line first: all ranks agree with one device. In the first line none does, and yet all three agree with rank 0! They are equally wrong, because the all-gather gives everybody the same weights.
#
# > **To keep.** Ranks can agree and all be wrong, so compare them with one device and not with each other.
#
# </details>
#
# ## What hurts in which Llama?
#
# If yours is not the 70B, look here. *Fewest* and *one layer* count states alone, and *one sequence* counts the activations of 4096 tokens. *30 days* is for 15 trillion tokens at an MFU of 0.4. What hurts most in each: the states, one sequence, or the time?

# %%
print(
    f"{'':15} {'states':>10} {'fewest H100s':>13} {'one layer':>10} "
    f"{'one sequence':>9} {'H100s for 30 days':>18}"
)
for name in ("llama3_1_8b", "llama3_1_70b", "llama3_1_405b"):
    config = load_model(name)
    count = costs.model_parameters(config)
    states = zero.bytes_per_parameter * count
    kept = costs.layer_activations(config, batch=1, sequence=4096, itemsize=2, fused_norms=True)
    needed = costs.rule_of_thumb_flops(count, tokens_read) / (0.4 * peak * 30 * 86400)
    print(
        f"{config.name:15} {states / GB:7,.0f} GB {costs.gpus_needed(states, H100.memory_bytes()):13}"
        f" {16 * costs.layer_parameters(config) / GB:7.1f} GB"
        f" {config.n_layers * sum(tensor.nbytes for tensor in kept) / GB:6,.0f} GB {needed:18,.0f}"
    )

# %% [markdown]
# In all three it is the time: a month asks for 350<!-- =round(training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_8b")), 15e12), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 30 / gpus_needed(16 * model_parameters(load_model("llama3_1_8b")), load_device("h100_sxm_80").memory_bytes()), -1) --> to 430<!-- =round(training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_405b")), 15e12), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 30 / gpus_needed(16 * model_parameters(load_model("llama3_1_405b")), load_device("h100_sxm_80").memory_bytes()), -1) --> times as many H100s as the states. The factor hardly changes, because both grow with the parameters. What changes is the rest: from the 70B on, one sequence is more than an H100 has, and one layer of the 405B has 51 GB<!-- =16 * costs.layer_parameters(load_model("llama3_1_405b")) / GB --> of states.
#
# ## What was left out?
#
# A workshop of the Kempner Institute ([cluster instructions](https://github.com/KempnerInstitute/OLMo/blob/main/README_KempnerInstitute.md)) counted GPUs for a GPT of 65 billion parameters. Its slide *Required Memory Estimation*, which we cannot link, takes 14 bytes<!-- =find_convention("workshop").bytes_per_parameter --> a parameter: 23 GPUs of 40 GB<!-- =load_device("a100_sxm_40").memory_bytes() / GB -->. A batch has 256 sequences. **Before you run the next cell**, say which two things are missing.

# %%
seventy = load_model("olmo_70b_workshop")
parameters = costs.workshop_parameters(seventy)
a100 = load_device("a100_sxm_40")
for name in ("workshop", "zero"):
    states = costs.find_convention(name).bytes_per_parameter * parameters
    print(f"{name:10} {states / GB:7,.0f} GB: {costs.gpus_needed(states, a100.memory_bytes())} GPUs")
for batch in (1, 256):
    nbytes = 2 * costs.workshop_activations(seventy, batch=batch, sequence=4096)
    print(f"activations by its own formula, in bf16, batch {batch}: {nbytes / GB:,.0f} GB")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The gradients are missing. They take 2 bytes<!-- =find_convention("zero").gradients --> a parameter, or four GPUs more. The activations are missing too: by the workshop's own formula, those of the whole batch at once would need about fifty times the states. The slide does say "just loading weights", and 14 bytes<!-- =find_convention("workshop").bytes_per_parameter --> is right for weights and Adam. So whenever you read a number of bytes, ask: bytes *of what*?
#
# </details>
#
# ## Who counts what
#
# Sixteen bytes are one way to train. The next cell draws how papers, talks and manuals count Llama 3.1 70B. Print `costs.CONVENTIONS` for the source of each.

# %%
names = {
    "fp8-lm": "FP8-LM",
    "half": "all in 16 bits",
    "workshop": "the workshop",
    "zero": "ZeRO's paper",
    "fp32": "all in fp32",
    "megatron": "Megatron, bf16",
    "megatron-fp16": "Megatron, fp16",
}
viz.plot_states(
    {shown: costs.state_bytes(P, costs.find_convention(name)) for name, shown in names.items()},
    title="Llama 3.1 70B, counted in several ways",
)

# %% [markdown]
# The counts differ in their formats and in what they leave out. The bars of ZeRO's paper and of fp32 are equally long, but made of different parts. The last bar is the longest, because beside the gradients themselves its yellow holds a copy of them in fp32.
#
# ## A formula belongs to a shape
#
# A workshop of the Kempner Institute counts its OLMo 1B as a GPT: learned positions, biases, two feed-forward matrices.
#
# $$L\,(12H^2 + 10H) + H(V + S) + 2H + V(H + 1)$$
#
# With L 16, H 2048, V 32,100 and S 2048 it gives 941<!-- =workshop_parameters(load_model("olmo_1b_workshop")) / 1e6 --> million. The released OLMo 1B has the same L and H, but three feed-forward matrices of inner size 8192. Keys and values are H wide. It has no biases, no numbers in its norms and no table of positions. Embedding and head are **tied**: one table of 50,304 rows. **Predict** its parameters.

# %%
workshop, real = load_model("olmo_1b_workshop"), load_model("olmo_1b")
predict(
    "parameters of the real OLMo 1B",
    guess=None,
    answer=costs.model_parameters(real),
    tolerance=0,
    think="the matrices of one layer, and the one table",
)
counts = costs.parameters_by_part(workshop), costs.parameters_by_part(real)
print(f"{'':10} {'formula':>15} {'real OLMo 1B':>15}")
for part in costs.PARTS:
    if part in counts[0] or part in counts[1]:
        print(f"{part:10} {counts[0].get(part, 0):15,} {counts[1].get(part, 0):15,}")
print(f"{'together':10} {sum(counts[0].values()):15,} {sum(counts[1].values()):15,}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The formula is exact, for another model. It misses 20 %<!-- =100 * (1 - costs.workshop_parameters(load_model("olmo_1b_workshop")) / model_parameters(load_model("olmo_1b"))) --> of what the real one has. For a Llama, whose keys and values have width K, we counted
#
# $$L\,(\underbrace{2H^2 + 2HK}_{\text{attention}} + \underbrace{3HF}_{\text{feed-forward}} + \underbrace{2H}_{\text{norms}}) + 2VH + H$$
#
# </details>
#
# ## Does the count hold for real tensors?
#
# So far the states were only a product, so many bytes times P. Now the small decoder really takes one step, in fp32, which needs no copy. We count its bytes: 4 for a weight, 4 for its gradient, 8 for Adam's averages.

# %%
optimizer = torch.optim.AdamW(model.parameters())
small_loss(model).backward()
optimizer.step()

expected = costs.state_bytes(costs.model_parameters(small), costs.find_convention("fp32"))
found = {
    "weights": sum(p.nbytes for p in model.parameters()),
    "gradients": sum(p.grad.nbytes for p in model.parameters()),
    "optimizer": sum(x.nbytes for state in optimizer.state.values() for x in state.values()),
}
for name, nbytes in found.items():
    print(f"{name:10} real tensors {nbytes:11,}   formula {getattr(expected, name):11,}")

# %% [markdown]
# Weights and gradients agree to the byte. The optimizer has 156 bytes<!-- =4 * (9 * 4 + 3) --> more, because the model has 39 tensors, and PyTorch keeps a counter of steps for each.
#
# ## More activations, put to the test
#
# What does recomputation really leave? And are printed formulas right? The first cell lets the small decoder recompute its layers. The second holds the best-known formulas, those of Korthikanti, against our count of one layer in bf16. In them s is the sequence's length, b the batch, h our H and a the number of heads. The first keeps everything, *selective* recomputes attention's scores, and *full* the whole layer.

# %%
import copy

from course_lib.savers.checkpointing import checkpoint_layers

again = copy.deepcopy(model)
checkpoint_layers(again.layers)
inputs = sum(kept.nbytes for kept in costs.checkpointed_activations(small, **shape))
print(f"kept with recomputation {saved_bytes(again, lambda: small_loss(again)):,}")
print(f"formula                 {small.n_layers * inputs + head:,}")

# %%
for gap in costs.published_gaps(small, batch=2, sequence=64):
    if "layer" in gap.counts and "Korthikanti" in gap.name:
        print(f"{gap.off:+7.1%}  {gap.name}")

# %% [markdown]
# Recomputation leaves an eighth of 11.3 MB<!-- =(4 * sum(kept.nbytes for kept in costs.layer_activations(ModelConfig(name="small", hidden_size=256, n_layers=4, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=1000, tied=False), batch=2, sequence=64, itemsize=4)) + sum(kept.nbytes for kept in costs.head_activations(ModelConfig(name="small", hidden_size=256, n_layers=4, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=1000, tied=False), batch=2, sequence=64, itemsize=4))) / 1e6 -->, not a twentieth, because head and loss keep all. Our formula lacks 4,100 bytes<!-- =64 * 16 * 4 + 4 -->: the number of targets, and one table of angles for all rotations.
#
# Of the three printed lines the last is exact, because a layer's input is the same in every shape. The second falls short, because it counts a GPT. There feed-forward keeps two wide tensors and not four, and a norm keeps nothing in fp32. The first is a GPT's too, but adds scores, which here nobody keeps, so two errors nearly cancel.
#
# ## Whose utilisation?
#
# LLaMA 65B has 65.2 billion parameters and read 1.4 trillion tokens, in 21 days on 2048 A100s with a peak of 312 TFLOP/s<!-- =load_device("a100_sxm_80").peak_flops_per_s() / 1e12 --> each. A talk by [K. Yuan](https://kunyuan827.github.io/), *Distributed Training for LLM*, prints 0.3. **Predict** its MFU.

# %%
run = costs.LLAMA_65B
predict(
    "MFU of LLaMA 65B",
    guess=None,
    answer=run.model_utilisation(),
    think="which operations the model needs, and which the GPUs could have done in that time",
)
for run in (costs.GPT3_PROJECTED, costs.LLAMA_65B):
    days, mfu, hfu = run.seconds / 86400, run.model_utilisation(), run.hardware_utilisation()
    print(f"{run.name:32} {days:.0f} days: MFU {mfu:.3f}, HFU {hfu:.3f} if all is recomputed")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# With full recomputation the hardware does 8 operations where the model needs 6. Whoever counts all of them gets the **hardware FLOPs utilisation**, or **HFU**. LLaMA recomputed a part, so its HFU lies between the two numbers. The talk's 0.3 is smaller than either. For GPT-3 it prints 0.44, which is the HFU.
#
# The peak matters too. NVIDIA's [data sheet](https://www.nvidia.com/en-us/data-center/h100/) prints twice our peak, "with sparsity": two of each four weights are zero, and skipped.
#
# </details>
#
# References: Rajbhandari et al. 2020, *ZeRO*; Narayanan et al. 2021, *Efficient large-scale language model training*; Korthikanti et al. 2022, *Reducing activation recomputation*; Hoffmann et al. 2022, *Chinchilla*; Touvron et al. 2023, *LLaMA*; Peng et al. 2023, *FP8-LM*; Grattafiori et al. 2024, *Llama 3*.
