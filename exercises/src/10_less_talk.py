# %% [markdown]
# # Exercises 10: less talk
#
# [Lesson 10](../../notebooks/10_less_talk.ipynb) asked what a gradient may lose before the model notices, because two clusters were joined by a
# slow wire. Here you write the ways to send less, and prove of each what it promises. Two exercises are files of your own, without this course.
# If you have two hours, do 10.1, 10.6 and 10.4.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("10.2", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with what the course computes. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("10.2")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
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
import math

import torch
import torch.distributed as dist
from torch.nn import functional as F

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 10.1
#
# *Predict · medium · core · 35 minutes.* **You learn** what "one per cent of the gradient" comes to on the wire, and which ways to send less do not.
#
# Somebody has six ways to bring the ranks' gradients together. All numbers are in bf16, two bytes each:
#
# | | way | what travels |
# | --- | --- | --- |
# | 1 | all-reduce | the whole gradient, by a ring |
# | 2 | top-k | one number in k of each rank with its place, by an all-gather |
# | 3 | dice | each number in a few bits, and a norm for each bucket, by an all-gather |
# | 4 | drawn | one number in k, at places that all ranks draw from the same seed, by an all-reduce |
# | 5 | factors | PowerSGD: two thin factors of each matrix, by all-reduces |
# | 6 | local | the whole weights, by an all-reduce once in H steps |

# %% nbgrader={"grade": false, "grade_id": "10-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
wire = given("10.1", GRADE_SEED)
print(f"n = {wire.n} ranks")
print(f"the gradient has L = {wire.L} matrices of a x b = {wire.a:,} x {wire.b:,} numbers")
print(f"one number in k = {wire.k} is sent; local steps: H = {wire.H}")
print(f"dice: bits = {wire.bits} for a number with its sign, buckets of bucket = {wire.bucket} numbers")
print(f"factors: r = {wire.r} columns")

# %% [markdown]
# A matrix of a x b has two factors, a x r and b x r. A place takes four bytes, and a bucket's norm two. Everything goes round a ring, also in an
# all-gather: there a rank sends its own message and passes the others' on. Sizes divide evenly. Count what a rank **sends** in a step:
#
# | name | number to give |
# | --- | --- |
# | `ring_bytes` | way 1 |
# | `peer_bytes` | gossip, if a rank sends all its weights to one peer in each step |
# | `local_bytes` | way 6, on average over the H steps |
# | `message_bytes` | bytes of one rank's own message in way 2 |
# | `top_bytes` | way 2 |
# | `top_share` | of the bytes of way 1, the share that way 2 sends; more than 1 if it sends more |
# | `break_even` | the smallest number of ranks from which on way 2 sends more than way 1 |
# | `drawn_bytes` | way 4 |
# | `factor_bytes` | way 5, all matrices together |
# | `coded_bytes` | way 3 |
# | `sends_most` | the number of the way that sends most: 1, 2 or 3 |
#
# `P`, `ring` and `sent` stand in the cell to help, and nobody asks for them: in the solution they are the numbers of the whole gradient,
# 2 (n - 1) / n, and a list of what the ways 1 to 3 send.

# %% nbgrader={"grade": false, "grade_id": "10-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
n, L, a, b, k, bits, bucket, r, H = wire
### BEGIN SOLUTION
P = L * a * b
ring = 2 * (n - 1) / n
ring_bytes = ring * 2 * P
peer_bytes = 2 * P
local_bytes = ring_bytes / H
message_bytes = P / k * (2 + 4)
top_bytes = (n - 1) * message_bytes
top_share = top_bytes / ring_bytes
break_even = 4 * k // 6 + 1
drawn_bytes = ring * 2 * P / k
factor_bytes = ring * 2 * L * r * (a + b)
coded_bytes = (n - 1) * (P * bits / 8 + 2 * P / bucket)
sent = [ring_bytes, top_bytes, coded_bytes]
sends_most = 1 + sent.index(max(sent))
### END SOLUTION
asked = ...
check("10.1", asked, seed=GRADE_SEED)
# hint("10.1")

# %% [markdown]
# ## 10.2
#
# *Write · medium · useful · 30 minutes.* **You learn** which weights let ranks agree on the mean, and how long that takes.
#
# Ranks that only talk to their neighbours want to agree on the mean of all. Let each take the plain mean of itself and its neighbours. On a
# chain of three that looks fair, but look at the columns:
#
# ```text
#                    plain means                      Metropolis' weights
# rank 0          1/2    1/2    0                      2/3    1/3    0
# rank 1          1/3    1/3    1/3                    1/3    1/3    1/3
# rank 2          0      1/2    1/2                    0      1/3    2/3
# column sums     5/6    4/3    5/6                    1      1      1
# ```
#
# Rank 1 is heard more than the others, so the mean of all ranks moves in each step, towards rank 1. If columns sum to 1 as well as rows, it
# stays. Such a matrix is called **doubly stochastic**.
#
# **Metropolis' weights** make one out of any graph. Two neighbours i and j have the weight 1 / (1 + the larger of their numbers of
# neighbours) for each other. What a row lacks of 1 belongs to the rank itself.

# %% [markdown]
# How fast do they agree? In each step a disagreement is multiplied by the matrix. The mean has the eigenvalue 1. Everything else shrinks, and slowest
# of all the part with the next largest eigenvalue, signs aside. What its size lacks of 1 is the **spectral gap**. If the graph is in two parts, the
# eigenvalue 1 is there twice, and the gap is 0.
#
# **Target:** two things: the matrix, float64, and its spectral gap, a number. `neighbours` has a list for each rank, and links go both ways.


# %% nbgrader={"grade": false, "grade_id": "10-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mixing(neighbours):
    """Return two things: the matrix, and its spectral gap.

    neighbours: of each rank a list of the ranks that it talks to.
    """
    ### BEGIN SOLUTION
    degrees = [len(linked) for linked in neighbours]
    W = torch.zeros(len(degrees), len(degrees), dtype=torch.float64)
    for i, linked in enumerate(neighbours):
        for j in linked:
            W[i, j] = 1 / (1 + max(degrees[i], degrees[j]))
    W += (1 - W.sum(1)).diag()
    others = torch.linalg.eigvalsh(W)[:-1]
    return W, 1 - others.abs().max().item()
    ### END SOLUTION


check("10.2", mixing)
# hint("10.2")

# %% [markdown]
# ## 10.3
#
# *Own file · medium · useful · 35 minutes.* **You learn** to let neighbours talk to each other without anybody waiting for ever.
#
# In **gossip** nobody waits for all. In each step a rank sends what it has to a few neighbours, and mixes what it gets from them into its own.
# Who takes from whom, and how much, stands in the mixing matrix:
#
# ```text
#            from 0   from 1   from 2   from 3
# rank 0      0.6      0.2      0        0.2
# rank 1      0.2      0.5      0.3      0
# rank 2      0        0.3      0.4      0.3
# rank 3      0.2      0        0.3      0.5
#
# new 0  =  0.6 · old 0  +  0.2 · old 1  +  0.2 · old 3         0 and 2 do not talk
# ```
#
# Row i has the weights with which rank i takes. A matrix need not be symmetric: then a rank gives to others than it takes from.

# %% [markdown]
# Here lies a trap. If all ranks first send and then receive, all of them may wait until somebody takes their message, and nobody does. This
# is a **deadlock**.
#
# Write a script for `torchrun`. The check starts it on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `values` | a row for each rank, float64: what it has at the beginning |
# | `mixing` | a list of matrices, one for each step, in order |
#
# Each rank takes its row and mixes once with each matrix. All weights belong to what the ranks had before the step. In the end it saves its row as
# `answer-0.pt`, `answer-1.pt` and so on.
#
# **Target:** the rows that the matrices give, one after the other. A rank sends one message for each weight that another rank has on what
# it has, and nothing else travels. The columns of these matrices sum to 1 as well as the rows, so the mean of all ranks stays what it was, as
# often as they mix.
#
# To start it yourself, run `save_script("10.3", gossip)`.

# %% nbgrader={"grade": false, "grade_id": "10-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
gossip = """
import sys

import torch
import torch.distributed as dist


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    mine = task["values"][rank].clone()
    ### BEGIN SOLUTION
    others = [other for other in range(ranks) if other != rank]
    for matrix in task["mixing"]:
        givers = [other for other in others if matrix[rank, other] != 0]
        takers = [other for other in others if matrix[other, rank] != 0]
        came = {giver: torch.empty_like(mine) for giver in givers}
        waiting = [dist.isend(mine, taker) for taker in takers]
        waiting += [dist.irecv(came[giver], giver) for giver in givers]
        for one in waiting:
            one.wait()
        mine = matrix[rank, rank] * mine
        for giver in givers:
            mine = mine + matrix[rank, giver] * came[giver]
    torch.save(mine, f"{folder}/answer-{rank}.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("10.3", gossip)
# hint("10.3")

# %% [markdown]
# ## 10.4
#
# *Write · medium · core · 30 minutes.* **You learn** to let ranks work alone for a while, and to make one step out of what they have come to.
#
# Why talk in each step? Let every rank make H steps alone, from the same weights, on its own data. This is **local SGD**, and bytes fall by H. In
# the end the ranks have different weights, and all go on from their mean. In federated learning that is called **FedAvg**.
#
# **DiLoCo** looks at it in another way. From where all began to the mean of where they are now is a change, and such a change can stand in
# the place of a gradient: a **pseudo-gradient**. So give it to an optimizer, the outer one:
#
# ```text
# w  ──► 4 steps alone ──► w on rank 0 ─┐
#    ──► 4 steps alone ──► w on rank 1 ─┤
#    ──► 4 steps alone ──► w on rank 2 ─┼──► mean
#    ──► 4 steps alone ──► w on rank 3 ─┘
#
# change    =  w - mean
# velocity  =  momentum · velocity + change
# w         =  w - outer_rate · (change + momentum · velocity)
# ```
#
# The last line is SGD with **Nesterov's momentum**. With an outer rate of 1 and no momentum it puts the mean itself in w's place. With 0.7 and 0.9
# the first step already goes 0.7 · 1.9 = 1.33 of the way to the mean: it shoots past it.

# %% [markdown]
# Write the whole of it on ranks. `gradient(w)` is your rank's own gradient, of its own data. The velocity is 0 before the first round.
#
# **Target:** two things, the same on all ranks: the weights after all rounds, and the outer velocity. In each round there is one all-reduce of as many
# numbers as the weights have, by `comm`: `comm.all_reduce(x)` returns the sum, and leaves `x` as it is.


# %% nbgrader={"grade": false, "grade_id": "10-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_alone(w, gradient, rounds, every, rate, outer_rate, momentum):
    """Return two things: the weights and the outer velocity after so many rounds of `every` steps.

    w: flat, the same on all ranks. rate: of the steps that a rank makes alone.
    """
    ### BEGIN SOLUTION
    velocity = torch.zeros_like(w)
    for _ in range(rounds):
        mine = w.clone()
        for _ in range(every):
            mine = mine - rate * gradient(mine)
        change = w - comm.all_reduce(mine) / dist.get_world_size()
        velocity = momentum * velocity + change
        w = w - outer_rate * (change + momentum * velocity)
    return w, velocity
    ### END SOLUTION


check("10.4", train_alone)
# hint("10.4")

# %% [markdown]
# ## 10.5
#
# *Write · medium · useful · 35 minutes.* **You learn** to round with dice, so that what is sent is wrong each time and right on average.
#
# **QSGD** writes a gradient in few bits. It cuts the numbers into buckets. A bucket has a norm, the root of its sum of squares, and between 0 and
# the norm there are `levels` steps. Each number is sent as the number of a step, with its sign. A number that lies between two steps throws a die:
#
# ```text
# norm 1, levels 4     0        0.25       0.5     0.6     0.75        1
#                      |          |         |       x        |         |
# step                 0          1         2                3         4
#
# 0.6 is 2.4 steps long, and 0.4 is its fraction:
# up to step 3 in 4 of 10 throws, down to 2 in 6:    0.4 · 0.75  +  0.6 · 0.5  =  0.6
# ```
#
# On average over the dice nothing is lost, so a gradient that is sent in this way is called **unbiased**. What grows is its variance.

# %% [markdown]
# `v` is a flat tensor, and `dice` has a number from 0 up to 1 for each of v's. A number goes up if its die is below its fraction. The last
# bucket may be shorter, and a bucket of zeros has the norm 0 and steps of 0: not by 0 / 0, which is NaN, and what NaN is as int8 no
# rule says.
#
# **Target:**
#
# - `encode` gives two tensors: the steps with their signs, int8 and as many as `v` has numbers, and one norm for each bucket.
# - `decode` gives the numbers back for which they stand.
# - `variance` gives one number: the squared error that `decode` has, summed over all numbers of `v`, as it is on average over all dice. Nothing
#   has to be thrown for it.


# %% nbgrader={"grade": false, "grade_id": "10-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Quantiser:
    def __init__(self, levels, bucket):
        self.levels, self.bucket = levels, bucket

    def encode(self, v, dice):
        """Return two tensors: the steps, int8, and the norms."""
        ### BEGIN SOLUTION
        shares, norms = self.in_steps(v)
        shares = shares.flatten()[: len(v)]
        low = shares.floor()
        steps = low + (dice < shares - low)
        return (steps * v.sign()).to(torch.int8), norms

    def in_steps(self, v):
        rows = F.pad(v, (0, -len(v) % self.bucket)).view(-1, self.bucket)
        norms = rows.norm(dim=1)
        return rows.abs() / torch.where(norms > 0, norms, 1.0).unsqueeze(-1) * self.levels, norms
        ### END SOLUTION

    def decode(self, steps, norms):
        """Return the numbers, flat."""
        ### BEGIN SOLUTION
        return steps * norms.repeat_interleave(self.bucket)[: len(steps)] / self.levels
        ### END SOLUTION

    def variance(self, v):
        """Return the squared error of all numbers together, on average over all dice."""
        ### BEGIN SOLUTION
        shares, norms = self.in_steps(v)
        fractions = shares - shares.floor()
        squares = (norms / self.levels).square().unsqueeze(-1) * fractions * (1 - fractions)
        return squares.sum().item()
        ### END SOLUTION


check("10.5", Quantiser)
# hint("10.5")

# %% [markdown]
# ## 10.6
#
# *Write · medium · core · 35 minutes.* **You learn** to send one number in a hundred, and to lose none of the others.
#
# Most numbers of a gradient are small. So let a rank send only the largest ones, its **top-k**, and their places with them. On its own that
# can go wrong for ever, because a number that is never among the largest is never heard of. The cure is a **memory**: what was not sent is
# kept, and added to the next gradient. In the literature it is called **error feedback**.
#
# ```text
#          gradient          kept before       due               sent       kept
# step 1   5   1  -2   0     0   0   0   0     5   1  -2   0      5 at 0    0   1  -2   0
# step 2   1   1  -2   1     0   1  -2   0     1   2  -4   1     -4 at 2    1   2   0   1
# ```
#
# The -2 at place 2 was too small to go in step 1. In step 2 it has become a -4, and goes. Whatever the gradients are, what is sent and what
# is kept are together what there was.

# %% [markdown]
# Write the three parts:
#
# - `send` gets a parameter's name and its gradient, of any shape. It returns two flat tensors: the values that are sent, and their places in
#   `gradient.flatten()`, as int32. One number in `one_in` is sent, rounded up. The largest ones are those of the largest size, signs aside.
#   Of numbers of the same size those that stand first go first.
# - `kept` is a dict. After `send` it has under the parameter's name what is kept, in the gradient's shape. Each name has its own memory, since
#   parameters may come in another order in the next step.
# - `mean` gets the messages of all ranks for one parameter, pairs as `send` returns them, and the shape. It returns the mean over the ranks. A
#   rank that has not sent a place counts there with 0: what it has is in its memory.
#
# **Target:** what is sent and what is kept are to the bit the gradient and what was kept before. The gradient that you are given stays as it is.


# %% nbgrader={"grade": false, "grade_id": "10-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
class TopK:
    def __init__(self, one_in):
        self.one_in, self.kept = one_in, {}

    def send(self, name, gradient):
        """Return two flat tensors: the values that are sent, and their places, int32."""
        ### BEGIN SOLUTION
        due = gradient + self.kept.get(name, 0)
        k = math.ceil(due.numel() / self.one_in)
        places = due.flatten().abs().sort(descending=True, stable=True).indices[:k]
        values = due.flatten()[places]
        left = due.flatten().clone()
        left[places] = 0
        self.kept[name] = left.view(due.shape)
        return values, places.to(torch.int32)
        ### END SOLUTION

    def mean(self, messages, shape):
        """Return the mean over the ranks, as a tensor of this shape.

        messages: of each rank a pair, values and places.
        """
        ### BEGIN SOLUTION
        total = torch.zeros(math.prod(shape), dtype=messages[0][0].dtype)
        for values, places in messages:
            total.index_add_(0, places, values)
        return (total / len(messages)).view(shape)
        ### END SOLUTION


check("10.6", TopK)
# hint("10.6")

# %% [markdown]
# ## 10.7
#
# *Write · medium · extra · 25 minutes.* **You learn** another cure for top-k, in which not what was lost is kept but what the others believe.
#
# A memory adds up what was not sent. **EF21** keeps something else: a guess of this rank's gradient, which is what everybody has heard of it so
# far. A rank looks where its guess is furthest off, and sends only these changes:
#
# ```text
#          gradient          guess             change            sent       guess afterwards
# step 1   5   1  -2   0     0   0   0   0     5   1  -2   0      5 at 0    5   0   0   0
# step 2   5   1  -2   0     5   0   0   0     0   1  -2   0     -2 at 2    5   0  -2   0
# ```
#
# If the gradient stays as it is, the guess comes nearer with each step, until it is right. In a training by mini-batches the gradient jumps from
# step to step, and then a guess always lags behind: that is where EF21 does worse than a memory.

# %% [markdown]
# All is flat here, and float64. `__init__` gets `one_in` as in 10.6 and the number of numbers. The guess is zeros at first, and it is kept in
# `self.guess`, which grows by this rank's own changes alone. `send` returns the values and places, int32, of the changes that are sent: one number in `one_in`, rounded up, the largest ones, and of those of the same size the first.
# `self.mean` is yours, for the guess that all have in common. `receive` gets the messages of all ranks, this one's too, and returns the mean of all ranks' guesses, as they are after this step.
#
# **Target:** in each step the right messages and guesses, and what `receive` returns is the same on all ranks.


# %% nbgrader={"grade": false, "grade_id": "10-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
class EF21:
    def __init__(self, one_in, length):
        self.one_in = one_in
        self.guess, self.mean = torch.zeros(2, length, dtype=torch.float64)

    def send(self, gradient):
        """Return two tensors: the values of the largest changes, and their places, int32."""
        ### BEGIN SOLUTION
        change = gradient - self.guess
        k = math.ceil(len(change) / self.one_in)
        places = change.abs().sort(descending=True, stable=True).indices[:k]
        self.guess = self.guess.index_add(0, places, change[places])
        return change[places], places.to(torch.int32)
        ### END SOLUTION

    def receive(self, messages):
        """Return the mean of all ranks' guesses.

        messages: of each rank a pair, values and places.
        """
        ### BEGIN SOLUTION
        for values, places in messages:
            self.mean = self.mean.index_add(0, places, values / len(messages))
        return self.mean
        ### END SOLUTION


check("10.7", EF21)
# hint("10.7")

# %% [markdown]
# ## 10.8
#
# *Write · hard · useful · 40 minutes.* **You learn** why thin factors may be summed on the way, and what a gradient costs then.
#
# Top-k messages do not add up on the way, because each rank sends other places. What would? Something that is linear in the gradient. Let all
# ranks have the same few directions, the columns of a matrix Q, and let each multiply its gradient M by them. Then
#
# ```text
# mean of  M₀ Q,  M₁ Q,  M₂ Q,  M₃ Q      =      (mean of  M₀, M₁, M₂, M₃)  Q
# ```
#
# so an all-reduce of thin matrices has told everybody what the mean gradient does to Q. This is **PowerSGD**. M is a x b, and Q is b x r:
#
# ```text
# P  =  mean of the ranks' M Q       a x r     first all-reduce
# P  =  orthonormal columns for P    a x r     each rank for itself, all get the same
# Q  =  mean of the ranks' M.T P     b x r     second all-reduce
# mean gradient, about:  P Q.T
# ```
#
# With a = b = 4096 and r = 4 these are 32,768 numbers in the place of 16.8 million.

# %% [markdown]
# Two things make it train well. Q is kept for the next step, where it is a good beginning: that is the **warm start**. And what P Q.T does not hold of
# a rank's own M is kept and added to its next gradient, as in 10.6.
#
# Write it for one matrix. `__init__` gets the first Q, the same on all ranks. `mean` gets a rank's gradient. It returns P Q.T, and leaves in
# `self.kept` what this rank keeps. For orthonormal columns take `torch.linalg.qr(P).Q`, or write them yourself.
#
# **Target:** the means of all steps, the same on all ranks, and after each step `kept`. In a step there are two all-reduces by `comm`, of a·r and
# of b·r numbers, and three products of matrices besides those that make columns orthonormal.


# %% nbgrader={"grade": false, "grade_id": "10-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
class PowerSGD:
    def __init__(self, Q):
        self.Q, self.kept = Q, 0

    def mean(self, gradient):
        """Return what all ranks take for the mean of their gradients, and keep the rest."""
        ### BEGIN SOLUTION
        ranks = dist.get_world_size()
        M = gradient + self.kept
        P = torch.linalg.qr(comm.all_reduce(M @ self.Q) / ranks).Q
        self.Q = comm.all_reduce(M.T @ P) / ranks
        found = P @ self.Q.T
        self.kept = M - found
        return found
        ### END SOLUTION


check("10.8", PowerSGD)
# hint("10.8")

# %% [markdown]
# ## 10.9
#
# *Find the bug · medium · core · 25 minutes.* **You learn** what to look at if a run that was to lose something loses nothing.
#
# Here is a compressor of somebody's: top-k with a memory, one number in `one_in`. `compressed` gives what is sent as a whole tensor, and `send`
# makes a message of what is not 0 in it.


# %% nbgrader={"grade": false, "grade_id": "suspect-compressor", "locked": true, "schema_version": 3, "solution": false, "task": false}
class Suspect:
    def __init__(self, one_in):
        self.one_in, self.kept = one_in, {}

    def largest(self, x):
        """x, with 0 in the place of all but its largest numbers."""
        k = math.ceil(x.numel() / self.one_in)
        places = x.flatten().abs().sort(descending=True, stable=True).indices[:k]
        found = torch.zeros_like(x).flatten()
        found[places] = x.flatten()[places]
        return found.view(x.shape)

    def compressed(self, name, gradient):
        """What is sent of a gradient; the rest is kept."""
        before = self.kept.get(name, torch.zeros_like(gradient))
        sent = self.largest(gradient) + before
        self.kept[name] = gradient + before - sent
        return sent

    def send(self, name, gradient):
        """Values, and their places."""
        sent = self.compressed(name, gradient).flatten()
        places = sent.nonzero().flatten()
        return sent[places], places.to(torch.int32)


# %% [markdown]
# Four ranks train by it, each on rows of its own, and send one number in twenty. Beside it they send everything:


# %%
def loss_by(one_in, steps=200):
    generator = torch.Generator().manual_seed(0)
    x, teacher = torch.randn(4, 64, 20, generator=generator), torch.randn(20, 5, generator=generator)
    y = (x @ teacher + torch.randn(4, 64, 5, generator=generator)).argmax(-1)
    boxes = [Suspect(one_in) for _ in x]
    w = torch.zeros(20, 5, requires_grad=True)
    for _ in range(steps):
        total = torch.zeros(100)
        for box, rows, targets in zip(boxes, x, y, strict=True):
            (gradient,) = torch.autograd.grad(F.cross_entropy(rows @ w, targets), w)
            values, places = box.send("w", gradient)
            total.index_add_(0, places, values)
        w.data -= 0.5 * (total / 4).view(20, 5)
    return F.cross_entropy(x.flatten(0, 1) @ w, y.flatten()).item()


print(f"after 200 steps: everything sent {loss_by(1):.3f}, one number in twenty {loss_by(20):.3f}")

# %% [markdown]
# The loss is the same, and in the last digit it is even better. Should that please you? A compressor makes three promises:
#
# | name | promise |
# | --- | --- |
# | `"memory"` | what is sent and what is kept are together the gradient and what was kept before |
# | `"everything"` | with `one_in = 1` it sends the gradient itself |
# | `"bytes"` | a message has one number in `one_in`, rounded up |

# %%
box, gradient = Suspect(20), torch.randn(100, generator=torch.Generator().manual_seed(1))
for _ in range(5):
    before = box.kept.get("w", torch.zeros(100))
    sent = box.compressed("w", gradient)
    closes = torch.allclose(sent + box.kept["w"], gradient + before)
print("memory:", closes)
print("everything:", torch.equal(Suspect(1).compressed("w", gradient), gradient))

# %% [markdown]
# Write down which promise is broken. Then give `Suspect(100)` one gradient of 100 numbers, all of them different and none 0, two times in a row:
# how many numbers are in the second message? And write `compressed` again.
#
# **Target:** all three promises, in every step, for every name.


# %% nbgrader={"grade": false, "grade_id": "10-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Mended(Suspect):
    def diagnosis(self):
        """Return two things: the name of the promise that is broken,
        and how many numbers are in the second message of one gradient.
        """
        ### BEGIN SOLUTION
        return "bytes", 100
        ### END SOLUTION

    def compressed(self, name, gradient):
        """Return what is sent of a gradient, as a whole tensor, and keep the rest."""
        ### BEGIN SOLUTION
        due = gradient + self.kept.get(name, torch.zeros_like(gradient))
        sent = self.largest(due)
        self.kept[name] = due - sent
        return sent
        ### END SOLUTION


check("10.9", Mended)
# hint("10.9")

# %% [markdown]
# ## 10.10
#
# *Find the wrong number · medium · useful · 25 minutes.* **You learn** to check what slides say of bytes and of rates.
#
# "Top-k sends one per cent of the gradient, so it is a hundred times faster. A ring's cost grows with the number of ranks." Somebody has believed
# such sentences and made a table of them, for 64 ranks and a gradient of seven billion numbers in bf16, of which top-k sends one in a hundred:
#
# | name | kind | what it is | said |
# | --- | --- | --- | ---: |
# | A | `share` | bytes that a rank sends by top-k and an all-gather, as a share of a ring all-reduce | 0.01 |
# | B | `ring` | bytes that a rank sends in a ring all-reduce of the gradient, in 10^9 | 882 |
# | C | `gossip` | bytes that a rank sends in a step of gossip on a ring of ranks, in 10^9 | 28 |
# | D | `delta` | top-k is a contraction: of a sum of squares at least this share is sent | 0.99 |
# | E | `omega` | rand-k times d/k is unbiased: its squared error is on average so many times the sum of squares | 99 |
# | F | `steps` | plain parallel SGD with n ranks needs this share of the steps of one, for the same error | 0.125 |
#
# Values have two bytes and places four. In gossip a rank sends all its weights, as many as the gradient has numbers, to each of its two
# neighbours. **rand-k** sends k numbers at places that are drawn. The error of parallel SGD goes with 1 / √(n·T) after T steps, once T is large.

# %% [markdown]
# Write a function that goes through this table and any other. Each line is a record:
#
# | field | meaning |
# | --- | --- |
# | `name`, `kind` | the line's name, and one of the six kinds above |
# | `n`, `d`, `k` | ranks, numbers of the gradient, and how many of them are sent |
# | `said` | what the table says, rounded to three digits: a line agrees if the right number is rounded to it |
#
# **Target:** for each line the right number. And the names of all lines that do not agree with it. Perhaps there is none. To round a number x to three
# digits, take `float(f"{x:.3g}")`.


# %% nbgrader={"grade": false, "grade_id": "10-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def find_wrong_lines(lines):
    """Return two things: a list of numbers, one for each line, and a list of names.

    lines: records, as the table above describes them.
    """
    ### BEGIN SOLUTION
    right, wrong = [], []
    for line in lines:
        n, d, k = line.n, line.d, line.k
        ring = 2 * (n - 1) / n * 2 * d
        number = {
            "share": (n - 1) * 6 * k / ring,
            "ring": ring / 1e9,
            "gossip": 2 * 2 * d / 1e9,
            "delta": k / d,
            "omega": d / k - 1,
            "steps": 1 / n,
        }[line.kind]
        right.append(number)
        if float(f"{number:.3g}") != line.said:
            wrong.append(line.name)
    return right, wrong
    ### END SOLUTION


check("10.10", find_wrong_lines)
# hint("10.10")

# %% [markdown]
# ## 10.11
#
# *Own file · hard · core · 50 minutes.* **You learn** to put a compressor into PyTorch's own DDP, and to stop and go on without a trace.
#
# DDP averages a bucket of gradients by an all-reduce. `register_comm_hook(state, hook)` puts a function of yours in its place. DDP calls
# `hook(state, bucket)` when a bucket is full, and wants a `torch.futures.Future` back, whose value is what the bucket's buffer is to become.
#
# A hook with a memory is one more thing to save, and here real trainings go wrong in silence. Every rank has kept something else. And DDP fills
# its buckets anew after the first step, in the order in which gradients come:
#
# ```text
# first step      bucket 0   0.weight 0.bias 2.weight 2.bias 4.weight 4.bias
# from then on    bucket 0   4.bias 4.weight 2.bias 2.weight
#                 bucket 1   0.bias 0.weight
# ```
#
# So what is kept belongs to a parameter and never to a place in a bucket.

# %% [markdown]
# Write a script for `torchrun`. The check starts it twice on 2 processes, and twice on 4, and gives it one argument, a folder, which is the same
# in both starts. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict of `make_model()` |
# | `batches` | pairs `(x, y)`, one for each step; rank r takes part r of `tensor_split(world_size)` |
# | `stop` | after so many steps in all each rank saves what it needs to go on |
# | `one_in` | one number in so many is sent of each parameter, rounded up: the largest ones, signs aside |
# | `rate`, `momentum` | those of `torch.optim.SGD` |
#
# The loss is the mean of the cross-entropy over a rank's rows. The hook works as `TopK` does in 10.6: what was kept is added before the largest
# numbers are chosen, what is not sent is kept, and what comes out is the mean of all ranks' messages. Places travel as int32.

# %% [markdown]
# In the first start nothing has been saved. The script trains all steps, and on the way, after step `stop`, it saves what is needed, under names of
# your choice. In the second start it finds that, and trains only the steps after it. At the end of both, each rank saves the model's state dict as
# `ended-0-0.pt`, `ended-0-1.pt` and so on. The first number says how many steps were done already when this start began, the second is the rank.
#
# **Target:** both starts end with the same weights, to the bit, and they are those of one device that sends what your ranks send. A rank
# gathers so many values and places as one number in `one_in` comes to, and nothing is all-reduced but a loss, if you like.
#
# To start it yourself, run `save_script("10.11", hooked)`.

# %% nbgrader={"grade": false, "grade_id": "10-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
hooked = """
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make_model():
    layers = nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)
    return nn.Sequential(*layers).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=task["rate"], momentum=task["momentum"])
    ### BEGIN SOLUTION
    names = {one: name for name, one in model.named_parameters()}
    kept = {}

    def gathered(mine):
        everyones = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(everyones, mine)
        return everyones

    def hook(state, bucket):
        for one, gradient in zip(bucket.parameters(), bucket.gradients()):
            due = (gradient + kept.get(names[one], 0)).flatten()
            places = due.abs().topk(math.ceil(len(due) / task["one_in"])).indices
            values = due[places]
            due[places] = 0
            kept[names[one]] = due.view(gradient.shape)
            mean = torch.zeros_like(due)
            for some, there in zip(gathered(values), gathered(places.to(torch.int32))):
                mean.index_add_(0, there, some / ranks)
            gradient.copy_(mean.view(gradient.shape))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    begin, saved = 0, Path(f"{folder}/state-{rank}.pt")
    if saved.exists():
        state = torch.load(saved)
        begin = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        kept.update(state["kept"])
    for step, (x, y) in enumerate(task["batches"][begin:], start=begin + 1):
        loss = F.cross_entropy(ddp(x.tensor_split(ranks)[rank]), y.tensor_split(ranks)[rank])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == task["stop"]:
            state = {"step": step, "model": model.state_dict(), "kept": kept}
            torch.save(state | {"optimizer": optimizer.state_dict()}, saved)
    torch.save(model.state_dict(), f"{folder}/ended-{begin}-{rank}.pt")
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()  # after `main`: a DDP that outlives its group may hang (2.13)
"""

check("10.11", hooked)
# hint("10.11")
