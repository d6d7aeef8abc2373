# %% [markdown]
# # 05 · Tensor parallelism: two ranks, one matrix
#
# In lesson 04 we cut a model between its layers. Take the largest Llama and cut it as finely as that goes: Llama 3.1 405B has 126 layers, so give 126 GPUs one layer each. Then ask a simple question. Does one layer fit into one GPU?
#
# At 16 bytes<!-- =16 --> a parameter, weights, gradients and Adam's states of one layer take 47.5 GiB<!-- =16 * layer_parameters(load_model("llama3_1_405b")) / GiB -->. An H100 has 74.5 GiB<!-- =load_device("h100_sxm_80").memory_bytes() / GiB -->. That looks fine. But training also keeps what the layer computed on the way, for backward, and that grows with the text. The picture shows it for three lengths, with a single text in the pipeline.

# %% folded=true
# %load_ext course_lib
from dataclasses import replace
from functools import partial
from textwrap import fill

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, costs, viz
from course_lib.checks import predict, score
from course_lib.comm import EmulatedClock
from course_lib.config import LLAMA_3_1_8B, ModelConfig, ParallelConfig, TrainConfig, load_model
from course_lib.costs import chain_partition, search_chain, tensor_rows, tensor_step
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import rank_parameters
from course_lib.costs.sweep.gpu_memory import Work, gpu_memory
from course_lib.hardware import INFINIBAND, NVLINK, load_device
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.conjugate import Operators
from course_lib.parallel.layout import coordinates
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.tensor_layers import RowParallelLinear
from course_lib.ranks import ledger, run_ranks
from course_lib.training.batches import Batches
from course_lib.training.tensor_technique import tensor
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens
from course_lib.training.trainer import Trainer
from course_lib.units import GiB, KiB
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum

# %%
LLAMA_405B, H100 = load_model("llama3_1_405b"), load_device("h100_sxm_80")


def one_layer(tokens, tp=1):
    spread = ParallelConfig(tp=tp, pp=126)  # 126 stages: one layer each
    work = Work(sequence=tokens, microbatch=1)
    return gpu_memory(LLAMA_405B, spread, work, find_convention("zero"), stage=63)


whole_layers = {f"one text of {tokens:,} tokens": one_layer(tokens) for tokens in (8192, 32768, 131072)}
viz.plot_gpu_memory(whole_layers, H100, title="One layer of Llama 3.1 405B on one GPU")

# %% [markdown]
# Look at the lowest bar. That is the longest text that this Llama reads, and with it one layer is far too much for the GPU. A pipeline cannot help, because a layer is the smallest piece that it cuts.
#
# A second thing hurts, and no picture of memory shows it. A text visits the 126 GPUs one after the other. While one works on it, the others wait, or work on other texts. So for **this** text all 126 together need as long as one GPU would.
#
# One cure helps against both: let several GPUs work on the same layer, on the same text, at the same time. They have to share a matrix.

# %% [markdown]
# In an hour you will be able to
# - cut a matrix in two ways, and say which collective each of them asks for,
# - cut a whole decoder layer so that its ranks talk only a few times, and prove that nothing else has changed,
# - say why these GPUs have to sit in one node,
# - find mistakes that you would hardly see in a loss curve.
#
# *One hour; the exercises come on top.*
#
# <details><summary>Before you start</summary>You need the collectives of lesson 02, the ladder of lesson 03, and the perceptron with its 38 parameters. Everything here ran on CPUs over gloo; NCCL and Slurm did not run for this page.</details>

# %% [markdown]
# ## What is right
#
# Our object is the perceptron of 38 parameters that you know, with a GELU in the middle, which the picture calls f.
#
# $$y = W_2\,\text{GELU}(W_1 x + b_1) + b_2$$
#
# One device computes this for eight rows of inputs. Whatever two ranks do, they have to come to the same outputs.

# %%
torch.manual_seed(0)
model = MLP(gelu=True)
inputs = torch.randn(8, 6)
w1, b1, w2, b2 = (parameter.detach() for parameter in model.parameters())
right = model(inputs).detach()

viz.plot_mlp(dict(model.named_parameters()), title="The perceptron, whole")

# %% [markdown]
# ### Two ways to cut a matrix
#
# Give a rank some **rows** of $W$. Each row makes one output, so the rank gets some outputs, and they are finished. It needs all of $x$.
#
# Or give it some **columns**. Each belongs to one input, so the rank needs only those inputs. But it finishes no output: it has a term of each, and the ranks' terms must be added up.
#
# The usual names sound the wrong way round, because the Megatron paper writes $Y = XA$, with the transposed matrix:
#
# | cut | of $y = Wx$, as torch stores it | of $Y = XA$ | usual name |
# | --- | --- | --- | --- |
# | by outputs | rows: `weight[:2]` | columns | **column-parallel** |
# | by inputs | columns: `weight[:, :2]` | rows | **row-parallel** |

# %% [markdown]
# ## First attempt: by outputs, twice
#
# The finished numbers are tempting, so cut both matrices by outputs. Each rank computes two of the four hidden numbers. For its output it needs all four, so the ranks have to show each other theirs. Here the two ranks are still two entries of a list.

# %%
halves = [slice(0, 2), slice(2, 4)]  # of the four hidden numbers

hidden = [F.linear(inputs, w1[half], b1[half]) for half in halves]  # (8, 2) on each rank
everywhere = F.gelu(torch.cat(hidden, dim=1))  # an all-gather: (8, 4) on both
outputs = [F.linear(everywhere, w2[rank : rank + 1], b2[rank : rank + 1]) for rank in range(2)]  # (8, 1) on each

print("equal to one device:", torch.allclose(torch.cat(outputs, dim=1), right))
viz.plot_pair("column", "column", title="First attempt: both by outputs")

# %% [markdown]
# Read a row from left to right: it is what one rank does. Rank 0 knows all of $x$ and has two rows of $W_1$, which give it two blue hidden numbers. After the bar it also has the two orange ones. The second bar brings the outputs together.
#
# The result is right, and the GELU was no problem, because it met finished numbers only. What hurts is the first bar. Our toy is narrow there, but between these two matrices a real model is at its widest: in the 405B, 3.25<!-- =load_model("llama3_1_405b").ffn_size / load_model("llama3_1_405b").hidden_size --> times as wide as at the ends. All of that has to travel.

# %% [markdown]
# ## Second attempt: by inputs first
#
# So send nothing in the middle. Cut $W_1$ by inputs: every rank has $x$ anyway and just reads its half. Now rank 0 has a term of each hidden number, and rank 1 has the other. Must they be added right away? A matrix times a sum is the sum of the products, so let each rank take its own term through all of $W_2$, and add only the outputs. They are few.
#
# Try it twice, with the GELU and without.


# %%
def put_off(bend):
    """Each rank goes on with its terms, and half of each bias, so that the sum at the very end has it once."""
    terms = [F.linear(inputs[:, half], w1[:, half], b1 / 2) for half in (slice(0, 3), slice(3, 6))]
    return sum(F.linear(bend(term), w2, b2 / 2) for term in terms)


for name, bend in (("nothing", lambda numbers: numbers), ("a GELU", F.gelu)):
    wanted = F.linear(bend(F.linear(inputs, w1, b1)), w2, b2)
    print(f"{name:8} in the middle: off by {(put_off(bend) - wanted).abs().max():.0e}")

# %% [markdown]
# Without the GELU this idea is right. With it, the outputs are off, and nothing complained! What went wrong is small enough to do by hand.
#
# **Predict.** For one hidden number rank 0 has the term 2, and rank 1 has the term −2. One device adds them, gets 0, and GELU(0) is 0. Our two ranks take the GELU first and add afterwards. What do they get? A GELU leaves 2 nearly as it is, and makes nearly nothing of −2.

# %%
terms = torch.tensor([2.0, -2.0])
predict("GELU(2) + GELU(−2)", guess=None, answer=F.gelu(terms).sum().item(), tolerance=0.06)
print("each:", [round(number, 3) for number in F.gelu(terms).tolist()])
viz.plot_pair("row", "row", title="Second attempt, put right: both by inputs")

# %% [markdown]
# 1.91 where 0 is right. A GELU bends: bend the terms and add them, and you get another number than if you add first and bend then. So the terms have to be added **before** the GELU, and so has the bias. In the picture what goes into the GELU has two colours: sums. Each rank needs only two of them, so a reduce-scatter is enough.
#
# It sends 2 numbers from each rank, as the all-gather did. But the second bar is now a sum, and costs 2 where handing round costs 1. That makes 4 instead of 3. Still, keep one thing from this attempt: a sum may be put off as long as nothing bends.

# %% [markdown]
# ## Third attempt: what can a rank do with what it has?
#
# Stop the first attempt before its first bar. Rank 0 holds two finished hidden numbers. Do not ask what it lacks, ask what it can do with those two. For $W_2$ they are inputs, and each belongs to one **column**. So give rank 0 those two columns!
#
# Now each rank gets a term of each output. Nothing bends after $W_2$, so one sum is enough. And $b_2$? Added by both ranks, it would be in the sum twice. So we add it after the sum.
#
# **Predict.** For one row, each rank sent 3<!-- =chain_partition((6, 4, 2), ("out", "out"), tp=2).forward.sent_bytes[0] // 4 --> numbers in the first attempt, and 4<!-- =chain_partition((6, 4, 2), ("in", "in"), tp=2).forward.sent_bytes[0] // 4 --> in the second. How many now?

# %%
terms = [F.linear(F.gelu(part), w2[:, half]) for part, half in zip(hidden, halves, strict=True)]  # no bias yet

sent = chain_partition((6, 4, 2), ("out", "in"), tp=2).forward.sent_bytes[0] / 4  # in numbers of 4 bytes
predict("numbers that each rank sends for one row", guess=None, answer=sent)
print("equal to one device:", torch.allclose(terms[0] + terms[1] + b2, right))
viz.plot_pair("column", "row", title="Third attempt: first by outputs, then by inputs")

# %% [markdown]
# Two: there is a single bar, at the narrow end. Follow rank 0 once more. Its two blue numbers go through the GELU and on to the two blue columns of $W_2$, and nobody is asked. Behind the bar comes $b_2$, once.
#
# Count what a rank stores: 12 of $W_1$, 2 of $b_1$, 4 of $W_2$, and both of $b_2$. That makes 20 of the 38, and not 19, because every rank has to add all of $b_2$. This pair, **column-parallel then row-parallel**, is Megatron's tensor parallelism.
#
# ## On real ranks
#
# Two processes now, each with its own part. Find the one line in which they talk.

# %%
# %%ranks 2 --push model,inputs --pull outputs
import torch.nn.functional as F
from course_lib.comm import all_reduce

w1, b1, w2, b2 = (parameter.detach() for parameter in model.parameters())
mine = slice(2 * rank, 2 * rank + 2)

hidden = F.gelu(F.linear(inputs, w1[mine], b1[mine]))  # (8, 2): column-parallel
terms = F.linear(hidden, w2[:, mine])  # (8, 2): row-parallel
outputs = all_reduce(terms) + b2

# %%
print("equal to one device:", [torch.allclose(mine, right) for mine in outputs])
print("bytes sent by each rank:", [ledger().bytes_sent(rank) for rank in range(2)])

# %% [markdown]
# Each rank sent 64 bytes<!-- =comm_time("all_reduce", "ring", world_size=2, length=16, itemsize=4).sent_bytes[0] -->: eight rows of two numbers, once. That is the cost of forward.
#
# ## And backward?
#
# Nobody has told the ranks how to go back. There are five gradients: of $W_2$, $b_2$, $W_1$, $b_1$, and of $x$, for which the layer before us waits. Take them one after the other, from the end, and ask each time: can a rank compute its part of this one alone? Which would you doubt?
#
# The cell takes the first output as the loss and prints, for one of the eight rows, the gradients of its six inputs.

# %%
copies = [inputs.clone().requires_grad_() for _ in range(2)]  # the x of each rank
terms = [F.linear(F.gelu(F.linear(x, w1[half], b1[half])), w2[:, half]) for x, half in zip(copies, halves, strict=True)]
(100 * (terms[0] + terms[1] + b2)[:, 0].sum()).backward()  # 100, so that the numbers are easy to read

x = inputs.clone().requires_grad_()
(100 * model(x)[:, 0].sum()).backward()  # one device
for name, gradient in (("rank 0", copies[0].grad), ("rank 1", copies[1].grad), ("one device", x.grad)):
    print(f"{name:10}", *(f"{number:6.1f}" for number in gradient[3].tolist()))
print("their sum is one device's:", torch.allclose(copies[0].grad + copies[1].grad, x.grad))

# %% [markdown]
# Both ranks have the same $y$, so both compute the same loss, and the same gradient of $y$. Adding the two would count one loss twice. A sum hands its gradient unchanged to each of its terms, so each rank already has that of its own term. From there it needs nobody for its parts of $W_2$, $W_1$ and $b_1$, nor for $b_2$.
#
# Only $x$ differs: the first two lines add up to the third. Rank 0 knows how the loss depends on $x$ **through its own two hidden numbers**, but $x$ went into all four. So backward needs an all-reduce, where forward sent nothing.
#
# Where forward adds, backward only hands on. Where forward hands on, backward adds.

# %% [markdown]
# ### Two operators
#
# The Megatron paper calls this pair $f$ and $g$, and says that each is the other's conjugate. Autograd does not see messages, so both bring their own backward:
#
# | | forward | backward |
# | --- | --- | --- |
# | $f$, `copy_to_region` | nothing | all-reduce |
# | $g$, `reduce_from_region` | all-reduce | nothing |
#
# A **region** is the stretch in which the ranks hold different things: $f$ is its door in, $g$ its door out. In the code below, the second argument of `_applied` is what happens forward, the third what happens backward. `_same` hands on, and `self.summed` is an all-reduce. Last comes a whole row-parallel layer: it leaves its region by $g$, and adds its bias once.

# %%
display(
    viz.show_source(Operators.copy_to_region),
    viz.show_source(Operators.reduce_from_region),
    viz.show_source(RowParallelLinear),
)

# %% [markdown]
# ## A whole layer
#
# The feed-forward block of a decoder layer is our pair already. Llama has two matrices on the way in, gate and up. Both are cut by outputs, so that a rank can multiply its own numbers of the two.
#
# Attention has heads. No head looks at another, so give every rank some: $W_Q$, $W_K$ and $W_V$ by outputs, in whole heads. The softmax bends, but it stays within a head. At the end $W_O$ mixes the heads, and mixing is adding: cut it by inputs. In Llama a few query heads read one key head, and go to the same rank with it.
#
# Below, `tensor()` cuts a small Llama for four ranks.

# %%
SMALL = ModelConfig(
    name="small", hidden_size=64, n_layers=2, n_heads=8, n_kv_heads=4, ffn_size=176, vocab_size=512, tied=False
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=4, sequence=32, ragged=True)


def llama_alone(train, config=SMALL):
    return Trainer(Decoder(config), train)


def llama_on_ranks(train, *bugs, config=SMALL, **options):
    mesh = make_mesh(tp=dist.get_world_size())
    return Trainer(Decoder(config), train, mesh=mesh, apply=(tensor(**options), *bugs))


layout = run_ranks(lambda: llama_on_ranks(TrainConfig()).local.layout, 4)[0]
first_layer = {name: parts for name, parts in layout.regions().items() if name.startswith("layers.0")}
viz.plot_layout(first_layer, list(coordinates(layout.sizes)), title="One layer on four ranks")

# %% [markdown]
# A box is the whole tensor, and the coloured part is what a rank holds. Where a rank has a band across, the matrix is cut by outputs: queries, keys, values, gate and up. Where it has a band from top to bottom, it is cut by inputs: `o_proj` and `down_proj`. The two norms are small and stand between the pairs, so every rank keeps them whole.
#
# **Predict.** How many all-reduces does one layer make in a training step, forward and backward together?


# %%
def one_step(config):
    trainer = llama_on_ranks(TrainConfig(), config=config)
    comm.ledger.clear()
    trainer.compute_gradients(text.batch(0))


def all_reduces(n_layers):
    run_ranks(one_step, 4, replace(SMALL, n_layers=n_layers))
    return len(ledger().of("all_reduce").calls())


predict("all-reduces of one layer", guess=None, answer=all_reduces(3) - all_reduces(2))

# %% [markdown]
# Four. Each of the two pairs has one $g$ that adds in forward, and one $f$ that adds in backward. Queries, keys and values share a single $f$, because they read the same input, and so do gate and up.
#
# Now the bytes. Each of these all-reduces carries the activations: $B$ texts of $S$ tokens with $H$ numbers. You know from lesson 02 what a ring sends of that, so for a layer
#
# $$\text{bytes sent by each rank} = 4 \cdot 2\,\frac{p-1}{p} \cdot B\,S\,H \cdot \text{bytes of a number}$$
#
# **Predict** the KiB for our small Llama: 4 texts of 32 tokens, 64 numbers of 4 bytes<!-- =4 --> each, on 4 ranks.

# %%
run_ranks(one_step, 4, SMALL)
sizes = {"tp": 4, "batch": 4, "sequence": 32}
one_layer_more = (
    tensor_step(replace(SMALL, n_layers=3), **sizes).sent_bytes[0] - tensor_step(SMALL, **sizes).sent_bytes[0]
)
predict("KiB that a rank sends for one layer", guess=None, answer=one_layer_more / KiB, unit="KiB")
print(*tensor_rows(SMALL, **sizes), sep="\n")
sent, formula = ledger().of("all_reduce").bytes_sent(0), tensor_step(SMALL, **sizes).sent_bytes[0]
print(f"rank 0 sent {sent:,} bytes, by the formula {formula:,}")
assert sent == formula
wider = [replace(SMALL, ffn_size=2 * SMALL.ffn_size, n_layers=n) for n in (2, 3)]
two, three = (tensor_step(config, **sizes).sent_bytes[0] for config in wider)
print(f"a layer with ffn_size twice as large: {(three - two) / KiB:.0f} KiB")

# %% [markdown]
# The list has every all-reduce of forward and backward. Those of attention and feed-forward are our four; `2 x` means once in each of the two layers. The others belong to the two ends of the model: embedding, head and loss are cut along the vocabulary, and *Going deeper* shows how.
#
# Now read the formula again and look for the number of weights. It is not there! Data parallelism sends gradients, nearly two numbers for each weight, however long the text is. Tensor parallelism sends activations, in every layer, for every token. Make the model wider inside its blocks, and it sends the same: the last line says so.

# %% [markdown]
# ## Prove it
#
# We cut every large matrix of a model, and gave $f$ and $g$ a backward of our own. The ladder says whether it is still the same training. One device and four ranks read the same text, and on each rung the largest difference is compared with what rounding in float64 allows.

# %% varies="the last digits of rounding differ between processors"
report = assert_parallel_equals(llama_alone, llama_on_ranks, text, world_size=4)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# Read it from the foot up. The output is the same, and so are the gradient of every parameter, its norm and the weights after three steps. The last rung is a run that was saved and loaded. Every dot is far to the left of the dashed line. What is left are the last few bits of a number, because four ranks add in another order than one.
#
# ## Measure: memory
#
# What did it bring? Of four ranks each should hold a little more than a quarter, because the norms are whole everywhere. The formula of `rank_parameters` was written without the code that cuts, so the two can check each other.


# %%
def parameters_here():
    return sum(parameter.numel() for parameter in llama_on_ranks(TrainConfig()).model.parameters())


whole = costs.model_parameters(SMALL)
for p in (2, 4):
    held = run_ranks(parameters_here, p)
    assert held == [rank_parameters(SMALL, ParallelConfig(tp=p)).total] * p
    print(f"{p} ranks: {held[0]:,} of {whole:,} parameters on each, {held[0] / whole:.1%}; the formula agrees")

# %% [markdown]
# ## Measure: time
#
# Is it faster? We ask the emulated clock.
#
# A layer of Llama 3.1 8B over 2048 tokens, forward, takes one H100 2.3 ms<!-- =1e3 * 2 * layer_parameters(LLAMA_3_1_8B) * 2048 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->, at 40 %<!-- =40 --> of its peak, attention scores left out. On four GPUs each computes a quarter, and after both blocks all of them add up 16 MiB<!-- =2048 * 4096 * 2 / MiB -->.
#
# NVLink carries 150 GB/s<!-- =NVLINK.bandwidth_bytes_per_s / GB --> to each neighbour in a node of four, InfiniBand between nodes 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB -->. Each of the ring's six steps also waits 3.4 µs<!-- =1e6 * NVLINK.alpha_s --> or 14 µs<!-- =1e6 * INFINIBAND.alpha_s -->.
#
# **Predict** for both how many times as fast the four are. One sum takes one and a half times its bytes over the wire, and six waits.

# %%
attention = 2 * 4096 * (LLAMA_3_1_8B.query_size + LLAMA_3_1_8B.kv_size)  # its weights: q and o, k and v
per_second = 0.4 * H100.peak_flops_per_s()
blocks_s = [2 * size * 2048 / per_second for size in (attention, costs.layer_parameters(LLAMA_3_1_8B) - attention)]


def one_layer_forward(link):
    p, activations = dist.get_world_size(), torch.ones(2048 * 4096 // 2)  # as many bytes as in bfloat16
    with comm.emulated(EmulatedClock(inside=link, slowdown=500)):
        for seconds in blocks_s:
            comm.compute(seconds / p)
            comm.all_reduce_(activations, async_op=True).wait()


runs = {}
for name, p, link in (("one GPU", 1, NVLINK), ("four, NVLink", 4, NVLINK), ("four, InfiniBand", 4, INFINIBAND)):
    run_ranks(one_layer_forward, p, link)
    runs[name] = ledger()
faster = {name: runs["one GPU"].span_s / run.span_s for name, run in runs.items()}
predict("times as fast, with NVLink", guess=None, answer=faster["four, NVLink"], tolerance=0.1)
predict("times as fast, over InfiniBand", guess=None, answer=faster["four, InfiniBand"], tolerance=0.1)
viz.plot_overlap(runs, title="One layer forward", subtitle="emulated clock, no real GPU; rank 0; the line is the end")

# %% [markdown]
# In both runs of four the blue bars, the computing, have shrunk to a quarter. Now compare the dark ones, the two sums. Over NVLink they cost less than the computing. Over InfiniBand they cost twice as much as the computing, and most of what three more GPUs could win is gone.
#
# So even over NVLink four GPUs are far from four times as fast. Could we hide the sums, as lesson 03 did with its buckets? Backward has something to do meanwhile: it makes the weights' gradients while $f$ adds. Forward has next to nothing, because the next block reads exactly this sum. That is why tensor parallelism lives **inside a node**, where the wires are fast.

# %% [markdown]
# ## In PyTorch alone
#
# PyTorch has the same pair: a plan says which module is cut how, and `parallelize_module` does it. [`scripts/05_tensor_parallel.py`](scripts/05_tensor_parallel.py) trains a small decoder so, with nothing of this course; start it with `torchrun --nproc-per-node 4 scripts/05_tensor_parallel.py`.
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `"column"` in a plan | `ColwiseParallel()` | the result may also be gathered |
# | `"row"` | `RowwiseParallel()` | an all-reduce; with `output_layouts=Shard(1)`, as in the script, a reduce-scatter |
# | `tensor()` | `parallelize_module(model, mesh, plan)` | weights become DTensors, which know their cut |
# | `sequence_parallel=`, see *Going deeper* | `SequenceParallel()`, layouts `Shard(1)` | the plan says where the text is cut |
# | the cut loss | `with loss_parallel():` | around loss and backward |

# %% [markdown]
# ## Bug museum
#
# A small decoder of GPT's shape, with a bias on every matrix of its layers, reads Shakespeare on two ranks with AdamW and clipping, as people train. The broad line is one device. Runs A, B and C are on ranks. Each **may** have a bug that was met in public.
#
# Look at the curves first, and decide how many of the three are sound.

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
names = sorted([*museum.TENSOR_BUGS, "sound"], key=lambda name: name[1:])  # an order that gives nothing away
exhibits = {"A": names[3], "B": names[5], "C": names[2]}  # print them after you have decided
reading = replace(text, batch_size=16)


def gpt_alone(train):
    return llama_alone(train, GPT)


def gpt_on_ranks(train, *bugs):
    return llama_on_ranks(train, *bugs, config=GPT)


makers = {
    run: museum.TENSOR_BUGS[name].planted(gpt_on_ranks) if name != "sound" else gpt_on_ranks
    for run, name in exhibits.items()
}
curves = {"one device": museum.curve_alone(gpt_alone, reading.batch, 40).losses}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, reading.batch, world_size=2, steps=40).losses
viz.plot_loss_curves(curves, title="Which of these runs are sound?")

# %% [markdown]
# **Predict** the number of sound runs. After your guess you see what the ladder says of each: the rung on which it falls, what it names there, and by how much that is off. Then close the page for a moment and say what the run does wrong, and in which line you would look.

# %%
hints = {}  # what the ladder would look at; print them if you are stuck
predict("sound runs among A, B and C", guess=None, answer=list(exhibits.values()).count("sound"))
for run, make in makers.items():
    try:
        assert_parallel_equals(gpt_alone, make, text, world_size=2, rungs=RUNGS[:5])
        print(f"run {run}: equal on every rung")
    except NotEqual as error:
        what, _, way_out = str(error).split("; ", 2)
        print(f"run {run} falls on: {error.rung}")
        print(fill(what.partition(": ")[2], 110, initial_indent="    ", subsequent_indent="    "))
        hints[run] = way_out

# %% [markdown]
# The ladder says where. Finding out why is your part. A is right in its first step: what is special about biases then? On how many ranks is C's bias added?
#
# <details><summary>Run A</summary>A adds these biases <b>on each rank, before the sum</b>, so each counts twice: the third attempt warned you. Biases are born as zeros, so the first step is still right. It was <a href="https://github.com/awslabs/slapo/issues/10">met in public</a>.</details>
#
# <details><summary>Run C</summary>Each rank adds half of the bias, so the sum is right. But autograd halves the gradient as well, and nobody adds up the halves. Adam hardly notices. Clipping sees a smaller norm. It was <a href="https://github.com/pytorch/torchtitan/pull/4332">met, too</a>.</details>

# %% [markdown]
# ## When to use it
#
# | what hurts | take | where |
# | --- | --- | --- |
# | one layer, or its activations, do not fit | tensor parallelism | inside a node |
# | one text must be finished sooner | tensor parallelism | inside a node |
# | the layers fit, the model does not | a pipeline, lesson 04 | between nodes: a cut carries little |
# | all fits, there is too much text | data parallelism, lesson 03 | between nodes: it hides behind backward |
#
# How many ranks? At most as many as a node has GPUs, and best a number that divides the key heads, 8 in every Llama 3.1. More ranks make thinner matrices, and no smaller messages.
#
# And the layer from the first page? Eight GPUs of a node share it now.

# %%
shared = {f"tp = {p}": one_layer(131072, tp=p) for p in (1, 2, 4, 8)}
viz.plot_gpu_memory(shared, H100, title="The same layer, shared: one text of 131,072 tokens")

# %% [markdown]
# Two GPUs just hold it, on paper. But on eight the activations are not an eighth. What goes into the two norms and comes out is whole on every GPU: four tensors of 4 GiB<!-- =131072 * 16384 * 2 / GiB -->. *Going deeper* cuts these too.
#
# ## What still hurts
#
# Eight GPUs share each layer of the 405B, and sixteen such nodes are a pipeline, so 128 GPUs hold it once. On Meta's 16,384 GPUs that makes 128 copies.
#
# If each GPU kept all Adam states of its part, they would take 38 GB<!-- =12 * model_parameters(load_model("llama3_1_405b")) / 128 / GB -->, the same on 128 GPUs. Why remember it 128 times? Meta's GPUs did not; lesson 06 begins there. For texts as long as ours they also cut the text itself.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the exercises `05_tensor_parallelism`.
#
# <details><summary>1. How could C add half of the bias on each rank and still have the right gradient?</summary>
# <code>bias + (bias / p - bias).detach()</code>: backward it counts whole.
# </details>
#
# <details><summary>2. You double the batch. What happens to the bytes of tensor parallelism, and of data parallelism?</summary>
# Activations double. Gradients stay.
# </details>
#
# <details><summary>3. Somebody forgets every f. Which gradients are still right?</summary>
# That of the head's matrix: each rank has the logits of its own words. But the gradient of its input already needs a sum, so everything before it is wrong.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## The loss, without ever seeing the logits
#
# Llama's head makes 128,256 numbers for each token. The head is cut by outputs, so each rank has the logits of its own words. For 8192 tokens, gathering them would bring 2.1 GB<!-- =128256 * 8192 * 2 / GB --> to every GPU. Is that needed?
#
# The loss of a token is $\log \sum_v e^{z_v} - z_{target}$. That is one sum over all words, and one logit, which some rank has. So for each token the ranks exchange one number for the sum and one for the target's logit. A third comes first: the largest logit, without which $e^z$ may overflow.

# %%
logits = 3 * torch.randn(5, 12, generator=torch.Generator().manual_seed(1))  # 5 tokens, 12 words
goals = torch.tensor([0, 11, 5, 6, 3])
parts, first_words = logits.chunk(2, dim=1), (0, 6)  # six words on each rank

largest = torch.stack([part.amax(1) for part in parts]).amax(0)  # all-reduce 1, of the maximum
total = sum((part - largest[:, None]).exp().sum(1) for part in parts)  # all-reduce 2
target = torch.zeros(5)  # all-reduce 3: the rank that has the word gives its logit, the other 0
for part, first in zip(parts, first_words, strict=True):
    mine = (goals >= first) & (goals < first + 6)
    target += torch.where(mine, part.gather(1, (goals - first).clamp(0, 5)[:, None])[:, 0], 0)
print(torch.allclose(total.log() + largest - target, F.cross_entropy(logits, goals, reduction="none")))

# %% [markdown]
# Three numbers for each token instead of 128,256. The loss needs none in backward. The embedding is the mirror image: a rank has the rows of its words and gives zeros for the others, and one all-reduce brings every token its row.
#
# ## Sequence parallelism
#
# Between the pairs all ranks still do the same: norms and additions, on the same activations, which all of them keep. But an all-reduce is a reduce-scatter and an all-gather. Stop in the middle, and each rank has some **positions** of the text. Do the norms and additions there, and gather where the next pair begins.
#
# Backward needs the gathered text again. `"keep"` holds on to it; `"regather"` gathers a second time.

# %%
for form in (None, "keep", "regather"):
    make = partial(llama_on_ranks, sequence_parallel=form)
    assert_parallel_equals(llama_alone, make, text, world_size=4, rungs=RUNGS[:2])
    formula = tensor_step(SMALL, **sizes, sequence_parallel=form).sent_bytes[0]
    spread = ParallelConfig(tp=8, pp=126, sequence_parallel=form is not None)
    work = Work(sequence=131072, microbatch=1, keep_gathered=form == "keep")
    kept = gpu_memory(LLAMA_405B, spread, work, find_convention("zero"), stage=63).activations
    print(
        f"{form or 'without':9} equal; {formula:,} bytes a step; a layer of the 405B keeps {kept / GiB:.1f} GiB a GPU"
    )

# %% [markdown]
# The first two send the same: each all-reduce has become its two halves. The second has a few bytes more: of the norms' gradients each rank finds a term, from its own positions, and these are added up. Forget that, and you have one more exhibit.
#
# ## Fewer key heads than ranks
#
# In Llama 3.1 8B four query heads read one key head, and go to the same rank with it. There are 8 key heads. On 16 ranks each would get half a head, so two ranks keep copies of one head. Each finds its own queries' term of the gradient, and these are added up. The small Llama with two key heads on four ranks:

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
# Read the first line so: cut into two halves, each kept on two ranks, and a rank finds a term of the gradient.
#
# ## A chain of matrices
#
# A talk on distributed training (K. Yuan, 2024) shows $y = W_3 W_2 W_1 x$ with two partitions: by outputs, inputs, inputs, and by outputs, outputs, inputs. Its slide says that each has its own cost, and leaves the costs to the listener. You can compute them now; $x$ is data and needs no gradient. Below is what the busiest rank sends, and then the best partition in which no rank holds more than half of the weights. Each matrix may be cut by outputs, by inputs, or not at all.

# %%
widths = (8, 32, 8, 16)
for cuts in (("out", "in", "in"), ("out", "out", "in")):
    found = chain_partition(widths, cuts, tp=2, samples=4)
    print(
        f"{' '.join(cuts):12} forward {max(found.forward.sent_bytes)} bytes, backward {max(found.backward.sent_bytes)}"
    )

longer = (8, 32, 8, 32, 8)
half = sum(a * b for a, b in zip(longer, longer[1:], strict=False)) // 2
print(f"\nthe best of {3**4} for four matrices:\n{search_chain(longer, tp=2, samples=4, most_weights=half)[0]}")

# %% [markdown]
# The long chain is narrow where it has 8 numbers. The search puts its sums just there, and cuts out, in, out, in: Megatron's two pairs, found by counting.
#
# ## What DTensor does differently
#
# A DTensor carries its cut with it, and each operation works out which collective it needs. You write no $f$ and no $g$. Key heads are not copied, so the number of ranks must divide theirs.
#
# ## On a GPU node and on a cluster
#
# Let ranks that share a layer sit in one node. Neither was run here.
#
# References: Shoeybi et al. 2019, *Megatron-LM*; Korthikanti et al. 2022, *Reducing activation recomputation*; Llama team 2024; K. Yuan 2024, a lecture.
