# %% [markdown]
# # 05 · Tensor parallelism: two ranks, one matrix
#
# In lesson 04 we cut a model between its layers. How far does that go? Give each layer of the largest Llama 3.1, the 405B, a GPU of its own. Does one layer fit?
#
# At 16 bytes<!-- =16 --> a parameter, the weights, gradients and Adam's states of one layer take 47.5 GiB<!-- =16 * layer_parameters(load_model("llama3_1_405b")) / GiB -->. An H100 has 74.5 GiB<!-- =load_device("h100_sxm_80").memory_bytes() / GiB -->, so they fit. But training also keeps what the layer computes on the way, because backward needs it: its activations. The longer the sequence, the more of them. The cells below try three lengths.
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, costs, ledger, predict, run_ranks, score, viz
from course_lib.costs import (
    INFINIBAND,
    NVLINK,
    GiB,
    KiB,
    Work,
    chain_partition,
    find_convention,
    tensor_memory,
    load_device,
    rank_parameters,
    tensor_step,
)
from course_lib.parallel import RowParallelLinear, coordinates, parameters_at
from course_lib.training import (
    LLAMA_3_1_8B,
    MLP,
    Batches,
    Decoder,
    ModelConfig,
    ParallelConfig,
    TrainConfig,
    Trainer,
    load_model,
    load_text,
    load_tokens,
    make_mesh,
    tensor,
)
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum

# %%
LLAMA_405B, H100 = load_model("llama3_1_405b"), load_device("h100_sxm_80")


def one_layer(tokens, tp=1):
    spread = ParallelConfig(tp=tp, pp=126)  # 126 stages: one layer each
    work = Work(sequence=tokens, microbatch=1)
    convention = find_convention("zero")  # 16 bytes a parameter
    return tensor_memory(
        LLAMA_405B, spread, work, convention, stage=63
    )  # in the middle: no embedding, no output head


whole_layers = {
    f"one sequence of {tokens:,} tokens": one_layer(tokens) for tokens in (8192, 32768, 131072)
}
viz.plot_gpu_memory(whole_layers, H100, title="One layer of Llama 3.1 405B on one GPU")

# %% [markdown]
# Look at the lowest bar, the longest sequence that this Llama reads: one layer is far too much. **Recomputation**, or activation checkpointing, throws activations away and computes them once more in backward. But there a whole layer would be back at once, and one sequence becomes slower still.
#
# So let several GPUs work on the same layer and the same sequence **at the same time**, and share its matrices. Then memory and time shrink together.

# %% [markdown]
# At the end you will be able to
# - cut a matrix in two ways, and say which collective each asks for.
# - cut a decoder layer, and prove that nothing else has changed.
# - say why its GPUs are joined by the fastest wires.
# - find mistakes that a loss curve hides.
#
# <details><summary>Before you start</summary>Fifty minutes. You need lessons 02 to 04. All ran on CPUs over gloo; NCCL and Slurm did not run.</details>
#
# ## On one device
#
# Our object is the perceptron of lesson 03, 38 parameters, with a GELU in the middle.
#
# $$y = W_2\,\text{GELU}(W_1 x + b_1) + b_2$$
#
# Two ranks have to come to the outputs of one device.

# %%
torch.manual_seed(0)
model = MLP(gelu=True)
inputs = torch.randn(8, 6)
w1, b1, w2, b2 = (parameter.detach() for parameter in model.parameters())
right = model(inputs).detach()

viz.plot_mlp(dict(model.named_parameters()), bend="GELU", title="The perceptron, whole")

# %% [markdown]
# ### Two ways to cut a matrix
#
# Give a rank some **rows** of $W$. Each row makes one output, so the rank's outputs are finished. It needs all of $x$.
#
# Or give it some **columns**. Then it needs only their inputs. But it finishes none of the outputs. It has a term of each of them, a **partial sum**, and the ranks' terms must be added up.
#
# The usual names come from the Megatron paper, which writes $Y = XA$ with the transposed matrix, so in torch they sound the wrong way round.
#
# | cut | in torch, $y = Wx$ | in $Y = XA$ | usual name | for whole outputs |
# | --- | --- | --- | --- | --- |
# | by outputs | rows: `weight[:2]` | columns | **column-parallel** | all-gather |
# | by inputs | columns: `weight[:, :2]` | rows | **row-parallel** | all-reduce |
#
# > **To keep.** Cut by outputs, and a rank has *some finished numbers*. Cut by inputs, and it has *a term of every number*, a partial sum (`Partial()` in PyTorch).

# %% [markdown]
# ## First attempt: by outputs, twice
#
# The finished numbers are tempting, so cut both matrices by outputs. Each rank computes two of the four hidden numbers. For its output it needs all four, so the ranks have to show each other theirs. Here the two ranks are still two entries of a list.

# %%
halves = [slice(0, 2), slice(2, 4)]  # of the four hidden numbers

hidden = [F.linear(inputs, w1[half], b1[half]) for half in halves]  # (8, 2) on each rank
everywhere = F.gelu(torch.cat(hidden, dim=1))  # an all-gather: (8, 4) on both
outputs = [
    F.linear(everywhere, w2[rank : rank + 1], b2[rank : rank + 1]) for rank in range(2)
]  # (8, 1) on each

print("equal to one device:", torch.allclose(torch.cat(outputs, dim=1), right))
viz.plot_pair("column", "column", title="First attempt: both by outputs")

# %% [markdown]
# The upper half of the picture is rank 0. Read it from left to right. It knows all of $x$ and has two rows of $W_1$, which give it two blue hidden numbers. After the bar it also has rank 1's orange ones. The second bar brings the outputs together.
#
# The result is right, and the GELU was no problem, because it met finished numbers only. What hurts is the first bar. A real model is at its widest in the middle: in the 405B, 3.25<!-- =load_model("llama3_1_405b").ffn_size / load_model("llama3_1_405b").hidden_size --> times as wide as at the ends. All of that has to travel.

# %% [markdown]
# ## Second attempt: by inputs first
#
# Could the ranks send nothing in the middle? Cut $W_1$ by inputs: every rank has $x$ anyway and just reads its half. Now each has a term of every hidden number. Must they be added right away? $W_2$ times a sum is the sum of $W_2$ times its terms, so adding can wait. Let each rank take its own terms through all of $W_2$. We add only at the very end, where a sample has become two numbers.


# %% varies="the last digits of rounding differ between processors"
def put_off(bend):
    """Each rank goes on with its terms, and half of each bias,
    so that the sum at the very end has it once.
    """
    terms = [F.linear(inputs[:, half], w1[:, half], b1 / 2) for half in (slice(0, 3), slice(3, 6))]
    return sum(F.linear(bend(term), w2, b2 / 2) for term in terms)


for name, bend in (("nothing", lambda numbers: numbers), ("a GELU", F.gelu)):
    wanted = F.linear(bend(F.linear(inputs, w1, b1)), w2, b2)
    print(f"{name:8} in the middle: off by {(put_off(bend) - wanted).abs().max():.0e}")

# %% [markdown]
# Without the GELU this idea is right. With it the outputs are off, and nothing complained!
#
# **Predict.** For one hidden number rank 0 has the term 2, and rank 1 has the term −2. One device adds them, gets 0, and GELU(0) is 0. Our ranks take the GELU first. What do they get?

# %%
terms = torch.tensor([2.0, -2.0])
predict(
    "GELU(2) + GELU(−2)",
    guess=None,
    answer=F.gelu(terms).sum().item(),
    tolerance=0.06,
    think="what a GELU makes of a positive number, and what of a negative one",
)
print("each:", [round(number, 3) for number in F.gelu(terms).tolist()])
wrong = viz.plot_late_sum(title="Second attempt: the terms go through the GELU")
display(wrong, viz.plot_pair("row", "row", title="Second attempt, put right: both by inputs"))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# A GELU bends, it is **nonlinear**: it lets the 2 through nearly whole and leaves nearly nothing of the −2, so the two no longer cancel. In the upper picture crosses mark where the sum is missing, **before** the GELU.
#
# The lower picture adds in time, with a reduce-scatter, because its $W_2$ is cut by inputs as well and each rank needs only two of the four sums. Is that better than the first attempt? No, something still travels in the middle. But we have learned something.
#
# </details>
#
# > **To keep.** A sum can wait as long as everything is linear; and a rank with finished hidden numbers can go on alone.

# %% [markdown]
# ## Third attempt: what can a rank do with what it has?
#
# After the first matrix of the **first** attempt rank 0 had two finished hidden numbers, and with these it can go on alone. So take the left half of the first picture and the right half of the one *put right*. We add $b_2$ once, afterwards.
#
# **Predict.** The 405B has 16,384 numbers at both ends and 53,248 in the middle. Pretend that it has a single matrix on the way in, as ours has. Take one token and two ranks. How many times as many numbers does a rank send in the first attempt as in the third?

# %%
terms = [
    F.linear(F.gelu(part), w2[:, half]) for part, half in zip(hidden, halves, strict=True)
]  # no bias yet

widths = (16384, 53248, 16384)
first, third = (
    chain_partition(widths, ("out", then), tp=2).forward.sent_bytes[0] for then in ("out", "in")
)
predict(
    "times as many, first attempt to third",
    guess=None,
    answer=first / third,
    tolerance=0.03,
    think="what travels in each: finished numbers of the middle, or terms of the end, to be summed",
)
print("equal to one device:", torch.allclose(terms[0] + terms[1] + b2, right))
viz.plot_pair("column", "row", title="Third attempt: first by outputs, then by inputs")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Follow rank 0. Its blue numbers go through the GELU and on to the blue columns of $W_2$, and it asks nobody. It stores 20 of the 38 numbers: half of each matrix and of $b_1$, and $b_2$ whole.
#
# Why is the first attempt only twice as dear, if the middle is so much wider? It sends finished numbers, and of these a rank has half, of the middle and of the end. The third attempt sends terms, and a rank has a term of every number of the end.
#
# </details>
#
# This pair, **column-parallel then row-parallel**, is Megatron's tensor parallelism.
#
# > **To keep.** Cut first by outputs, then by inputs: nothing travels in the wide middle, and one sum brings the pair's result.

# %% [markdown]
# ## And backward?
#
# Each rank wants five gradients: of its parts of $W_2$, $W_1$ and $b_1$, of $b_2$, and of $x$, for which the layer before us waits.
#
# Let each rank try it alone. It knows the whole $y$, so it can compute the loss, and it goes back through its own two hidden numbers. What the other rank added to $y$ is a constant for it.
#
# **Predict.** Number the five: 1 for $W_2$, 2 for $W_1$, 3 for $b_1$, 4 for $b_2$, 5 for $x$. Which come out wrong on a rank that is alone? Give their numbers in one string, as `"24"`.


# %%
def by_itself(rank):
    """The five gradients that a rank finds by itself: of x, of its parts of W₁, b₁ and W₂, and of b₂."""
    parts = (inputs, w1[halves[rank]], b1[halves[rank]], w2[:, halves[rank]], b2)
    mine = [part.clone().requires_grad_() for part in parts]
    x, rows, bias, columns, last = mine
    y = F.linear(F.gelu(F.linear(x, rows, bias)), columns) + terms[1 - rank] + last
    return torch.autograd.grad(100 * y[:, 0].sum(), mine)  # 100, so that the numbers are easy to read


of_x, of_w1, of_b1, of_w2, of_b2 = zip(by_itself(0), by_itself(1), strict=True)
x = inputs.clone().requires_grad_()
right_ones = torch.autograd.grad(100 * model(x)[:, 0].sum(), [x, *model.parameters()])  # one device
found = [of_x[0], torch.cat(of_w1), torch.cat(of_b1), torch.cat(of_w2, dim=1), of_b2[0]]

numbers = "52314"  # of x, W₁, b₁, W₂ and b₂
wrong = [
    number
    for number, ours, theirs in zip(numbers, found, right_ones, strict=True)
    if not torch.allclose(ours, theirs)
]
predict(
    "gradients that a rank cannot find alone",
    guess=None,
    answer="".join(wrong),
    think="for which of the five the other rank has something to say",
)
for name, gradient in (("rank 0", of_x[0]), ("rank 1", of_x[1]), ("one device", right_ones[0])):
    print(f"of x, sample 3: {name:10}", *(f"{number:6.1f}" for number in gradient[3].tolist()))
print("the ranks' sum is one device's:", torch.allclose(of_x[0] + of_x[1], right_ones[0]))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Start at the end. Both ranks have the same $y$, so both find the same gradient of $y$, and from it that of $b_2$. Do not add the ranks' copies: they come from one loss, computed twice. Now, $y$ is rank 0's term plus rank 1's plus $b_2$, so each term has the same gradient as $y$. A rank starts from there, and needs nobody for its parts of $W_2$, $W_1$ and $b_1$.
#
# Only $x$ is left. Rank 0 knows how the loss depends on $x$ **through its own two hidden numbers**, but $x$ went into all four. The first two printed lines add up to the third, so backward needs an all-reduce.
#
# </details>

# %% [markdown]
# ### Build it: two operators
#
# At the end of the pair, forward adds the terms, and backward hands $y$'s gradient to each of them. At the beginning it is the other way round: forward hands $x$ to each rank, which costs no message, and backward adds. The Megatron paper names these two operators.
#
# | operator | where | forward | backward |
# | --- | --- | --- | --- |
# | $f$ | at the beginning | changes nothing, the **identity** | **adds** |
# | $g$ | at the end | **adds** | changes nothing |
#
# Autograd does not see our `all_reduce`, and PyTorch's differentiable one adds up in backward as well, which would be wrong in $g$'s place. So each operator becomes a `torch.autograd.Function` with a backward of its own.
#
# > **To keep.** Where forward changes nothing, backward adds; where forward adds, backward changes nothing.

# %%
# %%ranks 2 --push model,inputs,right,right_ones
import torch
import torch.nn.functional as F
from course_lib.comm import all_reduce


class CopyTo(torch.autograd.Function):  # f
    forward = staticmethod(lambda ctx, x: x.view_as(x))  # not x itself: autograd wants a new tensor
    backward = staticmethod(lambda ctx, gradient: all_reduce(gradient))


class ReduceFrom(torch.autograd.Function):  # g
    forward = staticmethod(lambda ctx, terms: all_reduce(terms))
    backward = staticmethod(lambda ctx, gradient: gradient)


w1, b1, w2, b2 = (parameter.detach().clone().requires_grad_() for parameter in model.parameters())
mine, x = slice(2 * rank, 2 * rank + 2), inputs.clone().requires_grad_()
hidden = F.gelu(F.linear(CopyTo.apply(x), w1[mine], b1[mine]))
y = ReduceFrom.apply(F.linear(hidden, w2[:, mine])) + b2
(100 * y[:, 0].sum()).backward()
print("outputs are one device's:", torch.allclose(y, right))
print("gradient of x is one device's:", torch.allclose(x.grad, right_ones[0]))
print("gradient of this rank's part of W₁, too:", torch.allclose(w1.grad[mine], right_ones[1][mine]))

# %% [markdown]
# Both ranks have one device's outputs and gradients, so the pair is complete.
#
# ## A whole layer
#
# The feed-forward block of a decoder layer is our pair already, except that Llama's, a **SwiGLU**, has two matrices on the way in. Cut both by outputs. Their outputs are multiplied number by number, so a rank with the same rows of both needs nobody.
#
# And attention? The softmax is nonlinear as well, so it must get finished numbers. A head computes $\text{softmax}(q k^T) v$ from its own $q$, $k$ and $v$ alone. So give each rank whole heads, and it can compute them to the end alone. In Llama several query heads share one **kv head**, which is called **grouped-query attention** (GQA), and all go to its rank.
#
# Here is attention alone, on two ranks, and then all that `tensor()` cuts for four.

# %%
SMALL = ModelConfig(
    name="small",
    hidden_size=64,
    n_layers=2,
    n_heads=8,
    n_kv_heads=4,
    ffn_size=176,
    vocab_size=512,
    tied=False,
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=3, sequence=32, ragged=True)


def llama_alone(train, config=SMALL):
    return Trainer(Decoder(config), train)


def llama_on_ranks(train, *bugs, config=SMALL, **options):
    mesh = make_mesh(tp=dist.get_world_size())  # tp: tensor parallel, the mesh's name for these ranks
    return Trainer(Decoder(config), train, mesh=mesh, apply=(tensor(**options), *bugs))


layout = run_ranks(lambda: llama_on_ranks(TrainConfig()).local.layout, 4)[0]
held, whole = rank_parameters(SMALL, ParallelConfig(tp=4)).total, costs.model_parameters(SMALL)
assert [parameters_at(layout, at) for at in coordinates(layout.sizes)] == 4 * [held]
print(f"each rank holds {held:,} of {whole:,} parameters, {held / whole:.1%}")
names = [name for name in layout.regions() if name.startswith("layers.0.")]
regions, shapes = (
    {name.removeprefix("layers.0."): found[name] for name in names}
    for found in (layout.regions(), layout.shapes())
)
display(
    viz.plot_heads(),
    viz.plot_layout(regions, shapes, list(coordinates(layout.sizes)), title="One layer on four ranks"),
)

# %% [markdown]
# In the first picture each head is one number wide. The three matrices on the left are cut by outputs, between two heads. Rank 0 takes its blue ones through the softmax. Then `o_proj` mixes heads. A rank has two, so this matrix is cut by inputs, and the ranks' terms are added up.
#
# In the second one a matrix with a band across is cut by outputs, and one with a band from top to bottom by inputs: `o_proj` and `down_proj`. The two thin strips are norms, which every rank keeps whole, so it holds a little more than a quarter. Embedding and output head are cut as well.
#
# > **To keep.** Attention is cut between heads, feed-forward between hidden numbers, and the norms are not cut at all.
#
# ### How much does a layer send?
#
# In forward it has two $g$, one after attention and one after feed-forward. And in backward? Queries, keys and values read the same $x$, so one $f$ is enough for the three, and one more for gate and up. So a layer makes four all-reduces in a step. Each sums a tensor as large as $x$; you know what a ring sends.
#
# **Predict.** Our small Llama reads 3 sequences of 32 tokens on 4 ranks, with 64 numbers of 4 bytes<!-- =4 --> a token. How many KiB does a rank send in one step for **one layer**?


# %%
def step(config):
    trainer = llama_on_ranks(TrainConfig(), config=config)
    comm.ledger.clear()
    trainer.compute_gradients(text.batch(0))


def of_one_layer(work, count, config=SMALL):
    """What one layer adds: the count of a model with three layers less that of one with two."""
    counts = []
    for n_layers in (3, 2):
        run_ranks(work, 4, replace(config, n_layers=n_layers))
        counts.append(count(ledger().of("all_reduce")))
    return counts[0] - counts[1]


def kib(messages):
    return messages.bytes_sent(0) / KiB


calls = of_one_layer(step, lambda messages: len(messages.calls()))
wider = replace(SMALL, ffn_size=2 * SMALL.ffn_size)
predict(
    "KiB that a rank sends for one layer",
    guess=None,
    answer=of_one_layer(step, kib),
    unit="KiB",
    think="how large x is, how often it is summed, and what a ring of four sends of it",
)
print(f"all-reduces of one layer: {calls}")
print(f"with ffn_size twice as large: {of_one_layer(step, kib, wider):.0f} KiB")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Each of the four all-reduces adds up $B \cdot S \cdot H$ numbers: $B$ sequences, $S$ tokens each, $H$ numbers a token. So this is what one layer costs on $p$ ranks.
#
# $$\text{bytes sent by each rank} = 4 \cdot 2\,\frac{p-1}{p} \cdot B\,S\,H \cdot \text{bytes of a number}$$
#
# For our four ranks that is 6 times 24 KiB<!-- =3 * 32 * 64 * 4 / KiB -->, the size of $x$.
#
# The number of weights is not in it! If the model becomes wider inside its blocks, tensor parallelism sends the same, as the last line says.
#
# </details>
#
# > **To keep.** Tensor parallelism sends activations: their bytes grow with the tokens, the width $H$ and the layers. How wide a block is inside does not matter.

# %% [markdown]
# ## Prove it
#
# We gave $f$ and $g$ a backward of our own. Is it still the same training?

# %% varies="the last digits of rounding differ between processors"
report = assert_parallel_equals(llama_alone, llama_on_ranks, text, world_size=4)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# Every dot is far left of the dashed line: output, gradients and the weights after three steps are the same.
#
# ## Measure: time
#
# In forward, a layer of Llama 3.1 8B takes an H100 2.3 ms<!-- =1e3 * 2 * layer_parameters(LLAMA_3_1_8B) * 2048 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) --> for 2048 tokens, if it works at 40 %<!-- =100 * 0.4 --> of its peak. Four GPUs compute a quarter each, and add up 16 MiB<!-- =2048 * 4096 * 2 / MiB --> twice. More GPUs for the same work: that is **strong scaling**.
#
# **Predict.** Each of the four sits in a node of its own. InfiniBand carries 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB --> between them, after a **latency** of 14 µs<!-- =1e6 * INFINIBAND.alpha_s --> in each of a ring's six steps. How many times as fast as one are they? Add up a quarter of the computing and the two sums: in each sum a GPU sends one and a half times the bytes.

# %%
attention = 2 * 4096 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size)  # its weights: q and o, k and v
per_second = 0.4 * H100.peak_flops_per_s()
blocks_s = [
    2 * size * 2048 / per_second for size in (attention, costs.layer_parameters(LLAMA_3_1_8B) - attention)
]


def one_layer_forward(link):
    p, activations = dist.get_world_size(), torch.ones(2048 * 4096 // 2)  # as many bytes as in bfloat16
    with comm.emulated(comm.EmulatedClock(inside=link, slowdown=500)):  # slept through, 500 times as slow
        for seconds in blocks_s:
            comm.compute(seconds / p)
            comm.all_reduce_(activations, async_op=True).wait()


all_links = replace(NVLINK, bandwidth_bytes_per_s=3 * NVLINK.bandwidth_bytes_per_s)
links = {
    "four, a third of the links": NVLINK,
    "four, all links": all_links,
    "four, InfiniBand": INFINIBAND,
}
run_ranks(one_layer_forward, 1, NVLINK)
runs = {"one GPU": ledger()}
for name, link in links.items():
    run_ranks(one_layer_forward, 4, link)
    runs[name] = ledger()
faster = runs["one GPU"].span_s / runs["four, InfiniBand"].span_s
predict("times as fast, over InfiniBand", guess=None, answer=faster, tolerance=0.1)
print(
    "each sum: one and a half times its bytes over the wire, "
    f"and six latencies of {1e6 * INFINIBAND.alpha_s:.0f} µs"
)
sums = ("sum after attention", "sum after feed-forward")
subtitle = "emulated clock, no real GPU; rank 0; blue: attention, then feed-forward; line: finished"
viz.plot_overlap(runs, calls=sums, title="One layer forward", subtitle=subtitle)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Four GPUs shrink the blue bars to a quarter. But over InfiniBand the dark ones, the sums, take twice as long as computing. Nothing hides them, so they are **exposed communication**.
#
# Inside a node of four H100s, NVLink carries 150 GB/s<!-- =NVLINK.bandwidth_bytes_per_s / GB --> from a GPU to each of the three others. Our ring sends to one of them, and comes to 2.4<!-- =(lambda run: 4 * run.compute_s / run.in_turn_s)(costs.tensor_overlap([2 * size * 2048 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) / 4 for size in (8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size), costs.layer_parameters(LLAMA_3_1_8B) - 8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size))], 2 * [1.5 * 2048 * 4096 * 2 / (1 * NVLINK.bandwidth_bytes_per_s)], latency_s=6 * NVLINK.alpha_s)) --> times as fast. NCCL opens rings along all links at once, and comes to 3.15<!-- =(lambda run: 4 * run.compute_s / run.in_turn_s)(costs.tensor_overlap([2 * size * 2048 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) / 4 for size in (8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size), costs.layer_parameters(LLAMA_3_1_8B) - 8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size))], 2 * [1.5 * 2048 * 4096 * 2 / (3 * NVLINK.bandwidth_bytes_per_s)], latency_s=6 * NVLINK.alpha_s)) --> times.
#
# Could we hide the sums? In backward, yes: while $f$ adds, a rank makes the weights' gradients. In forward the next block reads this very sum, so it has to wait. *Going deeper* has two ways out.
#
# </details>
#
# > **To keep.** Tensor parallelism sends in every layer, so it lives **inside the NVLink domain**: the GPUs that NVLink joins, a node's four or eight, a rack's 72.

# %% [markdown]
# ## Bug museum
#
# A small decoder of GPT's shape, with a bias on every matrix of its layers, reads Shakespeare on two ranks with AdamW and clipping. In run A each rank adds the bias of a row-parallel matrix **before** the sum, so that it counts twice. B and C may have a bug or none. Would you trust them?
#
# **Predict.** The ladder's first rungs are 1 the output, 2 the gradients, 3 their norm, 4 the parameters after three steps. All biases are born as 0. On which rung does A fall?

# %% varies="forty steps of rounding differ between processors"
GPT = replace(
    SMALL,
    n_kv_heads=8,
    positions="learned",
    max_sequence=32,
    norm="layer",
    gated_ffn=False,
    biases=("qkv", "attention_output", "ffn"),
)
names = sorted(
    [*museum.TENSOR_BUGS, "sound"], key=lambda name: name[1:]
)  # an order that gives nothing away
exhibits = {"A": "bias_with_each_term", "B": names[5], "C": names[2]}  # print them after you have decided
reading = replace(text, batch_size=16)


def gpt_alone(train):
    return llama_alone(train, GPT)


def gpt_on_ranks(train, *bugs):
    return llama_on_ranks(train, *bugs, config=GPT)


makers = {
    run: museum.TENSOR_BUGS[name].planted(gpt_on_ranks) if name != "sound" else gpt_on_ranks
    for run, name in exhibits.items()
}
curves = {"one device": museum.curve_alone(gpt_alone, reading.batch, 40)}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, reading.batch, world_size=2, steps=40)
losses = {name: curve.losses for name, curve in curves.items()}
subtitle = "loss in nats; the broad grey line is one device"
viz.plot_loss_curves(losses, title="Which of these runs would you trust?", subtitle=subtitle)

# %% varies="forty steps of rounding differ between processors"
from textwrap import fill

falls = dict.fromkeys(makers)
for run, make in makers.items():
    try:
        assert_parallel_equals(gpt_alone, make, text, world_size=2, rungs=RUNGS[:5])
    except NotEqual as error:
        falls[run] = error
predict(
    "the rung on which run A falls",
    guess=None,
    answer=RUNGS.index(falls["A"].rung) + 1,
    think="when a bias that is born as 0 first makes a difference",
)
for run, error in falls.items():
    print(f"run {run}", f"falls on: {error.rung}" if error else "is equal on every rung")
    if error:
        what, _, where = str(error).split("; ", 2)
        for words in (what.partition(": ")[2], where.partition(": ")[0]):
            print(fill(words, 110, initial_indent="    ", subsequent_indent="    "))
display(viz.plot_loss_differences(losses), viz.show_source(RowParallelLinear.forward))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# A falls late. Twice 0 is 0, so its first output is right. Its gradients are right as well, because $g$ hands the gradient of $y$ to every rank as it is. After that step the biases are no longer 0, and they [count twice](https://github.com/awslabs/slapo/issues/10).
#
# B is sound, yet it drifts away, because training lets float32's rounding grow. At step 3 A and C are hundreds of times as far off. A model too large for one device has no grey line, so prove its code on a small one first.
#
# </details>
#
# > **To keep.** A curve that drifts may be sound, and one that agrees may be wrong. Only the ladder tells them apart.

# %% [markdown]
# ## In PyTorch alone
#
# In PyTorch you only say which module is cut in which way, and that is a **plan**. `parallelize_module` makes each weight a **DTensor**, a tensor that knows which part of the whole a rank has, and it puts the collectives where the plan needs them. Here is our pair.

# %%
# %%ranks 2 --push model,inputs,right
import torch
from torch.distributed import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

plan = {"layer1": ColwiseParallel(), "layer2": RowwiseParallel()}
shared = parallelize_module(model, init_device_mesh(device.type, (2,)), plan)
x = inputs.clone().requires_grad_()
y = shared(x)
(100 * y[:, 0].sum()).backward()
if rank == 0:
    print("equal to one device:", torch.allclose(y, right))
    print("gradient of x, sample 3:", *(f"{number:.1f}" for number in x.grad[3].tolist()))
    for name, weight in shared.named_parameters():
        (cut,) = weight.placements
        print(f"{name:13} {tuple(weight.shape)!s:6} here {tuple(weight.to_local().shape)!s:6} {cut!r}")

# %% [markdown]
# `Shard(dim=0)` has some rows and `Shard(dim=1)` some columns; $b_2$ is on both ranks, `Replicate()`. The gradient of $x$ is the sum that our $f$ makes.
#
# > **To keep.** In PyTorch you write only the plan, and −1 for the number of heads in attention's reshape, because a rank has fewer.
#
# [`scripts/05_tensor_parallel.py`](scripts/05_tensor_parallel.py) is the next stage of the script, with one device's losses; *Going deeper* shows what it changes:
#
# `torchrun --nproc-per-node 4 scripts/05_tensor_parallel.py`
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `tensor()` | `parallelize_module` | you write the plan |
# | $f$ and $g$ | nothing to write | DTensors send by themselves |

# %% [markdown]
# ## When to use it
#
# | what hurts | take | where |
# | --- | --- | --- |
# | one layer does not fit, or one sequence takes too long | tensor parallelism | inside the NVLink domain |
# | one sequence is too long even for eight | **context parallelism**, lesson 09 | between domains |
# | the layers fit, the model does not | a pipeline | between domains: a cut carries little |
# | all fits, there are too many tokens | data parallelism | between domains: it hides behind backward |
#
# How many ranks, which **TP degree**? At most a domain's GPUs, and a number that divides the kv heads, 8 in every Llama 3.1.
#
# And the layer of the first picture? Share it.

# %%
shared = {f"on {p} GPU{'s' * (p > 1)}": one_layer(131072, tp=p) for p in (1, 2, 4, 8)}
viz.plot_gpu_memory(shared, H100, title="The same layer, shared: one sequence of 131,072 tokens")

# %% [markdown]
# On paper, two GPUs hold it. But look at the blue part of the last bar: it is far more than an eighth of the first. Every GPU still does both norms in full, so what each reads and what it writes are whole there. These are two thirds of the blue part. *Going deeper* cuts them, too.
#
# > **To keep.** Tensor parallelism cuts the activations *inside* attention and feed-forward; what runs between them stays whole.
#
# ## The file behind this lesson
#
# [`course_lib/parallel/tensors/layers.py`](../course_lib/parallel/tensors/layers.py), about 110 lines, has the two layers of this page, and the table of words that is cut like them. A column-parallel layer *enters*, where your $f$ was, and a row-parallel one *leaves* through $g$.
#
# ## What still hurts
#
# When Meta trained the 405B on short sequences, 8 tensor-parallel ranks times 16 pipeline stages held the model once, and all 16,384 GPUs 128 copies. Adam's states, 12 bytes<!-- =12 --> a parameter, would be 38 GB<!-- =12 * model_parameters(load_model("llama3_1_405b")) / 128 / GB --> on each GPU, and 127 others would keep the same numbers. Must they? Lesson 06 begins there.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/05_tensor_parallelism.ipynb), then [lesson 06](06_zero_and_fsdp.ipynb).
#
# <details><summary>1. In run C four biases get half of their gradient. Its author wanted each bias once in the sum, too, but did it in the <b>first</b> line of <code>forward</code>. What stood there?</summary>
# <code>self.bias / p</code> in each term: the outputs are right, but autograd divides the bias's gradient, too. This <a href="https://github.com/pytorch/torchtitan/pull/4332">has happened</a>.
# </details>
#
# <details><summary>2. You double the batch. What happens to the bytes of tensor parallelism, and of data parallelism?</summary>
# Tensor parallelism sends activations, so twice as many. Data parallelism sends gradients: the same.
# </details>
#
# <details><summary>3. A Llama lacks every f. Which gradients are still right?</summary>
# Of the matrices, only that of the output head. That of its input already needs a sum.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## Hide the sums of forward
#
# In forward each block reads the sum of the one before. But the two halves of a batch need not wait for each other. While the sum of one half travels, the GPU can compute the other half.

# %%
for name, link in links.items():  # by formula: all layers
    sum_s = 1.5 * 2048 * 4096 * 2 / link.bandwidth_bytes_per_s
    halves_of_batch = costs.tensor_overlap(
        LLAMA_3_1_8B.n_layers * [seconds / 4 for seconds in blocks_s],
        LLAMA_3_1_8B.n_layers * [sum_s, sum_s],
        latency_s=6 * link.alpha_s,
    )
    rate, overlapped = (
        4 * halves_of_batch.compute_s / s
        for s in (halves_of_batch.in_turn_s, halves_of_batch.overlapped_s)
    )
    print(f"{name:26} {rate:.2f} times as fast in turn, {overlapped:.2f} times in two half-batches")

# %% [markdown]
# With all links our four GPUs become 3.99<!-- =(lambda run: 4 * run.compute_s / run.overlapped_s)(costs.tensor_overlap(32 * [2 * size * 2048 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) / 4 for size in (8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size), costs.layer_parameters(LLAMA_3_1_8B) - 8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size))], 64 * [1.5 * 2048 * 4096 * 2 / (3 * NVLINK.bandwidth_bytes_per_s)], latency_s=6 * NVLINK.alpha_s)) --> times as fast. That is the best case, because the formula lets half of a batch compute as efficiently as a whole one, and lets sending cost the GPU nothing. This is **Domino**'s schedule. PyTorch's **async TP** cuts a single product and its sum into chunks instead, so it works with one sequence, too.
#
# It is no cure for a slow wire. Over InfiniBand it brings 1.68<!-- =(lambda run: 4 * run.compute_s / run.overlapped_s)(costs.tensor_overlap(32 * [2 * size * 2048 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) / 4 for size in (8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size), costs.layer_parameters(LLAMA_3_1_8B) - 8192 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size))], 64 * [1.5 * 2048 * 4096 * 2 / (1 * INFINIBAND.bandwidth_bytes_per_s)], latency_s=6 * INFINIBAND.alpha_s)) --> times, because there is more to hide than to compute.
#
# ## The loss, without ever seeing the logits: vocabulary-parallel
#
# Llama's output head makes 128,256 logits for each token, and it is cut by outputs. Each rank has some of these logits. For 8192 tokens, gathering them would bring 2.1 GB<!-- =128256 * 8192 * 2 / GB --> to every GPU. Is that needed?
#
# The loss of a token is $\log \sum_v e^{z_v} - z_{target}$. That is one sum over the vocabulary, and one logit, which some rank has. So for each token the ranks add up one number for the sum and one for the target's logit. Before both they need the largest logit, which is subtracted so that $e^z$ cannot overflow. Three all-reduces.

# %%
logits = 3 * torch.randn(5, 12, generator=torch.Generator().manual_seed(1))  # 5 tokens, a vocabulary of 12
goals = torch.tensor([0, 11, 5, 6, 3])
parts, firsts = logits.chunk(2, dim=1), (0, 6)  # six logits on each rank

largest = torch.stack([part.amax(1) for part in parts]).amax(0)  # all-reduce 1, of the maximum
total = sum((part - largest[:, None]).exp().sum(1) for part in parts)  # all-reduce 2
target = torch.zeros(5)  # all-reduce 3: the rank that has it gives the logit, the other 0
for part, first in zip(parts, firsts, strict=True):
    mine = (goals >= first) & (goals < first + 6)
    target += torch.where(mine, part.gather(1, (goals - first).clamp(0, 5)[:, None])[:, 0], 0)
print(torch.allclose(total.log() + largest - target, F.cross_entropy(logits, goals, reduction="none")))

# %% [markdown]
# That is three numbers a token instead of 128,256, and none in backward. In PyTorch you write `with loss_parallel():` around loss and backward, and the head's plan keeps the DTensor, `ColwiseParallel(use_local_output=False)`. The embedding is the mirror image. A rank has some rows and gives zeros for other tokens, so one all-reduce brings every token its row.
#
# ## Sequence parallelism
#
# Between two pairs every rank does the same norms and additions, on activations that each keeps whole. But an all-reduce is a reduce-scatter and an all-gather. Stop in the middle, and each rank has some **positions**. Do the norms and additions there, and gather where the next pair begins.
#
# Backward needs the gathered activations again. `"keep"` holds on to them; `"regather"` gathers a second time.

# %%
from functools import partial

for form in (None, "keep", "regather"):
    make = partial(llama_on_ranks, sequence_parallel=form)
    assert_parallel_equals(llama_alone, make, text, world_size=4, rungs=RUNGS[:2])
    formula = tensor_step(SMALL, tp=4, batch=3, sequence=32, sequence_parallel=form).sent_bytes[0]
    spread = ParallelConfig(tp=8, pp=126, sequence_parallel=form is not None)
    work = Work(sequence=131072, microbatch=1, keep_gathered=form == "keep")
    kept = tensor_memory(LLAMA_405B, spread, work, find_convention("zero"), stage=63).activations
    print(
        f"{form or 'without':9} equal; {formula:,} bytes a step; "
        f"a layer of the 405B keeps {kept / GiB:.1f} GiB a GPU"
    )

# %% [markdown]
# Look at the last numbers. `"keep"` cuts two of the four whole tensors, and for a quarter more bytes `"regather"` cuts all four. A norm's weight now sees only this rank's positions. So each rank finds a term of its gradient, and one more all-reduce adds these up. (Megatron gathers again, too.)
#
# In a PyTorch plan the norms get `SequenceParallel()`, and row-parallel matrices `output_layouts=Shard(1)`: axis 1 has the positions.
#
# The script cuts positions, too. Its plan stands in `cut`, which the next cell shows with all that this stage changes.
#
# **Your turn.** Let every rank have all scores: `scores = {"output_layouts": Replicate()}`, and a loss without `loss_parallel()` and without `to_local()`. Do the losses change? What does each rank now hold?
#
# <details><summary>What you should see</summary>Not a digit changes. But each rank gathers all 256 scores of every position, where it had 64. Here nobody notices. In Llama 3 a position has 128,256 scores, more numbers than it has anywhere else in the model.</details>
#
# Against the pipeline, the stage before it:

# %%
from pathlib import Path

viz.show_difference(Path("scripts/04_pipeline.py"), Path("scripts/05_tensor_parallel.py"))


# %% [markdown]
# ## Fewer kv heads than ranks
#
# Llama 3.1 8B has 8 kv heads. On 16 ranks each would get half a head, so two ranks keep copies of one. Each finds the gradient from its own queries alone, and the two are added up. PyTorch's plans know no copies. Here is our small Llama with two kv heads on four ranks:

# %%
few = replace(SMALL, n_kv_heads=2)


def few_alone(train):
    return llama_alone(train, few)


def few_on_ranks(train):
    return llama_on_ranks(train, config=few)


layout = run_ranks(lambda: few_on_ranks(TrainConfig()).local.layout, 4)[0]
print(layout.describe("layers.0.attention.k_proj.weight"))
report = assert_parallel_equals(few_alone, few_on_ranks, text, world_size=4, rungs=RUNGS[:4])
print("equal to one device:", *report.deviations, sep="\n    ")

# %% [markdown]
# `Shard` with `copies=2` says that there are two halves, and each lies on two ranks. `Partial()` says that a rank finds only a term of the gradient.
#
# ## Why clipping carries run C's bug everywhere
#
# Adam divides each gradient by its own size, so a bias whose gradient is always halved moves as it should. So why does run C of the museum leave one device at step 3? Before Adam, clipping to 1 divides **all** gradients by their common norm where that is above 1. Train the three runs without it:


# %% varies="forty steps of rounding differ between processors"
def without_clipping(make):
    return lambda train, *bugs: make(replace(train, max_norm=None), *bugs)


free = {"one device": museum.curve_alone(without_clipping(gpt_alone), reading.batch, 40).losses}
for run, make in makers.items():
    free[f"run {run}"] = museum.curve_on_ranks(
        without_clipping(make), reading.batch, world_size=2, steps=40
    ).losses
for name in ("one device", "run C"):
    norms = curves[name].norms
    print(f"{name:10} norms in steps 1 to 3:", *(f"{norm:.2f}" for norm in norms[:3]), end="; ")
    print("above 1 in", sum(norm > 1 for norm in norms), "steps of", len(norms))
viz.plot_loss_differences(free, title="Without clipping: how far each loss is from one device's")

# %% [markdown]
# Without clipping C stays as near as B. With it, the halved gradients make C's norm too small at first, so it is clipped too little. Then its weights differ.
#
# Adam would cancel a constant factor, but the printed norms show that this one changes, so **every** weight moves a little wrongly.
#
# ## And a matrix in between?
#
# A pair is cut by outputs, then by inputs. What if a third matrix stands between the two?
#
# <details><summary>Two ranks compute W₃W₂W₁x for 4 samples, 8, 32, 8 and 16 floats wide. W₁ is cut by outputs, W₃ by inputs. And W₂, to send less?</summary>
# By inputs: forward sends 320 bytes<!-- =max(chain_partition((8, 32, 8, 16), ("out", "in", "in"), tp=2, samples=4).forward.sent_bytes) -->, by outputs 512 bytes<!-- =max(chain_partition((8, 32, 8, 16), ("out", "out", "in"), tp=2, samples=4).forward.sent_bytes) -->, gathering where the chain is wide.
# </details>
#
# References: Shoeybi et al. 2019, *Megatron-LM*; Korthikanti et al. 2022, *Reducing activation recomputation*; Wang et al. 2024, *Domino*, on two half-batches; Llama team 2024.
