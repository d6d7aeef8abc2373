# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercises 03: data parallelism on an MLP
#
# Ten exercises, 50 points, about two and a half hours. Do notebook `03_mlp_ddp` first.
#
# | | kind | exercise | difficulty | minutes | points |
# | --- | --- | --- | --- | --- | --- |
# | 03.1 | write | average gradients by hand | easy | 10 | 4 |
# | 03.2 | write | one model everywhere | easy | 10 | 4 |
# | 03.3 | write | unequal shares | medium | 15 | 5 |
# | 03.4 | predict | bytes and calls of a step | medium | 15 | 6 |
# | 03.5 | write | who reads which samples | medium | 15 | 5 |
# | 03.6 | write | gradients in buckets | medium | 20 | 5 |
# | 03.7 | write | accumulate, then average once | medium | 15 | 5 |
# | 03.8 | find the bug | a loss curve that looks right | medium | 15 | 5 |
# | 03.9 | find the bug | right in the first step | hard | 20 | 5 |
# | 03.10 | write | communication behind backward | hard | 25 | 6 |

# %% [markdown]
# ## How to work
#
# Replace `raise NotImplementedError(...)` by your code and run the cell. Its last line, `check("03.1", ...)`, runs your function on
# **real processes**, on 1 to 4 ranks, and compares every gradient with that of one device. It tells you what it sees, and a
# hang, a crash or an endless loop costs nothing but that check.
#
# Stuck? `hint("03.1")` gives a small hint, and the next one when you run it again. The folded cells under each exercise carry
# the points when a course is graded. Working on your own, skip them.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check, given, hint
from course_lib.hardware import INFINIBAND

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %%
hint("03.1")

# %% [markdown]
# ## 03.1 Average gradients by hand
#
# *Write · easy · 10 minutes · 4 points.* **You learn** that data parallelism is one line between backward and the optimizer.
#
# Every rank has the same 6-4-2 MLP, and has called `loss.backward()` on its own share of the batch:
#
# ```text
#             rank 0        rank 1                    all ranks
# p.grad       g0            g1           ──►       (g0 + g1) / 2
# ```
#
# Each parameter has its turn: `layer1.weight` (24 numbers), `layer1.bias` (4), `layer2.weight` (8), `layer2.bias` (2).
#
# `comm.all_reduce(x)` returns the sum of all ranks' `x`. All ranks must make the same calls in the same order. So a trained
# parameter that *this* rank's share did not reach (`p.grad` is `None`) takes part with zeros: another rank's share may have reached it.
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

# %% nbgrader={"grade": true, "grade_id": "03-1-values", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.1", average_gradients, part="values").passed
### BEGIN HIDDEN TESTS
assert check("03.1", average_gradients, part="values", seed=GRADE_SEED + 1).passed
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "03-1-edges", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.1", average_gradients, part="edges").passed

# %% nbgrader={"grade": true, "grade_id": "03-1-calls", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.1", average_gradients, part="calls").passed

# %% [markdown]
# ## 03.2 One model everywhere
#
# *Write · easy · 10 minutes · 4 points.* **You learn** what averaging gradients silently takes for granted.
#
# Equal gradients keep models equal that *were* equal. Here every rank has made its model with a seed of its own, as scripts do
# that seed by rank for their dropout. Before the first step, rank 0's model must be everywhere:
#
# ```text
#             rank 0     rank 1     rank 2
# made         W0         W1         W2
# after        W0         W0         W0
# ```
#
# `comm.broadcast(x, src=0)` returns rank 0's `x`, as a new tensor. An optimizer may hold the model's tensors already: write
# into them, do not put others in their place. A model has more than trained weights: frozen ones, and buffers, such as
# the running mean of a batch normalisation.
#
# **Target:** every number of the model is rank 0's; (p-1) times the model's bytes sent, so no tensor twice.


# %% nbgrader={"grade": false, "grade_id": "03-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def same_start(model):
    """Give every rank rank 0's parameters and buffers, in place."""
    ### BEGIN SOLUTION
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(comm.broadcast(tensor, src=0))
    ### END SOLUTION


check("03.2", same_start)

# %% nbgrader={"grade": true, "grade_id": "03-2-parameters", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.2", same_start, part="parameters").passed

# %% nbgrader={"grade": true, "grade_id": "03-2-edges", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.2", same_start, part="edges").passed
### BEGIN HIDDEN TESTS
assert check("03.2", same_start, part="edges", seed=GRADE_SEED + 1).passed
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "03-2-bytes", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.2", same_start, part="bytes").passed

# %% [markdown]
# ## 03.3 Unequal shares
#
# *Write · medium · 15 minutes · 5 points.* **You learn** why the average of averages is the wrong number, and how large
# frameworks got it wrong for years.
#
# A target of -100 does not count: padding, or the prompt of a chat. So equal numbers of rows are unequal numbers of targets:
#
# ```text
#             rows    targets that count    sum of losses
# rank 0       6              6                  9.0          mean 1.5
# rank 1       6              1                  0.5          mean 0.5
# together    12              7                  9.5          mean 1.357...    not 1.0
# ```
#
# Take the mean of each rank's own targets and average the gradients, and the one target on rank 1 weighs as much as six on rank 0.
#
# Your function computes its share's loss, runs backward, averages the gradients and returns the whole batch's mean loss. For the
# averaging, call your `average_gradients` of 03.1; if it is not ready, `from course_lib.parallel.ddp import average_gradients`.
#
# **Target:** the gradient and the loss of one device that has all rows. A rank may have no target at all.


# %% nbgrader={"grade": false, "grade_id": "03-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_on_share(model, inputs, targets):
    """Leave the whole batch's gradient in p.grad on every rank, and return the whole batch's mean loss.

    inputs: (rows, 6). targets: (rows,), each 0, 1 or -100. The loss is the cross-entropy of the targets that count.
    """
    ### BEGIN SOLUTION
    summed = F.cross_entropy(model(inputs), targets, ignore_index=-100, reduction="sum")
    counted = (targets != -100).sum()
    all_summed, all_counted = comm.all_reduce(torch.stack([summed.detach(), counted.to(summed.dtype)])).tolist()
    (summed * dist.get_world_size() / all_counted).backward()
    average_gradients(model)
    return all_summed / all_counted
    ### END SOLUTION


check("03.3", train_on_share)

# %% nbgrader={"grade": true, "grade_id": "03-3-even", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.3", train_on_share, part="even").passed

# %% nbgrader={"grade": true, "grade_id": "03-3-uneven", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.3", train_on_share, part="uneven").passed
### BEGIN HIDDEN TESTS
assert check("03.3", train_on_share, part="uneven", seed=GRADE_SEED + 1).passed
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "03-3-edges", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.3", train_on_share, part="edges").passed

# %% [markdown]
# ## 03.4 Bytes and calls of a step
#
# *Predict · medium · 15 minutes · 6 points.* **You learn** what buckets save, and what they cannot.
#
# A Llama of the 8B's shape, with `L` layers and `P` parameters, trains on `p` ranks. Its gradients are fp32, four bytes each. These are the
# tensors in the order in which backward completes them, with their numbers:
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
p, L, P = given("03.4", GRADE_SEED)
print(f"p = {p} ranks, L = {L} layers, P = {P:,} parameters")
print(f"INFINIBAND: alpha_s = {INFINIBAND.alpha_s:g}, bandwidth_bytes_per_s = {INFINIBAND.bandwidth_bytes_per_s:g}")

# %% [markdown]
# *Naive* is your 03.1: a ring all-reduce for each tensor. With *buckets*, gradients lie one after the other in flat tensors, in the order
# above. A bucket is full, and the next one begins, once it holds 25 MiB<!-- =costs.ddp.BUCKET_BYTES / units.MiB --> **or more**; a tensor is never cut.
#
# | name | in one step |
# | --- | --- |
# | `naive_calls` | naive: all-reduces |
# | `naive_rank_sends` | naive: bytes that each rank sends |
# | `bucket_calls` | buckets: all-reduces |
# | `largest_bucket` | buckets: bytes of the largest one |
# | `bucket_rank_sends` | buckets: bytes that each rank sends |
# | `naive_latency` | naive: seconds of latency, one alpha for each step of each ring |
# | `bucket_latency` | buckets: the same |
# | `bandwidth_time` | seconds that the bytes of one rank take at InfiniBand's bandwidth, without latency |

# %% nbgrader={"grade": false, "grade_id": "03-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
naive_calls = 9 * L + 3
naive_rank_sends = 2 * (p - 1) / p * 4 * P
bucket_calls = 6 * L + 2
largest_bucket = 4 * (128256 * 4096 + 4096)
bucket_rank_sends = naive_rank_sends
naive_latency = naive_calls * 2 * (p - 1) * INFINIBAND.alpha_s
bucket_latency = bucket_calls * 2 * (p - 1) * INFINIBAND.alpha_s
bandwidth_time = naive_rank_sends / INFINIBAND.bandwidth_bytes_per_s
### END SOLUTION
step = {
    "naive_calls": naive_calls,
    "naive_rank_sends": naive_rank_sends,
    "bucket_calls": bucket_calls,
    "largest_bucket": largest_bucket,
    "bucket_rank_sends": bucket_rank_sends,
    "naive_latency": naive_latency,
    "bucket_latency": bucket_latency,
    "bandwidth_time": bandwidth_time,
}
check("03.4", step, seed=GRADE_SEED)

# %% nbgrader={"grade": true, "grade_id": "03-4-naive", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.4", step, part="naive", seed=GRADE_SEED).passed

# %% nbgrader={"grade": true, "grade_id": "03-4-buckets", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.4", step, part="buckets", seed=GRADE_SEED).passed

# %% nbgrader={"grade": true, "grade_id": "03-4-time", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.4", step, part="time", seed=GRADE_SEED).passed

# %% [markdown]
# ## 03.5 Who reads which samples
#
# *Write · medium · 15 minutes · 5 points.* **You learn** how ranks agree on an order without talking.
#
# In an epoch every sample is read once, in a shuffled order, dealt out like cards. Here 7 samples on 3 ranks:
#
# ```text
# shuffled                4  0  6  2  5  3  1
# padded                  4  0  6  2  5  3  1  4  0        9 divides by 3: the first ones come again
# rank 0                  4        2        1
# rank 1                     0        5        4
# rank 2                        6        3        0
# ```
#
# All ranks need equally many: a rank with one sample less would end its epoch a step earlier, and the others would wait for it forever.
# The order is `torch.randperm` with a `torch.Generator` of its own, seeded with `seed + epoch`.
#
# **Target:** index for index what `torch.utils.data.DistributedSampler` serves after `set_epoch(epoch)`, for any numbers of samples and ranks.


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

# %% nbgrader={"grade": true, "grade_id": "03-5-shares", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.5", samples_of, part="shares").passed

# %% nbgrader={"grade": true, "grade_id": "03-5-uneven", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.5", samples_of, part="uneven").passed
### BEGIN HIDDEN TESTS
assert check("03.5", samples_of, part="uneven", seed=GRADE_SEED + 1).passed
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "03-5-epochs", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.5", samples_of, part="epochs").passed

# %% [markdown]
# ## 03.6 Gradients in buckets
#
# *Write · medium · 20 minutes · 5 points.* **You learn** to turn many short messages into few long ones.
#
# Backward completes the last layer's gradients first, so buckets are filled from the last parameter on. The 6-4-2 MLP in buckets of 40 bytes<!-- =4 * (2 + 8) -->:
#
# ```text
# model.parameters()   layer1.weight 24    layer1.bias 4    layer2.weight 8    layer2.bias 2
# bucket 0             layer2.bias 2 + layer2.weight 8  =  10 numbers, 40 bytes: full
# bucket 1             layer1.bias 4 + layer1.weight 24
# ```
#
# A bucket is full once it holds `bucket_bytes` or more. A tensor is never cut. `comm.all_reduce_(flat, op=dist.ReduceOp.AVG)`
# averages a flat tensor in place.
#
# **Target:** the same gradients as in 03.1, in their own shapes; one all-reduce for each bucket, no byte more. Here too, a frozen
# parameter has no part in it, and a trained one without a gradient counts as zeros.


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

# %% nbgrader={"grade": true, "grade_id": "03-6-values", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.6", average_in_buckets, part="values").passed

# %% nbgrader={"grade": true, "grade_id": "03-6-edges", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.6", average_in_buckets, part="edges").passed
### BEGIN HIDDEN TESTS
assert check("03.6", average_in_buckets, part="edges", seed=GRADE_SEED + 1).passed
### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "03-6-calls", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.6", average_in_buckets, part="calls").passed

# %% [markdown]
# ## 03.7 Accumulate, then average once
#
# *Write · medium · 15 minutes · 5 points.* **You learn** to train on a batch that does not fit, without paying for each part of it.
#
# `model` is the course's `DistributedDataParallel`: every `backward()` averages gradients by itself. That is too much when a step has
# several micro-batches, since only their sum is needed:
#
# ```text
# micro-batch          1             2             3
# rank 0            backward      backward      backward ──┐
# rank 1            backward      backward      backward ──┴─ all-reduce
#                   └── model.no_sync() ──┘
# ```
#
# Under `with model.no_sync():` a forward and its backward only add to `.grad`. All ranks have micro-batches of the same sizes, but the
# last one may be shorter.
#
# **Target:** the gradient of the mean over *all rows* of all ranks, with as many all-reduces as a single backward has.


# %% nbgrader={"grade": false, "grade_id": "03-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate(model, parts):
    """Leave the gradient of the whole step in p.grad.

    parts: this rank's micro-batches (inputs, targets); the loss is F.cross_entropy(model(inputs), targets), over all rows.
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

# %% nbgrader={"grade": true, "grade_id": "03-7-values", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.7", accumulate, part="values").passed

# %% nbgrader={"grade": true, "grade_id": "03-7-calls", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.7", accumulate, part="calls").passed

# %% nbgrader={"grade": true, "grade_id": "03-7-edges", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
from course_lib.checks import check

assert check("03.7", accumulate, part="edges").passed
### BEGIN HIDDEN TESTS
assert check("03.7", accumulate, part="edges", seed=GRADE_SEED + 1).passed
### END HIDDEN TESTS
