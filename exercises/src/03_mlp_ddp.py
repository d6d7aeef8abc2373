# %% [markdown]
# # Exercises 03: data parallelism on an MLP
#
# [Lesson 03](../../notebooks/03_mlp_ddp.ipynb) proved that four ranks can train like one. Here you write what it takes, from one average to
# gradients that travel while others are still being computed, and you hunt two bugs that a loss curve does not name. If you have one hour,
# do 03.1, 03.3, 03.7 and 03.8.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("03.1", ...)`, runs your function on
# **real processes**, on 1 to 4 ranks, and compares every gradient with that of one device. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("03.1")` gives a small hint, and a further one each time you run it. A cell below has that line, behind a `#`.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change. Ranks talk by `comm`, which records every message. A call of `torch.distributed` itself is not in that record, and
# does not count unless a text asks for it.
#
# The folded cells under each exercise carry the points if a course is graded. If you work on your own, skip them: they say the same as the
# check above them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check, given, hint, save_script
from course_lib.hardware import load_cluster, wires

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %%
# hint("03.1")

# %% [markdown]
# ## 03.1
#
# *Write · easy · core · 10 minutes.* **You learn** that data parallelism is one loop between backward and the optimizer.
#
# Every rank has the same 6-4-2 MLP, has read its own rows, and has called `loss.backward()`. So the ranks' gradients differ, and you
# make an average of them:
#
# ```text
#             rank 0        rank 1                    all ranks
# p.grad       g0            g1           ──►       (g0 + g1) / 2
# ```
#
# Go through the parameters: `layer1.weight` (24 numbers), `layer1.bias` (4), `layer2.weight` (8), `layer2.bias` (2). For each of them
# `comm.all_reduce(x)` returns the sum of all ranks' `x`.
#
# One thing can go wrong. All ranks must make the same calls in the same order. But a model may choose its layers by the rows, and
# where a rank's rows have not reached a parameter, its `p.grad` is `None`. If the parameter is trained, another rank may well have a
# gradient for it. So take part, with zeros.
#
# **Target:** the average on every rank, one all-reduce for each trained parameter, none for a frozen one.


# %% nbgrader={"grade": false, "grade_id": "03-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def average_gradients(model):
    """Replace p.grad of every trained parameter by its average over all ranks.

    On 2 ranks with p.grad = [1, 2] and p.grad = [3, 6], both end with p.grad = [2, 4].
    """
    ### BEGIN SOLUTION
    for p in model.parameters():
        if p.requires_grad:
            mine = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = comm.all_reduce(mine) / dist.get_world_size()
    ### END SOLUTION


check("03.1", average_gradients)

# %% [markdown]
# ## 03.2
#
# *Write · easy · useful · 10 minutes.* **You learn** what averaging gradients silently takes for granted.
#
# Equal gradients keep models equal, if they *were* equal. Here every rank has made its model with a seed of its own. Before the first
# step all of them must get rank 0's model:
#
# ```text
#             rank 0     rank 1     rank 2
# made         W0         W1         W2
# after        W0         W0         W0
# ```

# %% [markdown]
# `comm.broadcast(x, src=0)` returns rank 0's `x`, as a new tensor. But an optimizer may hold the model's own tensors already. If you put
# others in their place, it goes on training the old ones. So write *into* the tensors that are there; even `p.data = ...` would leave a view
# of the old memory behind.
#
# And do not stop at the trained weights. A model also has frozen ones, and **buffers**: numbers that belong to it and are not trained,
# such as the running mean of a batch normalization.
#
# **Target:** every number of the model is rank 0's; on n ranks, n-1 times the model's bytes are sent in all, so no tensor twice.


# %% nbgrader={"grade": false, "grade_id": "03-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def same_start(model):
    """Give every rank rank 0's parameters and buffers, in place."""
    ### BEGIN SOLUTION
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(comm.broadcast(tensor, src=0))
    ### END SOLUTION


check("03.2", same_start)

# %% [markdown]
# ## 03.3
#
# *Write · medium · core · 20 minutes.* **You learn** why the average of averages is the wrong number.
#
# In the lesson a lonely row counted four times its due. In text it is the *targets* that have to count alike. A target of -100 does not
# count at all: it is padding, or the prompt of a chat. So with equally many rows two ranks can have very different numbers of targets:
#
# ```text
#             rows    targets that count    sum of losses
# rank 0       6              6                  9.0          mean 1.5
# rank 1       6              1                  0.5          mean 0.5
# together    12              7                  9.5          mean 1.357...    not 1.0
# ```
#
# If each rank takes the mean over its own targets, and you average the gradients, then the one target on rank 1 weighs as much as six on
# rank 0. transformers [averaged over GPUs in this way](https://github.com/huggingface/transformers/pull/39395) by default until 2025.

# %% [markdown]
# Your function computes the loss of *its own* rows, goes backward, averages the gradients, and returns the mean loss of the whole batch.
# To average, call your `average_gradients` of 03.1. If that is not ready, `from course_lib.parallel.data.buckets import average_gradients`.
#
# **Target:** the gradient and the loss of one device that has all rows. A rank may have no target at all, but some rank has one.


# %% nbgrader={"grade": false, "grade_id": "03-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_on_share(model, inputs, targets):
    """Leave the whole batch's gradient in p.grad on every rank, and return the whole batch's mean loss.

    inputs: (rows, 6). targets: (rows,), each 0, 1 or -100.
    The loss is the cross-entropy of the targets that count.
    """
    ### BEGIN SOLUTION
    summed = F.cross_entropy(model(inputs), targets, ignore_index=-100, reduction="sum")
    counted = (targets != -100).sum()
    all_summed, all_counted = comm.all_reduce(
        torch.stack([summed.detach(), counted.to(summed.dtype)])
    ).tolist()
    (summed * dist.get_world_size() / all_counted).backward()
    average_gradients(model)
    return all_summed / all_counted
    ### END SOLUTION


check("03.3", train_on_share)

# %% [markdown]
# ## 03.4
#
# *Predict · medium · useful · 25 minutes.* **You learn** what buckets save, and what they cannot.
#
# A Llama of the 8B's shape has `L` layers and `P` parameters, and trains on `p` ranks, in nodes like those of Kempner's cluster. Its gradients are in fp32, four bytes each. Here are
# its tensors in the order in which backward completes their gradients. Take a pencil:
#
# ```text
# head                 128256 x 4096      2004 MiB
# norm                 4096
# each layer, L times:
#     down             4096 x 14336        224 MiB
#     up, gate         14336 x 4096        224 MiB each
#     norm             4096
#     o                4096 x 4096          64 MiB
#     v, k             1024 x 4096          16 MiB each
#     q                4096 x 4096          64 MiB
#     norm             4096
# embedding            128256 x 4096      2004 MiB
# ```

# %% nbgrader={"grade": false, "grade_id": "03-4-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
replicas = given("03.4", GRADE_SEED)
print(f"p = {replicas.p} ranks, L = {replicas.L} layers, P = {replicas.P:,} parameters")
KEMPNER = wires(load_cluster("kempner_h100"))
print(f"a node: {KEMPNER.domain} GPUs and KEMPNER.cards = {KEMPNER.cards} network cards")
print(
    f"KEMPNER.card: alpha_s = {KEMPNER.card.alpha_s:g}, "
    f"bandwidth_bytes_per_s = {KEMPNER.card.bandwidth_bytes_per_s:g}"
)
print(f"inside a node: {KEMPNER.inside_bytes_per_s:g} bytes per second")

# %% [markdown]
# *Naive* is your 03.1, with a ring all-reduce for each tensor. With *buckets*, gradients lie one after the other in flat tensors, in the order
# above. A bucket is full once it holds 25 MiB<!-- =costs.BUCKET_BYTES / units.MiB --> **or more**, and then the next one begins. The first one has the
# same limit, and a tensor is never cut. Each ring leaves a node through all its cards at once, as NCCL's does, but every hop pays one card's
# latency. All ranks send equally much, because `p` divides every tensor.
#
# | name | in one step |
# | --- | --- |
# | `naive_calls` | naive: all-reduces |
# | `naive_rank_sends` | naive: bytes that each rank sends |
# | `bucket_calls` | buckets: all-reduces |
# | `largest_bucket` | buckets: bytes of the largest one |
# | `bucket_rank_sends` | buckets: bytes that each rank sends |
# | `naive_latency` | naive: seconds of **latency**, one alpha for each hop of each ring |
# | `bucket_latency` | buckets: the same |
# | `bandwidth_time` | seconds that the bytes of one rank take at the **bandwidth** of the ring, without latency |

# %% nbgrader={"grade": false, "grade_id": "03-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
p, L, P = replicas
### BEGIN SOLUTION
naive_calls = 9 * L + 3
naive_rank_sends = 2 * (p - 1) / p * 4 * P
bucket_calls = 6 * L + 2
largest_bucket = 4 * (128256 * 4096 + 4096)
bucket_rank_sends = naive_rank_sends
naive_latency = naive_calls * 2 * (p - 1) * KEMPNER.card.alpha_s
bucket_latency = bucket_calls * 2 * (p - 1) * KEMPNER.card.alpha_s
bandwidth_time = naive_rank_sends / (KEMPNER.cards * KEMPNER.card.bandwidth_bytes_per_s)
### END SOLUTION
step = ...
check("03.4", step, seed=GRADE_SEED)

# %% [markdown]
# ## 03.5
#
# *Write · medium · extra · 15 minutes.* **You learn** how ranks agree on an order without talking.
#
# In an epoch every sample is read once, in a shuffled order. The ranks never talk about that order, and yet no sample may be left out. It
# works if all of them shuffle in the same way, and then deal the samples out like cards. Here are 7 samples on 3 ranks:
#
# ```text
# shuffled     4  0  6  2  5  3  1
# padded       4  0  6  2  5  3  1  4  0     9 divides by 3: the first ones come again,
# rank 0       4        2        1           and again if need be
# rank 1          0        5        4
# rank 2             6        3        0
# ```
#
# Why is it padded? A rank with one sample less would end its epoch a step earlier, and the others would wait for it forever.
#
# The order is that of `torch.randperm`, with a `torch.Generator` of its own that is seeded with `seed + epoch`.
#
# **Target:** index for index what `torch.utils.data.DistributedSampler` serves after `set_epoch(epoch)`, for any numbers of samples and
# ranks. Write it yourself: calling that class earns nothing.


# %% nbgrader={"grade": false, "grade_id": "03-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def samples_of(n_samples, rank, world_size, seed, epoch):
    """Return the list of the samples (0 to n_samples - 1) that `rank` reads in `epoch`, in its order."""
    ### BEGIN SOLUTION
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    each = -(-n_samples // world_size)
    padded = (order * world_size)[: each * world_size]
    return padded[rank::world_size]
    ### END SOLUTION


check("03.5", samples_of)

# %% [markdown]
# ## 03.6
#
# *Write · medium · useful · 20 minutes.* **You learn** to turn many short messages into few long ones.
#
# Your 03.1 sends a message for every bias, however short. Put several gradients into one long tensor, and you pay the latency once.
# Backward completes the last layer's gradients first, so fill the buckets from the last parameter on. This is the 6-4-2 MLP in buckets of 40 bytes<!-- =4 * (2 + 8) -->:
#
# ```text
# model.parameters()   layer1.weight 24   layer1.bias 4   layer2.weight 8   layer2.bias 2
# bucket 1             layer2.bias 2 + layer2.weight 8  =  10 numbers, 40 bytes: full
# bucket 2             layer1.bias 4 + layer1.weight 24
# ```
#
# A bucket is full once it holds `bucket_bytes` or more, and a tensor is never cut. `comm.all_reduce_(flat, op=dist.ReduceOp.AVG)`
# averages a flat tensor in place. Afterwards each parameter gets its own piece back, in its own shape.
#
# **Target:** the same gradients as in 03.1; one all-reduce for each bucket, and no byte more. Here too, a frozen parameter has no part
# in it, and a trained one without a gradient counts as zeros.


# %% nbgrader={"grade": false, "grade_id": "03-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def average_in_buckets(model, bucket_bytes):
    """Replace p.grad of every trained parameter by its average over all ranks, bucket by bucket."""
    ### BEGIN SOLUTION
    buckets, held = [[]], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if held >= bucket_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(p)
        held += p.nbytes
    for bucket in buckets:
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        comm.all_reduce_(flat, op=dist.ReduceOp.AVG)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view_as(p)
    ### END SOLUTION


check("03.6", average_in_buckets)

# %% [markdown]
# ## 03.7
#
# *Write · medium · core · 15 minutes.* **You learn** to train on a batch that does not fit, without paying for each part of it.
#
# The batch is too large for the memory, so it comes in micro-batches, and each needs a forward and a backward of its own. `model` is the
# course's `DistributedDataParallel`, which averages in every `backward()`. But only the *sum* of the micro-batches' gradients has to be
# averaged, so all but the last of these averages are wasted:
#
# ```text
# micro-batch          1             2             3
# rank 0            backward      backward      backward ──┐
# rank 1            backward      backward      backward ──┴─ all-reduce
#                   └── model.no_sync() ──┘
# ```
#
# Run a forward and its backward under `with model.no_sync():`, and the gradients are only added to `.grad`, without an average. What counts is where the *forward* runs, because it
# prepares the averaging. So the last forward must stand outside. All ranks have micro-batches of the same sizes, but the last one may
# be shorter, and then a row in it must not count more than the others.
#
# **Target:** the gradient of the mean over *all rows* of all ranks, with as many all-reduces as a single backward has.


# %% nbgrader={"grade": false, "grade_id": "03-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate(model, parts):
    """Leave the gradient of the whole step in p.grad.

    parts: this rank's micro-batches (inputs, targets);
    the loss is F.cross_entropy(model(inputs), targets), over all rows.
    """
    ### BEGIN SOLUTION
    rows = sum(len(targets) for _, targets in parts)

    def backward(inputs, targets):
        loss = F.cross_entropy(model(inputs), targets) * len(targets) / rows
        loss.backward()

    with model.no_sync():
        for part in parts[:-1]:
            backward(*part)
    backward(*parts[-1])
    ### END SOLUTION


check("03.7", accumulate)

# %% [markdown]
# ## 03.8
#
# *Find the bug · medium · core · 15 minutes.* **You learn** where to look when the loss says nothing.
#
# A *trainer* makes one step of training. On several ranks, each rank gets the whole batch and takes its own share of it. `Suspect` is data
# parallel training as one writes it from memory. All of it is the course's trainer, except for how gradients are made:


# %% nbgrader={"grade": false, "grade_id": "suspect", "locked": true, "schema_version": 3, "solution": false, "task": false}
from contextlib import nullcontext
from dataclasses import replace

from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.training.step import count_targets, micro_batches, summed_loss
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer, share


class Suspect(Trainer):
    def __init__(self, model, config):
        broadcast_state(model)
        super().__init__(model, config)

    def compute_gradients(self, batch):
        inputs, targets = share(batch, dist.get_rank(), dist.get_world_size())
        loss = F.cross_entropy(self.model(inputs), targets, ignore_index=-100)
        loss.backward()
        for p in self.model.parameters():
            if p.requires_grad:
                comm.all_reduce_(p.grad)
        return comm.all_reduce(loss.detach(), op=dist.ReduceOp.AVG).item()


# %% [markdown]
# These helpers are the course's own; a batch is a pair `(inputs, targets)`:
#
# | call | gives |
# | --- | --- |
# | `share(batch, rank, world_size)` | the rows of the batch that are this rank's, cut by `torch.tensor_split` |
# | `count_targets(batch)` | how many of its targets count: those that are not -100 |
# | `micro_batches(batch, parts)` | for 03.9: a list of `parts` smaller batches; of fewer rows than `parts`, one for each row |
# | `summed_loss(model, batch)` | its cross-entropy, *summed* over the targets that count: call `.backward()` on it |

# %% [markdown]
# Train with AdamW, as everybody does, on 4 ranks and on one device:


# %%
from course_lib.ranks import run_ranks
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals


def task(number, rows=8):
    inputs = torch.randn(rows, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def adamw_losses(trainer_class):
    torch.manual_seed(0)
    trainer = trainer_class(MLP(gelu=True), TrainConfig(optimizer="adamw", learning_rate=0.02))
    return [trainer.step(task(number)) for number in range(60)]


one_device, on_ranks = adamw_losses(Trainer), run_ranks(adamw_losses, 4, Suspect)[0]
for step in (1, 20, 40, 60):
    print(f"step {step:2}   one device {one_device[step - 1]:.3f}   suspect {on_ranks[step - 1]:.3f}")

# %% [markdown]
# Both fall. Could you tell from these losses that one of them is wrong? So climb the **ladder**. The lesson's `climb` took a function that combines
# gradients, but this one takes a whole trainer: `climb(Suspect)`.


# %%
def climb(trainer_class, world_size=4, rows=8, batches=None, accumulation=1, rungs=RUNGS, steps=3):
    def make(kind):
        return lambda config: kind(MLP(gelu=True), replace(config, accumulation=accumulation))

    batches = batches or (lambda number: task(number, rows))
    try:
        one, several = make(Trainer), make(trainer_class)
        print(
            assert_parallel_equals(one, several, batches, world_size=world_size, rungs=rungs, steps=steps)
        )
    except NotEqual as error:
        print(error)


# %% [markdown]
# Write down what it finds, and write `compute_gradients` again without the bug. When `climb(Repaired)` reaches the top, you are half way:
# try `climb(Repaired, rows=7)`.
#
# **Target:** the gradient and the loss of one device in every step, for any number of rows and targets on each rank. Each rank computes
# its own share, and no other.


# %% nbgrader={"grade": false, "grade_id": "03-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Suspect):
    def diagnosis(self):
        """Return two things: the name of the first rung that fails on 4 ranks,
        and Suspect's numbers there divided by one device's.
        """
        ### BEGIN SOLUTION
        return "gradients", 4.0
        ### END SOLUTION

    def compute_gradients(self, batch):
        """Leave the whole batch's gradient on every rank, and return the whole batch's loss."""
        ### BEGIN SOLUTION
        part, total = share(batch, dist.get_rank(), dist.get_world_size()), count_targets(batch)
        loss = summed_loss(self.model, part) / total
        loss.backward()
        for p in self.model.parameters():
            if p.requires_grad:
                comm.all_reduce_(p.grad)
        return comm.all_reduce(loss.detach()).item()
        ### END SOLUTION


check("03.8", Repaired)

# %% [markdown]
# ## 03.9
#
# *Find the bug · hard · extra · 30 minutes.* **You learn** to find a bug that waits for its moment.
#
# `Counting` accumulates. It cuts a share into `accumulation` micro-batches and counts the backwards, and every `accumulation`-th of them
# averages. Run the cells of 03.8 first, because its helpers and `climb` are used again. The bug is a real one, which [transformers
# shipped](https://github.com/huggingface/transformers/issues/33671).


# %% nbgrader={"grade": false, "grade_id": "suspect-counting", "locked": true, "schema_version": 3, "solution": false, "task": false}
class Counting(Trainer):
    seen = 0

    def __init__(self, model, config):
        super().__init__(model, config, mesh=make_mesh(dp=dist.get_world_size()), apply=(replicate(),))

    def compute_gradients(self, batch):
        mine = share(batch, dist.get_rank(), dist.get_world_size())
        parts = micro_batches(mine, self.config.accumulation)
        total, summed = count_targets(batch), torch.zeros((), dtype=torch.float64)
        for part in parts:
            self.seen += 1
            averages = self.seen % self.config.accumulation == 0
            with nullcontext() if averages else self.model.no_sync():
                loss = summed_loss(self.model, part)
                (loss * dist.get_world_size() / total).backward()
            summed += loss.detach()
        return comm.all_reduce(summed).item() / total


# %% [markdown]
# A batch has 8 rows, unless it is the last one of an epoch, which takes what is left. On 2 ranks each has 4 of the 8 rows, and 4 rows
# make 3 micro-batches of 2, 1 and 1.


# %%
def short_second(number):  # steps count from 1, the numbers of batches from 0
    return task(number, rows=4 if number == 1 else 8)


def losses(trainer_class):
    torch.manual_seed(0)
    trainer = trainer_class(MLP(gelu=True), TrainConfig(learning_rate=0.1, accumulation=3))
    return [trainer.step(short_second(number)) for number in range(6)]


one_device, on_ranks = losses(Trainer), run_ranks(losses, 2, Counting)[0]
for step, (right, found) in enumerate(zip(one_device, on_ranks, strict=True), start=1):
    print(f"step {step}   one device {right:.3f}   suspect {found:.3f}")

# %% [markdown]
# Climb with `climb(Counting, world_size=2, batches=short_second, accumulation=3)`. Which rung fails first? Output, gradients and
# their norm are those of step 1, the parameters those after all three steps, so the rung alone does not name the step. Climb only
# as far as the rung that failed, say the `k`-th, and with fewer steps: `rungs=RUNGS[:k], steps=1`, then `steps=2`. Which step is the first
# wrong one?
#
# **Target:** the gradient of one device in every step, with one average in each. Every rank has at least one row. Finish a micro-batch, its
# forward and its backward, before you begin the next, or memory is not saved.


# %% nbgrader={"grade": false, "grade_id": "03-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Counted(Counting):
    def diagnosis(self):
        """Return two things: the name of the first rung that fails,
        and the first step (from 1) that trains wrongly.
        """
        ### BEGIN SOLUTION
        return "parameters", 2
        ### END SOLUTION

    def compute_gradients(self, batch):
        """Leave the whole batch's gradient on every rank, and return the whole batch's loss."""
        ### BEGIN SOLUTION
        mine = share(batch, dist.get_rank(), dist.get_world_size())
        parts = micro_batches(mine, self.config.accumulation)
        total, summed = count_targets(batch), torch.zeros((), dtype=torch.float64)
        for number, part in enumerate(parts, start=1):
            with nullcontext() if number == len(parts) else self.model.no_sync():
                loss = summed_loss(self.model, part)
                (loss * dist.get_world_size() / total).backward()
            summed += loss.detach()
        return comm.all_reduce(summed).item() / total
        ### END SOLUTION


check("03.9", Counted)

# %% [markdown]
# ## 03.10
#
# *Write · hard · useful · 50 minutes.* **You learn** the trick that makes data parallelism fast: send the last layer's gradients while the
# first layers' are still being computed.
#
# ```text
# computing        forward │ backward 4 │ backward 3 │ backward 2 │ backward 1 │ wait
# communication                         │ bucket 1   │ bucket 2   │ bucket 3   │ bucket 4
# ```
#
# Two calls make it possible:
#
# | call | meaning |
# | --- | --- |
# | `p.register_post_accumulate_grad_hook(f)` | `f(p)` runs in backward as soon as `p.grad` is complete; what it returns has `.remove()` |
# | `comm.all_reduce_(flat, op=..., async_op=True)` | start `all_reduce_` in the background; `.wait()` on what it returns waits for its end |
#
# A hook runs in the middle of backward. If you wait in it, backward stands still. And leave `flat` alone until its `.wait()` is over,
# because the all-reduce is still writing into it. Every parameter in the buckets gets a gradient here.

# %% [markdown]
# The check takes the time of a step on the **emulated clock** of the lesson: four layers, of which each takes
# 200 µs<!-- =1e6 * checks.module_03.overlap.FORWARD_S --> for its forward, 400 µs<!-- =1e6 * checks.module_03.overlap.BACKWARD_S --> for its backward,
# and 198 µs<!-- =1e6 * checks.module_03.overlap.target(4).all_reduce_s[0] --> for its bucket over Ethernet. The clock is exact, so the target is exact
# as well.
#
# **Target:** averages when your function returns; one all-reduce for each bucket, in their order; on 4 ranks
# 2.598 ms<!-- =1e3 * checks.module_03.overlap.target(4).overlapped_s --> for forward and backward, where computing and communicating in turn takes
# 3.192 ms<!-- =1e3 * checks.module_03.overlap.target(4).in_turn_s -->. No hook stays on the model.


# %% nbgrader={"grade": false, "grade_id": "03-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def overlapped_backward(model, loss, buckets):
    """Run loss.backward(), and leave the average over all ranks in p.grad of every parameter in `buckets`.

    buckets: lists of parameters, in the order in which backward completes them.
    """
    ### BEGIN SOLUTION
    missing = [set(bucket) for bucket in buckets]
    under_way = []

    def ready(p):
        number = next(i for i, bucket in enumerate(missing) if p in bucket)
        missing[number].remove(p)
        if not missing[number]:
            flat = torch.cat([q.grad.flatten() for q in buckets[number]])
            under_way.append(
                (buckets[number], flat, comm.all_reduce_(flat, op=dist.ReduceOp.AVG, async_op=True))
            )

    hooks = [p.register_post_accumulate_grad_hook(ready) for bucket in buckets for p in bucket]
    loss.backward()
    for bucket, flat, handle in under_way:
        handle.wait()
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = part.view_as(p)
    for hook in hooks:
        hook.remove()
    ### END SOLUTION


check("03.10", overlapped_backward)

# %% [markdown]
# ## 03.11
#
# *Own file · hard · core · 45 minutes.* **You learn** to write the loop that you would start on a cluster, with nothing of this course in it.
#
# A training often ends on a batch that is too short: 3 rows are left, and there are 4 processes. And a batch that is too large for a GPU
# is cut into micro-batches. Write a script for `torchrun` that does both right, with PyTorch's own `DistributedDataParallel`.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which every process starts |
# | `batches` | pairs `(x, y)` of all rows of a batch: `x` is (rows, 6), `y` holds a class for each row |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
#
# Of each batch, rank r takes part r of `x.tensor_split(world_size)`, and cuts it into two micro-batches, by `tensor_split` again. Some of
# these parts may be empty. Every row of a batch has the same weight: the loss is the mean of the cross-entropy over **all its rows**, on
# whichever rank they are. At the end rank 0 saves a dict as `answer.pt` in the same folder: under `weights` the model's state dict, without
# the wrapper's `module.`, and under `losses` a list with the loss of each batch before its step, over all rows.

# %% [markdown]
# **Target:** the weights of one device, with SGD and with AdamW. In each step the gradients are averaged once, not once for each
# micro-batch; adding up the losses is free. The check counts what your processes hand to `torch.distributed`, whoever calls it. It also
# counts the rows that each process computes with gradients, its own and no others, and what autograd keeps: a micro-batch's, and no more.
#
# To start it yourself, run `save_script("03.11", ddp_loop)`. It writes your script and a `task.pt` into a folder, and tells you the line for a
# terminal. [The script of lesson 03](../../notebooks/scripts/03_ddp.py) has the calls that you need; look there when you are stuck.

# %% nbgrader={"grade": false, "grade_id": "03-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
ddp_loop = """
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 2


def make_model():
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3)).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    model = DistributedDataParallel(model)
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    losses = []
    for x, y in task["batches"]:
        mine = [part.tensor_split(ranks)[rank].tensor_split(MICRO_BATCHES) for part in (x, y)]
        total = torch.zeros((), dtype=torch.float64)
        for number, (rows, targets) in enumerate(zip(*mine), start=1):
            with nullcontext() if number == MICRO_BATCHES else model.no_sync():
                loss = F.cross_entropy(model(rows), targets, reduction="sum") / len(x)
                (ranks * loss).backward()  # DDP will divide by the ranks
            total += loss.detach()
        dist.all_reduce(total)
        losses.append(total.item())
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        torch.save({"weights": model.module.state_dict(), "losses": losses}, f"{folder}/answer.pt")
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()  # after `main`: a DDP that outlives its group may hang (2.13)
"""

check("03.11", ddp_loop)

# %% [markdown]
# ## 03.12
#
# *Own file · hard · useful · 45 minutes.* **You learn** to change what DDP sends, and to keep what rounding cuts off.
#
# On a slow network the gradients are what you wait for. A **communication hook** is a function of yours that DDP calls in place of its
# own all-reduce: `model.register_comm_hook(state, hook)`. Write one that sends each number as `int8`, so a byte where float32 has four.
# Take plain DDP with the mean loss of each process's own rows, without accumulation, and leave its buckets as they are.
#
# On p processes, do this with each parameter:
#
# 1. v is its gradient on this process, plus the remainder e that it has here. At the start e is 0.
# 2. s is the largest |v| of this parameter, over all its numbers and all processes.
# 3. Cut s into `127 // p` equal steps. This process sends v in whole steps, as `torch.round` rounds them. Where s is 0, it sends zeros.
# 4. The remainder e for the next step of training is v less what this process has sent: **error feedback**, or what is cut off
#    today would be missing for good.
# 5. The gradient for the optimizer is the average over the processes of what they have sent.
#
# Why `127 // p`, and not 127? Each process's number has to fit into `int8`, and so has the sum of all, which is what the all-reduce makes
# on the way.

# %% [markdown]
# The hook is called with `state`, which is whatever you have registered, and a `bucket`, which holds some of the parameters and their
# gradients one behind the other. It returns a **future**: DDP does not wait in the hook, but later, for a tensor like `bucket.buffer()`. Note
# one thing: after the first step DDP sorts its buckets anew, as the gradients came in.
#
# `task.pt` holds the same keys as in 03.11. Every batch has 12 rows, and rank r takes part r of `x.chunk(world_size)`. At the end rank 0
# saves the model's state dict as `answer.pt`, without the wrapper's `module.`.
#
# **Target:** the weights that this rule gives, with SGD and with AdamW. Everything fits into one bucket, so each step has two all-reduces, one
# of an s in float64 for each parameter, and one of an `int8` for each number.

# %% nbgrader={"grade": false, "grade_id": "03-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
ddp_hook = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 3)
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())

    def forward(self, x):
        return self.head(self.body(x))


### BEGIN SOLUTION
def send_int8(remainders, bucket):
    ranks = dist.get_world_size()
    steps, parameters = 127 // ranks, bucket.parameters()
    values = [g + remainders.get(p, 0) for p, g in zip(parameters, bucket.gradients())]
    units = torch.stack([v.abs().max() for v in values])
    dist.all_reduce(units, op=dist.ReduceOp.MAX)
    units = units / steps
    counts = [torch.where(unit > 0, v / unit, 0).round() for v, unit in zip(values, units)]
    for p, v, count, unit in zip(parameters, values, counts, units):
        remainders[p] = v - unit * count
    flat = torch.cat([count.flatten().to(torch.int8) for count in counts])

    def finish(future):
        sums = future.value()[0].split([p.numel() for p in parameters])
        return torch.cat([unit * total.double() / ranks for unit, total in zip(units, sums)])

    return dist.all_reduce(flat, async_op=True).get_future().then(finish)
### END SOLUTION


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = Model().double()
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    model = DistributedDataParallel(model)
    model.register_comm_hook({}, send_int8)
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    for x, y in task["batches"]:
        loss = F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        torch.save(model.module.state_dict(), f"{folder}/answer.pt")
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()  # after `main`: a DDP that outlives its group may hang (2.13)
"""

check("03.12", ddp_hook)

# %% [markdown]
# ## Where this leads
#
# That is what `DistributedDataParallel` does, and you have written each part of it. It keeps everything on every rank, which
# [lesson 06](../../notebooks/06_zero_and_fsdp.ipynb) changes. [Lesson 04](../../notebooks/04_model_and_pipeline_parallelism.ipynb) comes
# first: it cuts the model instead of the batch.
