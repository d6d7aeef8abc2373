# %% [markdown]
# # 04 · Model and pipeline parallelism: cut the model, keep everyone busy
#
# | | |
# | --- | --- |
# | **Time** | about 110 minutes, exercises not counted |
# | **You need** | notebook 00 (ranks, send and receive); from 03 the ladder, the emulated clock, micro-batches |
# | **You will prove** | a model cut over ranks trains as on one device, under four schedules and with a tied embedding; the idle time, the bytes and the memory of each schedule are facts of a list that you can read |
# | **Back ends** | checked here on CPU over gloo; NCCL (GPUs) and Slurm were not run for this page, see section 10 |

# %% [markdown]
# ## 1 · The problem
#
# Module 03 divided the time. It did not divide the memory: each replica keeps everything. Training Llama 3.1 70B with Adam takes 16 bytes<!-- =16 --> for each parameter, together 1129 GB<!-- =16 * model_parameters(load_model("llama3_1_70b")) / 1e9 -->. The largest GPU of this course has 141 GB<!-- =load_device("h200_sxm_141").memory_bytes() / 1e9 -->.
#
# So cut the model. It is a chain of layers: rank 0 gets the first ones, rank 1 the next. This is **model parallelism**. It is easy to get right, and you will do it in six lines.
#
# Then you will see its price. The rest of the lesson wins it back.

# %% folded=true
# %load_ext course_lib
import copy
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib import comm, costs, viz
from course_lib.checks import predict, score
from course_lib.comm import EmulatedClock
from course_lib.config import LLAMA_3_1_8B, ModelConfig, TrainConfig
from course_lib.costs.model.activations import layer_activations
from course_lib.costs.comm.pipeline import pipeline_step
from course_lib.hardware import INFINIBAND
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel import deferred, pipeline
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.stages import cut
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import Durations, bubble_s, held, idle_s, make_schedule, problems, time_schedule
from course_lib.split import balanced_sizes, split_sizes
from course_lib.training.step import count_targets, loss_of
from course_lib.training.techniques import stages
from course_lib.training.trainer import Trainer
from course_lib.units import GB
from course_lib.verify import assert_parallel_equals, museum

# %% [markdown]
# ## 2 · The reference: 38 parameters, and where to cut them
#
# The perceptron of module 03, eight rows, one device. Its 38 gradients are the truth.
#
# It has two layers with weights, so there is one place to cut. A **stage** is what lies between two cuts. The first stage has 6 × 4 + 4 = 28 parameters, the second 4 × 2 + 2 = 10.

# %%
torch.manual_seed(0)
model = MLP()
inputs = torch.randn(8, 6)
targets = (inputs[:, 0] > inputs[:, 1]).long()
F.cross_entropy(model(inputs), targets).backward()
whole = {name: weight.grad.clone() for name, weight in model.named_parameters()}
owners = {name: 0 if name.startswith("layer1") else 1 for name in whole}

viz.plot_mlp(dict(model.named_parameters()), owners=owners, title="One perceptron on two ranks")

# %% [markdown]
# ## 3 · By hand: two ranks, one model
#
# *Forward:* rank 0 computes the hidden numbers, the **activations**, and sends them. Rank 1 computes the rest, and the loss.
#
# *Backward:* the other way. Rank 1 gets the gradients of its weights, and of what it *received*. From that rank 0 goes on.
#
# Three calls say this to PyTorch. `detach()`: only numbers travel (`send` would see to it). `requires_grad_()`: keep a gradient for this input too. `hidden.backward(g)`: go backward from here, with g as the gradient of `hidden`. (The picture's $f$ is the identity.)
#
# **Predict** the bytes that cross the cut in one step: 8 rows, 4 hidden numbers each, 4 bytes<!-- =4 --> a number.

# %%
# %%ranks 2 --push model,inputs,targets --pull mine
import torch.nn.functional as F
from course_lib.comm import recv, send

if rank == 0:
    hidden = model.layer1(inputs)
    send(hidden.detach(), 1)
    hidden.backward(recv(torch.empty(8, 4), 1))
else:
    hidden = recv(torch.empty(8, 4), 0).requires_grad_()
    F.cross_entropy(model.layer2(hidden), targets).backward()
    send(hidden.grad, 0)

mine = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
print(sum(gradient.numel() for gradient in mine.values()), "gradients:", *mine)

# %%
predict("bytes that cross the cut", guess=None, answer=sum(map(ledger().bytes_sent, (0, 1))), unit="bytes")
together = mine[0] | mine[1]
print("equal to one device:", all(torch.allclose(together[name], whole[name]) for name in whole))

# %% [markdown]
# Once as activations, once as their gradients.
#
# Nothing was averaged: every weight has **one** owner, so no two ranks can disagree. (Remember this sentence. A habit of language models breaks it, in section 9.) And the bytes depend on the rows and the width of the cut, not on the number of parameters.
#
# The Kempner workshop writes `.to(0)` and `.to(1)`: one process with two GPUs.
#
# ## 4 · The price
#
# Four stages now. Let a stage's forward last 1 ms<!-- =1 --> and its backward 2 ms<!-- =2 -->: backward makes two gradients, that of the input and that of the weights. One device needs 12 ms<!-- =4 * (1 + 2) --> for a step. **Predict**: how many times faster are four ranks?

# %%
ONE = Durations(forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)
naive = make_schedule("gpipe", 4, 1)  # 4 ranks, the batch in 1 piece; the name comes in section 5
step_s = max(slot.end_s for slot in time_schedule(naive, ONE))
predict("times faster than one device", guess=None, answer=4 * 3e-3 / step_s)
viz.plot_schedule(naive, ONE, title="Four ranks, one batch")

# %% [markdown]
# Not at all. At any time one rank computes and three wait. You bought memory, and pay four GPUs to use one. (The picture is simulated, from a list and three durations. Section 7 runs such a list on real processes.)
#
# ## 5 · From scratch: a schedule is a list
#
# ### First try: GPipe
#
# Cut the batch into $m$ **micro-batches**, so that rank 0 can begin the next one while rank 1 works. Their gradients add up in `.grad`, as in accumulation.
#
# GPipe (Google, 2018): all forwards, then all backwards, then the optimizer. Here are rank 1's orders, for two ranks and three micro-batches; `Forward(1, 2)` is stage 1, micro-batch 2.

# %%
schedule = make_schedule("gpipe", 2, 3)
print(*schedule.lists[1], sep="\n")

# %% [markdown]
# A **schedule** is one such list for each rank, and nothing else. The same list is run on tensors, timed on paper (where messages are free), checked for deadlock, and drawn.
#
# The executor is a loop over the list. Below is what it does with one instruction, and one computation backward. (`Forward` and `Backward` are both a `Compute`.) `saved` holds what forward left, a stage's input and output; `ready` a gradient until it is sent; `leaving` what is on its way. Find `hidden.backward(g)` of section 3.

# %%
display(viz.show_source(pipeline.BatchRun.do), viz.show_source(pipeline.BatchRun.backward))

# %% [markdown]
# ### How much idle time is left?
#
# Four ranks, eight micro-batches, **each as large as section 4's batch**: one device would need 96 ms<!-- =8 * 4 * (1 + 2) -->. A talk on distributed training (K. Yuan, 2024) prints, for N GPUs and m micro-batches: "the idle time fraction is $\frac{N-1}{m}$".
#
# **Predict** the share of the step in which a rank computes nothing. Is it the talk's number?

# %%
gpipe = make_schedule("gpipe", 4, 8)
slots = time_schedule(gpipe, ONE)
step_s, idle = max(slot.end_s for slot in slots), idle_s(slots, 4)
predict("idle share of the step", guess=None, answer=idle[0] / step_s)
print(f"{8 * 4 * 3e-3 / step_s:.1f} times faster than one device")
viz.plot_schedule(gpipe, ONE, title="GPipe: four ranks, eight micro-batches")

# %% [markdown]
# Count in any row ($p$ is the talk's N). A rank computes $m$ times $F + B + W$: forward, gradient of the input, gradient of the weights. It waits $(p-1)(F+B+W)$ in all: before, between, after. This wait is the **bubble** (if ranks differ: the busiest one's).
#
# $$\frac{\text{bubble}}{\text{computing}} = \frac{p-1}{m} \qquad \frac{\text{bubble}}{\text{step}} = \frac{p-1}{m+p-1}$$
#
# The talk calls the first a fraction of the time: with $m = 1$ that would be 300 %<!-- =100 * (4 - 1) / 1 -->. Megatron-LM prints the first, GPipe the second. Always ask: a share of *what*?
#
# More micro-batches, less idle. (Here that is a larger batch. A fixed batch cut ever finer gives a GPU too little to do at once.)

# %% [markdown]
# ### Second: 1F1B
#
# What does GPipe's order pay? At the end of the forwards a rank holds the activations of *all* $m$ micro-batches. (The paper keeps each stage's input alone and pays a second forward.) The first backward could begin long before: the last stage has finished micro-batch 0 after four forwards.
#
# **1F1B** (PipeDream-Flush, 2020; Megatron-LM, 2021): rank $i$, counted from 0, makes $p-i-1$ forwards to fill the pipe, then one forward, one backward, in turn. (So rank 0 makes four before its first backward.)
#
# **Predict** the bubble. GPipe's is 9 ms<!-- =(4 - 1) * (1 + 1 + 1) -->. Which waits does the new order take away, and which does it add?

# %%
one_f_one_b = make_schedule("1f1b", 4, 8)
predict("ms of bubble under 1F1B", guess=None, answer=1e3 * bubble_s(time_schedule(one_f_one_b, ONE), 4), unit="ms")
viz.plot_schedules({"GPipe": gpipe, "1F1B": one_f_one_b}, ONE, title="GPipe and 1F1B")

# %% [markdown]
# Surprise: not a microsecond is won. The idle time only moved: rank 0's one long gap became a shorter one and three slits. Many texts say that 1F1B reduces the bubble. With even stages and free messages it does not.
#
# What it saves is memory. **Predict**: rank 0 under GPipe holds 8 micro-batches' activations at once. And under 1F1B?

# %%
predict("micro-batches that rank 0 holds", guess=None, answer=held(one_f_one_b, 0).in_flight)
layer = layer_activations(LLAMA_3_1_8B, batch=1, sequence=8192, itemsize=2, fused_norms=True)
one_microbatch = 8 * sum(saved.elements * saved.itemsize for saved in layer)
for name in ("gpipe", "1f1b"):
    most = held(make_schedule(name, 4, 32), 0).in_flight * one_microbatch
    print(f"Llama 3.1 8B on four GPUs, 32 sequences of 8192 tokens, {name}: {most / GB:.0f} GB on rank 0")
viz.plot_held({"GPipe": gpipe, "1F1B": one_f_one_b})

# %% [markdown]
# Rank $i$ holds $\min(p-i,\ m)$ micro-batches **in flight**: forward done, backward not yet. The first rank waits longest for its gradient, so it holds most.
#
# Now $m$ may be large. So 1F1B shrinks the idle share by a detour: you can afford more micro-batches. (Above: eight layers on each GPU, one sequence in a micro-batch, 11 GB<!-- =8 * sum(saved.elements * saved.itemsize for saved in layer_activations(LLAMA_3_1_8B, batch=1, sequence=8192, itemsize=2, fused_norms=True)) / 1e9 --> of bfloat16; the states come on top.)
#
# ### Third: interleaved
#
# To fill the pipe takes $p-1$ forwards of a whole stage; smaller stages would fill it sooner. So give each rank $v$ **chunks** from different depths: with $v=2$, rank 0 has stages 0 and 4, and a micro-batch goes around twice. **Predict** the bubble in ms.

# %%
interleaved = make_schedule("interleaved", 4, 8, stages_per_rank=2)  # a chunk takes half of ONE, a rank's time
predict("ms of bubble, interleaved", guess=None, answer=1e3 * bubble_s(time_schedule(interleaved, ONE), 4), unit="ms")
viz.plot_schedule(interleaved, ONE, title="Interleaved: two chunks on each rank")

# %% [markdown]
# The bubble is $\frac{1}{v}(p-1)(F+B+W)$. The price: $pv-1$ cuts to cross, not $p-1$; rank 0 holds $1+\frac{p-1}{pv}$ times 1F1B's memory (if $m \ge 2p$); in Megatron's order, and here, $m$ is a multiple of $p$.
#
# ### Fourth: zero bubble
#
# In backward a layer $y = Ax$ makes two gradients. With $g$ the gradient of $y$:
#
# $$\underbrace{A^\top g}_{B:\ \text{the stage before waits for it}} \qquad \underbrace{g\,x^\top}_{W:\ \text{nobody waits, until the optimizer}}$$
#
# So make B at once, and W when you would be idle (Qi et al., 2023). Below, such a linear layer; `Deferred` puts it in place of every linear one. For W it keeps $x$ and $g$. **Predict** the bytes that wait in the perceptron, for 8 rows.

# %%
display(viz.show_source(deferred.DeferredLinear))
halves = copy.deepcopy(model)
halves.zero_grad()
with deferred.Deferred() as later:
    loss = F.cross_entropy(halves(inputs), targets)
loss.backward()
print("after B:", [weight.grad for weight in halves.parameters()])
predict("bytes that wait", guess=None, answer=later.retained_bytes, unit="bytes")
later.finish()
print("after W:", all(torch.allclose(weight.grad, whole[name]) for name, weight in halves.named_parameters()))

# %% [markdown]
# Four tensors of eight rows: inputs of 6 and 4 numbers, gradients of 4 and 2. Splitting is not free of memory.
#
# The schedule **ZB-H1** makes B as early as it can and delays W, so that some are left for the end, where a rank would wait. **Predict** the bubble in ms; 1F1B had nine.

# %%
zero_bubble = make_schedule("zb-h1", 4, 8)
predict("ms of bubble under ZB-H1", guess=None, answer=1e3 * bubble_s(time_schedule(zero_bubble, ONE), 4), unit="ms")
everything = {"GPipe": gpipe, "1F1B": one_f_one_b, "interleaved": interleaved, "ZB-H1": zero_bubble}
display(
    viz.plot_schedules({"1F1B": one_f_one_b, "ZB-H1": zero_bubble}, ONE, title="Weights' gradients fill the gaps"),
    viz.plot_held(everything),
)

# %% [markdown]
# $(p-1)(F+B-\min(F,B,W))$, if $m \ge p$; here a third is left. (None in the paper's ZB-H2 if F = B = W, for more memory.)
#
# Under H1 rank $i$ has $p-i$ micro-batches in flight, and **stashes** $x$ and $g$ of up to $i+1$ more, for W. Not both at once: never more than $p$ together, the most of 1F1B.
#
# ### Your turn
#
# Say first, then turn the knobs:
#
# 1. W = 0.01: which bubbles are nearly equal?
# 2. One micro-batch: who still gains, who refuses?
# 3. W = 2 F: does ZB-H1 gain more ms?
#
# <details><summary>Answers</summary>1: all but the interleaved one's. 2: ZB-H1; interleaving. 3: yes, 9 of 12.</details>

# %% varies="a widget"
viz.schedule_explorer()

# %% [markdown]
# ## 6 · Verify: the ladder, for every schedule
#
# Now it has to be *right*. A small decoder of Llama's shape on four ranks, its embedding **tied**: one matrix looks tokens up, on the first stage, and makes the logits, on the last. Both keep a copy: the one weight with two owners (section 9). It has 8 layers to cut (an embedding, six blocks, a head), so that even interleaving with $v=2$ has one for each chunk.
#
# It is the trainer of module 03, with another technique on another axis: `stages(schedule)` cuts the model along `pp` and runs the schedule. Micro-batches have unequal numbers of targets.

# %% varies="the last digits of rounding differ between processors"
from course_lib.training.batches import Batches
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens

SMALL = ModelConfig(
    name="small", hidden_size=32, n_layers=6, n_heads=4, n_kv_heads=2, ffn_size=88, vocab_size=512, tied=True
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=16, ragged=True)


def decoder_alone(config):
    return Trainer(Decoder(SMALL), config)


def decoder_under(schedule):
    def make(config, *bugs):
        mesh = make_mesh(pp=schedule.n_ranks)
        return Trainer(Decoder(SMALL), config, mesh=mesh, apply=(stages(schedule), *bugs))

    return make


print(assert_parallel_equals(decoder_alone, decoder_under(one_f_one_b), text, world_size=4))

# %% [markdown]
# Seven rungs, rounding only. The other three, and numbers that do not divide: three ranks for eight layers, fewer micro-batches than ranks.
#
# And can a list hang? `problems` looks for sends without receives, a backward before its forward, and ranks that wait in a circle, even if every send has to wait for its receiver. First a list in which rank 0 goes backward too early:

# %%
pair = make_schedule("gpipe", 2, 3)
order = pair.lists[0]
too_early = (*order[:2], *order[6:8], *order[2:6], *order[8:])  # micro-batch 0 backward, before 1 goes forward
print(problems(replace(pair, lists=(too_early, pair.lists[1]))))
for name, p, m, v in [("gpipe", 4, 8, 1), ("interleaved", 4, 4, 2), ("zb-h1", 4, 8, 1), ("zb-h1", 3, 2, 1)]:
    schedule = make_schedule(name, p, m, stages_per_rank=v)
    assert problems(schedule) == []
    report = assert_parallel_equals(decoder_alone, decoder_under(schedule), text, world_size=p)
    print(
        f"{name:12} {p} ranks, {m} micro-batches: equal on {len(report.deviations)} rungs; tolerance {report.tolerance:g}"
    )

# %% [markdown]
# ## 7 · Measure
#
# ### The timeline: on paper and run
#
# Four real processes run 1F1B's list on the emulated clock: each computation is a sleep, 20 times longer than shown; messages have InfiniBand's delay. **Predict** the step in shown ms. The paper said 33.


# %% varies="measured times"
def timed_step(schedule, durations):
    """One step on the emulated clock; the layers are tiny, what lasts is said by `durations`."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(schedule.n_stages)]
    mesh, apply = make_mesh(pp=schedule.n_ranks), (stages(schedule, durations=durations),)
    trainer = Trainer(nn.Sequential(*layers), TrainConfig(), mesh=mesh, apply=apply)
    comm.ledger.clear()
    with comm.emulated(EmulatedClock(inside=INFINIBAND, slowdown=20)):
        trainer.compute_gradients((torch.ones(24, 6), torch.zeros(24, dtype=torch.long)))


def measured_idle(schedule, durations):
    """Share of the step in which rank 0 computes nothing, on real processes."""
    run_ranks(timed_step, schedule.n_ranks, schedule, durations)
    events = [event for event in ledger().events if event.kind == "compute"]
    start, end = min(event.start_s for event in events), max(event.end_s for event in events)
    return 1 - sum(event.end_s - event.start_s for event in events if event.rank == 0) / (end - start)


run_ranks(timed_step, 4, one_f_one_b, ONE)
run = ledger()
ends = [event.end_s for event in run.events if event.kind == "compute"]
predict("ms of the step as it ran", guess=None, answer=1e3 * max(ends), unit="ms", tolerance=0.1)
viz.plot_schedule_run(one_f_one_b, run, ONE, title="1F1B: the list on paper, and the list run")

# %% [markdown]
# The same list, once drawn and once run. Now the idle share for all schedules and several $m$. Lines: the lists on paper. Marks: real processes on the emulated clock.

# %% varies="measured times"
kinds = {
    "1F1B (GPipe is the same)": ("1f1b", 1),
    "interleaved, v = 2": ("interleaved", 2),
    "ZB-H1": ("zb-h1", 1),
}
paper, emulated = {}, {}
for label, (name, v) in kinds.items():
    for m in (4, 8, 12, 16, 24, 32):
        schedule = make_schedule(name, 4, m, stages_per_rank=v)
        slots = time_schedule(schedule, ONE)
        paper.setdefault(label, {})[m] = idle_s(slots, 4)[0] / max(slot.end_s for slot in slots)
    for m in (4, 12):
        schedule = make_schedule(name, 4, m, stages_per_rank=v)
        emulated.setdefault(label, {})[m] = measured_idle(schedule, ONE)
viz.plot_idle(paper, emulated, marks="emulated", title="Idle share of a step on four ranks")

# %% [markdown]
# ### And in real time, honestly
#
# Without the clock, with the small decoder. Four ranks share this machine's cores: while one waits, another uses its core. So these times say nothing about a cluster. But look at the pattern: rank 0 goes forward four times first, rank 3 to and fro. (A send's bar lasts until its rank asks whether it has arrived. At the end travel the tied embedding's gradient and the loss, by broadcast.)

# %% varies="measured times"


def real_step(schedule):
    torch.manual_seed(0)
    trainer = decoder_under(schedule)(TrainConfig())
    trainer.compute_gradients(text.batch(0))  # the first step is always slower
    comm.ledger.clear()
    trainer.compute_gradients(text.batch(1))


run_ranks(real_step, 4, make_schedule("1f1b", 4, 4))
real_run = ledger()
viz.plot_timeline(real_run, title="1F1B in real time: four ranks on this machine's cores")

# %% [markdown]
# ### Bytes at the cuts
#
# One cut carries eight sequences of 16 tokens, 32 numbers each, 4 bytes<!-- =4 -->, forward, and as much backward. **Predict** the KiB that rank 1 sends in one step under 1F1B, with four micro-batches: forward to rank 2, backward to rank 0. Does the number of micro-batches matter?

# %%
cut_bytes = [2 * 16 * 32 * 4] * 3  # of one micro-batch: two of the eight sequences
formula = pipeline_step(cut_bytes, n_ranks=4, n_microbatches=4, tied_bytes=512 * 32 * 4)
sent = tuple(real_run.of("isend").bytes_sent(rank) for rank in range(4))
predict("KiB that rank 1 sends", guess=None, answer=sent[1] / 1024, unit="KiB")
print("ledger ", sent)
print("formula", formula.sent_bytes)
assert sent == formula.sent_bytes

# %% [markdown]
# To the byte. Micro-batches change when bytes travel, and how many messages. They do not change how many bytes. Ranks 0 and 3 send more: the tied embedding's gradient, 64 KiB<!-- =512 * 32 * 4 / 1024 -->, to each other.
#
# ### Uneven stages
#
# One stage of four takes twice as long: a bad cut, or a GPU that is too warm, a **straggler**. All together there is 25 %<!-- =100 * (5 / 4 - 1) --> more to compute. **Predict** by how many percent the step of 33 ms<!-- =(8 + 4 - 1) * 3 --> gets longer.

# %% varies="measured times"
SLOW = Durations(forward_s=2e-3, backward_input_s=2e-3, backward_weight_s=2e-3)
uneven = [ONE, ONE, SLOW, ONE]
slower = max(slot.end_s for slot in time_schedule(one_f_one_b, uneven)) / 33e-3
predict("percent longer", guess=None, answer=100 * (slower - 1), unit="%")
print(f"rank 0 idle on real processes: {measured_idle(one_f_one_b, uneven):.0%}; on paper, even stages: {9 / 33:.0%}")
print(f"the step under GPipe: {1e3 * max(slot.end_s for slot in time_schedule(gpipe, uneven)):.0f} ms")
viz.plot_schedule(one_f_one_b, uneven, title="One stage takes twice as long")

# %% [markdown]
# A pipe is as fast as its narrowest place: 8 micro-batches of 6 ms<!-- =2 + 2 + 2 --> pass the slow stage one after another, it waits for 7 ms<!-- =(1 + 1) + 1 + (2 + 2) --> itself, and three ranks wait for it. (The bubble counts the busiest rank, here the slow one.) GPipe is no longer equal: evenness made it so. The cut deserves thought; section 10 balances one.
#
# ## 8 · PyTorch's own
#
# `torch.distributed.pipelining` has the same parts: a `PipelineStage` for each stage, and a schedule class that runs it. From the same weights, both must leave the same gradients.


# %%
def torch_gradients(untied):
    """PyTorch's 1F1B on our stages: the gradients of this rank's weights."""
    from torch.distributed import pipelining

    torch.manual_seed(0)
    rank, p = dist.get_rank(), dist.get_world_size()
    stages, (rows, goals) = cut(Decoder(untied).double(), [2] * p), text.batch(0)
    stage = pipelining.PipelineStage(stages[rank], rank, p, torch.device("cpu"), group=dist.new_group())

    def loss(output, part):
        return loss_of(output, part) / count_targets((rows, goals))

    schedule = pipelining.Schedule1F1B(stage, 8, loss_fn=loss, scale_grads=False)
    schedule.step(*([rows] if rank == 0 else []), target=goals)
    return {name: weight.grad for name, weight in stages[rank].named_parameters()}


def our_gradients(untied):
    torch.manual_seed(0)
    mesh, apply = make_mesh(pp=4), (stages(one_f_one_b),)
    trainer = Trainer(Decoder(untied).double(), TrainConfig(), mesh=mesh, apply=apply)
    trainer.compute_gradients(text.batch(0))
    return trainer.gradients()


untied = replace(SMALL, tied=False)
theirs = {name: gradient for part in run_ranks(torch_gradients, 4, untied) for name, gradient in part.items()}
ours = run_ranks(our_gradients, 4, untied)[0]
print(
    len(ours),
    "gradients, equal:",
    all(torch.allclose(ours[name], theirs[name], rtol=1e-10, atol=1e-13) for name in ours),
)

# %% [markdown]
# Untied, because PyTorch leaves a matrix that lies on two stages to its user.
#
# And note `scale_grads=False`. By default PyTorch divides the gradients by $m$, which is right if your loss is a micro-batch's *mean* and all have equally many targets. Ours is a sum divided by the number of *all* targets: nothing is left to divide. Who does both divides twice. Who does neither trains with gradients $m$ times too large.
#
# ## 9 · Bug museum
#
# The small tied decoder on four ranks, 1F1B, AdamW and clipping, as people train. Runs A to D: each *may* have a bug that happened to others in public. **Decide**: how many are sound? (You may have to guess.)

# %% varies="forty steps of rounding differ between processors"
decoder_on_ranks = decoder_under(one_f_one_b)
names = [*museum.PIPELINE_BUGS, "sound"]
exhibits = {"A": names[4], "B": names[-1], "C": names[0], "D": names[2]}  # print them after you have decided
makers = {
    run: museum.PIPELINE_BUGS[name].planted(decoder_on_ranks) if name != "sound" else decoder_on_ranks
    for run, name in exhibits.items()
}
plain = replace(text, ragged=False)  # all micro-batches count alike
curves = {"one device": museum.curve_alone(decoder_alone, plain.batch, 40)}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, plain.batch, world_size=4, steps=40)
losses = {run: curve.losses for run, curve in curves.items()}
viz.plot_loss_curves(losses, title="Which of these runs are sound?")

# %% [markdown]
# One: run B. The others end within a few per cent of one device, and nobody would stop them. C and D even end lower. So climb. Say for A, C and D on which rung each falls: output, gradients, gradient norm, parameters (SGD), or loss curve?

# %%
from course_lib.verify import RUNGS, NotEqual

for run in ("A", "C", "D"):
    bug = museum.PIPELINE_BUGS[exhibits[run]]
    try:
        assert_parallel_equals(decoder_alone, bug.planted(decoder_on_ranks), plain, world_size=4, rungs=RUNGS[:5])
    except NotEqual as error:
        where, _, way_out = str(error).split("; ", 2)  # the middle part is the rule
        way_out = way_out.replace("? ", "?\n    ")
        print(f"run {run} falls on: {error.rung}", where, way_out, f"met in public: {bug.where.link}", sep="\n    ")

# %% [markdown]
# C: each micro-batch's loss is its own mean, and eight gradients add up: 8.0 times, exactly. The logged loss is right, and AdamW divides the factor away; only clipping feels it. A: each stage clips by its own norm, one is cut, its neighbour not.
#
# D is the **tied embedding**. One matrix $E$ is used twice: to look tokens up, and at the end for the logits, $E\,h$. Its gradient is the sum of two parts. On one device `.grad` adds them. Cut the model, and each part lies on another rank.
#
# Take the tie apart on one device. **Predict** the norm of the first stage's part, divided by the norm of the whole.

# %%
torch.manual_seed(0)
tied = Decoder(SMALL)
apart = Decoder(untied)
apart.load_state_dict(tied.state_dict() | {"head.weight": tied.embedding.weight.detach()})
rows, goals = text.batch(0)
for decoder in (tied, apart):
    loss_of(decoder(rows), goals).backward()
first, last, both = apart.embedding.weight.grad, apart.head.weight.grad, tied.embedding.weight.grad
predict("norm of the first stage's part over the whole's", guess=None, answer=(first.norm() / both.norm()).item())
cosine = F.cosine_similarity(first.flatten(), last.flatten(), dim=0)
print(f"the last stage's part {last.norm() / both.norm():.2f}; cosine of the two, without its sign, {cosine.abs():.2f}")
print("sum of both parts equals the tied gradient:", torch.allclose(first + last, both, atol=1e-4))

# %% [markdown]
# Nearly perpendicular, at this first step: neither can stand for the other. Without the sum the first stage trains its copy with the first part, the last stage with the second. After one step one matrix is two. The cure is one exchange per step, `parallel.ties.Ties`: both send their part and add.
#
# ## 10 · In a Llama
#
# ### Where to cut
#
# Llama 3.1 8B: an embedding, 32 layers, a head. Cut by number, that is 9, 9, 8 and 8 of these 34. But they weigh differently: a layer multiplies by 218 million weights, the head by 525 million, the embedding only looks up. **Predict** the work of the last stage, seven layers and the head, in layers.

# %%
layer, table = costs.layer_parameters(LLAMA_3_1_8B), LLAMA_3_1_8B.vocab_size * LLAMA_3_1_8B.hidden_size


def step_length(sizes, sequence=0):
    """Work of each stage, and the step, in layers; attention multiplies a token with half of the sequence, twice."""
    work = [0, *[1] * 32, table / (layer + sequence * LLAMA_3_1_8B.hidden_size)]
    ends = [0, *accumulate(sizes)]
    each = [sum(work[start:end]) for start, end in pairwise(ends)]
    durations = [Durations(forward_s=w, backward_input_s=w, backward_weight_s=w) for w in each]
    return each, max(slot.end_s for slot in time_schedule(make_schedule("1f1b", 4, 16), durations))


by_number, by_work = split_sizes(34, 4), balanced_sizes([0, *[1] * 32, table / layer], 4)
predict("layers' worth of work on the last stage", guess=None, answer=step_length(by_number)[0][-1])
for sizes in (by_number, by_work):
    each, length = step_length(sizes)
    print(f"{sizes}: work {', '.join(f'{w:.1f}' for w in each)}; step {length:.0f} times a layer's forward")
shorter = 1 - step_length(by_work, 8192)[1] / step_length(by_number, 8192)[1]
print(f"shorter, at 8192 tokens: {shorter:.1%}")

# %% [markdown]
# With a layer less on the last stage the step is 4 %<!-- =100 * (1 - 506.45 / 526.61) --> shorter, for free. That holds for short sequences. At 8192 tokens attention makes each layer heavier, the head weighs less beside it, and little is left: balance for *your* sequence.
#
# ### Llama 3.1 405B
#
# On 16,384 GPUs Meta used 16 pipeline ranks; each pipeline got 16 sequences of 8192 tokens per step (Llama 3 paper, table 4). We take one in a micro-batch: $p = m = 16$. **Predict** the idle share under 1F1B.


# %%
def planned(v):
    schedule = make_schedule("interleaved" if v > 1 else "1f1b", 16, 16, stages_per_rank=v)
    slots = time_schedule(schedule, Durations())
    return schedule, idle_s(slots, 16)[0] / max(slot.end_s for slot in slots)


predict("idle share of 405B under 1F1B", guess=None, answer=planned(1)[1])
print("schedule                    idle   messages of rank 7   micro-batches held by rank 0, rank 15")
for v in (1, 2, 4, 8):
    schedule, idle = planned(v)
    messages = pipeline_step([1] * (16 * v - 1), n_ranks=16, n_microbatches=16).messages[7]
    first, last = (held(schedule, rank).in_flight / v for rank in (0, 15))
    print(f"{schedule.name:11} {v} x 1/{v} stage   {idle:6.1%}   {messages:18}   {first:.1f}, {last:.1f}")

# %% [markdown]
# By our lists, with even stages and free messages: half of the GPUs idle, or a tenth. With $v=8$ each chunk is one layer: 16 × 8 = 128 places, and the model has 126 layers. The other two are for embedding and head: Meta took a layer from the first and one from the last stage, to balance.
#
# Rank 0, the fullest, holds no more: with $m = p$ everything is in flight there anyway. The last rank catches up. The price is messages: 256 of 268 MB<!-- =8192 * 16384 * 2 / MB -->, of which sequence parallelism (module 05) leaves each GPU an eighth. That is 8.6 GB<!-- =256 * 8192 * 16384 * 2 / 8 / GB -->, 0.2 s<!-- =256 * 8192 * 16384 * 2 / 8 / INFINIBAND.bandwidth_bytes_per_s --> at InfiniBand's speed, as far as computing does not hide them.

# %% [markdown]
# ### On a GPU node and on a cluster
#
# *On a GPU node:* each rank takes a GPU, sends and receives go over NCCL; only section 8 names its device. Stages may lie on different nodes: a cut carries little.
#
# *As a command*, run here on two ranks with CPUs:
#
# ```bash
# python -m course_lib train pp=2 schedule=1f1b microbatches=4
# torchrun --nproc-per-node 2 -m course_lib train pp=2 schedule=zb-h1 microbatches=4
# srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \
#     --rdzv-endpoint $HOST:29500 -m course_lib train pp=4 dp=2 microbatches=4        # not run here
# ```

# %% [markdown]
# ## 11 · Takeaways
#
# - Model parallelism divides memory. Alone it divides no time.
# - A schedule is a list for each rank: idle time, memory and messages are read off it.
# - With even stages and free messages the bubble is $(p-1)(F+B+W)$ for GPipe *and* 1F1B. 1F1B saves memory; interleaving divides the bubble by $v$; zero bubble fills it with W.
# - Divide the loss by *all* targets, once. What is tied over a cut is summed.
#
# **Next:** the exercises; then module 05, which cuts the layers themselves.
#
# References: Huang et al. 2018 (GPipe); Narayanan et al. 2020 (PipeDream-Flush), 2021 (interleaving); Qi et al. 2023 (zero bubble); Llama team, Kempner Institute, K. Yuan (a lecture) 2024. (PipeDream, 2019, uses older weights.)

# %%
score()

# %% [markdown]
# ## Quiz
#
# <details><summary>1. You double the number of 1F1B's micro-batches, each of the same size. What happens to the bubble, to its share, to rank 0's memory?</summary>
# The same bubble; a smaller share (27 becomes 16 per cent); the same memory.
# </details>
#
# <details><summary>2. Every gradient is exactly 8 times too large, and there are 8 micro-batches. What happened?</summary>
# Each micro-batch's loss was its own mean, and nobody divided the sum by 8.
# </details>
#
# <details><summary>3. Eight ranks, 1F1B, and less than a twentieth of the step idle. How many micro-batches?</summary>
# 7/(m+7) &lt; 1/20, so at least 134. The first rank's memory stays that of 8.
# </details>
