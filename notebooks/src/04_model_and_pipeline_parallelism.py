# %% [markdown]
# # 04 · Pipelines: four GPUs, one model
#
# In lesson 03 every GPU had a copy of the model. What if no GPU can hold one? Training Llama 3.1 8B takes 16 bytes<!-- =find_convention("zero").bytes_per_parameter --> a parameter, for weight, gradient and Adam's states. That makes 120 GiB<!-- =16 * costs.model_parameters(LLAMA_3_1_8B) / GiB -->, but the 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB --> of an H100 are only 74.5 GiB<!-- =load_device("h100_sxm_80").memory_bytes() / GiB -->.
#
# But a model is a chain of layers. If we cut it, each of four GPUs gets eight of the 32 layers. Each hands its result to the next, and gradients come back the same way. GPU 0 also gets the embedding and GPU 3 gets the head, so these two keep 34 GiB<!-- =16 * (8 * costs.layer_parameters(LLAMA_3_1_8B) + 128256 * 4096) / GiB --> each. It fits!

# %% folded=true
# %load_ext course_lib
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from textwrap import fill

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib import comm, costs, viz
from course_lib.checks import predict, score
from course_lib.config import LLAMA_3_1_8B, ModelConfig, ParallelConfig, TrainConfig
from course_lib.costs import pipeline_step
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.sweep.gpu_memory import Work, gpu_memory
from course_lib.hardware import ETHERNET, INFINIBAND, load_device
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.mesh import make_mesh
from course_lib.ranks import ledger, run_ranks
from course_lib.schedules import Durations, Forward, bubble_s, held, idle_s, make_schedule, problems, time_schedule
from course_lib.split import balanced_sizes, split_sizes
from course_lib.training.batches import Batches
from course_lib.training.techniques import stages
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens
from course_lib.training.trainer import Trainer
from course_lib.units import GB, MB, GiB
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum

# %%
ONE = Durations(forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3)  # of one GPU's eight layers
in_one_piece = make_schedule("gpipe", 4, 1)  # four ranks, one batch; the name comes later

viz.plot_schedule(
    in_one_piece,
    ONE,
    title="Four GPUs, one model: who works when?",
    subtitle="one batch, number 0; forward lasts 1 ms, backward 2 ms; the times are chosen, not measured",
)

# %% [markdown]
# Each row is a rank: one GPU and its process. Its long box is backward, which takes twice as long as forward because it computes two gradients, of the weights and of the input. Look at any moment, say at 5 ms<!-- =5 -->: one rank computes, and three wait. Each row is grey for 9 ms<!-- =4 * 3 - 3 --> of 12 ms<!-- =4 * 3 -->. One GPU with enough memory would need the same 12 ms<!-- =4 * 3 -->, so we pay for four GPUs and get the speed of one!
#
# The grey time of a rank is its **bubble**, here 75 %<!-- =100 * 9 / 12 --> of the step. When we are done, three of these ranks wait for only 3 %<!-- =100 * 3 / (32 * 3 + 3) -->.

# %% [markdown]
# You will be able to
# - cut a model between its layers, train it on several ranks, and prove that it is the same training.
# - say how long each rank waits, and how much it has to remember, before you run anything.
# - choose a schedule, a number of micro-batches and a link.
# - find mistakes that only a cut model can have.
#
# *One hour, and about three and a half more for the exercises.*
#
# <details><summary>Before you start</summary>From lesson 00 you need send and receive, and from lesson 03 the perceptron, micro-batches and the ladder. Everything here ran on CPUs over gloo; NCCL and Slurm did not run.</details>

# %% [markdown]
# ## What is right
#
# Start with the smallest model that can be cut: the perceptron with its 38 parameters. It has two layers with weights, so there is one place to cut, and each part is called a **stage**. Rank 0 gets the stage with 6 × 4 + 4 = 28 parameters, and rank 1 gets the stage with 4 × 2 + 2 = 10.
#
# One device tells us what is right. It finds 38 gradients for eight rows, and the two ranks have to find the same ones.

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
# ## Cut it by hand
#
# Forward is easy: rank 0 computes the four hidden numbers of each row and sends them, and rank 1 does the rest. The $f$ in the picture does nothing here.
#
# Backward is harder. Rank 1 finds the gradients of its weights, but autograd does not follow a message. So what does rank 0 need to go on? It must know how the loss changes with the numbers that it **sent**. These numbers were rank 1's input, so rank 1 computes their gradient too and sends it back. Then rank 0 calls `hidden.backward(g)`, which says: go on from here, with gradient `g`.
#
# **Predict.** How many bytes cross the cut?

# %%
# %%ranks 2 --push model,inputs,targets --pull mine
import torch.nn.functional as F
from course_lib.comm import recv, send

if rank == 0:
    hidden = model.layer1(inputs)
    send(hidden.detach(), 1)  # only numbers travel
    g = recv(torch.empty(8, 4), 1)
    hidden.backward(g)
else:
    hidden = recv(torch.empty(8, 4), 0).requires_grad_()
    F.cross_entropy(model.layer2(hidden), targets).backward()
    send(hidden.grad, 0)

mine = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

# %%
predict(
    "bytes that cross the cut",
    guess=None,
    answer=sum(map(ledger().bytes_sent, (0, 1))),
    unit="bytes",
    think="what of a row crosses the cut, and in which directions",
)
print("gradients on the two ranks:", [sum(gradient.numel() for gradient in part.values()) for part in mine])
print("equal to one device:", all(torch.allclose((mine[0] | mine[1])[name], whole[name]) for name in whole))

# %% [markdown]
# 8 × 4 numbers of 4 bytes<!-- =4 --> cross the cut twice: forward as hidden numbers, and back as their gradients. The weights do not travel at all, however many there are! And nothing was averaged, unlike in lesson 03, because each weight lies on one rank, and only that rank finds its gradient.
#
# Cutting a model like this is called **model parallelism**. It saves memory, and it was easy to get right. But it does nothing against the grey in the first picture.

# %% [markdown]
# ## First attempt: smaller pieces
#
# Rank 1 waits in the first millisecond because rank 0 computes the whole batch first. So cut the batch into **micro-batches**: then rank 1 can begin with the first while rank 0 computes the second. The gradients of all micro-batches add up in `.grad`, as in lesson 03. The simplest order, all forwards and then all backwards, is called **GPipe**.
#
# **Predict.** Let the batch be eight times as large, so that each of eight micro-batches still takes 1 ms<!-- =1 --> forward and 2 ms<!-- =2 --> backward on every rank. For which fraction of the step does a rank wait? Draw the row of rank 3.

# %%
gpipe = make_schedule("gpipe", 4, 8)
slots = time_schedule(gpipe, ONE)
predict(
    "idle fraction of the step, between 0 and 1",
    guess=None,
    answer=idle_s(slots, 4)[3] / max(slot.end_s for slot in slots),
    think="how long rank 3 waits before its first forward and after its last backward, and how long it computes",
)
viz.plot_schedule(gpipe, ONE, title="GPipe: four ranks", subtitle="eight micro-batches, numbered in their boxes")

# %% [markdown]
# Look at rank 3. It begins when micro-batch 0 is through the three others, after 3 ms<!-- =3 * 1 -->. When its work is done, the last micro-batch still goes backward through those three, for 6 ms<!-- =3 * 2 -->. That is a bubble of 9 ms<!-- =3 * 1 + 3 * 2 -->, as in every row and in the first picture! More micro-batches of this size add work beside the bubble, here 24 ms<!-- =8 * 3 -->. But if you cut the same batch finer, the bubble shrinks.
#
# Count in micro-batches of 3 ms<!-- =1 + 2 -->. With $p$ ranks and $m$ micro-batches, a rank works for $m$ and waits for $p-1$:
#
# $$\text{idle fraction of the step} = \frac{p-1}{m+p-1}$$

# %% [markdown]
# With 32 micro-batches the idle fraction is 3/35, less than 9 %<!-- =100 * 3 / 35 -->. So take 32, and let each of them be one text of 4096 tokens. Does that fit into memory?
#
# What a forward computes, its **activations**, has to stay until the backward of the same micro-batch. Under GPipe all forwards come first, so rank 0 has to remember 32 texts at once. The picture adds these activations to what rank 0 holds anyway: its weights, gradients and Adam's states.

# %%
H100, SPREAD, ADAM = load_device("h100_sxm_80"), ParallelConfig(pp=4), find_convention("zero")
one_text = gpu_memory(LLAMA_3_1_8B, SPREAD, Work(sequence=4096, microbatch=1), ADAM)

viz.plot_gpu_memory(
    {
        f"GPU 0 remembers {count} text{'s' * (count > 1)}": replace(one_text, activations=count * one_text.activations)
        for count in (1, 32)
    },
    H100,
    title="Llama 3.1 8B on four GPUs: what GPU 0 holds",
)

# %% [markdown]
# Look at the blue: one text fits easily, but 32 texts take 165 GiB<!-- =32 * gpu_memory(LLAMA_3_1_8B, ParallelConfig(pp=4), Work(sequence=4096, microbatch=1), find_convention("zero")).activations / GiB -->.
#
# ## Second attempt: backward as soon as you can
#
# In GPipe's picture the last rank could go backward with micro-batch 0 at 4 ms<!-- =4 -->. Instead it goes forward seven more times, and all ranks remember everything.
#
# So **go backward as soon as you can**. The last rank then alternates from the start: one forward, one backward. Rank 0 sends a few micro-batches ahead, **stops** until its first gradient is there, and then alternates too. This order is called **1F1B**.
#
# **Predict** its bubble. Which waits does the new order take away, and which does it add?

# %%
one_f_one_b = make_schedule("1f1b", 4, 8)
predict(
    "ms of bubble under 1F1B",
    guess=None,
    answer=1e3 * bubble_s(time_schedule(one_f_one_b, ONE), 4),
    unit="ms",
    think="rank 3 once more: when can it begin, and what has to happen after its last backward?",
)
viz.plot_schedules(
    {"GPipe": gpipe, "1F1B": one_f_one_b},
    ONE,
    title="All forwards first, or backward as soon as you can",
    subtitle="eight micro-batches on four ranks; every rank of a schedule waits equally long",
)

# %% [markdown]
# The bubble is as long as before: 9 ms<!-- =3 * 3 -->. Look at rank 0: under GPipe it waits once, for 9 ms<!-- =3 * 3 -->. Under 1F1B it waits for 6 ms<!-- =3 * 2 -->, and then in three slits of 1 ms<!-- =1 -->. The sum cannot change: rank 3 still begins after three forwards, works without a pause, and has three backwards after it, so the step lasts as long.
#
# So why does everybody use 1F1B? Not for the time, but for what a rank has to **remember**.
#
# **Predict.** Under GPipe rank 0 remembers all 32 micro-batches. How many under 1F1B? In its row, add one at each forward, take one away at each backward.

# %%
predict(
    "of 32 micro-batches, rank 0 remembers at most",
    guess=None,
    answer=held(make_schedule("1f1b", 4, 32), 0).in_flight,
    think="which part of rank 0's row grows when there are more micro-batches",
)
viz.plot_held({"GPipe": gpipe, "1F1B": one_f_one_b}, title="What each rank remembers of eight micro-batches")

# %% [markdown]
# Rank 0 remembers four of 32 micro-batches, as it does of eight: four are **in flight**. Why does it stop at four? Its micro-batch 0 is done after 12 ms<!-- =4 * 1 + 4 * 2 -->. In that time rank 3 can do four, of 3 ms<!-- =1 + 2 --> each, so a fifth would only stand in a queue. From each further rank the way is 3 ms<!-- =1 + 2 --> shorter, so that rank needs one less: of $p$ ranks, rank $i$ has $p-i$ in flight.
#
# And $m$ is not in that sentence! GPU 0 of our Llama therefore needs 54.5 GiB<!-- =gpu_memory(LLAMA_3_1_8B, ParallelConfig(pp=4), Work(sequence=4096, microbatch=1, n_microbatches=32), find_convention("zero")).total / GiB --> instead of 199 GiB<!-- =(16 * (8 * costs.layer_parameters(LLAMA_3_1_8B) + 128256 * 4096) + 32 * gpu_memory(LLAMA_3_1_8B, ParallelConfig(pp=4), Work(sequence=4096, microbatch=1), find_convention("zero")).activations) / GiB -->. So 1F1B does help against waiting, because it makes many micro-batches affordable.

# %% [markdown]
# ## Third attempt: what can wait?
#
# Every rank still waits for 9 ms<!-- =3 * 3 -->, although it has work that it could do in that time. Which part of this work can be put off? Ask who needs the result. Backward computes two gradients. The stage before you is idle until it gets the gradient of your **input**, but the gradient of your **weights** is needed by nobody until the optimizer runs. So send the gradient of the input at once, and compute that of the weights when you would be idle anyway.
#
# Here are both gradients for rank 1 of the perceptron. What must it keep until it comes to the gradient of the weights?

# %%
hidden = model.layer1(inputs).detach()  # what rank 1 received
y = model.layer2(hidden).detach().requires_grad_()
F.cross_entropy(y, targets).backward()
g = y.grad  # the gradient of the output, (8, 2)

of_input = g @ model.layer2.weight  # (8, 4): rank 0 is waiting for it
of_weight = g.T @ hidden  # (2, 4): nobody is waiting for it

print("the weight's gradient is one device's:", torch.allclose(of_weight, whole["layer2.weight"]))
print("and rank 0's, from what it is sent:  ", torch.allclose(of_input.T @ inputs, whole["layer1.weight"]))

# %% [markdown]
# The two gradients are two products, `of_input` and `of_weight`, and neither needs the other. But `of_weight` needs `g` and the layer's input `hidden`, so rank 1 has to keep these two a little longer.
#
# Because backward is now split, there are three kinds of boxes, and each lasts 1 ms<!-- =1 -->. Call their durations $F$ for forward, $B$ for the gradient of the input, and $W$ for the gradient of the weights.
#
# **Predict.** Each rank goes backward to its input as soon as it can, and fills its waits with gradients of weights. How long is the bubble now?

# %%
zero_bubble = make_schedule("zb-h1", 4, 8)
predict(
    "ms of bubble that are left",
    guess=None,
    answer=1e3 * bubble_s(time_schedule(zero_bubble, ONE), 4),
    unit="ms",
    think="rank 3 once more: during which of its waits is there work that was put off",
)
display(
    viz.plot_schedules(
        {"1F1B": one_f_one_b, "ZB-H1": zero_bubble},
        ONE,
        title="Weights' gradients fill the waits",
        subtitle="eight micro-batches on four ranks; every rank of a schedule waits equally long",
    ),
    viz.plot_held({"1F1B": one_f_one_b, "ZB-H1": zero_bubble}, title="What each rank remembers at most"),
)

# %% [markdown]
# In the lower schedule rank 3 first waits for three forwards. While its last gradient goes back through three ranks, rank 3 does three dark red boxes: 3 + 3 − 3 = 3. The fourth ends when rank 0 ends. With at least $p$ micro-batches, and $W$ at most $F$ and $B$:
#
# $$\text{bubble} = (p-1)\,(F + B - W)$$
#
# The order is called **ZB-H1**, for *zero bubble*, which a second order reaches with more memory. What does our order cost? Rank 3 remembered one micro-batch, but now inputs and gradients of up to four are **stashed** there. Yet in flight and stashed together, no rank has more than four.

# %% [markdown]
# ## Build it: a schedule is a list
#
# Our pictures differ only in the order of their boxes, so write each row down: a **schedule** is one list for each rank. `Forward(3, 0)` means stage 3, micro-batch 0.
#
# The loop below follows such a list, with the forward and the backward of our cut by hand. But it sends with `isend`, which returns at once, so a rank goes on to its next box while the message travels.
#
# **Predict.** Four ranks have three layers each, and a batch has 16 rows of 5 numbers. How many bytes does rank 1 send in a step under 1F1B? Does the number of micro-batches matter?

# %%


def follow(schedule, stage, rows, goals):
    """Do what this rank's list says; return its loss, and how many micro-batches it remembered at most."""
    rank, last = dist.get_rank(), schedule.n_ranks - 1
    remembered, travelling, loss, most = {}, [], 0.0, 0
    for box in schedule.computes(rank):
        k = box.microbatch
        if isinstance(box, Forward):
            x = rows[k] if rank == 0 else comm.recv(torch.empty_like(rows[k]), rank - 1).requires_grad_()
            y = stage(x)
            if rank == last:
                y = F.cross_entropy(y, goals[k], reduction="sum") / sum(map(len, goals))  # by all rows of the batch
                loss += y.item()
            else:
                travelling.append(comm.isend(y.detach(), rank + 1))
            remembered[k] = x, y
            most = max(most, len(remembered))
        else:
            x, y = remembered.pop(k)
            y.backward(None if rank == last else comm.recv(torch.empty_like(y), rank + 1))
            if rank > 0:
                travelling.append(comm.isend(x.grad, rank - 1))
    for message in travelling:
        message.wait()
    return loss, most


print("rank 3 under GPipe:", *list(gpipe.computes(3))[:4], "…")
print("rank 3 under 1F1B: ", *list(one_f_one_b.computes(3))[:4], "…")

# %%
torch.manual_seed(0)
deep = nn.Sequential(*(nn.Sequential(nn.RMSNorm(5), nn.Linear(5, 5), nn.GELU()) for _ in range(12)))
rows, goals = torch.randn(16, 5), torch.randint(5, (16,))
alone = F.cross_entropy(deep(rows), goals)
right = torch.autograd.grad(alone, list(deep.parameters()))


def one_step(schedule):
    stage, m = deep[3 * dist.get_rank() :][:3], schedule.n_microbatches
    loss, most = follow(schedule, stage, rows.chunk(m), goals.chunk(m))
    return loss, most, [weight.grad for weight in stage.parameters()]


sent = {}
for name, schedule in (("one piece", in_one_piece), ("GPipe", gpipe), ("1F1B", one_f_one_b)):
    losses, most, found = zip(*run_ranks(one_step, 4, schedule), strict=True)
    torch.testing.assert_close(sum(found, []), list(right))
    sent[name] = ledger().bytes_sent(1)
    print(f"{name:9}  loss {losses[3]:.4f}, gradients of one device; the ranks remembered {most} micro-batches")
predict(
    "bytes that rank 1 sends",
    guess=None,
    answer=sent["1F1B"],
    unit="bytes",
    think="to whom does rank 1 send, and what",
)
print("in one piece and under GPipe:", sent["one piece"], sent["GPipe"])

# %% [markdown]
# One program follows three lists, and each time it finds the gradients of one device. It also counts what the ranks remember while they run. Compare the counts for GPipe and 1F1B with the bars above: the numbers are the same.
#
# Rank 1 sends 16 rows forward to rank 2 and 16 rows of gradients back to rank 0, which makes 640 bytes<!-- =2 * 16 * 5 * 4 -->. Micro-batches change when bytes travel and in how many messages, but not how many bytes there are.

# %% [markdown]
# ## Prove it
#
# Gradients of one step are a good sign, but a training also needs the norm, clipping, the optimizer, and save and load. So climb the ladder of lesson 03.
#
# The library's loop, which is ours with boxes for $W$ as well, trains a small decoder of Llama's shape on four ranks. Two things make it hard. Micro-batches have unequal numbers of targets. And the embedding is **tied**: the matrix that looks tokens up on the first stage also makes the logits on the last. Each of these stages finds a gradient of this matrix, and the two gradients must be added.

# %% varies="the last digits of rounding differ between processors"
SMALL = ModelConfig(
    name="small", hidden_size=32, n_layers=6, n_heads=4, n_kv_heads=2, ffn_size=88, vocab_size=512, tied=True
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=16, ragged=True)


def decoder_alone(config):
    return Trainer(Decoder(SMALL), config)


def decoder_under(schedule):
    def make(config, *bugs):
        mesh = make_mesh(pp=schedule.n_ranks)  # pp: pipeline parallel, the mesh's name for these ranks
        return Trainer(Decoder(SMALL), config, mesh=mesh, apply=(stages(schedule), *bugs))

    return make


report = assert_parallel_equals(decoder_alone, decoder_under(one_f_one_b), text, world_size=4)
viz.plot_ladder(report.deviations, tolerance=report.tolerance, title="1F1B on four ranks is one device")

# %% [markdown]
# Each dot shows how far the four ranks were from one device. All dots lie far to the left of the dashed line, so only rounding is left.
#
# ## Measure
#
# Do four processes really wait where the picture says? On your machine they share a few cores. While one process waits, another computes on its core, so no schedule could win. Therefore we use the emulated clock: each computation is a sleep, 20 times longer than shown, and messages take the time that InfiniBand would need. Only these times are emulated; the list, the processes and the messages are real.

# %% varies="measured times"


def timed_step(schedule, durations):
    """One step on the emulated clock; the layers are tiny, and `durations` say how long they take."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(schedule.n_stages)]
    mesh, apply = make_mesh(pp=schedule.n_ranks), (stages(schedule, durations=durations),)
    trainer = Trainer(nn.Sequential(*layers), TrainConfig(), mesh=mesh, apply=apply)
    comm.ledger.clear()
    with comm.emulated(comm.EmulatedClock(inside=INFINIBAND, slowdown=20)):
        trainer.compute_gradients((torch.ones(24, 6), torch.zeros(24, dtype=torch.long)))


run_ranks(timed_step, 4, one_f_one_b, ONE)
viz.plot_schedule_run(one_f_one_b, ledger(), ONE, title="Four processes wait where the list says")

# %% [markdown]
# Compare the lower four rows, which are what the processes did, with the upper four, which are the list. Box for box they agree, but the processes end a little later, because messages and the processes themselves take time.
#
# ### When one stage is slower
#
# Now let rank 2 take twice as long for everything, because it has too many layers, or because its GPU is too warm. So the four ranks together have a quarter more to compute.
#
# **Predict.** The step took 33 ms<!-- =8 * 3 + 9 -->. By how many percent does it get longer?

# %%
SLOW = Durations(forward_s=2e-3, backward_input_s=2e-3, backward_weight_s=2e-3)
uneven = [ONE, ONE, SLOW, ONE]
longer = max(slot.end_s for slot in time_schedule(one_f_one_b, uneven)) / 33e-3 - 1
predict(
    "percent longer",
    guess=None,
    answer=100 * longer,
    unit="%",
    think="how long rank 2 alone is busy with eight micro-batches",
)
viz.plot_schedule(
    one_f_one_b,
    uneven,
    title="One slow stage, and everybody waits for it",
    subtitle="1F1B; rank 2 takes 2 ms forward and 4 ms backward, the others 1 ms and 2 ms",
)

# %% [markdown]
# Look at rank 2. It alone is busy for 48 ms<!-- =8 * 6 -->, which is longer than the whole step was before. It begins after 2 ms<!-- =2 * 1 --> and waits 1 ms<!-- =1 --> for its first gradient. When it has finished, the last micro-batch still needs 4 ms<!-- =2 * 2 --> on ranks 1 and 0. That makes 55 ms<!-- =8 * 6 + 2 + 1 + 4 -->. The three other ranks wait for more than half of that time, because every micro-batch has to pass rank 2.
#
# A pipe is as fast as its narrowest place, so cut a model by *work*, not by number of layers.

# %% [markdown]
# ## In PyTorch alone
#
# [`scripts/04_pipeline.py`](scripts/04_pipeline.py) does the same step without the course, with the same twelve layers and 16 rows. Start it with `torchrun --nproc-per-node 4 scripts/04_pipeline.py`.
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `deep[3 * rank :][:3]` | `PipelineStage(mine, rank, p, device)` | a first message tells each stage its shapes |
# | `make_schedule("1f1b", …)` | `Schedule1F1B(stage, 8, loss_fn)` | the list is made inside |
# | `follow(…)` | `schedule.step(inputs, target=…)` | `step` cuts the batch itself; only the first stage gives it inputs |
# | loss divided by all rows | `scale_grads=False` | without it gradients are divided by 8 once more |
# | the tied matrix's two gradients added | – | you have to do it |

# %%
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
said = subprocess.run([*torchrun, "scripts/04_pipeline.py"], capture_output=True, text=True, check=True).stdout
print(said)

length = torch.stack([gradient.norm() for part in found for gradient in part]).norm()
ours = f"loss {losses[3]:.4f}, gradients of length {length:.4f}"
print("our four ranks:", ours)
assert ours in said
viz.show_source(Path("scripts/04_pipeline.py"))

# %% [markdown]
# The script's line and ours agree in all digits. In the script `init_process_group` finds out from torchrun who the four processes are, `PipelineStage` knows by its number who its neighbours are, and `step` is our loop.
#
# **Your turn.** Replace `Schedule1F1B` by `ScheduleGPipe`: what changes in what the script prints? Then leave out `scale_grads=False`, and read what the comparison says.
#
# <details><summary>Answers</summary>Nothing changes, because another order gives the same gradients. Without the option PyTorch divides by the number of micro-batches, which is right if each micro-batch's loss is its own mean. But our loss is divided already, so every gradient is 8 times too small.</details>

# %% [markdown]
# ## Bug museum
#
# The small tied decoder trains on four ranks under 1F1B, with AdamW and clipping. After step 20 each run saves a checkpoint and goes on from it. Each of the runs A to D **may** have a bug that was met in public.
#
# The first picture shows their losses, with one device as the broad line. The second picture shows how far each run is from that line. A sound run is not at zero there either, because it adds in another order, and training makes rounding grow.
#
# **Predict.** Which runs would you trust? Name them, as `"AC"` or `"none"`.

# %% varies="forty steps of rounding differ between processors"
decoder_on_ranks = decoder_under(one_f_one_b)
names = sorted([*museum.PIPELINE_BUGS, "sound"], key=lambda name: name[::-1])  # an order that gives nothing away
exhibits = {"A": names[4], "B": names[2], "C": names[6], "D": names[0]}  # print them after you have decided
makers = {
    run: museum.PIPELINE_BUGS[name].planted(decoder_on_ranks) if name != "sound" else decoder_on_ranks
    for run, name in exhibits.items()
}
plain = replace(text, ragged=False)  # all micro-batches count alike
curves = {"one device": museum.curve_alone(decoder_alone, plain.batch, 40).losses}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, plain.batch, world_size=4, steps=40).losses
display(viz.plot_loss_curves(curves, title="Which of these runs are sound?"), viz.plot_loss_differences(curves))

# %%
predict("the sound runs", guess=None, answer="".join(run for run in exhibits if exhibits[run] == "sound"))
for run, make in makers.items():
    try:
        assert_parallel_equals(decoder_alone, make, plain, world_size=4, rungs=RUNGS[:5])
        print(f"run {run}: equal on the first five rungs")
    except NotEqual as error:
        what, _, way_out = str(error).split("; ", 2)
        print(f"run {run} falls on: {error.rung}")
        print(fill(what.partition(": ")[2], 110, initial_indent="    ", subsequent_indent="    "))

# %% [markdown]
# Only B is sound: in the second picture its line climbs slowly, while the others jump.
#
# In [run C](https://github.com/deepspeedai/DeepSpeed/issues/7773) each micro-batch's loss is its own mean, so the sum of eight gradients is 8 times too large. While C and one device both clip, the 8 drops out, and later AdamW hides most. In [run A](https://github.com/pytorch/torchtitan/issues/596) each stage clips by its own norm.
#
# [Run D](https://github.com/uw-syfi/piper/issues/13) is about the tied matrix. Its two gradients are not added: each stage trains its copy with its own part, so one matrix becomes two. A checkpoint keeps only one, so D jumps after step 20. The cure is that both stages send each other their part and add.

# %% [markdown]
# ## Back to the four GPUs
#
# First watch a line sweep over four schedules. One of them is new: **interleaved** gives each rank several small stages.
#
# Then use the controls: make the idle part as small as you can, with at most four micro-batches in flight, and then with five.
#
# <details><summary>What you may have found</summary>With four in flight, ZB-H1 with 32 micro-batches leaves 3 percent<!-- =100 * 3 / (32 * 3 + 3) --> idle. With five, interleaved leaves 2.3 percent<!-- =100 * 2.25 / (32 * 3 + 2.25) -->, if each rank has four stages, the most on offer. Two stages would not fit!</details>
#
# The second cell below is about our Llama on four H100s, with its 32 texts and messages that take time.

# %% varies="a widget"
four = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "Interleaved": make_schedule("interleaved", 4, 8, stages_per_rank=2),
    "ZB-H1": zero_bubble,
}
display(viz.animate_schedules(four, ONE))
viz.schedule_explorer()

# %%
p, m, per_second = 4, 32, 0.4 * H100.peak_flops_per_s()  # 40 % of what an H100 can do at best
layer_s = 2 * costs.layer_parameters(LLAMA_3_1_8B) * 4096 / per_second  # forward, without attention's own products
cut_bytes = 4096 * LLAMA_3_1_8B.hidden_size * 2  # one text, in bfloat16


def waiting(name, layers, message_s, v=1):
    """The share of the step for which each rank waits; rank r has `layers[r]` layers."""
    times = [count * layer_s for count in layers]
    each = [Durations(forward_s=time, backward_input_s=time, backward_weight_s=time) for time in times]
    slots = time_schedule(make_schedule(name, p, m, stages_per_rank=v), each, message_s=message_s)
    return [idle / max(slot.end_s for slot in slots) for idle in idle_s(slots, p)]


links = (INFINIBAND, ETHERNET)
takes = {"no time": 0.0} | {to.name: to.alpha_s + cut_bytes / to.bandwidth_bytes_per_s for to in links}
print(f"eight layers forward: {8e3 * layer_s:.0f} ms; a message: {cut_bytes / MB:.0f} MB")
print(*(f"{to.name} carries {to.bandwidth_bytes_per_s / GB:.3g} GB/s" for to in links), sep="; ", end="\n\n")
print(f"{'':11}" + "".join(f"{name:>12}" for name in takes) + "   GPU 0 holds")
print(f"{'a message':11}" + "".join(f"{1e3 * seconds:9.1f} ms" for seconds in takes.values()))
for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)):
    idle = [waiting(name, [8] * p, seconds, v)[0] for seconds in takes.values()]
    text_count = held(make_schedule(name, p, m, stages_per_rank=v), 0).in_flight / v
    holds = one_text.total + (text_count - 1) * one_text.activations
    print(f"{name:11}" + "".join(f"{share:12.1%}" for share in idle) + f"{holds / GiB:10.1f} GiB")

head = LLAMA_3_1_8B.vocab_size * LLAMA_3_1_8B.hidden_size / costs.layer_parameters(LLAMA_3_1_8B)
print(f"\nzb-h1 over InfiniBand, with the head, which is {head:.1f} layers' work, on GPU 3:")
for layers in ([8, 8, 8, 8], [9, 9, 9, 5]):
    shares = waiting("zb-h1", [*layers[:3], layers[3] + head], takes["InfiniBand"])
    print(layers, *(f"{share:7.1%}" for share in shares))

# %% [markdown]
# Over InfiniBand messages hardly matter, so pipelines can run **between nodes**. Over Ethernet 1F1B's wait more than doubles, because rank 0 begins a fifth micro-batch only when the first is back, six messages later. ZB-H1 waits least, because its gradients need not wait for $W$.
#
# With the head on GPU 3 the other GPUs wait a quarter of the step. If GPU 3 gives them three of its layers, they wait 3 %<!-- =100 * (1 - 32 * 27 / max(slot.end_s for slot in time_schedule(make_schedule("zb-h1", 4, 32), [Durations(forward_s=n, backward_input_s=n, backward_weight_s=n) for n in (9, 9, 9, 5 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B))]))) -->.
#
# | you have | take |
# | --- | --- |
# | a model that fits into one GPU | data parallelism |
# | into one node, as ours | compare lessons 05 and 06 |
# | into several nodes | a pipeline between them |
# | many micro-batches | 1F1B or ZB-H1 |
# | few | interleaved |

# %% [markdown]
# ## What still hurts
#
# In the first picture four ranks waited for 75 %<!-- =100 * 9 / 12 --> of the step. Now three wait for 3 %<!-- =100 * (1 - 32 * 27 / max(slot.end_s for slot in time_schedule(make_schedule("zb-h1", 4, 32), [Durations(forward_s=n, backward_input_s=n, backward_weight_s=n) for n in (9, 9, 9, 5 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B))]))) -->, and the last, which has less work, waits for 20 %<!-- =100 * (1 - 32 * 3 * (5 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B)) / max(slot.end_s for slot in time_schedule(make_schedule("zb-h1", 4, 32), [Durations(forward_s=n, backward_input_s=n, backward_weight_s=n) for n in (9, 9, 9, 5 + 128256 * 4096 / costs.layer_parameters(LLAMA_3_1_8B))]))) -->. But that takes many micro-batches. Too large a batch trains no better, and too small a micro-batch leaves a GPU with little to do.
#
# And a cut runs between layers, so a layer with all that it computes has to fit into one GPU. Nor does any text go through faster than on one GPU. Could two GPUs work on *one* layer together?
#
# **Next:** the [exercises](../exercises/release/04_model_and_pipeline_parallelism.ipynb), then [lesson 05](05_tensor_parallelism.ipynb). `make slides` builds the slides.

# %%
score()

# %% [markdown]
# ## Questions
#
# <details><summary>1. Under 1F1B you double the number of micro-batches of the same size. What happens to bubble, idle part and memory?</summary>
# Only the idle part changes: with four ranks and eight micro-batches it nearly halves, from 27 to 16 percent<!-- =100 * 3 / 19 -->.
# </details>
#
# <details><summary>2. Which rank runs out of memory first?</summary>
# The first rank, because it waits longest for a gradient and so remembers most. But the last rank has the logits.
# </details>
#
# <details><summary>3. Eight ranks, 1F1B, and less than a twentieth of the step idle. How many micro-batches?</summary>
# 7/(m+7) &lt; 1/20, so at least 134. The first rank still remembers eight.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## Smaller stages: interleaved
#
# Rank 3 begins after three forwards of a whole stage. Smaller stages would let it begin sooner. But we have only four ranks, so give each of them **two** small stages. Rank 0 has stages 0 and 4, rank 1 has 1 and 5, and a micro-batch goes round twice. A rank does not have more to compute: each of its two stages takes half of `ONE`.
#
# **Before you run it**: how long is the bubble? And what happens to the messages?

# %%
interleaved = make_schedule("interleaved", 4, 8, stages_per_rank=2)
display(
    viz.plot_schedule(interleaved, ONE, title="Interleaved", subtitle="two stages on each rank, half as long each"),
    viz.plot_held({"1F1B": one_f_one_b, "interleaved": interleaved}, title="What each rank remembers at most"),
)

# %% [markdown]
# Rank 3 waits for three forwards and three backwards of half a stage: 4.5 ms<!-- =3 * 0.5 + 3 * 1 -->. With $v$ small stages on each rank
#
# $$\text{bubble} = \frac{1}{v}\,(p-1)(F+B+W)$$
#
# A micro-batch crosses seven cuts instead of three, so more than twice as much is sent. Rank 0 remembers eleven activations, each of half a rank, so the bar says 5.5. All this holds if $p$ divides $m$.
#
# ## Llama 3.1 405B
#
# Meta trained it with 16 pipeline ranks, and each pipeline got 16 sequences of 8192 tokens in a step. Say that each is a micro-batch. **Before you run it**: which part of the step is idle under 1F1B?


# %%
def planned(v):
    schedule = make_schedule("interleaved" if v > 1 else "1f1b", 16, 16, stages_per_rank=v)
    slots = time_schedule(schedule, Durations())
    return schedule, idle_s(slots, 16)[0] / max(slot.end_s for slot in slots)


print("stages of a rank   idle   messages of rank 7   micro-batches remembered by rank 0, rank 15")
for v in (1, 2, 4, 8):
    schedule, idle = planned(v)
    messages = pipeline_step([1] * (16 * v - 1), n_ranks=16, n_microbatches=16).messages[7]
    first, last = (held(schedule, rank).in_flight / v for rank in (0, 15))
    print(f"{v:16}   {idle:4.0%}   {messages:18}   {first:.1f}, {last:.1f}")

# %% [markdown]
# If messages take no time, nearly half of the step is idle with one stage a rank, and a tenth with eight. Eight stages on 16 ranks hold 126 layers, embedding and head. With $m = p$ rank 0 remembers all anyway, so the price is messages and later ranks' memory.
#
# ## Where to cut Llama 3.1 8B
#
# The chain is an embedding, 32 layers and a head. Cut by number, that is 9, 9, 8 and 8 of 34. But a layer multiplies a token by 218 million weights, the head by 525 million, and the embedding only looks up. **Before you run it**: how many layers' work has the last stage, seven layers and the head?

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
for sizes in (by_number, by_work):
    each, steps = step_length(sizes)
    print(f"{sizes}: work {', '.join(f'{w:.1f}' for w in each)}; step {steps:.0f} times a layer's forward")
shorter = 1 - step_length(by_work, 8192)[1] / step_length(by_number, 8192)[1]
print(f"shorter, at 8192 tokens: {shorter:.1%}")

# %% [markdown]
# With a layer less on the last stage the step is 4 %<!-- =100 * (1 - 506.45 / 526.61) --> shorter, for free. But attention was left out. At 8192 tokens attention makes each layer heavier, the head weighs less beside it, and little is left. So balance for *your* length.
#
# ## Can a list hang?
#
# Two ranks that wait for each other wait forever. `problems` reads a schedule's lists and looks for sends without receives, for a backward before its forward, and for ranks that wait in a circle. Here is a list in which rank 0 goes backward too early, and then the ladder for the schedules that have not climbed it yet.

# %%
pair = make_schedule("gpipe", 2, 3)
order = pair.lists[0]
too_early = (*order[:2], *order[6:8], *order[2:6], *order[8:])  # micro-batch 0 backward, before 1 goes forward
print(problems(replace(pair, lists=(too_early, pair.lists[1]))))
for name, p, m, v in [("gpipe", 4, 8, 1), ("interleaved", 4, 4, 2), ("zb-h1", 4, 8, 1), ("zb-h1", 3, 2, 1)]:
    schedule = make_schedule(name, p, m, stages_per_rank=v)
    assert problems(schedule) == []
    report = assert_parallel_equals(decoder_alone, decoder_under(schedule), text, world_size=p)
    print(f"{name:12} {p} ranks, {m} micro-batches: equal on {len(report.deviations)} rungs")

# %% [markdown]
# The last line is awkward on purpose: three ranks for eight parts of a model, and fewer micro-batches than ranks.
#
# References: Huang et al. 2018, *GPipe*; Narayanan et al. 2020, *PipeDream-2BW*, where the order 1F1B with a flush comes from; Narayanan et al. 2021, *Megatron-LM*, interleaving; Qi et al. 2023, *Zero bubble pipeline parallelism*; Llama team 2024, table 4; Kempner Institute 2024, the perceptron.
