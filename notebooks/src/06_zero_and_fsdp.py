# %% [markdown]
# # 06 · ZeRO and FSDP: who keeps what?
#
# Lesson 05 ended with a question: with 128 copies of a model, why should each remember all of Adam's states? We ask it of a smaller model of 7.5 billion parameters, on 64 GPUs with data parallelism.
#
# Each GPU reads sequences of its own, but weights, gradients and optimizer are the same on all. Together they take 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> a parameter: 2 each for the weight and its gradient, in bfloat16, and 12 for the optimizer. It keeps $m$, $v$ and a precise copy of the weight, its **master weight**. All of these together are the **model states**.
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, costs, gauges, ledger, predict, run_ranks, score, viz
from course_lib.costs import (
    ETHERNET,
    decoder_units,
    find_convention,
    layer_parameters,
    load_cluster,
    load_device,
    sharding_rows,
    sharding_step,
    state_bytes,
    wires,
)
from course_lib.parallel import (
    CPUOffloadPolicy,
    DiskOffloadPolicy,
    ShardedModel,
    Sharing,
    by_block,
    by_block_and_size,
    by_block_group,
    size_based,
    tier_bytes,
)
from course_lib.training import (
    MLP,
    Batches,
    Decoder,
    ModelConfig,
    TrainConfig,
    Trainer,
    fully_shard,
    load_model,
    load_text,
    load_tokens,
    make_mesh,
    pace,
    replicate,
    zero,
)
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum

# %%
PARAMETERS, GPUS = 7_500_000_000, 64
ZERO, H100 = find_convention("zero"), load_device("h100_sxm_80")  # the convention: 2 + 2 + 12 bytes

viz.plot_states(
    {"each GPU": state_bytes(PARAMETERS, ZERO)},
    memory_bytes=H100.memory_bytes(),
    title="7.5 billion parameters, on each of 64 GPUs",
    subtitle="2 + 2 + 12 bytes a parameter: weights, gradients, optimizer",
)

# %% [markdown]
# Look at the dashed line, where a GPU's memory ends. Each GPU would have to keep 120 GB<!-- =16 * 7.5e9 / GB -->, and has only 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB -->, so training does not even start. More GPUs do not help, because each would have to keep the same numbers.
#
# But together they have memory enough. So let each GPU remember only a part, a **shard**, and ask another for the rest when it needs it. Does the training stay the same? We try it on a small model first.

# %% [markdown]
# By the end you will be able to
# - share out Adam's states, then gradients, then weights.
# - say what each of these steps costs in messages, before you run it.
# - follow the weights of one layer as they come and go.
# - find bugs in a training in which no rank has all the numbers.
#
# *Fifty minutes; the exercises come on top.*
#
# <details><summary>Before you start</summary>You need reduce-scatter and all-gather from lesson 02, and data parallelism and the ladder from lesson 03. Everything here ran on CPUs over gloo; NCCL and Slurm did not run for this page.</details>

# %% [markdown]
# ## What must come out
#
# Our object is again the perceptron of 38 parameters, without a GELU. We write them one after the other into one **row**, a *flat parameter*. One device says what is right: it finds the gradient of the mean loss over eight samples and makes a step of AdamW. Its weights are in float32, so it needs no precise copy.
#
# Under data parallelism two ranks read four samples each. An all-reduce adds up their gradients, and both divide the sum by two, so each makes the step of one device.

# %%
torch.manual_seed(0)
model = MLP()
inputs, goals = torch.randn(8, 6), torch.randn(8, 2)


def one_row(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def gradient_of(samples):
    """The 38 gradients of the mean loss over these samples."""
    loss = F.mse_loss(model(inputs[samples]), goals[samples])
    return one_row(torch.autograd.grad(loss, list(model.parameters())))


weights = one_row(model.parameters())
alone = weights.clone().requires_grad_()
alone.grad = gradient_of(slice(0, 8))
torch.optim.AdamW([alone], lr=0.1).step()
viz.plot_kept(0)

# %% [markdown]
# The picture shows the memory of both ranks in the second step, when $m$ and $v$ exist, after the all-reduce. Look at rank 0. For each of the 38 parameters it keeps four numbers: the weight, its gradient, and Adam's $m$ and $v$. That makes 152, and all are dark grey, because rank 1 has them as well.
#
# Where would you begin to save? Ask of each line when it is needed. The weights are needed all through forward and backward, and the gradients from backward to the update. But Adam's states sleep all that time, because only the update uses them. So we begin with them. On the 64 GPUs they are also the largest part.

# %% [markdown]
# ## Step one: Adam's states
#
# After the all-reduce both ranks do the same work on the same numbers. So let rank 0 update the first half of the parameters, and rank 1 the other. For that a rank needs nothing of the other half, because AdamW treats each number by itself.
#
# What still has to travel? Before the update rank 0 needs the gradients of its half, **summed** over both ranks, so a reduce-scatter is enough. Afterwards it needs the new weights of rank 1, because forward uses all of them, and an all-gather brings them.

# %%
gradients = [
    gradient_of(slice(0, 4)),
    gradient_of(slice(4, 8)),
]  # our ranks are two entries of a list for now
sums = (gradients[0] + gradients[1]).tensor_split(
    2
)  # a reduce-scatter: sums[rank] is all that a rank gets

pieces = [piece.clone().requires_grad_() for piece in weights.tensor_split(2)]
for piece, mine in zip(pieces, sums, strict=True):
    piece.grad = mine / 2
    torch.optim.AdamW([piece], lr=0.1).step()  # remembers m and v of 19 numbers

together = torch.cat(pieces)  # an all-gather: every rank has all new weights
print("equal to one device:", torch.allclose(together, alone))
viz.plot_kept(1)

# %% [markdown]
# The two lowest lines of each rank have a colour now, because each of these numbers is remembered by one rank alone. This is **ZeRO-1**, the first stage of the *zero redundancy optimizer*. The gradients are striped, because each rank still has those of its own four samples: our reduce-scatter comes after backward.
#
# **Predict.** How many numbers does each of two real ranks send in our new step? Ask first whether that is more than the all-reduce of lesson 03 sends, less, or the same.


# %%
def zero_1(weights, gradients):
    rank = dist.get_rank()
    mine = comm.reduce_scatter(gradients[rank]) / 2
    piece = weights.tensor_split(2)[rank].clone().requires_grad_()
    piece.grad = mine
    torch.optim.AdamW([piece], lr=0.1).step()
    return comm.all_gather(piece.detach())


on_ranks = run_ranks(zero_1, 2, weights, gradients)
predict("numbers that each rank sends under ZeRO-1", guess=None, answer=ledger().bytes_sent(0) / 4)
print("equal to one device:", [torch.allclose(row, alone) for row in on_ranks])

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Put the two steps side by side. Lesson 03 reduced, gathered and updated, whereas we reduce, update and gather. It is the same all-reduce with the update moved into its middle, so its second half carries new weights instead of gradients. In each half a rank sends 19 numbers, as before.
#
# </details>
#
# > **To keep.** ZeRO-1 saves memory, and not one number more is sent.

# %% [markdown]
# ## Step two: the gradients
#
# The striped gradients are useless after the reduce-scatter, but until then they take up memory. So why wait for the end of backward? The last layer's gradients are ready first. Sum them up at once, keep your piece, and forget the rest before the next layer's come. This is **ZeRO-2**.
#
# But our cut at 19 gives the whole last layer to rank 1. For this layer rank 0 would only send and rank 1 only receive, so half of each wire would be idle. We cut each layer in two instead: a rank keeps 14 of the first layer's 28 numbers and 5 of the second's 10.

# %%
viz.plot_kept(2)

# %% [markdown]
# Look at rank 0's line of gradients. The blue ones are the sums that it keeps. The dashed ones were there only for a moment, one layer at a time.
#
# > **To keep.** ZeRO-2 keeps only its own sums, and with a single backward it sends no more than ZeRO-1: the same gradients travel, only sooner.

# %% [markdown]
# ## Step three: the weights
#
# One line is still dark: both ranks keep all weights, although each updates only half. Forward and backward need them all, but not **at the same time**, because at any moment forward is in one layer only.
#
# So let each rank keep only its pieces. When forward comes to a layer, the ranks gather its weights, compute with them, and forget what they gathered. For backward they gather them again. What is gathered together is called a **unit**; our units are the two layers.

# %%
viz.plot_kept(3)

# %% [markdown]
# Now the weights have a colour as well, so nothing is kept twice, and the dashed weights come and go with their layer. This is **ZeRO-3**. PyTorch calls it **FSDP**, *fully sharded data parallel*, and so do we.
#
# > **To keep.** ZeRO-3 keeps nothing twice: a unit's weights are whole only around the time when somebody computes with them.
#
# ### Build it
#
# Below is a step on two real ranks, without its update. The forward is written, and so is the backward of the second unit; together they make three gathers. Does the backward of the first unit need a fourth?
#
# **Your turn**: write the first unit's backward in the last two lines. Nobody needs the gradient of $x$.

# %%
# %%ranks 2 --push model,inputs,goals --pull first,second
from course_lib.comm import all_gather, reduce_scatter
import torch

samples = slice(4 * rank, 4 * rank + 4)
x = inputs[samples]
units = [
    torch.cat([p.detach().flatten() for p in layer.parameters()]) for layer in (model.layer1, model.layer2)
]
mine = [unit.tensor_split(2)[rank].clone() for unit in units]  # this rank's pieces: 14 and 5 numbers
del units

whole = all_gather(mine[0])
hidden = x @ whole[:24].view(4, 6).T + whole[24:]  # its 28 numbers: 24 of W1, then 4 of b1
del whole  # forget the first unit
whole = all_gather(mine[1])
y = hidden @ whole[:8].view(2, 4).T + whole[8:]  # its 10 numbers: 8 of W2, then 2 of b2
del whole  # forget the second unit

g = 2 * (y - goals[samples]) / y.numel()  # gradient of the mean squared error
whole = all_gather(mine[1])
g_hidden = g @ whole[:8].view(2, 4)
del whole
of_second = torch.cat([(g.T @ hidden).flatten(), g.sum(0)])  # 10 numbers, of this rank's samples
second = reduce_scatter(of_second) / 2

of_first = torch.zeros(28)  # your turn: the gradient of the first unit, from g_hidden and x
first = torch.zeros(14)  # and this rank's piece of the ranks' average

# %%
right = gradient_of(slice(0, 8))
for name, found, wanted in (("first", first, right[:28]), ("second", second, right[28:])):
    equal = torch.allclose(
        torch.cat([*found]), wanted, atol=1e-6
    )  # what is pulled has an entry for each rank
    print(f"{name} unit: {'equal to one device' if equal else 'not yet equal'}")

# %% [markdown]
# <details><summary>One solution</summary>
#
# ```python
# of_first = torch.cat([(g_hidden.T @ x).flatten(), g_hidden.sum(0)])
# first = reduce_scatter(of_first) / 2
# ```
#
# No fourth gather is needed, because the gradient of $W_1$ is made of $x$ and of what came back from the second unit. Every other unit needs its weights, to find the gradient of its input. The library treats all units alike, so it gathers the first as well.
# </details>
#
# With these two lines you have the forward and backward of FSDP. The library does the same for any model.

# %% [markdown]
# ### Eight steps
#
# A workshop of the Kempner Institute counts eight steps in the life of a unit: gather, forward, free; gather again, backward, free; reduce-scatter; update. PyTorch says **unshard** for gather and **reshard** for free.
#
# **Predict.** Let each rank cut its four samples into four micro-batches, and make one update. Data parallelism would add up the four gradients first, and send 38 numbers once. How many does a rank send under FSDP? Begin with one micro-batch, and then ask what a rank still has when the second one begins.


# %%
def fsdp_step(micro_batches):
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    everyone = Sharing(
        shards=dist.group.WORLD, everyone=dist.group.WORLD
    )  # no two ranks keep the same piece
    ShardedModel(model, everyone, by_block, overlap=False)  # from here on a parameter is this rank's piece
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pace(
        [model.layer1, model.layer2], forward_s=0, backward_s=0
    ):  # notes forward and backward in the ledger
        for x, goal in zip(
            inputs[mine].chunk(micro_batches), goals[mine].chunk(micro_batches), strict=True
        ):
            (F.mse_loss(model(x), goal) / micro_batches).backward()
    with comm.span("update"):
        optimizer.step()


run_ranks(fsdp_step, 2, 4)
predict("numbers that each rank sends under FSDP", guess=None, answer=ledger().bytes_sent(0) / 4)
run_ranks(fsdp_step, 2, 1)
for event in ledger().events:
    if event.rank == 0 and event.kind != "recv":
        print(f"{event.operation:15}", f"sends {event.nbytes // 4}" if event.nbytes else "")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The list above shows one micro-batch, and leaves out only *free*. All weights are gathered twice, and all gradients reduced once. In each of these three rounds of collectives a rank sends its half of the 38, so 57 in all. Four micro-batches make 228, because in between nobody keeps whole weights or gradients.
#
# What a rank sends in a step is its **communication volume**. We count it in gathers of all weights. Here such a gather is 19 numbers. In a ring of $p$ ranks it is $(p-1)/p$ of all, so on many ranks it is nearly $\Psi$, the number of parameters. So papers write $2\Psi$ for data parallelism and $3\Psi$ for FSDP.
#
# And with **gradient accumulation**? Data parallelism and ZeRO-1 stay at 2, because they add up the micro-batches first, and then reduce and gather once. ZeRO-2 has to reduce in every micro-batch, because in between a rank keeps only its own sums, and it gathers weights once. For our four that makes 5, and for FSDP **12**.
#
# </details>
#
# > **To keep.** FSDP gathers weights twice and reduces gradients once, in every micro-batch.

# %% [markdown]
# ## Must we wait for the weights?
#
# FSDP sends half as much again as data parallelism. Does that cost time? In our list each unit waits for its weights. But while one unit computes, the network could **prefetch** the weights of the next. In backward it could also reduce the gradients of the unit whose backward has just ended.
#
# Take units 0 to 5 on four ranks. On the emulated clock a unit's forward takes 0.5 ms<!-- =0.5 -->, its backward 1 ms<!-- =1 -->, and each collective 0.342 ms<!-- =1e3 * comm_time("all_gather", "ring", world_size=4, length=512 * 513, itemsize=4).time_s(ETHERNET) -->. One after another, 9 ms<!-- =6 * 1.5 --> of computing, 12 gathers and 6 reduce-scatters make 15.2 ms<!-- =6 * 1.5 + 18 * 1e3 * comm_time("all_gather", "ring", world_size=4, length=512 * 513, itemsize=4).time_s(ETHERNET) -->.
#
# **Predict** how long the step takes with prefetch. Each unit is still freed after its forward. Which collectives find no computing to hide behind?


# %%
def timed_step(overlap):
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    everyone = Sharing(shards=dist.group.WORLD, everyone=dist.group.WORLD)
    with comm.settings(ledger=False, guard=False):
        ShardedModel(model, everyone, overlap=overlap)
        model(torch.ones(1, 512)).sum().backward()  # the units learn who follows whom
    clock = comm.EmulatedClock(inside=ETHERNET, slowdown=100)
    with comm.emulated(clock), pace(layers, forward_s=0.5e-3, backward_s=1e-3):
        model(torch.ones(1, 512)).sum().backward()


runs = {}
for name, overlap in (("in turn", False), ("with prefetch", True)):
    run_ranks(timed_step, 4, overlap)
    runs[name] = ledger()
predict(
    "ms with prefetch", guess=None, answer=1e3 * runs["with prefetch"].span_s, unit="ms", tolerance=0.03
)
viz.plot_units(runs, 6)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In the lower picture the row *compute* has three wide gaps. At the left it waits for unit 0, and at the right unit 0's gradients are summed up. In the middle it waits for unit 5, with which backward begins. Forward has just freed it, because the library treats all units alike. These three collectives are **exposed**, and add to the 9 ms<!-- =6 * 1.5 --> of computing; the other 15 hide.
#
# </details>
#
# > **To keep.** Prefetch hides a gather behind the unit before it; the price is that **two** units are whole at a time, besides the root that you meet below.
#
# ## Prove it
#
# So far we have compared gradients with one device. Now ZeRO-2 and FSDP climb the whole ladder, with a small Llama on four ranks.

# %% varies="the last digits of rounding differ between processors"
SMALL = ModelConfig(
    name="small",
    hidden_size=64,
    n_layers=4,
    n_heads=8,
    n_kv_heads=4,
    ffn_size=176,
    vocab_size=512,
    tied=False,
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32, ragged=True)


def llama_alone(train):
    return Trainer(Decoder(SMALL), train)


def llama_sharded(train, technique=None, config=SMALL):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(Decoder(config), train, mesh=mesh, apply=(technique or fully_shard(by_block),))


def two_micro_batches(train):
    return llama_sharded(replace(train, accumulation=2), technique=zero(2))


for name, make in (("ZeRO-2", two_micro_batches), ("FSDP", llama_sharded)):
    report = assert_parallel_equals(llama_alone, make, text, world_size=4)
    print(f"{name}: equal to one device on {len(report.deviations)} rungs")
viz.plot_ladder(report.deviations, tolerance=report.tolerance)  # the last one, FSDP

# %% [markdown]
# Both agree with one device on every rung, ZeRO-2 even with two micro-batches. In the picture FSDP differs only in the last digits of float64. Two rungs need messages of their own now, because no rank has everything. Clipping needs the *gradient norm*, so each rank adds up the squares of its own pieces, and an all-reduce adds up these sums. For *save and load* the pieces are put together, and taken apart again.

# %% [markdown]
# ## Measure: what is in memory
#
# We did all this to save memory, so now we watch it. Four ranks train a small Llama of eight blocks with AdamW. In forward its activations pile up, block by block, to 2.7 MiB<!-- =(8 * 334_336 + 180_480) / MiB --> at the loss. Backward frees them again, while 1.7 MiB<!-- =4 * 435_264 / MiB --> of gradients come in.
#
# **Predict.** By how many MiB is the highest point of the step lower under ZeRO-2 than under ZeRO-1?

# %% varies="what PyTorch allocates while it computes differs between processors"
DEEP = replace(SMALL, n_layers=8)


def in_memory(technique):
    trainer = llama_sharded(TrainConfig(optimizer="adamw"), technique=technique, config=DEEP)
    trainer.step(text.batch(0))  # in the first step Adam's states come into being
    return gauges.track_step(trainer, text.batch(1))


techniques = {"DDP": replicate(), "ZeRO-1": zero(1), "ZeRO-2": zero(2), "FSDP": fully_shard(by_block)}
steps = {name: run_ranks(in_memory, 4, technique, timeout=55)[0] for name, technique in techniques.items()}
most = {name: max(instant.total for instant in step) for name, step in steps.items()}
predict(
    "MiB by which ZeRO-2 lowers ZeRO-1's peak",
    guess=None,
    answer=round((most["ZeRO-1"] - most["ZeRO-2"]) / 2**20, 1),
    think="in which moment of the step most is in memory, and how many gradients there are by then",
)
viz.plot_memory_strips(steps, subtitle="rank 0 of four; a column for each moment of the step")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Begin with the first column of each strip. Under ZeRO-1 the yellow optimizer shrinks to a quarter, but only FSDP shrinks the violet weights as well.
#
# Orange gradients pile up in ZeRO-1, but hardly in ZeRO-2. Yet both strips are highest at the loss, because a block's backward frees more activations than it brings gradients.
#
# FSDP's dark box, the gathered weights, holds only one unit at the loss: the **root**, made of embedding, last norm and head. One column later block 7 and the prefetched block 6 are gathered as well, so FSDP peaks there. On the 64 GPUs, too, whole units and activations come on top of a 64th of the states.
#
# </details>
#
# > **To keep.** A peak is a moment: sharing out lowers it only by what is alive then.
#
# ## In PyTorch alone
#
# [`scripts/06_fsdp.py`](scripts/06_fsdp.py) is the next stage of the script. This is what changes against tensor parallelism:

# %%
from pathlib import Path

viz.show_difference(Path("scripts/05_tensor_parallel.py"), Path("scripts/06_fsdp.py"))

# %% [markdown]
# Each block is a unit, and the root has the rest. The optimizer is made after sharding, so it has the pieces. *Going deeper* has a table of what PyTorch does differently. Start the script on 2 and on 4 processes: `torchrun --nproc-per-node 4 scripts/06_fsdp.py`. The losses are those of one device.
#
# **Your turn.** Let `optimizer = …` stand above `shard(…)`. What do the losses say?
#
# <details><summary>What you should see</summary>They hardly move, and nothing fails. Sharding put new parameters into the model. The optimizer has the old ones, which no forward reads, so they get no gradient and it skips them.</details>
#
# ## Bug museum
#
# The small Llama reads Shakespeare on two ranks under FSDP, with AdamW and clipping. Each of the runs A, B and C **may** have a bug that somebody has reported in public.
#
# **Predict.** Name the sound runs, as `"AC"` or `"none"`.


# %% varies="forty steps of rounding differ between processors"
def llama_with(train, *bugs):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(Decoder(SMALL), train, mesh=mesh, apply=(fully_shard(by_block), *bugs))


names = sorted(
    [*museum.SHARDED_BUGS, "sound"], key=lambda name: name[::-1]
)  # an order that gives nothing away
exhibits = {"A": names[4], "B": names[1], "C": names[0]}  # print them after you have decided
reading = replace(text, batch_size=16)

makers = {
    run: museum.SHARDED_BUGS[name].planted(llama_with) if name != "sound" else llama_with
    for run, name in exhibits.items()
}
curves = {"one device": museum.curve_alone(llama_alone, reading.batch, 40).losses}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, reading.batch, world_size=2, steps=40).losses
viz.plot_loss_curves(
    curves,
    title="Which of these runs are sound?",
    subtitle="loss in nats; the broad grey line is one device",
)

# %% varies="forty steps of rounding differ between processors"
from textwrap import fill

predict(
    "the sound runs",
    guess=None,
    answer="".join(run for run in exhibits if exhibits[run] == "sound"),
    think="how fast rounding alone can take two runs apart",
)
for run, make in makers.items():
    try:
        assert_parallel_equals(llama_alone, make, text, world_size=2, rungs=RUNGS[:5])
        print(f"run {run}: equal on the first five rungs")
    except NotEqual as error:
        what, _, way_out = str(error).split("; ", 2)
        print(f"run {run} falls on: {error.rung}")
        print(fill(what.partition(": ")[2], 110, initial_indent="    ", subsequent_indent="    "))
viz.plot_loss_differences(curves)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Run C agrees in float64, so its drift in float32 is rounding.
#
# Run A clips by the [norm of each rank's own pieces](https://github.com/areal-project/AReaL/issues/312). So each rank divides by another norm, and both are too small. Adam hides much of that, so the first picture looks sound, and only the second shows the drift.
#
# Run B is right in all of its first step, and wrong after three. So it reads something that was right only as long as the weights were those of the beginning. *Where does run B go wrong?*, under *Going deeper*, is the hunt for it.
#
# </details>
#
# > **To keep.** With pieces everywhere a first step may be right in everything, and a later one wrong. So climb the ladder beyond one step.

# %% [markdown]
# ## Back to the large models
#
# Lesson 05 asked why all 128 copies remember Adam's states. There each copy of the 405B lies on as many GPUs, and each would keep 38 GB<!-- =12 * model_parameters(load_model("llama3_1_405b")) / 128 / GB --> of such states. Under ZeRO-1 a GPU shares them with those that have the same part of the model, its **data-parallel group**. It keeps 0.3 GB<!-- =12 * model_parameters(load_model("llama3_1_405b")) / 128 / 128 / GB -->, and sends no more.
#
# > **To keep.** A higher stage never sends less, so take the lowest that fits.
#
# **Predict.** Which stage is that for 30 billion parameters on our 64 GPUs?

# %%
kept = {
    stage: state_bytes(30_000_000_000, ZERO, zero_stage=stage, shards=GPUS).total for stage in (0, 1, 2, 3)
}
fits = [stage for stage in kept if kept[stage] <= H100.memory_bytes()]
predict(
    "the lowest ZeRO stage that fits 30 billion parameters",
    guess=None,
    answer=fits[0],
    tolerance=0,
    think="what 30 billion times 2, 2 and 12 bytes are, and which of the three a stage divides by 64",
)
display(
    viz.zero_explorer(30, GPUS), viz.animate_zero_stages(30, 8)
)  # give the first one's fields other numbers

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# On 64 GPUs ZeRO-2 fits first, as the bars show, but its 66.6 GB<!-- =(2 + 14 / 64) * 30e9 / GB --> leave little for activations. On only eight, as in the picture below the bars, even ZeRO-2 stays above the red line.
#
# And our first model? Press *7.5B on 64 ranks*. ZeRO-1 brings the 120 GB<!-- =16 * 7.5e9 / GB --> to 31.4 GB<!-- =(4 + 12 / 64) * 7.5e9 / GB -->, so the training can start, and FSDP to 1.88 GB<!-- =16 * 7.5e9 / 64 / GB -->. And the training stays the same, as the perceptron has shown for ZeRO-1 and the ladder for FSDP.
#
# </details>
#
# ## When to use it
#
# | what hurts | take | communication volume of $m$ micro-batches, in gathers of the whole model |
# | --- | --- | --- |
# | Adam's states | ZeRO-1 | 2 |
# | gradients too | ZeRO-2 | $m + 1$ |
# | weights too | FSDP | $3m$ |

# %% [markdown]
# Go down the table, and stop at the first line that makes the model fit. If the wires between nodes are slow, each node's GPUs can share a whole copy, so that only gradients travel between nodes: **HSDP**. And a gather hides only behind enough computing. On 64 H100s of the Kempner cluster, the gather of a Llama 3.1 8B layer hides in forward if each GPU has at least about 2,200<!-- =round(next(s for s in range(100, 9000, 10) if 1 * 1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=s, causal=True)[:2]) / 32 * s / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) > 1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100")))), -2) --> tokens. *Going deeper* has both.

# %% [markdown]
# ## The file behind this lesson
#
# [`course_lib/parallel/sharding/flat_row.py`](../course_lib/parallel/sharding/flat_row.py), about 280 lines, is the life of one row, in its order: gather, show the weights, free them, reduce the gradients. It adds to yours a cut that falls in the middle of a parameter, and parameters that stay the same objects while their numbers come and go, so that the optimizer never notices.
#
# ## What still hurts
#
# To hide its gathers, FSDP wants many tokens on each GPU, although tokens make activations, which FSDP does not cut. Besides, every GPU reads a sequence of its own. Under FSDP alone the 16,384 GPUs of Llama 3.1 405B would read at least 16,384 sequences in a step, while [Meta's training](https://arxiv.org/abs/2407.21783) read 2,048.
#
# Tensor parallelism helps with both problems, because it cuts most activations, and its ranks share one sequence. So we want both. Can FSDP cut once more what tensor parallelism has already cut? Lesson 07 begins there.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/06_zero_and_fsdp.ipynb), then [lesson 07](07_fsdp_tp_2d_llama.ipynb).
#
# <details><summary>1. The optimizer Muon updates whole matrices. Which sentence of step one is then false?</summary>
# That each number is treated by itself. So each matrix goes whole to one rank, or is gathered.
# </details>
#
# <details><summary>2. How long would the step with prefetch take if unit 5 stayed whole after its forward?</summary>
# Two collectives are left that nothing hides, so 9.68 ms<!-- =6 * 1.5 + 2 * 1e3 * comm_time("all_gather", "ring", world_size=4, length=512 * 513, itemsize=4).time_s(ETHERNET) -->. PyTorch keeps a unit whole with <code>reshard_after_forward=False</code>.
# </details>
#
# <details><summary>3. When would ZeRO-2 lower the peak that we measured?</summary>
# With so few tokens that a block's backward frees less than it brings, because then the end of backward is highest. Or with gradient accumulation, where whole gradients are alive at the loss.
# </details>

# %% [markdown]
# # Going deeper
#
# You can skip any part below. But run the first code cell in any case, because two others use its `sent_by`.
#
# ## What a decoder sends
#
# On the perceptron FSDP had a volume of three. And on a decoder? There the root is a unit too: embedding, last norm and head. Both passes begin and end with it, so it is gathered once and stays whole.
#
# In a ring each of $p$ ranks sends $p-1$ of $p$ pieces. So to gather all $\Psi$ parameters once, it sends
#
# $$\frac{p-1}{p}\,\Psi\text{ numbers}$$
#
# **Predict.** Of the small Llama's 250,432 parameters, 65,600 are in the root. What is FSDP's volume in a micro-batch, to two decimals?


# %%
def sent_by(technique):
    """Bytes that rank 0 of four sends for weights and gradients in a training step."""

    def one_step():
        trainer = llama_sharded(TrainConfig(), technique=technique)
        comm.ledger.clear()
        trainer.compute_gradients(text.batch(0))
        trainer.update()

    run_ranks(one_step, 4)
    return ledger().bytes_sent(0) - 3 * 24  # every rank tells the three others its loss, in 24 bytes


once = (
    costs.model_parameters(SMALL) * 3 / 4 * 4
)  # its bytes: three quarters of all parameters, 4 bytes each
counted = {name: sent_by(technique) for name, technique in techniques.items()}
predict("FSDP's volume", guess=None, answer=round(counted["FSDP"] / once, 2))
for (name, sent), strategy in zip(counted.items(), ("DDP", "ZeRO-1", "ZeRO-2", "FULL_SHARD"), strict=True):
    formula = sharding_step(
        sharding_rows(decoder_units(SMALL), strategy=strategy, world_size=4)
    ).sent_bytes[0]
    print(f"{name:8}  {sent:9,} bytes, by the formula {formula:9,}: volume {sent / once:.2f}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look at the last line. FSDP has a volume of 2.74 and not 3, because the root, with 0.26 of all parameters, is not gathered a second time. The formula beside it knows nothing of the code, and agrees in every byte.
#
# </details>
#
# ## What is a unit? Four policies
#
# We made every layer a unit. Small units make many short messages, and each message costs a **latency**. Large units make fewer, but then much is whole at a time. OLMo has names for several such choices. PyTorch calls one a **wrapping policy**; we show four. A policy looks at a model and says which modules belong together. What it leaves over is the root's unit.

# %%
policies = {
    "by_block": by_block,
    "by_block_and_size": by_block_and_size,
    "by_block_group(2)": by_block_group(2),
    "size_based(30_000)": size_based(30_000),
}
decoder = Decoder(SMALL)
viz.plot_wrapping(decoder, {name: policy(decoder) for name, policy in policies.items()})

# %% [markdown]
# In the first line each of the four blocks is a unit, and the rest is the root's. `by_block_and_size` makes units of embedding and head as well, if they are as large as a block; OLMo's own policy of this name does not ask for the size. In Llama 3.1 8B they are, but here they are smaller, so two lines are equal. `by_block_group` joins two neighbours. `size_based` asks only for enough parameters, a hundred million in PyTorch and 30,000 here, so it finds units *within* blocks.
#
# ## Four strategies
#
# PyTorch's first FSDP had names for what is cut. `NO_SHARD` is data parallelism, `FULL_SHARD` is FSDP as above, and `SHARD_GRAD_OP` is near step two. `HYBRID_SHARD`, today's **HSDP**, shares weights among neighbours only, and the groups of neighbours are copies of each other.

# %%
for strategy, shards in (
    ("NO_SHARD", None),
    ("SHARD_GRAD_OP", None),
    ("FULL_SHARD", None),
    ("HYBRID_SHARD", 2),
):
    technique = fully_shard(by_block, strategy=strategy, shards=shards)
    make = partial(llama_sharded, technique=technique)
    assert_parallel_equals(llama_alone, make, text, world_size=4, rungs=RUNGS[:2])
    rows = sharding_rows(decoder_units(SMALL), strategy=strategy, world_size=4, shards=shards)
    sent, formula = sent_by(technique), sharding_step(rows).sent_bytes[0]
    print(f"{strategy:14} equal on two rungs; sends {sent:9,} bytes, by the formula {formula:9,}")

# %% [markdown]
# Between steps `SHARD_GRAD_OP` keeps only pieces of the weights, while ZeRO-2 keeps them whole. But it leaves a unit whole from its forward to its backward. That saves the second gather, so its volume is 2 in each micro-batch, $2m$ in all, where ZeRO-2's is $m + 1$. PyTorch's switch for it is `reshard_after_forward=False`. The price is that in the middle of a step the whole model is there.
#
# `HYBRID_SHARD` gathers among two neighbours, so each rank keeps half of the weights. Between the pairs only gradients travel, and each rank sends those of its half. If neighbours are in one NVLink domain, the slow wire carries only about a quarter of the last line's bytes. But then the model has to fit into one domain.

# %% [markdown]
# ## What PyTorch does differently
#
# The script of *In PyTorch alone* does what we did, with other names and some other choices. Read this before you change it.
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | pieces of any length | a DTensor, `Shard(0)` | cut in its first dimension, and padded to be sent |
# | `accumulation=4` | several backwards, then one update | after `set_requires_gradient_sync(False)` whole gradients add up, until a backward with `True` reduces them; that makes a volume of $2m + 1$ |
# | `trainer.save()` | `torch.distributed.checkpoint` | each rank writes its pieces |
# | `zero(1)` | `ZeroRedundancyOptimizer` | whole parameters are dealt out, and broadcast after DDP's whole all-reduce: a volume of 3 |
# | `zero(1)`, `zero(2)` | DeepSpeed: `zero_optimization: {stage: 1}`, `2` | gradients in flat **buckets** of `reduce_bucket_size` |
#
# ## Does a gather hide?
#
# Prefetch hides a gather only if the layer before it computes long enough. That depends on how many tokens a GPU has.
#
# Take 64 H100s of the Kempner cluster, four in a node, each node with four network cards of 50 GB/s<!-- =wires(load_cluster("kempner_h100")).card.bandwidth_bytes_per_s / GB -->. In Llama 3.1 8B a layer has 436 MB<!-- =2 * layer_parameters(load_model("llama3_1_8b")) / 1e6 -->. NCCL's rings through all cards gather them in 2.5 ms<!-- =1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))) -->, of which 0.4 ms<!-- =1e3 * costs.collective_s("all_gather", "ring", nbytes=64, ranks=64, wires=wires(load_cluster("kempner_h100"))) --> are latency.
#
# For a sequence of 8192 tokens an H100 computes 10.4 ms<!-- =1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=8192, causal=True)[:2]) / 32 * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) --> in this layer, attention included, at 40 %<!-- =40 --> of its peak. So there the gather hides easily. For 1024 tokens it computes 1.2 ms<!-- =1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=1024, causal=True)[:2]) / 32 * 1024 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->, and then it waits. The border is near 2,200<!-- =round(next(s for s in range(100, 9000, 10) if 1 * 1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=s, causal=True)[:2]) / 32 * s / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) > 1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100")))), -2) --> tokens: below it the wire sets the pace, above it arithmetic does. What decides is how many operations a byte brings, the **arithmetic intensity**; a picture of this border is called a **roofline**.
#
# ## Where does run B go wrong?
#
# In the bug museum run B left two clues. The **ladder** trains with SGD, where only weights go from a sound step to the next. Run B's first step is right in outputs, gradients and norm, but after three steps the parameters are wrong. The **curve** comes from AdamW. Look at run B in the museum's second picture. Each corner of its line is a step. In which one does run B's loss, which is known after forward, go wrong?
#
# **Predict.** Which part goes wrong? In the order of time:
#
# - **G** gather the pieces for forward,
# - **H** gather them again for backward,
# - **R** reduce-scatter gradients into empty pieces,
# - **N** norm and clipping,
# - **U** update the pieces, which the next G gathers.

# %%
predict(
    "the part of a step that goes wrong in run B", guess=None, answer=museum.WRONG_LINES[exhibits["B"]]
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Take the curve first. Run B's loss is right in step 2, so **U** wrote the right weights in step 1, and **G** gathered them. In step 3 the loss is wrong, so step 2 failed after its forward.
#
# The ladder uses SGD, so nothing but weights goes from step to step. Its first step was right, so **H**, **R** and **N** *can* work. What could be different in step 2? The weights are new. Who reads weights? **G**, **H** and **U**. G was right, for the loss of step 2 is. U takes the pieces that G had gathered. So **H** is left. It read a second [copy](https://github.com/deepspeedai/DeepSpeed/issues/4851), kept nearby to save messages, which [nobody renewed](https://github.com/deepspeedai/DeepSpeed/pull/4906) after step 1. (ZeRO++ calls it a secondary partition, `zero_hpz_partition_size`.)
#
# </details>
#
# > **To keep.** Ask of each part of a step what it reads, and what of that was new when the run went wrong.
#
# ## ZeRO-2 with gradient accumulation
#
# With a single backward ZeRO-2 sends no more than ZeRO-1. But suppose that a step is cut into four micro-batches, whose gradients add up before the one update. That is **gradient accumulation**.
#
# **Predict.** Let ZeRO-1, too, make a reduce-scatter for each layer. Then it makes two in a step, after the last micro-batch. How many does ZeRO-2 need?


# %%
def four_micro_batches(stage):
    config = TrainConfig(accumulation=4)
    trainer = Trainer(MLP(), config, mesh=make_mesh(dp=2), apply=(zero(stage),))
    trainer.compute_gradients((inputs, goals.argmax(1)))  # the trainer's loss wants classes


made = {}
for stage in (1, 2):
    run_ranks(four_micro_batches, 2, stage)
    made[stage] = len(ledger().of("reduce_scatter").calls())
predict(
    "reduce-scatters of ZeRO-2 in a step",
    guess=None,
    answer=made[2],
    think="what a rank still has of the gradients when the next micro-batch begins",
)
print("ZeRO-1 makes", made[1])

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Between micro-batches a rank of ZeRO-2 keeps only its own pieces of the sum, so each micro-batch's gradients must be summed over the ranks before the next one begins. That takes two calls for each of the four micro-batches.
#
# </details>
#
# > **To keep.** With gradient accumulation ZeRO-2 pays for memory with messages, so ZeRO-1 is better as long as whole gradients fit.
#
# ## A peak with gradient accumulation
#
# In *Measure* ZeRO-2 did not lower the peak, because there are no whole gradients at the loss. But from the second micro-batch on ZeRO-1 has them. So the cell repeats both with two micro-batches.


# %% varies="what PyTorch allocates while it computes differs between processors"
def accumulated(stage):
    config = TrainConfig(optimizer="adamw", accumulation=2)
    mesh = make_mesh(dp=dist.get_world_size())
    trainer = Trainer(Decoder(DEEP), config, mesh=mesh, apply=(zero(stage),))
    trainer.step(text.batch(0))
    return max(instant.total for instant in gauges.track_step(trainer, text.batch(1)))


for stage in (1, 2):
    peak = run_ranks(accumulated, 4, stage, timeout=55)[0] / 2**20
    print(f"ZeRO-{stage}, two micro-batches: {peak:.1f} MiB")

# %% [markdown]
# Now ZeRO-2 is lower, because ZeRO-1's whole gradients are alive at the loss, where both peak.
#
# ## Mixed precision
#
# With `param_dtype=torch.bfloat16` units are gathered in bfloat16 and compute in it. The pieces, which Adam changes, stay in float32, and gradients are best added up in float32 as well. So a gather takes 2 bytes<!-- =2 --> a parameter instead of 4 bytes<!-- =4 -->, and the reduction still takes 4 bytes<!-- =4 -->.
#
# Can backward hide a gather and a reduction? In the example of *Does a gather hide?*, 64 H100s and a layer of Llama 3.1 8B, backward computes twice as long as forward, 21 ms<!-- =2 * 1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=8192, causal=True)[:2]) / 32 * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) --> for 8192 tokens. Meanwhile the network gathers one layer and sums up the gradients of another. The gather takes 2.5 ms<!-- =1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))) -->, as before, of which 0.4 ms<!-- =1e3 * costs.collective_s("all_gather", "ring", nbytes=64, ranks=64, wires=wires(load_cluster("kempner_h100"))) --> are latency.
#
# **Predict** how long both take, if gradients are summed up in float32.

# %%
mixed = fully_shard(by_block, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, technique, sizes in (
    ("all in float32", fully_shard(by_block), {"itemsize": 4}),
    ("gathered in bfloat16", mixed, {"itemsize": 2, "reduce_itemsize": 4}),
    ("gathered in int8", fully_shard(by_block, gather_dtype=torch.int8), {"itemsize": 4, "block": 256}),
):
    rows = sharding_rows(decoder_units(SMALL), strategy="FULL_SHARD", world_size=4, **sizes)
    print(
        f"{name:21} {sent_by(technique):9,} bytes, by the formula {sharding_step(rows).sent_bytes[0]:9,}"
    )

layer, kempner = layer_parameters(load_model("llama3_1_8b")), wires(load_cluster("kempner_h100"))
ring = partial(costs.collective_s, algorithm="ring", ranks=64, wires=kempner)
gather_s = ring("all_gather", nbytes=layer * torch.bfloat16.itemsize)
both_ms = {
    dtype: 1e3 * (gather_s + ring("reduce_scatter", nbytes=layer * dtype.itemsize))
    for dtype in (torch.float32, torch.bfloat16)
}
predict("ms, summed up in float32", guess=None, answer=both_ms[torch.float32], unit="ms", tolerance=0.05)
for dtype, took in both_ms.items():
    print(f"summed up in {str(dtype):14} {took:.1f} ms")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Outside the root, a parameter's two gathers and one reduction take 8 bytes<!-- =2 + 2 + 4 --> instead of 12 bytes<!-- =4 + 4 + 4 -->. With int8 weights, as in ZeRO++ below, they take about 6 bytes<!-- =1 + 1 + 4 -->.
#
# So backward's 21 ms<!-- =2 * 1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=8192, causal=True)[:2]) / 32 * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) --> hide both: 7.2 ms<!-- =1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))) + 1e3 * costs.collective_s("reduce_scatter", "ring", nbytes=4 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))) -->. But the sum in float32 takes longer than the gather, so backward needs more tokens than forward, about 3,100<!-- =round(next(s for s in range(100, 9000, 10) if 2 * 1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=s, causal=True)[:2]) / 32 * s / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) > (1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))) + 1e3 * costs.collective_s("reduce_scatter", "ring", nbytes=4 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))))), -2) -->. With gradients in bfloat16 forward and backward need the same, 2,200<!-- =round(next(s for s in range(100, 9000, 10) if 2 * 1e3 * sum(costs.forward_flops(load_model("llama3_1_8b"), sequence=s, causal=True)[:2]) / 32 * s / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) > (1e3 * costs.collective_s("all_gather", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))) + 1e3 * costs.collective_s("reduce_scatter", "ring", nbytes=2 * layer_parameters(load_model("llama3_1_8b")), ranks=64, wires=wires(load_cluster("kempner_h100"))))), -2) -->.
#
# </details>
#
# ## Offload
#
# What still does not fit can lie elsewhere. The pieces are needed for a gather, and Adam's states only for the update, so both may lie in the CPU's memory, and the states even on a disk, as in ZeRO-Infinity.
#
# **Predict.** Each of four ranks keeps a quarter of the small Llama, in float32. How many bytes will it have on the disk?


# %%
def tiers(policy):
    sharding = fully_shard(by_block, offload_policy=policy)
    trainer = llama_sharded(TrainConfig(optimizer="adamw"), technique=sharding)
    trainer.step(text.batch(0))
    return tier_bytes(trainer.local.parameters.values(), trainer.optimizer, policy)


policies = {"none": None, "CPU": CPUOffloadPolicy(), "disk": DiskOffloadPolicy("/tmp")}
lying = {name: run_ranks(tiers, 4, policy)[0] for name, policy in policies.items()}
predict("bytes of a rank on the disk", guess=None, answer=lying["disk"].disk)
for name, lies in lying.items():
    print(
        f"{name:5} {lies.device:7,} bytes with the rank, {lies.host:7,} on the CPU, {lies.disk:7,} on disk"
    )

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# A quarter of 250,432 numbers, at 4 bytes<!-- =4 --> each, are again 250,432 bytes<!-- =250432 -->, and Adam's $m$ and $v$ are twice that. Without a GPU both memories are one, so *none* and *CPU* differ only in name.
#
# </details>
#
# ## Further savings
#
# - Tensor-parallel ranks keep the same inputs of recomputed layers. **ZeRO-R** shares them out, as does `recompute(partitioned=True)`.
# - **ZeRO++** gathers 8-bit weights, and keeps a second copy inside each node, the one that run B of the museum forgot to renew.
#
# References: Rajbhandari et al. 2020, *ZeRO*, our first example; Zhao et al. 2023, *PyTorch FSDP*; Groeneveld et al. 2024, *OLMo*; Ren et al. 2021, *ZeRO-Offload*; Rajbhandari et al. 2021, *ZeRO-Infinity*; Wang et al. 2023, *ZeRO++*.
