# %% [markdown]
# # 06 · ZeRO and FSDP: who keeps what?
#
# Lesson 05 ended with a question: with 128 copies of a model, why remember each of Adam's states 128 times? Let us take the question to a smaller model. It has 7.5 billion parameters and trains on 64 GPUs with the data parallelism of lesson 03. So each GPU has texts and activations of its own, and a copy of the rest.
#
# That rest takes 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> a parameter: 2 for the weight, 2 for its gradient, and 12 for the optimizer. The optimizer keeps $m$, $v$ and a precise copy of the weight, 4 bytes<!-- =find_convention("zero").optimizer / 3 --> each.

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
from course_lib.config import ModelConfig, TrainConfig, load_model
from course_lib.costs import decoder_units, layer_parameters, sharding_rows, sharding_step, state_bytes
from course_lib.costs.model.conventions import find_convention
from course_lib.hardware import ETHERNET, INFINIBAND, load_device
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.flat_row import Sharing
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.offload import CPUOffloadPolicy, DiskOffloadPolicy, tier_bytes
from course_lib.parallel.sharded import ShardedModel
from course_lib.parallel.wrapping import by_block, by_block_and_size, by_block_group, size_based
from course_lib.ranks import ledger, run_ranks
from course_lib.training.batches import Batches
from course_lib.training.pace import pace
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum
from course_lib.verify.memory_track import track_step

# %%
PARAMETERS, GPUS = 7_500_000_000, 64
ZERO, H100 = find_convention("zero"), load_device("h100_sxm_80")  # the convention: 2 + 2 + 12 bytes

viz.plot_states(
    {"each GPU": state_bytes(PARAMETERS, ZERO)},
    memory_bytes=H100.memory_bytes(),
    title="7.5 billion parameters, on each of 64 GPUs",
)

# %% [markdown]
# Each GPU would have to keep 120 GB<!-- =16 * 7.5e9 / GB -->, without any activations, and it has 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB -->. So the training does not even start. It does not help to buy more GPUs, because every new one has to keep the same 120 GB<!-- =16 * 7.5e9 / GB --> again.
#
# Now look at all of them together. The 64 GPUs have 5120 GB<!-- =64 * load_device("h100_sxm_80").memory_bytes() / GB -->, far more than the model needs. They spend it badly: when backward is through and the gradients are summed, all 64 have the same numbers in their memory.
#
# By the end we shall have brought the 120 GB<!-- =16 * 7.5e9 / GB --> down to 1.9 GB<!-- =16 * 7.5e9 / 64 / GB -->, on paper. On a small model we run it, and the training is the same up to rounding.

# %% [markdown]
# You will be able to
# - share out Adam's states, gradients and weights, in three steps,
# - say what each step costs in messages, before you run it,
# - follow the weights of one layer as they come and go,
# - find mistakes that are made where nobody has all the numbers.
#
# *One hour; the exercises come on top.*
#
# <details><summary>Before you start</summary>You need reduce-scatter and all-gather from lesson 02, and data parallelism and the ladder from lesson 03. Everything here ran on CPUs over gloo; NCCL and Slurm did not run for this page.</details>

# %% [markdown]
# ## What is right
#
# Our object is the perceptron of 38 parameters again, without a GELU. It reads eight samples. One device finds the gradient of their mean loss, and AdamW makes one step. All of it is in float32, so AdamW needs no precise copy.
#
# Write the 38 parameters one after the other into one **row**. AdamW does not mind, because it treats each number by itself.
#
# Two ranks with the data parallelism of lesson 03 read four samples each. During backward an all-reduce adds their gradients up, both divide by two, and then both make the same AdamW step as the one device. The picture shows what the two have in memory just before it.

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
# Each of the 38 has a weight, a gradient, and two numbers that Adam remembers, $m$ and $v$. That makes 152, and every one of them is grey: the other rank has it as well.
#
# Where do you begin to save? Ask of each line who needs it, and when. The weights are needed all through forward and backward. The gradients are needed from backward to the update. Adam's states sleep all that time, and wake up for the update alone. So begin with these: they are needed least.

# %% [markdown]
# ## Step one: Adam's states
#
# After the all-reduce both ranks do the same work on the same numbers. Nobody needs it done twice. So let rank 0 update the first 19 numbers, and rank 1 the other 19.
#
# What does rank 0 need for its 19? Their weights, their gradients, and their $m$ and $v$. Nothing of the other half, because AdamW treats each number by itself.
#
# Two things have to travel. Before the update rank 0 needs the **sums** of its 19 gradients. Afterwards it needs the 19 new weights of rank 1. Here the two ranks are still entries of a list.

# %%
gradients = [gradient_of(slice(0, 4)), gradient_of(slice(4, 8))]  # what each rank finds in its own samples
sums = (gradients[0] + gradients[1]).tensor_split(2)  # a reduce-scatter: sums[rank] is all that a rank gets

pieces = [piece.clone().requires_grad_() for piece in weights.tensor_split(2)]
for piece, mine in zip(pieces, sums, strict=True):
    piece.grad = mine / 2
    torch.optim.AdamW([piece], lr=0.1).step()  # remembers m and v of 19 numbers

together = torch.cat(pieces)  # an all-gather: every rank has all new weights
print("equal to one device:", torch.allclose(together, alone))
viz.plot_kept(1)

# %% [markdown]
# Look at the two lowest lines of each rank. They have a colour now, because each number is remembered by one rank alone. This is **ZeRO-1**: ZeRO stands for *zero redundancy optimizer*, and 1 for its first stage.
#
# The gradients have changed as well. They are striped, because the picture was taken before the reduce-scatter: these 38 come from each rank's own four samples.
#
# What does that cost? Let us run it on two real ranks and count.
#
# **Predict.** Is it more than for the all-reduce of lesson 03, less, or the same? Decide, and say why. Then count: how many numbers does each rank send in our new step?


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
# Put the two steps side by side. Lesson 03 reduced, gathered, and then updated. We reduce, update, and then gather. It is the same all-reduce, with the optimizer's step moved into its middle, and what the second half carries is no longer gradients, but new weights. Each half carries 19 numbers away from a rank, as before. So not one number more is sent!

# %% [markdown]
# ## Step two: the gradients
#
# Look at the gradients in the last picture: each rank still has 38, of its own samples. After the reduce-scatter it has its 19 sums, and the 38 are rubbish. But until then all 38 had to fit, beside everything else.
#
# So do not wait. As in lesson 03, the gradients of the last layer are ready first. Sum them up at once, keep your own piece, and forget the rest before the next layer's gradients come. This is **ZeRO-2**.
#
# A single cut at 19 would leave rank 0 nothing of the last layer. So cut each layer in two: 28 and 10 make 14 + 5 for each rank.

# %%
viz.plot_kept(2)

# %% [markdown]
# As long as a step has a single backward, ZeRO-2 sends no more than ZeRO-1. But suppose that a step is cut into four micro-batches, whose gradients add up before the one update.
#
# **Predict.** ZeRO-1 waits for the last micro-batch and then makes one reduce-scatter for each of the two layers: two in a step. How many does ZeRO-2 need?


# %%
def four_micro_batches(stage):
    config = TrainConfig(accumulation=4)
    trainer = Trainer(MLP(), config, mesh=make_mesh(dp=2), apply=(zero(stage),))
    trainer.compute_gradients((inputs, goals.argmax(1)))  # the trainer's loss wants classes


made = {}
for stage in (1, 2):
    run_ranks(four_micro_batches, 2, stage)
    made[stage] = len(ledger().of("reduce_scatter").calls())
predict("reduce-scatters of ZeRO-2 in a step", guess=None, answer=made[2])
print("ZeRO-1 makes", made[1])

# %% [markdown]
# Whole gradients are what ZeRO-2 has no room for. So when the backward of the first micro-batch is over, rank 0 may have its own pieces of the sum and nothing else. Each micro-batch has to be summed up at once: two calls, four times. For the first time in this lesson memory is paid for with messages. If micro-batches are many and whole gradients fit, ZeRO-1 is the better choice.

# %% [markdown]
# ## Step three: the weights
#
# One line is still grey: 38 weights on both ranks. The update needs only 19 of them. But this line is different from the others, because forward and backward really need all weights.
#
# All of them, but not all **at the same time**. Forward is in one layer at any moment. So let each rank keep its 14 + 5. When forward comes to a layer, gather that layer, compute, and forget what you gathered. Backward comes to it once more: gather it again.
#
# What is gathered together is called a **unit**. Ours are the two layers.

# %%
viz.plot_kept(3)

# %% [markdown]
# Every line has a colour: nothing is remembered twice. This is **ZeRO-3**. PyTorch calls it **FSDP**, *fully sharded data parallel*, and so do we from now on. `FULL_SHARD` was its name in PyTorch's first version; today's is `fully_shard`.
#
# ### Build it
#
# Here is a step on two real ranks, without its optimizer. A rank begins with four samples and pieces of 14 and 5 numbers. Forward is complete, and so is the backward of the second unit. There were three gathers so far. Is a fourth needed?
#
# **Your turn**: the backward of the first unit, at the end. You need two lines. Nobody needs the gradient of $x$.

# %%
# %%ranks 2 --push model,inputs,goals --pull first,second
from course_lib.comm import all_gather, reduce_scatter
import torch

samples = slice(4 * rank, 4 * rank + 4)
x = inputs[samples]
units = [torch.cat([p.detach().flatten() for p in layer.parameters()]) for layer in (model.layer1, model.layer2)]
mine = [unit.tensor_split(2)[rank] for unit in units]  # what a rank keeps: 14 and 5 numbers
del units

whole = all_gather(mine[0])
hidden = x @ whole[:24].view(4, 6).T + whole[24:]
del whole  # forget the first unit
whole = all_gather(mine[1])
y = hidden @ whole[:8].view(2, 4).T + whole[8:]
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
    equal = torch.allclose(torch.cat([*found]), wanted, atol=1e-6)
    print(f"{name} unit: {'equal to one device' if equal else 'not yet one device'}")

# %% [markdown]
# <details><summary>One solution</summary>
# <pre>
# of_first = torch.cat([(g_hidden.T @ x).flatten(), g_hidden.sum(0)])
# first = reduce_scatter(of_first) / 2
# </pre>
# The gradient of $W_1$ needs $x$ and what came back, not $W_1$ itself. The library gathers the first unit too: its hooks treat all units alike, and every other unit does need its weights, for the gradient of its input.
# </details>
#
# With these two lines the forward and backward of FSDP are complete. In the library nobody has to write them out for each model, because hooks do it. They gather before a unit's forward and forget after it. They gather again before its backward, and reduce when all of its gradients are there.

# %% [markdown]
# ### Eight steps
#
# The Kempner Institute's workshop, from which we have our perceptron, counts eight steps in a unit's life: gather, forward, free; gather again, backward, free; reduce-scatter; update. In three of them something is sent.
#
# **Predict.** A step is cut into four micro-batches of one sample on each rank. Data parallelism can add their gradients up first, and sends 38 numbers from each rank once. The weights do not change between micro-batches. How many numbers does a rank send under FSDP in the whole step?
#
# With the answer comes a list of what rank 0 does in a single micro-batch.


# %%
def fsdp_step(micro_batches):
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    everyone = Sharing(dist.group.WORLD, dist.group.WORLD)
    ShardedModel(model, everyone, by_block, overlap=False)  # from here on a parameter is this rank's piece
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pace([model.layer1, model.layer2], forward_s=0, backward_s=0):  # notes forward and backward in the ledger
        for x, goal in zip(inputs[mine].chunk(micro_batches), goals[mine].chunk(micro_batches), strict=True):
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
# Read the list from the top. A unit is gathered, then comes its forward. Backward begins with the last unit: gather, backward, reduce-scatter. *Free* is missing, because it neither sends nor computes.
#
# The weights travel twice, the gradients once, and each time a rank sends its half of 38. That makes 57. Four micro-batches make 228: the weights did not change, but nobody had kept them. For one micro-batch, with $p$ ranks and $\Psi$ parameters,
#
# $$\text{numbers sent by each rank} = 3\,\frac{p-1}{p}\,\Psi$$
#
# Data parallelism has a 2 there. With $m$ micro-batches, in the same units: ZeRO-1 sends 2, ZeRO-2 $m + 1$, FSDP $3m$. With four that is 2, 5 and **12**.

# %% [markdown]
# ## Do we have to wait for it?
#
# While the first unit computes, the network is idle. So let it fetch the second already: **prefetch**. In backward the order is reversed: while unit 4 computes, unit 3 is fetched, and the gradients of unit 5 are summed up.
#
# On the emulated clock, six units have 1 MiB<!-- =512 * 513 * 4 / MiB --> each; a forward takes 0.5 ms<!-- =0.5 -->, a backward 1 ms<!-- =1 -->. A gather or a reduce-scatter takes four ranks 0.34 ms<!-- =1e3 * comm_time("all_gather", "ring", world_size=4, length=512 * 513, itemsize=4).time_s(ETHERNET) --> over Ethernet. If computing and messages take turns, that makes 9 ms<!-- =6 * 1.5 --> of computing and 18 messages: 15.2 ms<!-- =6 * 1.5 + 18 * 1e3 * comm_time("all_gather", "ring", world_size=4, length=512 * 513, itemsize=4).time_s(ETHERNET) -->.
#
# **Predict** the step with prefetch. Every unit is freed after its forward, the last one too. Which messages cannot hide?


# %%
def timed_step(overlap):
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    everyone = Sharing(dist.group.WORLD, dist.group.WORLD)
    with comm.settings(ledger=False, guard=False):
        ShardedModel(model, everyone, overlap=overlap)
        model(torch.ones(1, 512)).sum().backward()  # the units learn who follows whom
    clock = EmulatedClock(inside=ETHERNET, slowdown=100)
    with comm.emulated(clock), pace(layers, forward_s=0.5e-3, backward_s=1e-3):
        model(torch.ones(1, 512)).sum().backward()


runs = {}
for name, overlap in (("in turn", False), ("with prefetch", True)):
    run_ranks(timed_step, 4, overlap)
    runs[name] = ledger()
predict("ms with prefetch", guess=None, answer=1e3 * runs["with prefetch"].span_s, unit="ms", tolerance=0.03)
viz.plot_units(runs, 6)

# %% [markdown]
# In the lower picture computing waits only three times. Unit 0 has to be there before anything can begin. Unit 5 was freed after forward, and its backward comes at once. And after the last backward gradients still have to be summed up. Of 18 messages three are seen, 3 × 0.34; the others hide.
#
# Now look at the blue 2. Below it, the network brings a 3. So **two** units are whole at a time, and that is the price of prefetch.
#
# ## Prove it
#
# A rank now computes with weights that it does not keep, and forgets gradients that it has found. Is this the same training? The ladder compares four ranks with one device, on a small Llama.

# %% varies="the last digits of rounding differ between processors"
SMALL = ModelConfig(
    name="small", hidden_size=64, n_layers=4, n_heads=8, n_kv_heads=4, ffn_size=176, vocab_size=512, tied=False
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32, ragged=True)


def llama_alone(train):
    return Trainer(Decoder(SMALL), train)


def llama_sharded(train, *bugs, technique=None, config=SMALL):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(Decoder(config), train, mesh=mesh, apply=(technique or fully_shard(by_block), *bugs))


report = assert_parallel_equals(llama_alone, llama_sharded, text, world_size=4)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# On every rung the four ranks are one device, up to the last digits. Look at the upper rungs, since here they are the hard ones. Clipping needs the norm of all gradients, and no rank has them all: each adds up the squares of its pieces, and one all-reduce of a single number does the rest. Save and load puts the pieces together, and takes them apart again.

# %% [markdown]
# ## Measure: what is sent
#
# The perceptron had nothing but its two units. A decoder has more: embedding, last norm and output head stand beside its layers. What is left over is a unit of its own, the **root's**. It holds the embedding, needed first, and the head, needed last; so it is gathered once, before forward, and stays whole until backward is through.
#
# The small Llama has 250,432 parameters, and its root 65,600 of them. Four ranks make a step of one micro-batch. We count what a rank sends, in units of $\frac{p-1}{p}\Psi$, beside a formula that knows nothing of the code that sends.


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


once = costs.model_parameters(SMALL) * 3 / 4 * 4  # three quarters of all parameters, 4 bytes each
techniques = {"DDP": replicate(), "ZeRO-1": zero(1), "ZeRO-2": zero(2), "FSDP": fully_shard(by_block)}
for name, technique in techniques.items():
    strategy, sent = {"FSDP": "FULL_SHARD"}.get(name, name), sent_by(technique)
    formula = sharding_step(sharding_rows(decoder_units(SMALL), strategy=strategy, world_size=4)).sent_bytes[0]
    print(f"{name:8}  {sent:9,} bytes, by the formula {formula:9,}: {sent / once:.2f}")

# %% [markdown]
# FSDP sends 2.74 and not 3, because of the root: 65,600 are 0.26 of all parameters. One of their three trips is saved: 3 − 0.26 = 2.74. In a large model the root is a smaller part, and the number is closer to 3.
#
# ## Measure: what is in memory
#
# And what did we do it for? Four ranks train a small Llama of eight blocks with AdamW, in float32. Its activations are largest at the loss, and they are larger than all its gradients together.
#
# **Predict.** ZeRO-2 gives most of the gradients away on the way. By how many MiB does that lower the highest point of the step, compared with ZeRO-1?

# %% varies="what PyTorch allocates while it computes differs between processors"
DEEP = replace(SMALL, n_layers=8)


def in_memory(technique):
    trainer = llama_sharded(TrainConfig(optimizer="adamw"), technique=technique, config=DEEP)
    trainer.step(text.batch(0))  # in the first step Adam's states come into being
    return track_step(trainer, text.batch(1))


steps = {name: run_ranks(in_memory, 4, technique, timeout=55)[0] for name, technique in techniques.items()}
most = {name: max(instant.total for instant in step) for name, step in steps.items()}
predict(
    "MiB by which ZeRO-2 lowers ZeRO-1's peak", guess=None, answer=round((most["ZeRO-1"] - most["ZeRO-2"]) / 2**20, 1)
)
viz.plot_memory_strips(steps)

# %% [markdown]
# The ends of a strip show what stays from step to step: the yellow optimizer shrinks to a quarter in ZeRO-1, the violet weights only under FSDP. The dark boxes are whole units. FSDP is highest one bar later: at the loss only its root is whole, then two blocks come back.
#
# Look at the middle. The orange gradients pile up in ZeRO-1, hardly in ZeRO-2. Yet both are highest at the loss, before any gradient. While gradients come, activations go, and those are more. With half the text they would be fewer, backward's end would be the peak, and ZeRO-2 would win.
#
# The 1.9 GB<!-- =16 * 7.5e9 / 64 / GB --> are not the peak: units and activations come on top.

# %% [markdown]
# ## In PyTorch alone
#
# ```python
# for layer in model.layers:
#     fully_shard(layer)
# fully_shard(model)  # the root
# optimizer = AdamW(model.parameters())  # after sharding: the pieces
# ```
#
# [`scripts/06_zero_and_fsdp.py`](scripts/06_zero_and_fsdp.py) trains a transformer this way, saves it and goes on. `torchrun --nproc-per-node 4 scripts/06_zero_and_fsdp.py` prints
#
# ```text
# 4 ranks agree: gradients of length 0.3046, as on one device; see checkpoint-…
# ```
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | pieces of any length | DTensors with `Shard(0)` | first dimension is cut, and padded on the wire |
# | `accumulation=4` | `set_requires_gradient_sync(False)` until the last | whole gradients stay meanwhile |
# | `trainer.clip()` | `clip_grad_norm_` | DTensors know that they are pieces |
# | `trainer.save()` | `torch.distributed.checkpoint` | each rank writes its pieces |
# | `zero(1)` | `ZeroRedundancyOptimizer` | whole parameters are dealt out |

# %% [markdown]
# ## Bug museum
#
# The small Llama reads Shakespeare on two ranks under FSDP, with AdamW and clipping, the way people train. The broad line is one device. Runs A, B and C are on ranks. Each **may** have a bug that was met in public. Which of them would you trust?
#
# **Predict.** Name the sound runs, as `"AC"` or `"none"`. Then you see what the ladder says of each run, and how far its loss is from one device's.

# %% varies="forty steps of rounding differ between processors"
names = sorted([*museum.SHARDED_BUGS, "sound"], key=lambda name: name[::-1])  # an order that gives nothing away
exhibits = {"A": names[4], "B": names[1], "C": names[0]}  # print them after you have decided
reading = replace(text, batch_size=16)

makers = {
    run: museum.SHARDED_BUGS[name].planted(llama_sharded) if name != "sound" else llama_sharded
    for run, name in exhibits.items()
}
curves = {"one device": museum.curve_alone(llama_alone, reading.batch, 40).losses}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, reading.batch, world_size=2, steps=40).losses
viz.plot_loss_curves(
    curves, title="Which of these runs are sound?", subtitle="loss in nats; the broad pale line is one device"
)

# %%
predict("the sound runs", guess=None, answer="".join(run for run in exhibits if exhibits[run] == "sound"))
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
# **Predict.** The ladder compares outputs, gradients and norm in one step, and *parameters* only after three steps of SGD. Run B falls there. Now look at its steps 1, 2 and 3 above. Which line is wrong?
#
# - **G** gather for forward,
# - **H** gather again for backward,
# - **R** reduce-scatter,
# - **N** norm and clipping,
# - **U** update.

# %%
predict("the line that is wrong in run B", guess=None, answer=museum.WRONG_LINES[exhibits["B"]])

# %% [markdown]
# Run B's gradients and norm are equal in the first step, so R and N are sound. Its loss is right at step 2, so G and the first U are, too. At step 3 some line is wrong that was right before. What had changed? The weights, for SGD remembers nothing else. H fetched the old ones, from a [copy](https://github.com/deepspeedai/DeepSpeed/issues/4851) that [nobody renewed](https://github.com/deepspeedai/DeepSpeed/pull/4906).
#
# Run A's ranks took the [norms of their own pieces](https://github.com/areal-project/AReaL/issues/312). At step 2 its loss is off by only 2e-6: Adam divides a first gradient by its own size. Run C is sound: training makes float32's rounding grow.
#
# ## Back to the 64 GPUs
#
# Now take the 120 GB<!-- =16 * 7.5e9 / GB --> apart, in the same steps.

# %%
viz.zero_explorer()

# %% [markdown]
# The first step removes most, because Adam is most. It already lets the training start, and it sends no more than before. After the last step 1.9 GB<!-- =16 * 7.5e9 / 64 / GB --> are left, and what the 64 GPUs keep together is 120 GB<!-- =16 * 7.5e9 / GB -->: once, and not 64 times.
#
# ## When to use it
#
# | what hurts | take | sent, with $m$ micro-batches |
# | --- | --- | --- |
# | Adam's states | ZeRO-1 | 2, like data parallelism |
# | gradients too | ZeRO-2 | $m + 1$ |
# | weights too | FSDP | $3m$, and forward waits for gathers, too |
# | slow wires between nodes | FSDP inside a node, copies between | a whole model in every node |
# | activations | none of these | recompute, or lesson 05 |

# %% [markdown]
# Of the first three lines take the first that fits: each sends at least as much as the one above. The fourth sends more in all, but little over slow wires.
#
# Can the messages hide? Take one layer of Llama 3.1 8B in bfloat16: 436 MB<!-- =2 * layer_parameters(load_model("llama3_1_8b")) / 1e6 -->. With 64 ranks a gather brings 63/64 of that, in 63 messages. At 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB --> their bytes take 8.6 ms<!-- =1e3 * 63 / 64 * 2 * layer_parameters(load_model("llama3_1_8b")) / 50e9 -->, and their starts 0.9 ms<!-- =1e3 * 63 * INFINIBAND.alpha_s -->, together 9.5 ms<!-- =1e3 * comm_time("all_gather", "ring", world_size=64, length=layer_parameters(load_model("llama3_1_8b")), itemsize=2).time_s(INFINIBAND) -->. An H100 at 40 %<!-- =40 --> of its peak computes forward for 8192 tokens in 9.0 ms<!-- =1e3 * 2 * layer_parameters(load_model("llama3_1_8b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->. So forward hides nearly all of it. With half the text, computing takes half as long, and the gather as long as before.

# %% [markdown]
# ## What still hurts
#
# So FSDP wants much text on each GPU. That text makes activations, and FSDP does not cut those. And 16,384 GPUs read at least 16,384 texts in a step, which can be more than training likes.
#
# Tensor parallelism helps with both: it cuts most activations, and its ranks share one text. It needs fast wires, so take it inside a node, FSDP between nodes. Can FSDP cut once more what tensor parallelism has already cut? Lesson 07 begins there.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the exercises `06_zero_and_fsdp`.
#
# <details><summary>1. Muon needs a whole matrix to update it. Which sentence of step one is not true then?</summary>
# That each number is treated by itself. Whole matrices have to be dealt out.
# </details>
#
# <details><summary>2. On 1000 GPUs instead of 64, what happens to the bars of ZeRO-2, and of FSDP?</summary>
# ZeRO-2 keeps all weights, on any number of GPUs. FSDP divides everything by 1000.
# </details>
#
# <details><summary>3. Unit 5 is gathered twice in a row. Why, and what would you change?</summary>
# It is freed after forward, although backward begins with it. Keep it; in PyTorch, with <code>reshard_after_forward=False</code>.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## What is a unit? Four policies
#
# We made every layer a unit. Small units make many short messages, and each costs its latency. Large units make few, and much is whole at a time. OLMo has names for several such choices, called **policies**; here are four. A policy looks at a model and says which modules belong together. What it leaves is the **root's** unit, which is whole from the beginning of forward to the end of backward.

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
# Read the first line: four blocks, and embedding, norm and head are the root's. Our `by_block_and_size` takes only tables as large as a block: both in Llama 3.1 8B, and none here. OLMo's takes both always. `by_block_group` takes two neighbours. `size_based` asks only how many parameters a module has. In PyTorch its threshold is a hundred million; here it is 30,000, and finds what is large *within* the blocks.
#
# ## Four strategies
#
# PyTorch's first FSDP had names for what is cut. `NO_SHARD` is data parallelism, `FULL_SHARD` is step three, and `SHARD_GRAD_OP` is near step two. `HYBRID_SHARD` is a mixture: it shares weights among neighbours only, and the groups of neighbours are copies of each other.

# %%
for strategy, shards in (("NO_SHARD", None), ("SHARD_GRAD_OP", None), ("FULL_SHARD", None), ("HYBRID_SHARD", 2)):
    technique = fully_shard(by_block, strategy=strategy, shards=shards)
    make = partial(llama_sharded, technique=technique)
    assert_parallel_equals(llama_alone, make, text, world_size=4, rungs=RUNGS[:2])
    rows = sharding_rows(decoder_units(SMALL), strategy=strategy, world_size=4, shards=shards)
    sent, formula = sent_by(technique), sharding_step(rows).sent_bytes[0]
    print(f"{strategy:14} equal to one device; sends {sent:9,} bytes, by the formula {formula:9,}")

# %% [markdown]
# `SHARD_GRAD_OP` keeps pieces between steps, unlike ZeRO-2, but leaves units whole from forward to backward. So it sends a 2, and in the middle of a step the whole model is there. `HYBRID_SHARD` gathers among two neighbours, so each rank keeps half of the weights; between the pairs only gradients travel, and each rank sends those of its half. Put the neighbours into one node, and the slow wire carries little.

# %% [markdown]
# ## Mixed precision
#
# `param_dtype=torch.bfloat16` gathers and computes in bfloat16. The pieces, which Adam changes, stay in float32, and gradients are best added up in float32 as well. So a gather takes 2 bytes<!-- =2 --> a parameter instead of 4 bytes<!-- =4 -->, and the reduction still 4 bytes<!-- =4 -->.
#
# Can backward hide that? Take the layer of Llama 3.1 8B again, on 64 ranks. Backward computes twice as long as forward, 18.1 ms<!-- =2e3 * 2 * layer_parameters(load_model("llama3_1_8b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->. Meanwhile the network gathers one layer and sums up another's gradients. **Before you run it**: how long will that take, in float32 and in bfloat16?

# %%
mixed = fully_shard(by_block, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, technique, sizes in (
    ("all in float32", fully_shard(by_block), {"itemsize": 4}),
    ("gathered in bfloat16", mixed, {"itemsize": 2, "reduce_itemsize": 4}),
):
    rows = sharding_rows(decoder_units(SMALL), strategy="FULL_SHARD", world_size=4, **sizes)
    print(f"{name:21} {sent_by(technique):9,} bytes, by the formula {sharding_step(rows).sent_bytes[0]:9,}")

ring = partial(costs.comm_time, algorithm="ring", world_size=64, length=layer_parameters(load_model("llama3_1_8b")))
gather_s = ring("all_gather", itemsize=torch.bfloat16.itemsize).time_s(INFINIBAND)
for dtype in (torch.float32, torch.bfloat16):
    reduce_s = ring("reduce_scatter", itemsize=dtype.itemsize).time_s(INFINIBAND)
    print(f"summed up in {str(dtype):14} {1e3 * (gather_s + reduce_s):.1f} ms")

# %% [markdown]
# Without a root it would be 8 bytes<!-- =2 + 2 + 4 --> instead of 12 bytes<!-- =4 + 4 + 4 --> for each parameter.
#
# Backward does not hide 27.5 ms<!-- =1e3 * comm_time("all_gather", "ring", world_size=64, length=layer_parameters(load_model("llama3_1_8b")), itemsize=2).time_s(INFINIBAND) + 1e3 * comm_time("reduce_scatter", "ring", world_size=64, length=layer_parameters(load_model("llama3_1_8b")), itemsize=4).time_s(INFINIBAND) -->, of which a gather takes 9.5 ms<!-- =1e3 * comm_time("all_gather", "ring", world_size=64, length=layer_parameters(load_model("llama3_1_8b")), itemsize=2).time_s(INFINIBAND) --> and the sum in float32 nearly twice that. Summed up in bfloat16 it would almost fit.
#
# ## Offload
#
# What still does not fit can lie elsewhere. The pieces are needed for a gather, Adam's states for the update alone. So both may lie in the memory of the CPU, and the states even on a disk, as ZeRO-Infinity does. **Before you run it**: how many bytes will lie on the disk, if each rank keeps a quarter of the small Llama in float32?


# %%
def tiers(policy):
    sharding = fully_shard(by_block, offload_policy=policy)
    trainer = llama_sharded(TrainConfig(optimizer="adamw"), technique=sharding)
    trainer.step(text.batch(0))
    return tier_bytes(trainer.local.parameters.values(), trainer.optimizer, policy)


for name, policy in {"none": None, "CPU": CPUOffloadPolicy(), "disk": DiskOffloadPolicy("/tmp")}.items():
    lies = run_ranks(tiers, 4, policy)[0]
    print(f"{name:5} {lies.device:7,} bytes with the rank, {lies.host:7,} on the CPU, {lies.disk:7,} on disk")

# %% [markdown]
# A quarter of 250,432 numbers, at 4 bytes<!-- =4 --> each, are 250,432 bytes<!-- =250432 --> again, and Adam's $m$ and $v$ are twice that. Without a GPU, as here, the first two lines differ in name only.
#
# ## Further savings
#
# - **ZeRO-R** attacks what is left: for example, activations that several ranks keep twice.
# - **ZeRO++** gathers 8-bit weights, and keeps a second copy inside each node for backward. Run B forgot to renew that one.
#
# References: Rajbhandari et al. 2020, *ZeRO*; Zhao et al. 2023, *PyTorch FSDP*; Groeneveld et al. 2024, *OLMo*; Ren et al. 2021, *ZeRO-Offload*; Rajbhandari et al. 2021, *ZeRO-Infinity*; Wang et al. 2023, *ZeRO++*.
