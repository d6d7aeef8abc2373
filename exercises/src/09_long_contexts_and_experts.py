# %% [markdown]
# # Exercises 09: long contexts and experts
#
# [Lesson 09](../../notebooks/09_long_contexts_and_experts.ipynb) cut one text over several ranks, and then spread experts over them. Here you
# write both yourself: the merge of two softmaxes, a ring that carries keys and values round and their gradients home, and the tokens'
# way to their experts and back. Two exercises are files of your own, without this course. If you have one hour, do 09.2, 09.3 and 09.8.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("09.1", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with what the course computes. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("09.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
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

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 09.1
#
# *Predict · medium · core · 25 minutes.* **You learn** which way of sharing a text sends least, and that it depends on the heads of the model.
#
# One text is cut over p ranks, and each has S / p positions of it. So queries are on one rank, and most of the keys before them are on
# others. There are three ways to let them meet:
#
# | | way | what travels |
# | --- | --- | --- |
# | 1 | **ring attention** | keys and values go round from rank to rank, and a rank has those of one rank at a time |
# | 2 | **all-gather** | every rank collects all keys and values, and then computes alone |
# | 3 | **Ulysses** | positions change for heads: a rank gets all positions of its own heads, and gives its positions of all other heads away |

# %% nbgrader={"grade": false, "grade_id": "09-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
text = given("09.1", GRADE_SEED)
print(f"S = {text.S:,} positions of one text on p = {text.p} ranks")
print(f"A = {text.A} query heads and K = {text.K} kv heads, of D = {text.D} numbers each")
print(f"a second model is alike, but has only {text.few} kv heads")

# %% [markdown]
# Asked are the bytes that one rank sends for the attention of one layer. Everything is bf16, and all-gather and reduce-scatter are made in a ring.
# The causal mask saves no bytes: every part is sent, whether or not somebody looks at it.
#
# For backward, a ring has kept nothing but each rank's own keys and values, so these go round again. The gradient of a key begins with zero,
# travels with the key, collects a term on each rank, and ends where its key belongs. After an all-gather every rank has kept what it had
# collected. In Ulysses' way heads are never cut. If there are fewer kv heads than ranks, each rank gets the one that its query heads read.
#
# | name | number to give, for one rank and one layer |
# | --- | --- |
# | `kv_bytes` | bytes of the keys and values of all S positions |
# | `ring_forward`, `gather_forward`, `ulysses_forward` | bytes that a rank sends in forward |
# | `ring_backward`, `gather_backward`, `ulysses_backward` | the same in backward |
# | `least` | the number of the way that sends least in forward and backward together |
# | `few_ring`, `few_gather`, `few_ulysses` | bytes in forward and backward together, with the second model |
# | `least_few` | the number of the way that sends least then |

# %% nbgrader={"grade": false, "grade_id": "09-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
A, K, few, D, S, p = text
### BEGIN SOLUTION
kv_bytes = 2 * K * D * S * 2
ring_forward = (p - 1) / p * kv_bytes
gather_forward = ring_forward
ulysses_forward = (p - 1) / p * (2 * A + 2 * K) * D * S / p * 2
ring_backward = ring_forward + kv_bytes
gather_backward = gather_forward
ulysses_backward = ulysses_forward
least = 2 if gather_forward < ulysses_forward else 3
few_ring = few / K * (ring_forward + ring_backward)
few_gather = few / K * 2 * gather_forward
few_ulysses = 2 * (p - 1) / p * (2 * A + 2 * p) * D * S / p * 2
least_few = 2 if few_gather < few_ulysses else 3
### END SOLUTION
sent = ...
check("09.1", sent, seed=GRADE_SEED)
# hint("09.1")

# %% [markdown]
# ## 09.2
#
# *Write · easy · core · 20 minutes.* **You learn** the one trick on which ring attention and FlashAttention stand: two softmaxes can become one.
#
# A query has seen the keys of one block, and then those of another. Of each block it has kept three things. Here are the scores of one
# row, two in each block, and next to each score the value of its key:
#
# ```text
#           scores    values       max   sum                     out
# block 1    1   0    10   20       1    1 + exp(-1) = 1.37      1 · 10 + exp(-1) · 20 = 17.4
# block 2    3   1    30   40       3    1 + exp(-2) = 1.14      1 · 30 + exp(-2) · 40 = 35.4
# ```
#
# `sum` adds up exp(score - max), and `out` adds up exp(score - max) times the value. Attention to block 1 alone would be out / sum = 12.7.
# But what is attention to all four keys? The two quotients do not add up, and their average is wrong too. It lies near 30, since the
# score of 3 is by far the largest.

# %% [markdown]
# **Target:** `max`, `sum` and `out` of both blocks together, as if their keys had been one block. Nothing is divided yet, because a third
# block may come. Scores may be large, in the thousands, and exp of such a number is `inf`, so no power may be above exp(0).
#
# With a causal mask some rows see no key of a block. Such a row has a max of `-inf`, a sum of 0 and an out of 0 there. If it has seen
# nothing in both blocks, it has the same three afterwards.


# %% nbgrader={"grade": false, "grade_id": "09-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def merge(first, second):
    """Return three tensors: the max (..., n), the sum (..., n) and the out (..., n, D) of both blocks.

    first, second: the same three of each block, as a tuple.
    """
    ### BEGIN SOLUTION
    top = torch.maximum(first[0], second[0])
    finite = top.nan_to_num(neginf=0.0)
    one, other = (first[0] - finite).exp(), (second[0] - finite).exp()
    out = one.unsqueeze(-1) * first[2] + other.unsqueeze(-1) * second[2]
    return top, one * first[1] + other * second[1], out
    ### END SOLUTION


check("09.2", merge)
# hint("09.2")

# %% [markdown]
# ## 09.3
#
# *Write · hard · core · 40 minutes.* **You learn** to attend to a text that no rank ever has.
#
# Each rank has some positions of a text: their queries, keys and values. Queries stay where they are, and keys and values go round a ring. In each
# step a rank computes with the block that is there, and then passes it on to the next rank. With four ranks, rank 2 computes in turn
# with the keys of ranks 2, 1, 0 and 3:
#
# ```text
#            step 0    step 1    step 2    step 3
# rank 0       0         3         2         1
# rank 1       1         0         3         2
# rank 2       2         1         0         3
# rank 3       3         2         1         0
# ```
#
# What each row keeps from step to step are the three things of 09.2: max, sum and out. At the end out / sum is its output.

# %% [markdown]
# `positions[r]` is the list of rank r's positions in the text, in the order in which it holds them. They may be in any order, and ranks
# may have different numbers of them. A query sees the keys at its own position and before it, whoever has them. Scores are divided by
# the root of D, the numbers of a head. `comm.isend(x, rank)` and `comm.irecv(into, rank)` return handles with a `wait()`.
#
# **Target:** the output of this rank's positions, as one device has it. A rank sends to the next one alone, (rank + 1) % p: each block
# but that of the next rank, once. So there are p - 1 hops, and with one rank there are none.


# %% nbgrader={"grade": false, "grade_id": "09-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_attention(q, k, v, positions):
    """Return the output of this rank's positions: (heads, n, D).

    q, k, v: (heads, n, D), those of this rank's n positions.
    positions: for each rank a list of its positions in the text.
    """
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor(positions[rank]).unsqueeze(-1)
    both = torch.stack([k, v])
    largest, total, out = torch.full_like(q[..., 0], -torch.inf), torch.zeros_like(q[..., 0]), torch.zeros_like(q)
    for step in range(p):
        source = (rank - step) % p
        if step > 0:
            into = both.new_empty(2, len(q), len(positions[source]), q.shape[-1])
            receiving = comm.irecv(into, (rank - 1) % p)
            comm.isend(both, (rank + 1) % p).wait()
            receiving.wait()
            both = into
        scores = q @ both[0].mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mine < torch.tensor(positions[source]), -torch.inf)
        top = torch.maximum(largest, scores.amax(-1))
        old, powers = (largest - top).exp(), (scores - top.unsqueeze(-1)).exp()
        total = total * old + powers.sum(-1)
        out = out * old.unsqueeze(-1) + powers @ both[1]
        largest = top
    return out / total.unsqueeze(-1)
    ### END SOLUTION


check("09.3", ring_attention)
# hint("09.3")

# ===== below this line: exercises 09.7 and later (joined at the end) =====
