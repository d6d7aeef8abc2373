# %% [markdown]
# # Exercises 02: collectives
#
# [Lesson 02](../../notebooks/02_collectives.ipynb) took an all-reduce apart. Here you put one together yourself, message by message, and at the end you write
# two scripts that need nothing of this course.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("02.2", ...)`, runs your
# function on **real processes**, compares every number, and counts what you sent. Then it tells you what it has seen. A hang,
# a crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("02.1")` gives a small hint, and a further one each time you run it. The cell
# before 02.1 has that line, behind a `#`; change the number for the other exercises.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change. Ranks talk by `comm`, which records every message. A call of `torch.distributed` itself is not in that record, and
# does not count unless a text asks for it.
#
# The folded cells under each exercise carry the points if a course is graded. If you work on your own, skip them: they
# say the same as the check above them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.checks import check, given, hint, save_script
from course_lib.hardware import INFINIBAND, NVLINK
from course_lib.ranks import ledger, run_ranks

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## Two messages, one deadlock
#
# You send and receive with these four calls, and the ledger notes each one:
#
# | call | meaning |
# | --- | --- |
# | `comm.send(x, dst)` | send `x` to rank `dst`, return when it has passed |
# | `comm.recv(into, src)` | receive from rank `src` into the tensor `into`, return when it is there |
# | `comm.isend(x, dst)` | only start sending; `.wait()` on what it returns waits for the end |
# | `comm.irecv(into, src)` | only start receiving; after its `.wait()` the tensor `into` is filled |
#
# In a ring all ranks send and receive at the same time. If everybody called `comm.send` first, everybody would wait for a
# neighbour that waits, too, and nobody would receive. So start both, and then wait for both:
#
# ```python
# inbox = torch.empty_like(theirs)          # as long as what will come
# incoming = comm.irecv(inbox, left)
# outgoing = comm.isend(mine, right)
# incoming.wait()
# outgoing.wait()
# ```
#
# None of your functions may change its input, because another part of the program may still need it.

# %%
# hint("02.1")

# %% [markdown]
# ## 02.1
#
# *Predict · easy · core · 15 minutes.* **You learn** to say what a collective costs before you run it.
#
# Each of `p` ranks holds a float32 tensor of `M` bytes. They add it up in two ways, and in a third run rank 0 gives its tensor to all:
#
# | way | who sends to whom | how |
# | --- | --- | --- |
# | naive | all → rank 0, which sums → all | one partner at a time, because a rank has one port |
# | ring | chunks of M/p go round | p-1 steps to be summed, and p-1 to be handed out |
# | tree | 0 → 1, then 0 → 2 and 1 → 3, … | a broadcast: who has the tensor helps to pass it on |
#
# On four ranks the root of the naive way receives 3 tensors in 3 steps. In the ring each rank sends 3 chunks, and then 3 more.
# The tree has reached everybody after 2 steps. The cell below prints *your* p and M.

# %% nbgrader={"grade": false, "grade_id": "02-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
transfer = given("02.1", GRADE_SEED)
print(f"p = {transfer.p} ranks, M = {transfer.M:,} bytes")
print(
    f"NVLINK.time_s(nbytes) = {NVLINK.alpha_s * 1e6:g} us + nbytes "
    f"/ ({NVLINK.bandwidth_bytes_per_s / 1e9:g} GB/s)"
)

# %% [markdown]
# Replace each `None` by an expression in `p` and `M`:
#
# | name | all-reduce or broadcast of M bytes on p ranks |
# | --- | --- |
# | `naive_root_receives` | naive all-reduce: bytes that rank 0 receives |
# | `naive_steps` | naive all-reduce: steps, in and out |
# | `ring_rank_sends` | ring all-reduce: bytes that each rank sends |
# | `ring_steps` | ring all-reduce: steps |
# | `tree_steps` | tree broadcast: steps |
# | `tree_root_sends` | tree broadcast: bytes that the root sends |
# | `ring_time` | ring all-reduce over NVLink: seconds |
# | `ring_time_of_4_bytes` | the same for a tensor with a single float32, which cannot be cut: seconds |
#
# A step takes as long as its largest message, which is `NVLINK.time_s(nbytes)`.

# %% nbgrader={"grade": false, "grade_id": "02-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
p, M = transfer
### BEGIN SOLUTION
naive_root_receives = (p - 1) * M
naive_steps = 2 * (p - 1)
ring_rank_sends = 2 * (p - 1) * M // p
ring_steps = 2 * (p - 1)
tree_steps = p.bit_length() - 1
tree_root_sends = tree_steps * M
ring_time = ring_steps * NVLINK.time_s(M / p)
ring_time_of_4_bytes = ring_steps * NVLINK.time_s(4)
### END SOLUTION
numbers = ...
check("02.1", numbers, seed=GRADE_SEED)

# %% [markdown]
# ## 02.2
#
# *Write · medium · core · 25 minutes.* **You learn** how a sum can grow while its parts travel.
#
# Every rank has a tensor. Afterwards rank 0 holds chunk 0 of the sum, rank 1 holds chunk 1, and so on:

# %%
from course_lib.viz import who_holds_what

who_holds_what("reduce_scatter", world_size=4)

# %% [markdown]
# Follow chunk 0 on three ranks. Call it `a0` on rank 0, `b0` on rank 1 and `c0` on rank 2. Its sum has to end on rank 0, so
# its way starts just past that rank, on rank 1:
#
# ```text
#            rank 0                rank 1               rank 2
# start      a0                    b0                   c0
# step 1                            └───────────────────►│
#            a0                                          b0+c0
# step 2      │◄──────────── round the ring ──────────────┘
#            a0+b0+c0  done
# ```
#
# Chunks 1 and 2 do the same at the same time, one and two ranks further on. So in every step each rank sends one chunk to its
# neighbour, receives another from the other side, and adds its own part.
#
# **Target:** a ring, in which each rank sends to one neighbour only. It takes p-1 steps with one chunk each, so each rank sends
# (p-1)/p of the tensor. Chunks are those of `x.tensor_split(world_size)`, which may differ by one row.


# %% nbgrader={"grade": false, "grade_id": "02-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_reduce_scatter(x):
    """Return this rank's chunk of the sum of all ranks' x.

    On 2 ranks with x = [1, 2, 3] and x = [10, 20, 30], rank 0 returns [11, 22] and rank 1 returns [33].
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = x.clone().tensor_split(world_size)
    ### BEGIN SOLUTION
    for step in range(1, world_size):
        sent = chunks[(rank - step) % world_size]
        mine = chunks[(rank - step - 1) % world_size]
        inbox = torch.empty_like(mine)
        incoming = comm.irecv(inbox, left)
        outgoing = comm.isend(sent, right)
        incoming.wait()
        outgoing.wait()
        mine += inbox
    return chunks[rank]
    ### END SOLUTION


check("02.2", ring_reduce_scatter)

# %% [markdown]
# Do you want to look inside? Run your function yourself, and print what you like on the ranks:
#
# ```python
# def try_it():
#     x = torch.ones(6) * 10 ** dist.get_rank()      # 1s, 10s, 100s: you see who is in a sum
#     return ring_reduce_scatter(x)
#
# run_ranks(try_it, 3, timeout=5)
# ledger().matrix()                                  # bytes from each rank to each rank
# ```

# %% [markdown]
# ## 02.3
#
# *Write · easy · core · 10 minutes.* **You learn** the other half of the ring: pass on, do not add.

# %%
who_holds_what("all_gather", world_size=4)

# %% [markdown]
# In step 1 each rank sends its own chunk, its *shard*, to the right. In every later step it passes on what has just come in:
#
# ```text
#            rank 0       rank 1       rank 2
# start      A . .        . B .        . . C
# step 1     A . C        A B .        . B C
# step 2     A B C        A B C        A B C
# ```
#
# `length` is the number of rows of the whole. From it you know the size of every shard, even where the ranks do not divide
# the length, and you can make room for the whole result at once.
#
# **Target:** a ring again. It takes p-1 steps, and each rank sends (p-1)/p of the whole tensor.


# %% nbgrader={"grade": false, "grade_id": "02-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_all_gather(shard, length):
    """Return the whole tensor of `length` rows; this rank has `shard`, its part by torch.tensor_split.

    On 2 ranks with shard = [11, 22] and shard = [33], and length = 3, both return [11, 22, 33].
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    ### BEGIN SOLUTION
    whole = torch.empty((length, *shard.shape[1:]), dtype=shard.dtype)
    chunks = whole.tensor_split(world_size)
    chunks[rank].copy_(shard)
    for step in range(1, world_size):
        sent = chunks[(rank - step + 1) % world_size]
        room = chunks[(rank - step) % world_size]
        incoming = comm.irecv(room, left)
        outgoing = comm.isend(sent, right)
        incoming.wait()
        outgoing.wait()
    return whole
    ### END SOLUTION


check("02.3", ring_all_gather)

# %% [markdown]
# ## 02.4
#
# *Write · easy · core · 10 minutes.* **You learn** why "an all-reduce is a reduce-scatter and an all-gather" may be the
# most useful sentence of this course. ZeRO takes the two halves apart.
#
# Put your two functions together. If one of them is not ready yet, `comm.reduce_scatter(x)` and
# `comm.all_gather(shard, length=...)` do the same and count as well.
#
# There is one difficulty. A tensor of shape (2, 16) has two rows, which are too few for four ranks. Its 32 numbers are enough,
# so cut the *flattened* tensor.
#
# **Target:** 2(p-1) steps, in which each rank sends 2(p-1)/p of the tensor. Any shape may come in, and the same shape goes out.


# %% nbgrader={"grade": false, "grade_id": "02-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_all_reduce(x):
    """Return the sum of all ranks' x, in the shape of x, on every rank."""
    ### BEGIN SOLUTION
    shard = ring_reduce_scatter(x.reshape(-1))
    return ring_all_gather(shard, x.numel()).reshape(x.shape)
    ### END SOLUTION


check("02.4", ring_all_reduce)

# %% [markdown]
# ## 02.5
#
# *Write · medium · extra · 20 minutes.* **You learn** to trade one busy rank for many helpers, and to write for any
# number of ranks.
#
# ```text
#            rank 0   rank 1   rank 2   rank 3   rank 4   rank 5
# start        x
# step 1       x ─────► x                                            2 have it
# step 2       x ──────────────► x
#                       x ──────────────► x                          4 have it
# step 3       x ────────────────────────────────► x
#                       x ────────────────────────────────► x        everybody
# ```
#
# Those who have the tensor send it one rank further in the first step, two ranks further in the second, then four. So the
# number of those who have it doubles. If another rank is the source, number the ranks from there.
#
# **Target:** ceil(log2 p) steps instead of p-1, on seven ranks too, and every rank but the source receives the tensor exactly once.


# %% nbgrader={"grade": false, "grade_id": "02-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tree_broadcast(x, src):
    """Return rank src's x on every rank. Elsewhere x only shows shape and dtype;
    its values do not matter.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    x = x.clone()
    me = (rank - src) % world_size  # 0 is the source, whoever it is
    distance = 1
    while distance < world_size:
        if me < distance and me + distance < world_size:
            comm.send(x, (me + distance + src) % world_size)
        elif distance <= me < 2 * distance:
            comm.recv(x, (me - distance + src) % world_size)
        distance *= 2
    return x
    ### END SOLUTION


check("02.5", tree_broadcast)

# %% [markdown]
# ## 02.6
#
# *Write · easy · useful · 15 minutes.* **You learn** to keep traffic off the slow links, with process groups.
#
# Two nodes of two ranks. Inside a node, which is one NVLink domain here, the link is fast. Between nodes it is slow:

# %%
print(f"NVLink, inside the domain: {NVLINK.bandwidth_bytes_per_s / 1e9:g} GB/s one way between two GPUs")
print(f"InfiniBand, between nodes: {INFINIBAND.bandwidth_bytes_per_s / 1e9:g} GB/s one way")

# %% [markdown]
# ```text
#          node 0                    node 1
#       rank 0   rank 1           rank 2   rank 3
#         └─ inside ─┘              └─ inside ─┘        groups [0, 1] and [2, 3]
#         └──────────── between ──────┘                 groups [0, 2] ...
#                  └──────────── between ──────┘        ... and [1, 3]
# ```
#
# Your function gets the two groups of its rank. The library's collectives take a group: `comm.reduce_scatter(x, group=inside)`
# adds up within the node alone and leaves each rank one chunk of that sum. Chunks may differ by one row, so on the way back
# all-gather has to be told the length of the whole, `comm.all_gather(shard, length=len(x), group=inside)`.
#
# **Target:** between the nodes each rank adds up *one chunk*, here a half of the tensor, and nothing crosses but the all-reduce of
# this chunk. Use `comm.reduce_scatter`, `comm.all_reduce` and `comm.all_gather`. All three return their result and leave your tensor
# as it was.


# %% nbgrader={"grade": false, "grade_id": "02-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def hierarchical_all_reduce(x, inside, between):
    """Return the sum of all ranks' x (one dimension) on every rank.

    inside: the group of this rank's node. between: the ranks with the same place in the other nodes.
    """
    ### BEGIN SOLUTION
    chunk = comm.reduce_scatter(x, group=inside)
    chunk = comm.all_reduce(chunk, group=between)
    return comm.all_gather(chunk, length=len(x), group=inside)
    ### END SOLUTION


check("02.6", hierarchical_all_reduce)

# %% [markdown]
# ## 02.7
#
# *Write · medium · extra · 15 minutes.* **You learn** the pattern that experts and long contexts live on: everybody has
# something different for each of the others.

# %%
who_holds_what("all_to_all", world_size=4)

# %% [markdown]
# Rank r sends its chunk j to rank j, and puts what it receives into rank order. Its own chunk stays. If all sent to rank 0
# first, rank 0 would be jammed, and the others would wait. So shift: in step s everybody sends s ranks further, and has one
# partner each way.
#
# ```text
# step s = 1     0 ─► 1   1 ─► 2   2 ─► 3   3 ─► 0
# step s = 2     0 ─► 2   1 ─► 3   2 ─► 0   3 ─► 1
# step s = 3     0 ─► 3   1 ─► 0   2 ─► 1   3 ─► 2
# ```
#
# **Target:** p-1 steps, in which each rank sends (p-1)/p of its tensor. All `x` are equally long, but the ranks need not divide
# the length.


# %% nbgrader={"grade": false, "grade_id": "02-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_to_all(x):
    """Chunk j of x goes to rank j; return the chunks that came, in rank order, as one tensor.

    On 2 ranks with x = [1, 2, 3, 4] and x = [5, 6, 7, 8], rank 0 returns [1, 2, 5, 6]
    and rank 1 [3, 4, 7, 8].
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)
    ### BEGIN SOLUTION
    result = [chunks[rank] if r == rank else torch.empty_like(chunks[rank]) for r in range(world_size)]
    for shift in range(1, world_size):
        to, source = (rank + shift) % world_size, (rank - shift) % world_size
        incoming = comm.irecv(result[source], source)
        outgoing = comm.isend(chunks[to], to)
        incoming.wait()
        outgoing.wait()
    return torch.cat(result)
    ### END SOLUTION


check("02.7", all_to_all)

# %% [markdown]
# ## 02.8
#
# *Find the bug · medium · useful · 15 minutes.* **You learn** that a test of values does not see traffic.
#
# `suspect_max` is a ring that finds the largest number over all ranks, place by place. Its results are right on four ranks and
# on three, for every length, and so its tests pass.


# %% nbgrader={"grade": false, "grade_id": "suspect-max", "locked": true, "schema_version": 3, "solution": false, "task": false}
def suspect_max(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    work, inbox = x.clone(), torch.empty_like(x)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)  # chunks are views
    for step in range(world_size - 1):
        i = (rank - step - 2) % world_size
        incoming, outgoing = comm.irecv(inbox, left), comm.isend(work, right)
        incoming.wait()
        outgoing.wait()
        mine[i].copy_(torch.maximum(mine[i], theirs[i]))
    for step in range(world_size - 1):
        i = (rank - step - 1) % world_size
        incoming, outgoing = comm.irecv(inbox, left), comm.isend(work, right)
        incoming.wait()
        outgoing.wait()
        mine[i].copy_(theirs[i])
    return work


# %% [markdown]
# Before you look for the bug, measure. Twelve numbers of float32 are 48 bytes <!-- ="48 bytes" -->, and in a ring each rank should send 2(p-1)/p of that:

# %%
for ranks in (2, 3, 4):
    run_ranks(suspect_max, ranks, torch.arange(12.0))
    print(
        f"{ranks} ranks: each sends {ledger().bytes_sent(0)} bytes, "
        f"a ring needs {2 * (ranks - 1) * 48 // ranks}"
    )

# %% [markdown]
# Write it again without the bug. **Target:** the same results, and each rank sends 2(p-1)/p of the tensor.


# %% nbgrader={"grade": false, "grade_id": "02-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_max(x):
    """Return the element-wise maximum of all ranks' x (one dimension) on every rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    work, inbox = x.clone(), torch.empty_like(x)
    mine, theirs = work.tensor_split(world_size), inbox.tensor_split(world_size)
    ### BEGIN SOLUTION
    for step in range(world_size - 1):
        sent, i = (rank - step - 1) % world_size, (rank - step - 2) % world_size
        incoming, outgoing = comm.irecv(theirs[i], left), comm.isend(mine[sent], right)
        incoming.wait()
        outgoing.wait()
        mine[i].copy_(torch.maximum(mine[i], theirs[i]))
    for step in range(world_size - 1):
        sent, i = (rank - step) % world_size, (rank - step - 1) % world_size
        incoming, outgoing = comm.irecv(mine[i], left), comm.isend(mine[sent], right)
        incoming.wait()
        outgoing.wait()
    return work
    ### END SOLUTION


check("02.8", ring_max)

# %% [markdown]
# ## 02.9
#
# *Find the bug · easy · useful · 10 minutes.* **You learn** what a test with a tolerance cannot see.
#
# The gradients of a small model are short, so latency costs most. That is why `suspect_average` lets whole tensors go round the
# ring once. It takes p-1 steps, half as many as a ring in chunks. Each rank collects what comes in, and then adds it up.


# %% nbgrader={"grade": false, "grade_id": "suspect-average", "locked": true, "schema_version": 3, "solution": false, "task": false}
def suspect_average(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    moving, came = x, {}
    for step in range(1, world_size):
        inbox = torch.empty_like(x)
        incoming, outgoing = comm.irecv(inbox, left), comm.isend(moving, right)
        incoming.wait()
        outgoing.wait()
        came[(rank - step) % world_size] = moving = inbox
    total = x.clone()
    for source in sorted(came):
        total += came[source]
    return total / world_size


# %% [markdown]
# Its author has compared it with one device, and no number was off by more than rounding. Then 2, 3 and 4 ranks
# trained with it. All ranks begin with the same weights, so they should end with one model:


# %%
def off_and_weights():
    rank, p = dist.get_rank(), dist.get_world_size()
    off, weights, generator = 0.0, torch.zeros(1000), torch.Generator().manual_seed(0)
    for _ in range(20):
        gradients = torch.randn(p, 1000, generator=generator)
        average = suspect_average(gradients[rank])
        off = max(off, (average - gradients.double().mean(dim=0)).abs().max().item())
        weights -= 0.1 * average
    return off, tuple(weights.tolist())


for ranks in (2, 3, 4):
    off, weights = zip(*run_ranks(off_and_weights, ranks), strict=True)
    print(f"{ranks} ranks: right to rounding: {max(off) < 1e-6}; models in the end: {len(set(weights))}")

# %% [markdown]
# Find out why four ranks end with three models, not four, and write it again without the bug, from `comm.isend` and `comm.irecv` as the suspect does.
#
# **Target:** the average of any tensors, with the same bits on every rank, on any number of ranks. It still takes p-1 steps,
# and each rank sends no more bytes than the suspect does. Your last bits may differ from ours, as long as all your ranks have the same.


# %% nbgrader={"grade": false, "grade_id": "02-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_average(x):
    """Return the average of all ranks' x (one dimension), the same bits on every rank."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    ### BEGIN SOLUTION
    parts = [x] * world_size  # the own tensor stays at place `rank`; the others are filled
    moving = x
    for step in range(1, world_size):
        inbox = torch.empty_like(x)
        incoming, outgoing = comm.irecv(inbox, left), comm.isend(moving, right)
        incoming.wait()
        outgoing.wait()
        parts[(rank - step) % world_size] = moving = inbox
    return sum(parts) / world_size
    ### END SOLUTION


check("02.9", ring_average)

# %% [markdown]
# ## 02.10
#
# *Write · medium · extra · 15 minutes.* **You learn** to say which all-reduce is the fastest, before anybody runs it.
#
# You are given p ranks, 2 or more, a tensor of M bytes on each of them, and their wires. Write a function that returns the **name** of the
# fastest all-reduce:
#
# | name | what the ranks do |
# | --- | --- |
# | `"ring"` | chunks of M/p bytes go round twice, from neighbour to neighbour |
# | `"recursive_doubling"` | pairs swap whole tensors, with another partner in each step |
# | `"halving_doubling"` | pairs swap halves, then quarters, and so on down to one p-th, and then go the same way back |
# | `"hierarchical"` | reduce-scatter inside each node, all-reduce of one chunk through the nodes, all-gather inside: all by rings |
#
# A wire is a pair `(alpha, beta)`: the latency of a message, and the seconds for each byte. A step takes alpha, and beta for each
# byte that one rank sends in it. `inside` is the wire within a node of `node_size` ranks, and `between` the wire from node to node. Each
# rank has a network card, and `between` is the wire of one card.

# %% [markdown]
# Four rules make the answer unique:
#
# - The hierarchy uses the wire `inside` in its nodes. The doublings pay every step on the wire `between`, though in the library
#   a swap inside a node is faster.
# - The ring leaves a node through all its cards, as NCCL's rings do side by side. So a step takes for each byte the larger of two times:
#   the beta of `inside`, and the beta of `between` divided by `node_size`. But here every step waits for its slowest message, as on the
#   lesson's emulated network, so it takes the alpha of `between`.
# - If p is no power of two, let q be the largest one below it. In recursive doubling and in halving-doubling the
#   p-q ranks that are too many hand in their whole tensors first, and get whole sums at the end. That is one more step of M bytes
#   before and one after. In between, only q ranks swap.
# - `node_size` divides p. If it is 1, each rank is a node with one card: `inside` is not used, the hierarchy *is* the ring, and its
#   name is `"ring"`.
#
# **Target:** the right name, first for 2, 4, 8, … ranks that are all alike (`node_size` is 1), then for any number of them, and then in nodes.
# The tensor may be a single number or many gigabytes, and unlike in 02.1 a chunk counts as M/p bytes in both cases.
# Write the formulas yourself, without `comm_time`.


# %% nbgrader={"grade": false, "grade_id": "02-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fastest_all_reduce(p, M, node_size, inside, between):
    """Return the name of the fastest all-reduce of M bytes on p ranks.

    With wire = (14e-6, 2e-11), fastest_all_reduce(64, 4, 1, wire, wire) is "recursive_doubling".
    """
    alpha, beta = between
    ### BEGIN SOLUTION
    through = (alpha, max(inside[1], beta / node_size)) if node_size > 1 else between
    rounds = p.bit_length() - 1
    q = 2**rounds

    def ring(ranks, nbytes, wire):
        return 2 * (ranks - 1) * (wire[0] + nbytes / ranks * wire[1])

    extra = 2 * (alpha + M * beta) if q < p else 0
    seconds = {
        "ring": ring(p, M, through),
        "recursive_doubling": rounds * (alpha + M * beta) + extra,
        "halving_doubling": 2 * rounds * alpha + 2 * (q - 1) / q * M * beta + extra,
    }
    if node_size > 1:
        seconds["hierarchical"] = ring(node_size, M, inside) + ring(p // node_size, M / node_size, between)
    return min(seconds, key=seconds.get)
    ### END SOLUTION


check("02.10", fastest_all_reduce)

# %% [markdown]
# ## 02.11
#
# *Write · medium · core · 25 minutes.* **You learn** to write a program for several processes without this course.
#
# Every process of a computer has a number, `os.getpid()`, and nobody knows beforehand which one it gets. Write a script in which
# each process learns the sum of the numbers of all, and the sum of those in its own half: the ranks below `world_size // 2`, or
# the others. So of three ranks, one is in the first half and two are in the second;
# in the lesson's script it is two and one. Each process prints one line in this form:
#
# ```text
# rank 2 of 3: own 4711, all 14130, half 9423
# ```
#
# The check starts your text on CPUs as `torchrun` would, so each process finds in its environment who it is. To start it
# yourself, write it into a file, and in a terminal type `torchrun --nproc-per-node 3 my_script.py`.
# [The script of lesson 02](../../notebooks/scripts/02_collectives.py) has all that you need; look there when you are stuck, not first.
#
# **Target:** on two and on three processes every rank prints its line, and all of them end. Nothing of `course_lib` is imported.

# %% nbgrader={"grade": false, "grade_id": "02-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
script = """
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    ### BEGIN SOLUTION
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([os.getpid()])
    dist.all_reduce(total)

    middle = world_size // 2
    halves = [dist.new_group(list(ranks)) for ranks in (range(middle), range(middle, world_size))]
    half = torch.tensor([os.getpid()])
    dist.all_reduce(half, group=halves[int(rank >= middle)])

    print(f"rank {rank} of {world_size}: own {os.getpid()}, all {total.item()}, half {half.item()}")
    dist.barrier()
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main()
"""

check("02.11", script)

# %% [markdown]
# ## 02.12
#
# *Own file · medium · core · 30 minutes.* **You learn** to measure a network so that others can compare your numbers with theirs.
#
# A new cluster is slow, and somebody asks whether the network is to blame. On GPUs one would run `nccl-tests`. Write its like as a script for
# `torchrun`. The check starts it on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `sizes` | bytes of the tensors to measure, each a multiple of 4 |
# | `warm_up` | how many all-reduces of each size are run first and not measured, since the first ones also open connections |
# | `repeats` | how many all-reduces of each size are measured after that, an odd number |
#
# Before each measured all-reduce all ranks meet at a barrier. A rank that came early would otherwise measure how long it waits for the others.
# Only the all-reduce itself stands between the two looks at the clock. On GPUs you would also wait for the GPU before the second look, because
# there a call comes back before its work is done.

# %% [markdown]
# Every rank saves its own seconds, rank 0 as `times0.pt` and so on: a list with a list for each size, which holds a float for each repeat.
# Rank 0 also saves a dict as `answer.pt`:
#
# | key | what it is |
# | --- | --- |
# | `table` | a list of dicts, one for each size, with `bytes`, `seconds`, `algbw` and `busbw` |
# | `alpha`, `beta` | of the line `alpha + beta * bytes` that is nearest to the table's seconds |
#
# `seconds` is the median of the slowest rank: each rank takes the median of its repeats, and the largest of these medians counts. `algbw` is
# bytes by seconds in GB/s, where a GB is $10^9$ bytes. `busbw` is `algbw` times $2(p-1)/p$ on p ranks, so it says what a wire of the
# ring carries, and can be compared with its data sheet.
#
# The seconds span a wide range, so the nearest line is the one with the least sum of squared **relative** errors: each difference
# between the line and a row's seconds is divided by that row's seconds before it is squared.

# %% [markdown]
# **Target:** a table and a line that follow from your own times, and so many all-reduces of each size as the task says and of no other size.
# Tensors of up to sixteen float64 numbers are free. The check does not judge how fast you are, but it notes when each all-reduce begins and when
# your wait for it comes back. Each of your times holds this stretch, and at least one of them is no more than 0.2 ms <!-- =1e3 * checks.module_02.on_the_clock.ALLOWED_S --> longer.
#
# To start it yourself, run `save_script("02.12", bandwidth_test)`. It writes your script and a `task.pt` into a folder, and tells you the line
# for a terminal.

# %% nbgrader={"grade": false, "grade_id": "02-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
bandwidth_test = """
import sys
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    ### BEGIN SOLUTION
    own = []
    for size in task["sizes"]:
        x = torch.zeros(size // 4)
        for _ in range(task["warm_up"]):
            dist.all_reduce(x)
        times = []
        for _ in range(task["repeats"]):
            dist.barrier()
            start = perf_counter()
            dist.all_reduce(x)
            times.append(perf_counter() - start)
        own.append(times)
    torch.save(own, f"{folder}/times{rank}.pt")

    t = torch.tensor([median(times) for times in own], dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    table = []
    for size, seconds in zip(task["sizes"], t.tolist()):
        algbw = size / seconds / 1e9
        busbw = algbw * 2 * (ranks - 1) / ranks
        table.append({"bytes": size, "seconds": seconds, "algbw": algbw, "busbw": busbw})

    rows = torch.stack((1 / t, torch.tensor(task["sizes"]) / t), dim=1)
    alpha, beta = torch.linalg.lstsq(rows, torch.ones(len(t), 1).double()).solution.flatten().tolist()
    if rank == 0:
        torch.save({"table": table, "alpha": alpha, "beta": beta}, f"{folder}/answer.pt")
        for row in table:
            print("{bytes:10} B {seconds:10.6f} s {algbw:8.3f} {busbw:8.3f} GB/s".format(**row))
        print(f"alpha {1e6 * alpha:.1f} us, 1 / beta {1e-9 / beta:.2f} GB/s")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("02.12", bandwidth_test)

# %% [markdown]
# ## Where this leads
#
# Your ring is the all-reduce that data parallel training lives on. [Lesson 03](../../notebooks/03_mlp_ddp.ipynb) puts it behind the backward pass of a real model.
