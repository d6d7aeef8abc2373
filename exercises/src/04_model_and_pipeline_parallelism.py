# %% [markdown]
# # Exercises 04: model and pipeline parallelism
#
# [Lesson 04](../../notebooks/04_model_and_pipeline_parallelism.ipynb) cut a model between its layers, and then kept its ranks busy. Here you
# make the cut and write the lists yourself. If you have little more than an hour, do 04.1, 04.4, 04.5 and 04.9: a cut, two schedules, and a bug.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("04.1", ...)`, runs your function on
# **real processes** where ranks matter, and compares every gradient with that of one device. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("04.1")` gives a small hint, and a further one each time you run it. A cell below has that line, behind a `#`.
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
from course_lib.parallel.pipelines.stages import cut
from course_lib.ranks import run_ranks
from course_lib.schedules import Backward, Durations, Forward, idle_s, make_schedule, time_schedule

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %%
# hint("04.1")

# %% [markdown]
# ## 04.1
#
# *Write · easy · core · 15 minutes.* **You learn** what autograd does at a cut, by doing it yourself.
#
# The perceptron, now with a GELU, lies on two ranks: `layer1` and the GELU with 28 parameters on rank 0, `layer2` with 10 on rank 1.
# Each rank has its own half and cannot see the other. So a training step needs two messages:
#
# ```text
# rank 0      forward ──── y ────►                      ◄──── gradient of y ──── backward
# rank 1                          x   forward, loss, backward   x.grad
# ```
#
# | call | does |
# | --- | --- |
# | `comm.send(tensor, 1)` | sends a tensor's numbers, never its history, to rank 1, and waits until they have been received |
# | `comm.recv(torch.empty(shape), 0)` | returns what rank 0 sends, a tensor of that shape without any history |
# | `y.detach()` | y's numbers as a tensor without history; `y` itself keeps its own, and backward needs it |
# | `y.backward(gradient)` | backward from `y`, if `gradient` is that of the loss with respect to `y` |
#
# **Target:** on both ranks the gradients of one device; one message each way. The loss is the mean cross-entropy of all rows.


# %% nbgrader={"grade": false, "grade_id": "04-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_half(half, inputs, targets, shape):
    """Leave the gradients in the `.grad` of this half's parameters;
    return the loss on rank 1, as a number.

    inputs: (rows, 6), for rank 0. targets: (rows,), for rank 1. shape: of what passes the cut, (rows, 4).
    """
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        y = half(inputs)
        comm.send(y.detach(), 1)
        y.backward(comm.recv(torch.empty(shape), 1))
        return None
    x = comm.recv(torch.empty(shape), 0).requires_grad_()
    loss = F.cross_entropy(half(x), targets)
    loss.backward()
    comm.send(x.grad, 0)
    return loss.item()
    ### END SOLUTION


check("04.1", train_half)

# %% [markdown]
# ## 04.2
#
# *Find the wrong number · medium · extra · 15 minutes.* **You learn** to hold a slide against a schedule.
#
# Here are five lines of a slide about GPipe's schedule. One of them is wrong, as one was on a slide of a real talk. The other four are true.

# %% nbgrader={"grade": false, "grade_id": "04-2-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
slide = given("04.2", GRADE_SEED)
print(
    f"line 1   N = {slide.N} GPUs, m = {slide.m} micro-batches; "
    f"each takes each GPU {slide.F_s} s forward and {slide.B_s} s backward"
)
print(f"line 2   in a step every GPU computes for {slide.computes_s:g} s")
print(f"line 3   it waits for the others for {slide.waits_s:g} s")
print(f"line 4   a step takes {slide.lasts_s:g} s")
print(f"line 5   the idle time fraction of a step is {slide.share:.1%}")

# %% [markdown]
# Do not take anybody's word for it. Here is a small schedule, of three GPUs and four micro-batches, which take 1 s<!-- =1 --> forward and
# 2 s<!-- =2 --> backward. `idle_s` gives the seconds in which each rank computes nothing. Where do the two numbers come from? Change the sizes until
# you can say it for any of them.

# %%
slots = time_schedule(
    make_schedule("gpipe", 3, 4),
    Durations(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0),
)
print("idle seconds of each rank:", idle_s(slots, 3))
print("last end:", max(slot.end_s for slot in slots))

# %% [markdown]
# | name | number to give |
# | --- | --- |
# | `wrong_line` | which of the five lines is wrong |
# | `step_time` | seconds that a step takes |
# | `idle_fraction` | the share of the step in which a GPU waits, between 0 and 1; four digits are enough |
# | `fraction_of_one` | that share with a single micro-batch, still on N GPUs |
# | `enough` | the smallest number of micro-batches with which a GPU waits for a tenth of the step or less |

# %% nbgrader={"grade": false, "grade_id": "04-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
N, m, F_s, B_s = slide[:4]
### BEGIN SOLUTION
wrong_line = 2 + [
    slide.computes_s == m * (F_s + B_s),
    slide.waits_s == (N - 1) * (F_s + B_s),
    slide.lasts_s == (m + N - 1) * (F_s + B_s),
    False,
].index(False)
step_time = (m + N - 1) * (F_s + B_s)
idle_fraction = (N - 1) / (m + N - 1)
fraction_of_one = (N - 1) / N
enough = 9 * (N - 1)
### END SOLUTION
idle = ...
check("04.2", idle, seed=GRADE_SEED)

# %% [markdown]
# ## 04.3
#
# *Write · medium · useful · 25 minutes.* **You learn** what one slow stage costs, and where to cut a model.
#
# Layers are not alike. A Llama's head is a matrix of its whole vocabulary, and takes as long as two or three of its layers. So where do
# you cut? Say that we know for each layer how many milliseconds one micro-batch takes, forward and backward together:
#
# ```text
# layers, ms            8    1    1    1    5         5 layers, 2 stages
# cut by number       [ 8    1    1 ][ 1    5 ]       3 and 2 layers: stages of 10 and 6 ms
# cut by work         [ 8 ][ 1    1    1    5 ]       1 and 4 layers: stages of  8 and 8 ms
# ```
#
# How long is GPipe's step under each? `timed` tells you. Change the stages and `m` until you see what a slow stage costs:


# %%
def timed(stages, m):
    """Milliseconds of GPipe's step; `stages` are the ms of one micro-batch on each stage,
    a third of them forward.
    """
    durations = [
        Durations(forward_s=ms / 3, backward_input_s=ms / 3, backward_weight_s=ms / 3) for ms in stages
    ]
    return round(
        max(slot.end_s for slot in time_schedule(make_schedule("gpipe", len(stages), m), durations))
    )


for stages in ([10, 6], [8, 8]):
    print(f"stages of {stages} ms:", *(f"m = {m}: {timed(stages, m)} ms" for m in (1, 2, 4, 8)), sep="   ")

# %% [markdown]
# Now find the best cut. There are few layers, so you can try every cut. But timing a schedule for each would take too long: find a
# formula for the step, and check it with `timed`.
#
# **Target:** the sizes of the stages for which the step is shortest, and the step itself. Each stage gets at least one
# layer. If several cuts are best, any of them will do.


# %% nbgrader={"grade": false, "grade_id": "04-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cut_layers(costs, p, m):
    """Return two things: a list of how many layers each of p stages gets, and the ms of GPipe's step.

    costs: the ms of each layer for one micro-batch, whole numbers; the list stays as it is.
    m: micro-batches.
    For [8, 1, 1, 1, 5], p = 2 and m = 4 return [1, 4] and 40.
    """
    ### BEGIN SOLUTION
    from itertools import combinations, pairwise

    def stages(cuts):
        return [sum(costs[start:end]) for start, end in pairwise([0, *cuts, len(costs)])]

    def step(cuts):
        return sum(costs) + (m - 1) * max(stages(cuts))

    best = min(combinations(range(1, len(costs)), p - 1), key=step)
    sizes = [end - start for start, end in pairwise([0, *best, len(costs)])]
    return sizes, step(best)
    ### END SOLUTION


check("04.3", cut_layers)

# %% [markdown]
# ## 04.4
#
# *Write · easy · core · 5 minutes.* **You learn** that a schedule is a list for each rank, nothing more.
#
# Each of `p` ranks holds one stage: rank 0 holds stage 0, rank 1 stage 1, and so on. A rank computes `m` forwards and `m` backwards. In GPipe
# all forwards come first:
#
# ```text
# rank 0     F0  F1  F2                  B0  B1  B2
# rank 1         F0  F1  F2          B0  B1  B2
# rank 2             F0  F1  F2  B0  B1  B2              time ──►
# ```
#
# You say the order, and nothing else, because waiting comes by itself. The check adds the messages and looks whether ranks can block
# each other. It times the lists, with a backward twice as long as a forward, and counts what each rank remembers. Then real ranks
# train by your lists.
#
# **Target:** no deadlock. Each rank waits as long as p-1 forwards and p-1 backwards last. Each rank holds m activations at once.


# %% nbgrader={"grade": false, "grade_id": "04-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpipe_order(rank, p, m):
    """Return the list of what one rank computes, of Forward(stage, microbatch)
    and Backward(stage, microbatch).
    """
    ### BEGIN SOLUTION
    return [Forward(rank, k) for k in range(m)] + [Backward(rank, k) for k in range(m)]
    ### END SOLUTION


check("04.4", gpipe_order)

# %% [markdown]
# ## 04.5
#
# *Write · hard · core · 45 minutes.* **You learn** how to hold fewer activations without waiting longer.
#
# A rank holds an activation from its forward to its backward. Under GPipe it holds all `m` at once. Under 1F1B it goes backward as soon
# as a gradient can be there, and from then on it does one forward, one backward. Look at each rank's beginning, and at its end:
#
# ```text
# rank 0     F0  F1  F2          B0  F3  B1  F4  B2      B3      B4
# rank 1         F0  F1      B0  F2  B1  F3  B2  F4  B3      B4
# rank 2             F0  B0  F1  B1  F2  B2  F3  B3  F4  B4         time ──►
# ```
#
# The drawing shows the order, not the time: the check lets a backward take twice as long as a forward, as in 04.4.
#
# **Target:** no deadlock, and GPipe's bubble, not a second more. Rank `rank` holds min(p - rank, m) activations at once. Your lists are
# right for fewer micro-batches than ranks, too.


# %% nbgrader={"grade": false, "grade_id": "04-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_f_one_b_order(rank, p, m):
    """Return the list of what one rank computes, as in 04.4."""
    ### BEGIN SOLUTION
    ahead = min(p - rank - 1, m)
    order = [Forward(rank, k) for k in range(ahead)]
    for k in range(m):
        if k + ahead < m:
            order.append(Forward(rank, k + ahead))
        order.append(Backward(rank, k))
    return order
    ### END SOLUTION


check("04.5", one_f_one_b_order)

# %% [markdown]
# ## 04.6
#
# *Predict · hard · core · 45 minutes.* **You learn** what each schedule is for, in three numbers.
#
# On each *rank*, one micro-batch takes `F` seconds forward, `B` for the gradient of the input and `W` for the gradients of the weights.
# Messages are free. There are `p` ranks and `m` micro-batches.
#
# | schedule | what it does |
# | --- | --- |
# | `"gpipe"` | all forwards, then all backwards |
# | `"1f1b"` | one forward, one backward |
# | `"interleaved"` | 1F1B with `v` small stages on each rank, m a multiple of p; for the other schedules `v` is 1 |
# | `"zb-h1"` | like 1F1B, but each W waits until it can fill a gap; W is at most F and B, and m >= p |
#
# Which activations are counted? The lesson's bars count micro-batches of a whole rank. Here one activation is what one micro-batch leaves at
# one *stage*, from its forward to its B. So where a rank has two stages, the lesson's 5.5 are 11. `held` counts them for any schedule:

# %%
from course_lib.schedules import held

for rank in range(4):
    print(
        f"interleaved, rank {rank}:",
        held(make_schedule("interleaved", 4, 8, stages_per_rank=2), rank).in_flight,
    )

# %% [markdown]
# Interleaved is the hard one. There a rank sends p micro-batches through one of its stages before its next stage has its turn. Count the
# forwards that it makes before its first backward.
#
# **Target:** a function that is right for all four. It returns how many seconds a rank waits, which share of the whole step that is,
# and how many activations rank `rank` holds at most. Four decimals of the share are enough. Write formulas. The library's schedules are there
# to test them.


# %% nbgrader={"grade": false, "grade_id": "04-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def schedule_numbers(schedule, p, m, v, rank, F, B, W):
    """Return three numbers: bubble in seconds, bubble fraction between 0 and 1, activations in flight.

    For ("gpipe", 4, 8, 1, 0, 1, 1, 1) they are 9, 0.2727 and 8.
    For ("interleaved", 2, 4, 2, 0, 4, 6, 1) they are 5.5, 0.1111 and 5.
    For ("interleaved", 3, 3, 2, 0, 1, 1, 1) they are 3, 0.25 and 6.
    """
    ### BEGIN SOLUTION
    whole = F + B + W
    bubble_s = (p - 1) * {"interleaved": whole / v, "zb-h1": whole - 2 * W}.get(schedule, whole)
    idle_share = bubble_s / (m * whole + bubble_s)
    if schedule == "gpipe":
        in_flight = m
    elif schedule == "interleaved":
        in_flight = min(2 * (p - rank - 1) + (v - 1) * p + 1, v * m)
    else:
        in_flight = min(p - rank, m)
    return bubble_s, idle_share, in_flight
    ### END SOLUTION


check("04.6", schedule_numbers)

# %% [markdown]
# ## 04.7
#
# *Predict · medium · extra · 20 minutes.* **You learn** why a pipeline can run between nodes, and over which link.
#
# A Llama is cut into stages on `p` ranks. Each of the `m` micro-batches is one sequence of `S` tokens. Activations and their
# gradients travel in bf16, 2 bytes<!-- =checks.module_04.traffic.BF16 --> a number. `H` is the model's width, `P` the number of its parameters.
# Embedding and head are two matrices and not one that is tied, so nothing but activations and their gradients passes the cuts.

# %% nbgrader={"grade": false, "grade_id": "04-7-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
staged = given("04.7", GRADE_SEED)
print(f"p = {staged.p} ranks, m = {staged.m} micro-batches of S = {staged.S} tokens")
print(f"H = {staged.H}, P = {staged.P:,} parameters")

# %% [markdown]
# | name | in one step |
# | --- | --- |
# | `activation` | bytes of one micro-batch at one cut |
# | `first_rank_sends` | GPipe: bytes that the first rank sends |
# | `middle_rank_sends` | GPipe: bytes that a rank sends that is neither the first nor the last |
# | `link_needs` | GB/s that a link must have, so that an activation crosses the cut in 1 ms<!-- =1 -->; three digits are enough |
# | `middle_with_1f1b` | 1F1B: bytes that such a middle rank sends |
# | `middle_interleaved` | interleaved, two stages on each rank: bytes that such a middle rank sends |
# | `messages` | GPipe: messages of all ranks together |
# | `ddp_rank_sends` | *data* parallelism on p ranks instead: bytes that each rank sends for all P gradients in fp32, by a ring |
# | `times_less` | `ddp_rank_sends` divided by `middle_rank_sends`; three digits are enough |

# %% nbgrader={"grade": false, "grade_id": "04-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
p, m, S, H, P = staged
### BEGIN SOLUTION
activation = 2 * S * H
first_rank_sends = m * activation
middle_rank_sends = 2 * m * activation
link_needs = activation / 1e-3 / 1e9
middle_with_1f1b = middle_rank_sends
middle_interleaved = 2 * middle_rank_sends
messages = 2 * m * (p - 1)
ddp_rank_sends = 2 * (p - 1) / p * 4 * P
times_less = ddp_rank_sends / middle_rank_sends
### END SOLUTION
cuts = ...
check("04.7", cuts, seed=GRADE_SEED)

# %% [markdown]
# ## 04.8
#
# *Write · hard · extra · 45 minutes.* **You learn** what zero-bubble schedules are made of.
#
# The backward of a linear layer y = x weightᵀ + bias computes two things. Another rank waits for the first, and nobody waits for the second:
#
# ```text
# backward_input     the gradient of x                the stage before waits for it    "B"
# backward_weight    the gradients of weight, bias    only the optimizer needs them    "W"
# ```
#
# ZB-H1 does the second part later, when the rank would wait anyway. Until then the layer keeps what that part needs, and nothing more.

# %% [markdown]
# Write a class. Every micro-batch gets an object of its own, whose `forward`, `backward_input` and `backward_weight` are called once
# each, in this order. In between, the methods of other micro-batches are called. Use torch's products of matrices, not autograd.
#
# **Target:** the gradients of autograd. Each part of backward makes one product, of 2 · rows · in · out operations, where an x of
# shape (B, S, in) has B · S rows. Between the parts `self` keeps, besides weight and bias, only x and the gradient of y,
# and after the second part neither. Do not write into what a method is given.


# %% nbgrader={"grade": false, "grade_id": "04-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
class TwoParts:
    """A linear layer and one micro-batch."""

    def forward(self, x, weight, bias):
        """Return y. x: (..., in), weight: (out, in), bias: (out,); y: (..., out)."""
        ### BEGIN SOLUTION
        self.x, self.weight = x, weight
        return F.linear(x, weight, bias)
        ### END SOLUTION

    def backward_input(self, gradient):
        """Return the gradient of x; `gradient` is that of y."""
        ### BEGIN SOLUTION
        self.gradient = gradient
        return gradient @ self.weight
        ### END SOLUTION

    def backward_weight(self):
        """Return the gradients of the weight and of the bias."""
        ### BEGIN SOLUTION
        x, gradient = self.x.flatten(0, -2), self.gradient.flatten(0, -2)
        self.x = self.gradient = None
        return gradient.T @ x, gradient.sum(0)
        ### END SOLUTION


check("04.8", TwoParts)

# %% [markdown]
# ## 04.9
#
# *Find the bug · medium · core · 15 minutes.* **You learn** what a good loss curve does not prove.
#
# A colleague wrote GPipe by hand, for the two halves of 04.1. `parts` are the micro-batches, and `width` is how many numbers of a row
# pass the cut.


# %% nbgrader={"grade": false, "grade_id": "suspect", "locked": true, "schema_version": 3, "solution": false, "task": false}
def pipeline_step(half, parts, width):
    """Leave the gradients in this rank's half; return the loss of all rows on rank 1."""
    rank, total, kept = dist.get_rank(), sum(len(targets) for _, targets in parts), []
    for inputs, targets in parts:  # all forwards
        if rank == 0:
            x, y = inputs, half(inputs)
            comm.send(y.detach(), 1)
        else:
            x = comm.recv(torch.empty(len(inputs), width), 0).requires_grad_()
            y = F.cross_entropy(half(x), targets)
        kept.append((x, y))
    for x, y in kept:  # all backwards
        if rank == 0:
            y.backward(comm.recv(torch.empty_like(y), 1))
        else:
            y.backward()
            comm.send(x.grad, 0)
    return sum(y.item() * len(x) for x, y in kept) / total if rank == 1 else None


# %% [markdown]
# Train with AdamW, as everybody does: in four micro-batches on two ranks, and in one piece on one device.


# %%
from course_lib.models.mlp import MLP


def task(number):
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def train(model, step, name):
    optimizer, losses = (
        getattr(torch.optim, name)(model.parameters(), lr={"AdamW": 0.02, "SGD": 0.7}[name]),
        [],
    )
    for number in range(60):
        optimizer.zero_grad()
        losses.append(step(model, *task(number)))
        optimizer.step()
    return losses


def one_device(model, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.item()


def on_ranks(step, name):
    torch.manual_seed(0)
    half = cut(MLP(gelu=True), (2, 1))[dist.get_rank()]
    return train(
        half, lambda half, x, y: step(half, list(zip(x.chunk(4), y.chunk(4), strict=True)), 4), name
    )


def compare(step, name="AdamW"):
    torch.manual_seed(0)
    alone, suspect = train(MLP(gelu=True), one_device, name), run_ranks(on_ranks, 2, step, name)[1]
    print("mean loss of")
    for end in (20, 40, 60):
        means = [sum(losses[end - 20 : end]) / 20 for losses in (alone, suspect)]
        print(f"steps {end - 19:2} to {end}   one device {means[0]:.3f}   two ranks {means[1]:.3f}")


compare(pipeline_step)

# %% [markdown]
# The curves are the same. So is it right? Compare with SGD: `compare(pipeline_step, "SGD")`. Why do the two optimizers not agree?
#
# Find the bug, and write the function again, so that SGD's curve is one device's too. Micro-batches need not have equally many rows.
#
# **Target:** the gradients of one device, which are those of the mean over *all* rows, with the same messages as before. The loss is a
# number. It stays a pipeline: rank 0 sends a micro-batch while gradients of earlier ones are still to come. GPipe's order does
# that with `comm.send`. 1F1B's order needs `comm.isend`, which 04.10 explains: with `comm.send` the two ranks would wait for each other.


# %% nbgrader={"grade": false, "grade_id": "04-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def repaired_step(half, parts, width):
    """Leave the gradients in this rank's half; return the loss of all rows on rank 1, as a number."""
    ### BEGIN SOLUTION
    rank, total, kept = dist.get_rank(), sum(len(targets) for _, targets in parts), []
    for inputs, targets in parts:
        if rank == 0:
            x, y = inputs, half(inputs)
            comm.send(y.detach(), 1)
        else:
            x = comm.recv(torch.empty(len(inputs), width), 0).requires_grad_()
            y = F.cross_entropy(half(x), targets) * len(targets) / total
        kept.append((x, y))
    for x, y in kept:
        if rank == 0:
            y.backward(comm.recv(torch.empty_like(y), 1))
        else:
            y.backward()
            comm.send(x.grad, 0)
    return sum(y.item() for _, y in kept) if rank == 1 else None
    ### END SOLUTION


check("04.9", repaired_step)

# %% [markdown]
# ## 04.10
#
# *Find the bug · medium · extra · 20 minutes.* **You learn** what "tied" means once a model is cut.
#
# Many models use one matrix twice: the embedding looks tokens up in it, and the head multiplies by it. Cut such a model, and the first
# use is on the first rank, the second on the last:
#
# ```text
# rank 0          embedding, layers     tied = its copy of the matrix
# ranks between   layers                tied = None
# last rank       layers, norm, head    tied = its copy of the matrix
# ```
#
# Both copies start equal, and training runs:


# %% nbgrader={"grade": false, "grade_id": "suspect-tied", "locked": true, "schema_version": 3, "solution": false, "task": false}
def tied_step(stage, tied, inputs, targets, shape):
    """Leave the gradients in this rank's stage; return the loss on the last rank.

    inputs, targets: tokens, (B, S). shape: of what passes each cut, (B, S, H).
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x = inputs if rank == 0 else comm.recv(torch.empty(shape), rank - 1).requires_grad_()
    y = stage(x)
    if rank == last:
        y = F.cross_entropy(y.flatten(0, 1), targets.flatten())
        y.backward()
    else:
        comm.send(y.detach(), rank + 1)
        y.backward(comm.recv(torch.empty_like(y), rank + 1))
    if rank > 0:
        comm.send(x.grad, rank - 1)
    return y.item() if rank == last else None


# %%
from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder

shape_of_model = ModelConfig(
    name="tied", hidden_size=8, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=12, vocab_size=20, tied=True
)


def sequences(number):
    tokens = torch.randint(20, (4, 1), generator=torch.Generator().manual_seed(number)) + 3 * torch.arange(
        7
    )
    return tokens[:, :-1] % 20, tokens[:, 1:] % 20


def train_tied(step):
    torch.manual_seed(0)
    rank, p = dist.get_rank(), dist.get_world_size()
    stage = cut(Decoder(shape_of_model), {1: (4,), 2: (2, 2), 3: (1, 2, 1)}[p])[rank]
    copy = {0: "embedding.weight", p - 1: "head.weight"} if p > 1 else {0: "embedding.weight"}
    tied = stage.get_parameter(copy[rank]) if rank in copy else None
    optimizer, losses = torch.optim.AdamW(stage.parameters(), lr=0.02), []
    for number in range(60):
        optimizer.zero_grad()
        losses.append(step(stage, tied, *sequences(number), (4, 6, 8)))
        optimizer.step()
    return losses, None if tied is None else tied.detach()


def compare_tied(step):
    (alone, _), results = run_ranks(train_tied, 1, step)[0], run_ranks(train_tied, 3, step)
    for number in (1, 20, 40, 60):
        print(
            f"step {number:2}   one rank {alone[number - 1]:.2f}   "
            f"three ranks {results[-1][0][number - 1]:.2f}"
        )
    print(
        "largest difference of the two copies afterwards: "
        f"{(results[0][1] - results[-1][1]).abs().max():.2f}"
    )


compare_tied(tied_step)

# %% [markdown]
# The loss falls even faster than on one rank! If you saw nothing else, you would be pleased. But look at the last line: the two copies are no
# longer one matrix. So this trains another model, with more parameters, and a checkpoint that saves one copy loses what the other has
# learnt.
#
# Write the function again without the bug. It is called once in a training step, after `zero_grad`. Then
# `compare_tied(repaired_tied_step)` shows whether the copies stay one matrix. AdamW hides whether you
# take the gradients' sum or their average, but the check does not.
#
# `comm.irecv(into, source)` and `comm.isend(tensor, other)` start a message and return a handle. Its `.wait()` ends the message, and only
# then does `into` hold what was sent. Send through `comm`, so that the ledger counts.
#
# **Target:** both copies have the gradient that one device has. Besides what passes the cuts, the first and the last rank send one
# matrix each, and the others nothing. On one rank there is one copy, and nothing has to be done.


# %% nbgrader={"grade": false, "grade_id": "04-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def repaired_tied_step(stage, tied, inputs, targets, shape):
    """Leave the gradients in this rank's stage; return the loss on the last rank, as a number."""
    ### BEGIN SOLUTION
    loss = tied_step(stage, tied, inputs, targets, shape)
    last = dist.get_world_size() - 1
    if tied is not None and last > 0:
        other, theirs = last - dist.get_rank(), torch.empty_like(tied)
        handles = [comm.irecv(theirs, other), comm.isend(tied.grad, other)]
        for handle in handles:
            handle.wait()
        tied.grad += theirs
    return loss
    ### END SOLUTION


check("04.10", repaired_tied_step)

# %% [markdown]
# ## 04.11
#
# *Own file · hard · core · 45 minutes.* **You learn** to run a model in PyTorch's own pipeline, with nothing of this course in it.
#
# `torch.distributed.pipelining` has the schedules of the lesson. You bring the stages. A `PipelineStage(module, number, stages, device)` wraps
# the layers of one process, and a schedule, `ScheduleGPipe` or `Schedule1F1B`, is made from the stage, the number of micro-batches and a loss
# function. Its `step` cuts a batch, sends what has to be sent, and leaves gradients in the layers. Write the training loop around it, as a script for
# `torchrun`.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `widths` | of the layers: layer i goes from `widths[i]` to `widths[i + 1]` |
# | `layers` | how many layers each stage has, one after the other |
# | `weights` | the state dict of the whole model, from which you start |
# | `batches` | pairs `(x, y)` of 24 rows: `x` is (rows, 6), `y` holds a class for each row, or -100 |
# | `micro_batches`, `schedule` | into how many a batch is cut, and `"GPipe"` or `"1F1B"` |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
#
# As in every language model's training, not each row has a target: where `y` is -100, it has none and does not count. The loss of a batch
# is the mean of the cross-entropy over **all its rows that have a target**, wherever they are. They are not evenly spread over the
# micro-batches, and a micro-batch may have none at all. So think about what a micro-batch's mean is worth.

# %% [markdown]
# At the end one process saves the state dict of the whole model as `answer.pt` in the same folder, under the names that it has in `weights`.
#
# **Target:** the weights of one device, with GPipe and SGD, and with 1F1B and AdamW. At each cut a micro-batch's output travels once and its
# gradient once. The check also looks at the order in which rank 0 sends and receives: how many micro-batches has it in flight?
#
# To start it yourself, run `save_script("04.11", pipeline_script)`. It writes your script and a `task.pt` into a folder, and tells you the line
# for a terminal.

# %% nbgrader={"grade": false, "grade_id": "04-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
pipeline_script = """
import sys
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F


def make_model(widths):
    layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
    return nn.Sequential(*layers).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model(task["widths"])
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    first = sum(task["layers"][:rank])
    layers = model[first : first + task["layers"][rank]]
    optimizer = getattr(torch.optim, task["optimizer"])(layers.parameters(), lr=task["rate"])
    targets = 0  # of the batch at hand

    def share(output, y):
        return F.cross_entropy(output, y, ignore_index=-100, reduction="sum") / targets

    schedule = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[task["schedule"]](
        PipelineStage(layers, rank, ranks, torch.device("cpu")),
        task["micro_batches"],
        loss_fn=share,
        scale_grads=False,  # a share of the batch's mean is no mean of its own
    )
    for x, y in task["batches"]:
        targets = (y >= 0).sum()
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=y)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    parts = [None] * ranks if rank == 0 else None
    dist.gather_object(layers.state_dict(), parts)
    if rank == 0:
        whole = {name: tensor for part in parts for name, tensor in part.items()}
        torch.save(whole, f"{folder}/answer.pt")
    dist.barrier()
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("04.11", pipeline_script)

# %% [markdown]
# ## 04.12
#
# *Own file · hard · useful · 45 minutes.* **You learn** to pay for memory with a second forward, in a pipeline that is all your own.
#
# A stage that goes forward keeps what autograd needs for backward, for every micro-batch that is under way. For the first stages that is
# most of the memory. But a layer that still has its **input** can compute everything else from it once more. So keep
# only that: of each micro-batch, the input of your stage. When its gradient comes, go forward once more, and now backward. This is
# **recomputation**, or activation checkpointing.
#
# Write such a pipeline as a script for `torchrun`, with `dist.send` and `dist.recv`. You may use `torch.utils.checkpoint`, but you need not:
# `torch.no_grad()` is enough. The check starts it on 2 and on 4 processes, and the folder that it gets has a `task.pt` with the keys of
# 04.11 except `schedule`. Here every row has a target, batches have 44 rows, and micro-batches are the parts of
# `x.tensor_split(micro_batches)`, which have not all the same number of rows. The loss is the mean over **all rows of the batch**.
#
# Two keys are new: `dropout`, the share that each layer drops of its input, and `seed`. Each process calls `torch.manual_seed(seed + rank)` once,
# before the first batch, and then goes forward through its micro-batches one after the other. A second forward has to drop what the first one has
# dropped, and must not use up random numbers that later micro-batches draw.

# %% [markdown]
# At the end one process saves the state dict of the whole model as `answer.pt`, under the names that it has in `weights`.
#
# **Target:** the weights that a pipeline without recomputation would get, with SGD without dropout, and with AdamW and dropout. At each cut a
# micro-batch's output travels once, in float64, and its gradient once. Rank 0 sends at least as many micro-batches as there are stages before it
# calls the first `recv` of a gradient. And what autograd keeps on a process is, besides weights and inputs, no more than two forwards of one
# micro-batch need. The check sees all that autograd saves.

# %% nbgrader={"grade": false, "grade_id": "04-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
recomputing_script = """
import sys
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def make_model(widths, dropout):
    layers = [nn.Sequential(nn.Dropout(dropout), nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
    return nn.Sequential(*layers).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model(task["widths"], task["dropout"])
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    first, last = sum(task["layers"][:rank]), ranks - 1
    stage = model[first : first + task["layers"][rank]]
    width = task["widths"][first]
    optimizer = getattr(torch.optim, task["optimizer"])(stage.parameters(), lr=task["rate"])
    torch.manual_seed(task["seed"] + rank)
    for batch in task["batches"]:
        parts = list(zip(*[rows.tensor_split(task["micro_batches"]) for rows in batch]))
        kept = []
        for x, _ in parts:
            if rank > 0:
                x = torch.empty(len(x), width, dtype=torch.float64)
                dist.recv(x, rank - 1)
            kept.append((x, torch.get_rng_state()))
            with torch.no_grad():
                y = stage(x)
            if rank < last:
                dist.send(y, rank + 1)
        for (x, state), (_, targets) in zip(kept, parts):
            with torch.random.fork_rng():
                torch.set_rng_state(state)
                y = stage(x.requires_grad_(rank > 0))
            if rank == last:
                y = F.cross_entropy(y, targets, reduction="sum") / len(batch[1])
                y.backward()
            else:
                gradient = torch.empty_like(y)
                dist.recv(gradient, rank + 1)
                y.backward(gradient)
            if rank > 0:
                dist.send(x.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
    parts = [None] * ranks if rank == 0 else None
    dist.gather_object(stage.state_dict(), parts)
    if rank == 0:
        whole = {name: tensor for part in parts for name, tensor in part.items()}
        torch.save(whole, f"{folder}/answer.pt")
    dist.barrier()
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("04.12", recomputing_script)

# %% [markdown]
# ## Where this leads
#
# You have written all that a pipeline is: a cut, a list for each rank, two messages at each cut, and care for what two ranks share.
# But a pipeline cuts between layers and never inside one. [Lesson 05](../../notebooks/05_tensor_parallelism.ipynb) does that.
