# %% [markdown]
# # Exercises 09: long contexts and experts
#
# [Lesson 09](../../notebooks/09_long_contexts_and_experts.ipynb) cut a sequence over several ranks, and then spread experts over them. Here you
# write both yourself: the merge of two softmaxes, a ring that carries keys and values round and brings their gradients home, and the tokens'
# way to their experts and back. Two exercises are files of your own, without this course. If you have one hour, do 09.2 and 09.3.

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
from math import ceil

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 09.1
#
# *Predict · medium · core · 25 minutes.* **You learn** which way of sharing a sequence sends least, and that it depends on the heads of the model.
#
# A sequence is cut over p ranks, and each has S / p positions of it. So queries are on one rank, and most of the keys before them are on
# others. There are three ways to let them meet:
#
# | | way | what travels |
# | --- | --- | --- |
# | 1 | **ring attention** | keys and values go round from rank to rank, and a rank has those of one rank at a time |
# | 2 | **all-gather** | every rank collects all keys and values, and then computes alone |
# | 3 | **Ulysses** | positions change for heads: a rank gets all positions of its own heads, and gives its positions of all other heads away |

# %% nbgrader={"grade": false, "grade_id": "09-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
text = given("09.1", GRADE_SEED)
print(f"S = {text.S:,} positions of one sequence on p = {text.p} ranks")
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
#          scores  values    max  sum                 out
# block 1   1   0  10   20    1   1 + exp(-1) = 1.37  1 · 10 + exp(-1) · 20 = 17.4
# block 2   3   1  30   40    3   1 + exp(-2) = 1.14  1 · 30 + exp(-2) · 40 = 35.4
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
# *Write · hard · core · 40 minutes.* **You learn** to attend to a sequence that no rank ever has.
#
# Each rank has some positions of a sequence: their queries, keys and values. Queries stay where they are, and keys and values go round a ring. In each
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
    largest, total, out = (
        torch.full_like(q[..., 0], -torch.inf),
        torch.zeros_like(q[..., 0]),
        torch.zeros_like(q),
    )
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

# %% [markdown]
# ## 09.4
#
# *Write · hard · core · 60 minutes.* **You learn** to bring gradients home that were made on other ranks.
#
# In forward a rank used the keys of all others and kept none of them. For backward they have to go round once more. But now something
# comes of it for their owner. A key has been seen by queries on many ranks, and each of them has a term of its gradient. So this gradient
# travels with the key: it begins with zeros, and each rank adds its term before it passes both on. With four ranks, this
# happens to the keys of rank 2:
#
# ```text
#             step 0    step 1    step 2    step 3    at last
# keys        rank 2    rank 3    rank 0    rank 1    -
# gradient    rank 2    rank 3    rank 0    rank 1    rank 2
# terms of    q of 2    q of 3    q of 0    q of 1
# ```
#
# After the last term the keys are no longer needed, and their gradient is one hop from home. So it makes a hop more than they do.

# %% [markdown]
# What does one block give backward? A softmax divides by a sum over *all* keys, and a rank has only some of them. It can do its part if
# it knows two numbers for each query.
#
# The first is `lse`, which forward has kept: the logarithm of the sum of exp(score) over all keys that the query sees. So exp(score - lse) is
# what a key weighs in the whole softmax, whichever block it is in.
#
# The second is a mean. If a score grows, its key weighs more and all others less. So the gradient of a score is its weight times the
# difference of two numbers: the gradient of this weight, and the mean of that over all keys, weighed. It looks as if this mean needed messages of its own. But the
# gradient of a weight is the product of `gradient` with a value, and the weighed mean of the values is `out`. So the mean is the
# product of `gradient` with `out`, of the same query, and both are at home.

# %% [markdown]
# `gradient` is that of the output of this rank's positions. `positions`, the scores, and what a query sees are those of 09.3.
#
# **Target:** the gradients of this rank's q, k and v, as one device has them. A rank sends to the next one alone. Keys and values make p - 1
# hops, and their gradients p at most.


# %% nbgrader={"grade": false, "grade_id": "09-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_backward(q, k, v, out, lse, gradient, positions):
    """Return three tensors: the gradients of q, k and v, each (heads, n, D).

    q, k, v, out, gradient: (heads, n, D), lse: (heads, n), those of this rank's n positions.
    positions: for each rank a list of its positions in the text.
    """
    ### BEGIN SOLUTION
    rank, p, root = dist.get_rank(), dist.get_world_size(), q.shape[-1] ** 0.5
    mine = torch.tensor(positions[rank]).unsqueeze(-1)
    mean = (gradient * out).sum(-1, keepdim=True)
    both = torch.stack([k, v])
    of_q, of_both = torch.zeros_like(q), torch.zeros_like(both)

    def hop(x, coming):
        into = x.new_empty(2, len(q), len(positions[coming]), q.shape[-1])
        receiving = comm.irecv(into, (rank - 1) % p)
        comm.isend(x, (rank + 1) % p).wait()
        receiving.wait()
        return into

    for step in range(p):
        source, coming = (rank - step) % p, (rank - step - 1) % p
        keys, values = both
        hidden = mine < torch.tensor(positions[source])
        scores = (q @ keys.mT / root).masked_fill(hidden, -torch.inf)
        weights = (scores - lse.unsqueeze(-1)).exp()
        of_scores = weights * (gradient @ values.mT - mean) / root
        of_q += of_scores @ keys
        of_both += torch.stack([of_scores.mT @ q, weights.mT @ gradient])
        if step < p - 1:
            both = hop(both, coming)
        if p > 1:
            of_both = hop(of_both, coming)
    return of_q, of_both[0], of_both[1]
    ### END SOLUTION


check("09.4", ring_backward)
# hint("09.4")

# %% [markdown]
# ## 09.5
#
# *Write · medium · core · 35 minutes.* **You learn** to share packed documents so that every rank has the same work, and to put them together again.
#
# Under a causal mask a late query has more keys to see than an early one. **Zigzag** order evens that out: cut a document into 2p pieces, and
# rank r of p gets piece r and piece 2p - 1 - r, an early and a late one.
#
# Training rows often hold several documents, one behind the other, and a query sees its own document alone. Take documents of 2 and of 6 tokens
# on two ranks. Zigzag over the whole row gives rank 0 tokens 0, 1, 6 and 7. These have 1, 2, 5 and 6 keys to see, 14 in all, and rank 1 has
# only 10. So each document is cut by itself. With two documents of four tokens it looks like this:
#
# ```text
# row       0  1  2  3  |  4  5  6  7
# rank 0    0        3     4        7     held  0 3 4 7    angles  0 3 0 3
# rank 1       1  2           5  6        held  1 2 5 6    angles  1 2 1 2
# ```
#
# Note the two kinds of numbers. `held` says which tokens of the row a rank has, and `angles` where each of them stands in its own document, as
# rotary embedding wants to know.

# %% [markdown]
# **Target:** four lists, for any lengths and any number of ranks.
#
# | name | what it has |
# | --- | --- |
# | `held` | for each rank the tokens of the row that it has: document after document, of each its early piece and then its late one |
# | `angles` | for each of these the position in its document |
# | `back` | the way back: if `gathered` has the tokens of rank 0, then those of rank 1, and so on, `gathered[back]` is the row |
# | `pairs` | for each rank how many pairs of a query and a key it computes, its own key included |
#
# A document's 2p pieces are those of `torch.tensor_split`. If it is very short, some of them are empty.


# %% nbgrader={"grade": false, "grade_id": "09-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def zigzag(lengths, p):
    """Return four lists: held, angles, back and pairs.

    lengths: the number of tokens of each document. p: the number of ranks.
    """
    ### BEGIN SOLUTION
    held, angles, start = [[] for _ in range(p)], [[] for _ in range(p)], 0
    for length in lengths:
        pieces = torch.arange(length).tensor_split(2 * p)
        for rank in range(p):
            mine = [*pieces[rank].tolist(), *pieces[2 * p - 1 - rank].tolist()]
            angles[rank] += mine
            held[rank] += [start + position for position in mine]
        start += length
    gathered = torch.tensor([token for mine in held for token in mine])
    pairs = [sum(position + 1 for position in mine) for mine in angles]
    return held, angles, gathered.argsort().tolist(), pairs
    ### END SOLUTION


check("09.5", zigzag)
# hint("09.5")

# %% [markdown]
# ## 09.6
#
# *Write · hard · useful · 45 minutes.* **You learn** to turn positions into heads and back, and what becomes of a kv head that two ranks need.
#
# In Ulysses' way ranks share positions everywhere but in attention, and in attention they share heads. So q, k and v travel first: each rank gets all
# positions of its own heads. Then attention there is that of one device, and the output travels back.
#
# A model has A heads of queries and K of keys and values, and query head h reads kv head h // (A // K). Rank r works on part r of the query
# heads, as `torch.arange(A).tensor_split(p)` cuts them. With 6 query heads, 2 kv heads and four ranks:
#
# ```text
#          query heads   kv heads that these read
# rank 0   0 1           0
# rank 1   2 3           0 1
# rank 2   4             1
# rank 3   5             1
# ```
#
# Nobody has a kv head for itself here. So each is sent to every rank that reads it, and every one of these ranks finds a term of its gradient.

# %% [markdown]
# `positions` says which positions each rank has, as in 09.3, and `gradient` is that of the output. `comm.all_to_all_uneven(outgoing, shapes)` sends
# `outgoing[j]` to rank j, and `shapes[j]` is the shape that you expect from rank j. For attention you may take PyTorch's own,
# `torch.nn.functional.scaled_dot_product_attention`, and its backward. Scores are divided by the root of D, and a query sees its own position and those
# before it.
#
# **Target:** the output of this rank's positions, and the gradients of its q, k and v, as one device has them. To each rank travel the
# heads that it works on, and the kv heads that these read, each once.


# %% nbgrader={"grade": false, "grade_id": "09-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ulysses(q, k, v, gradient, positions):
    """Return four tensors: the output, and the gradients of q, k and v.

    q, gradient: (A, n, D), k, v: (K, n, D), all heads of this rank's n positions.
    positions: for each rank a list of its positions in the text.
    """
    ### BEGIN SOLUTION
    rank, p, D = dist.get_rank(), dist.get_world_size(), q.shape[-1]
    heads = torch.arange(len(q)).tensor_split(p)
    group = len(q) // len(k)
    kv_heads = [(own // group).unique() for own in heads]
    order = torch.tensor([at for mine in positions for at in mine]).argsort()

    def to_heads(x, spans):
        shapes = [(len(spans[rank]), len(mine), D) for mine in positions]
        came = comm.all_to_all_uneven([x[span] for span in spans], shapes)
        return torch.cat(came, 1)[:, order]

    def to_positions(x, spans, like):
        shapes = [(len(span), len(positions[rank]), D) for span in spans]
        whole = torch.zeros_like(like)
        came = comm.all_to_all_uneven([x[:, mine] for mine in positions], shapes)
        for span, part in zip(spans, came, strict=True):
            whole[span] += part
        return whole

    pairs = (q, heads), (k, kv_heads), (v, kv_heads)
    mine = [to_heads(*pair).requires_grad_() for pair in pairs]
    reads = heads[rank] // group - kv_heads[rank][0]
    out = torch.nn.functional.scaled_dot_product_attention(
        mine[0], mine[1][reads], mine[2][reads], is_causal=True
    )
    gradients = torch.autograd.grad(out, mine, to_heads(gradient, heads))
    output = to_positions(out.detach(), heads, q)
    of_three = [to_positions(x, spans, like) for x, (like, spans) in zip(gradients, pairs, strict=True)]
    return output, *of_three
    ### END SOLUTION


check("09.6", ulysses)
# hint("09.6")

# %% [markdown]
# ## 09.7
#
# *Write · medium · core · 30 minutes.* **You learn** to write the few lines that decide where each token goes, and why a loss has to watch them.
#
# A layer has E experts and a small matrix, the **router**. For each token the router gives E logits. Their softmax are E probabilities, and
# the token goes to the k experts of the largest ones. What these experts give is added up with k **weights**: the k probabilities, divided by
# their sum, so that they add up to 1.
#
# Nothing stops all tokens from choosing the same expert. Then one GPU works and the others wait. Two things are done against that. The
# first is a limit: an expert takes only so many tokens of each sequence, its **capacity**. A sequence of S tokens makes S · k choices, so a fair share
# is S · k / E. With a `factor` of 1.25 an expert has a quarter more places than that:
#
# ```text
# places = factor · S · k / E, rounded up
# ```
#
# Tokens are served in their order. A choice that finds no place is **dropped**: its weight becomes 0, and the token's other weights
# stay as they are.

# %% [markdown]
# The second is a **balance loss**, one number for each sequence. Take two shares for each expert e. Let f be the part of the sequence's S · k *choices* that
# fell on e, before anybody is dropped, and P the mean of its *probability* over all tokens of the sequence. Then the loss is
#
# $$E \sum_e f_e P_e$$
#
# If all experts are chosen equally often, it is 1, and if everything goes to a few of them, it is larger. f is made of counts and has no gradient. P has one, and
# it pushes down the probability of experts that are chosen too often.
#
# **Target:** three tensors. The weights as (B, S, E), with zeros for experts that were not chosen or had no place. Of each sequence the number of
# choices that were dropped, and its balance loss. Gradients reach the logits through the weights and through P.


# %% nbgrader={"grade": false, "grade_id": "09-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def route(logits, k, factor):
    """Return three tensors: the weights, the dropped choices, and the balance loss.

    logits: (B, S, E). The results: (B, S, E), (B), (B).
    """
    ### BEGIN SOLUTION
    S, E = logits.shape[1:]
    probabilities = logits.softmax(-1)
    values, places = probabilities.topk(k, dim=-1)
    values = values / values.sum(-1, keepdim=True)
    weights = torch.zeros_like(logits).scatter(-1, places, values)
    chosen = torch.zeros_like(logits).scatter(-1, places, 1.0)
    kept = chosen * (chosen.cumsum(1) <= ceil(factor * S * k / E))
    dropped = (chosen - kept).sum((1, 2))
    f, P = chosen.mean(1) / k, probabilities.mean(1)
    return weights * kept, dropped, E * (f * P).sum(-1)
    ### END SOLUTION


check("09.7", route)
# hint("09.7")

# %% [markdown]
# ## 09.8
#
# *Write · hard · core · 45 minutes.* **You learn** to send each row to the rank that has its expert, and to bring back what became of it, for any numbers of rows.
#
# Four ranks share six experts, as `torch.arange(6).tensor_split(4)` cuts them: two, two, one and one. Each rank has rows of its own, and the
# router has chosen. Every row has already been copied for each expert that it goes to, and the rows are sorted by expert. So `counts` says all: the
# first `counts[0]` rows are for expert 0, the next `counts[1]` for expert 1.
#
# ```text
#          has     counts         so it sends
# rank 0   0 1     2 1 3 1 2 1    3 rows to rank 0, 4 to 1, 2 to 2, 1 to 3
# rank 1   2 3     1 1 2 3 1 2    2 rows to rank 0, 5 to 1, 1 to 2, 2 to 3
# ```
#
# Nobody knows how many rows will come, because that follows from other ranks' data. So the counts travel first.
#
# `comm.all_to_all_uneven(outgoing, shapes)` sends `outgoing[j]` to rank j. It returns a list with what has come from each rank, and
# `shapes[j]` is the shape that you expect from rank j. Tensors may have no rows at all.

# %% [markdown]
# Here an expert is one matrix, and of rows x it makes x @ weight. Rows arrive by rank, and you want them by expert, so you have to sort them. The
# results go home in the order in which the rows came, where they stand in the places of these rows.
#
# Backward starts on each rank from the gradient of its output rows, and all messages go once more. Gradients of outputs travel to the experts, as
# the rows did. There each expert makes its weight's gradient from the rows of *all* ranks. Gradients of rows travel home.
#
# **Target:** three things: the output rows, the gradient of the rows, and the gradient of this rank's weights. It must work for any
# counts, and no row travels to any rank but its expert's.


# %% nbgrader={"grade": false, "grade_id": "09-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def through_experts(rows, counts, weights, gradient):
    """Return three tensors: the output, and the gradients of the rows and of the weights.

    rows: (n, in), sorted by expert. counts: (E), how many of them are for each of all E experts.
    weights: (e, in, out), those of this rank's e experts. gradient: (n, out), of the output.
    """
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    parts = list(counts.tensor_split(ranks))
    mine = len(weights)
    coming = torch.stack(comm.all_to_all_uneven(parts, [(mine,)] * ranks))
    to_rank, from_rank = [int(part.sum()) for part in parts], coming.sum(1).tolist()

    def go(x, sizes, expected):
        shapes = [(n, x.shape[1]) for n in expected]
        return torch.cat(comm.all_to_all_uneven(list(x.split(sizes)), shapes))

    order = torch.arange(mine).repeat(ranks).repeat_interleave(coming.flatten()).argsort(stable=True)
    back = order.argsort()
    of_experts = coming.sum(0).tolist()
    xs = go(rows, to_rank, from_rank)[order].split(of_experts)
    gs = go(gradient, to_rank, from_rank)[order].split(of_experts)
    results = torch.cat([x @ w for x, w in zip(xs, weights, strict=True)])
    row_gradients = torch.cat([g @ w.T for g, w in zip(gs, weights, strict=True)])
    weight_gradients = torch.stack([x.T @ g for x, g in zip(xs, gs, strict=True)])
    output = go(results[back], from_rank, to_rank)
    return output, go(row_gradients[back], from_rank, to_rank), weight_gradients
    ### END SOLUTION


check("09.8", through_experts)
# hint("09.8")

# %% [markdown]
# ## 09.9
#
# *Find the bug · hard · useful · 35 minutes.* **You learn** to tell a true complaint from a false one by what the ladder shows, and who divides an expert's gradient.
#
# A trainer spreads experts over `ep` and averages gradients itself. Each rank reads rows of its own, and its loss is multiplied by the number of all
# ranks, so that a mean over all of them gives the whole batch's gradient. The loss contains the balance loss of 09.7.


# %% nbgrader={"grade": false, "grade_id": "suspect-experts", "locked": true, "schema_version": 3, "solution": false, "task": false}
from course_lib.models.moe import MoEDecoder, mixtures_of
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.balance import balanced
from course_lib.training.expert_technique import experts
from course_lib.training.trainer import Trainer


class Suspect(Trainer):
    def __init__(self, model, config, dp=2, ep=2):
        apply = experts(), balanced(0.01), self.averaged
        super().__init__(model, config, mesh=make_mesh(dp=dp, ep=ep), apply=apply)

    def averaged(self, setup):
        """A technique: replicas begin alike, and two groups of ranks are made."""
        setup.begin("replicate", "dp")
        self.everyone = setup.take_over(experts=True)  # all dp x ep ranks
        self.replicas = setup.local.group("dp")  # those that have the same experts
        broadcast_state(setup.model, self.replicas, setup.local.name_of(**{**setup.local.at, "dp": 0}))

    def compute_gradients(self, batch):
        loss = super().compute_gradients(batch)
        for name, parameter in self.local.parameters.items():
            parameter.grad.copy_(self.average(name, parameter.grad))
        return loss

    def average(self, name, gradient):
        group = self.replicas if ".experts." in name else self.everyone
        return comm.all_reduce(gradient, group=group) / group.size()

    def log(self, loss):
        balance = 0.01 * sum(mixture.balance for mixture in mixtures_of(self.model))
        return f"loss {loss + balance.item():.3f}"


class OneDevice(Trainer):
    def __init__(self, model, config):
        super().__init__(model, config, apply=(balanced(0.01),))


# %% [markdown]
# Train it by AdamW beside one device:


# %%
from course_lib.config import ModelConfig, TrainConfig
from course_lib.ranks import run_ranks
from course_lib.verify import NotEqual, assert_parallel_equals

SMALL = ModelConfig(
    name="small",
    hidden_size=8,
    n_layers=2,
    n_heads=2,
    n_kv_heads=2,
    ffn_size=12,
    vocab_size=20,
    tied=False,
    n_experts=4,
    experts_per_token=2,
)


def texts(number):
    tokens = torch.randint(0, 20, (8, 7), generator=torch.Generator().manual_seed(number))
    return tokens[:, :-1], tokens[:, 1:]


def losses(trainer_class):
    torch.manual_seed(0)
    config = TrainConfig(learning_rate=0.01, optimizer="adamw")
    trainer = trainer_class(MoEDecoder(SMALL), config)
    return [trainer.step(texts(number % 4)) for number in range(33)]


one_device, on_ranks = losses(OneDevice), run_ranks(losses, 4, Suspect)[0]
for at in (0, 8, 16, 24, 32):
    print(f"step {at:2}   one device {one_device[at]:.3f}   suspect {on_ranks[at]:.3f}")

# %% [markdown]
# You would not tell these curves apart. Adam divides each step by the size of the gradient, so a gradient that is always too large by
# the same factor leaves hardly a trace. Still, four people have read the code and complain:
#
# | | complaint |
# | --- | --- |
# | 1 | "`log` adds the balance loss to a loss that contains it already. So it counts twice, and its gradient, too." |
# | 2 | "A router sees the tokens of its own rank. Nobody adds up its gradient over `ep`." |
# | 3 | "An expert gets rows from all ranks along `ep`, and its gradient is divided as if they were only its own rank's." |
# | 4 | "Everything is divided by the ranks along `dp`, and dp · ep of them have read rows." |
#
# At most one of them can be right about the gradients. Climb, with `climb(Suspect)`:


# %%
def climb(trainer_class):
    def make(kind):
        return lambda config: kind(MoEDecoder(SMALL), config)

    try:
        print(assert_parallel_equals(make(OneDevice), make(trainer_class), texts, world_size=4))
    except NotEqual as error:
        print(error)


# %% [markdown]
# Write down the number of the complaint that the ladder confirms, the name of the first rung that fails, and how many times too large the wrong
# gradients are. Then write `average` again.
#
# **Target:** the gradients of one device on any mesh of dp × ep. Try it with `climb(Repaired)`. Leave `log` as it is: what it prints is wrong, and
# what it trains is not.


# %% nbgrader={"grade": false, "grade_id": "09-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Suspect):
    def diagnosis(self):
        """Return three things: the number of the true complaint,
        the first rung that fails, and how many times too large those gradients are.
        """
        ### BEGIN SOLUTION
        return 3, "gradients", 2
        ### END SOLUTION

    def average(self, name, gradient):
        """Return what this parameter's gradient is on one device.

        gradient: what backward left on this rank. `self.everyone` and `self.replicas` are groups.
        """
        ### BEGIN SOLUTION
        group = self.replicas if ".experts." in name else self.everyone
        return comm.all_reduce(gradient, group=group) / self.everyone.size()
        ### END SOLUTION


check("09.9", Repaired)
# hint("09.9")

# %% [markdown]
# ## 09.10
#
# *Find the wrong number · medium · useful · 25 minutes.* **You learn** to read a model with experts as two numbers: what has to be stored, and what a token is multiplied with.
#
# Somebody has made a table of four models, in billions of parameters. **Active** are those that one token meets on its way through the model:
#
# | model | in all | active |
# | --- | ---: | ---: |
# | Mixtral 8x7B | 56.0 | 14.0 |
# | Qwen3-30B-A3B | 30.5 | 3.4 |
# | DeepSeek-V3 | 671.0 | 37.6 |
# | Grok-1 | 315.7 | 83.8 |
#
# Three lines were counted from the models' shapes, and one was read off a name. The reports themselves differ from these a little, because they round, or leave
# the embedding out: DeepSeek's says 37, Qwen's 3.3, and xAI's 314. But one line is further off than that.

# %% [markdown]
# Write a function that finds it, in this table and in any other. Each line is a record with what is printed, `total_b` and `active_b`, and with the
# model's sizes:
#
# | field | meaning |
# | --- | --- |
# | `name`, `H`, `L`, `V` | name, width, layers, vocabulary |
# | `tied` | True: the head is the embedding's table, not one of its own |
# | `attention` | parameters of *one* layer's attention, its norms and those beside it included |
# | `F`, `E`, `k` | inner size of an expert, number of experts in a layer, and how many of them a token passes |
# | `shared_F` | inner size of a **shared expert**, a block in each such layer that every token passes; 0: there is none |
# | `dense`, `dense_F` | so many of the L layers have no experts but one block of this inner size, which every token passes |
#
# A block has three matrices, be it an expert or not. Each layer with experts has a router of E × H. A last norm has H parameters. Count all of the embedding as active.
#
# **Target:** the exact counts of each line, difference 0, and the name of the one line that does not agree with them. All printed numbers are rounded
# to a tenth of a billion.


# %% nbgrader={"grade": false, "grade_id": "09-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def find_wrong(lines):
    """Return two things: a list of pairs, all parameters and the active ones of each line, and a name.

    lines: records, as the table above describes them.
    """
    ### BEGIN SOLUTION
    counts, wrong = [], ""
    for c in lines:
        sparse = c.L - c.dense
        tables = c.V * c.H * (1 if c.tied else 2)
        fixed = c.L * c.attention + tables + c.H + c.dense * 3 * c.H * c.dense_F
        fixed += sparse * (c.E * c.H + 3 * c.H * c.shared_F)
        total, active = (fixed + sparse * n * 3 * c.H * c.F for n in (c.E, c.k))
        counts.append((total, active))
        if (round(total / 1e9, 1), round(active / 1e9, 1)) != (c.total_b, c.active_b):
            wrong = c.name
    return counts, wrong
    ### END SOLUTION


check("09.10", find_wrong)
# hint("09.10")

# %% [markdown]
# ## 09.11
#
# *Own file · hard · core · 50 minutes.* **You learn** to train on sequences that several ranks share, with nothing but PyTorch.
#
# Write a script for `torchrun` that trains the small Llama below. Each rank reads some positions of every sequence, and gathers keys and
# values. The check starts it on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which every process starts |
# | `batches` | for each step a pair, `tokens` and `labels`, both (2, 17) |
# | `positions` | for each rank a list of the positions that it reads, from 0 to 15, equally many on each |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
#
# The first 16 tokens of a row are read, and position i is to guess label i + 1. A label of -100 does not count, as
# `F.cross_entropy` has it. So ranks have different numbers of labels to guess, perhaps none. On one device, attention is this:
#
# ```python
# q, k = rotated(q, torch.arange(16)), rotated(k, torch.arange(16))
# return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
# ```

# %% [markdown]
# The loss of a batch is the mean over **all its labels that count**, on whichever rank they are. A rank's share of it is what its own
# positions add: the shares of all ranks add up to the loss. At the end each rank saves a dict as `answer-0.pt`, `answer-1.pt` and so on: under `weights` the
# model's state dict, and under `losses` and `shares` a number for each batch, before its step.
#
# PyTorch has a `context_parallel` of its own, but in release 2.13 it does not run on CPUs. What does run is
# `all_gather_single_autograd(x, dim, group)`. It puts the ranks' parts one behind the other along `dim`, and its backward is a
# reduce-scatter.
#
# **Target:** the weights of one device, with SGD and with AdamW. In each layer a rank gathers its keys and values once, two heads of each, and
# their gradients come back once. In each step the gradients of the weights are summed over the ranks once. Besides that, only losses travel.
#
# To start it yourself, run `save_script("09.11", shared_sequences)`. [The script of lesson 09](../../notebooks/scripts/09_long_contexts.py) does the same
# under FSDP, for one fixed order of positions.

# %% nbgrader={"grade": false, "grade_id": "09-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
shared_sequences = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.nn import functional as F

WORDS, WIDTH, INNER, HEADS, KV_HEADS, DIM, LAYERS = 42, 20, 28, 6, 2, 4, 2


def rotated(x, positions):
    a, b = x.chunk(2, dim=-1)
    angle = positions[:, None] / 100 ** (torch.arange(DIM // 2).double() / (DIM // 2))
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def attention(q, k, v, positions):
    # q is (B, 6, n, 4), k and v are (B, 2, n, 4), positions are those of the task.
    ### BEGIN SOLUTION
    mine, theirs = torch.tensor(positions[dist.get_rank()]), torch.tensor(positions).flatten()
    q, k = rotated(q, mine), rotated(k, mine)
    k, v = (all_gather_single_autograd(x.contiguous(), 2, dist.group.WORLD) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mine[:, None] >= theirs, enable_gqa=True)
    ### END SOLUTION


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, HEADS * DIM, bias=False)
        self.o = nn.Linear(HEADS * DIM, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * DIM, bias=False) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, positions):
        read = self.norm1(x)
        q, k, v = (one(read).unflatten(-1, (-1, DIM)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.o(attention(q, k, v, positions).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, positions):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(self.norm(x))


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    task = torch.load(f"{folder}/task.pt")
    positions = task["positions"]
    model = Model().double()
    model.load_state_dict(task["weights"])
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    ### BEGIN SOLUTION
    mine, losses, shares = positions[rank], [], []
    for tokens, labels in task["batches"]:
        inputs, targets = tokens[:, :-1], labels[:, 1:]  # shift first, then cut
        logits = model(inputs[:, mine], positions)
        total = F.cross_entropy(logits.flatten(0, 1), targets[:, mine].flatten(), reduction="sum")
        loss = total / (targets != -100).sum()  # of all ranks
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        shares.append(loss.item())
        whole = loss.detach()
        dist.all_reduce(whole)
        losses.append(whole.item())
    answer = {"weights": model.state_dict(), "losses": losses, "shares": shares}
    torch.save(answer, f"{folder}/answer-{rank}.pt")
    ### END SOLUTION
    dist.barrier()  # who left first would cut the connections of those who still work
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("09.11", shared_sequences)
# hint("09.11")

# %% [markdown]
# ## 09.12
#
# *Own file · hard · useful · 45 minutes.* **You learn** to spread experts with nothing but PyTorch, and whose gradient is whole afterwards.
#
# Write a script for `torchrun`: a layer of experts over the ranks, forward and backward. The check starts it on 2 and on 4 processes and gives it one argument, a folder. In it
# lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `x`, `gradient` | rows, (13, 6), and the gradient of the output, as large |
# | `router` | (E, 6): a row's logits are row @ router.T |
# | `experts` | (E, 6, 6): an expert with the matrix w makes silu(row @ w) of a row |
# | `k` | so many experts a row goes to |
#
# The task holds everything, but rank r may use only part r of `x`, of `gradient` and of `experts`, as `tensor_split` cuts them, and the whole `router`. On one device the layer is this:
#
# ```python
# shares, chosen = (x @ router.T).softmax(-1).topk(k)
# shares = shares / shares.sum(-1, keepdim=True)
# results = F.silu(torch.einsum("nh,nkhi->nki", x, experts[chosen]))
# output = (results * shares.unsqueeze(-1)).sum(1)
# ```

# %% [markdown]
# Two calls are all that you need to move rows. `dist.all_to_all_single` takes the counts along, which have no gradient. The rows have one, and
# `all_to_all_single_autograd` sends it back the way that the rows came. Both cut their input by a list of sizes, and a size may be 0.
#
# Each rank saves a dict as `answer-0.pt`, `answer-1.pt` and so on: under `output` the output of its own rows, and under
# `gradients` a dict with those of `x`, `router` and `experts`, as one device has them: `x` of its own rows, `experts` of its own experts, and `router` whole.
#
# **Target:** each copy of a row travels to the rank of its expert, its result comes home, and their gradients do the same. Besides that the ranks exchange one
# count for each expert, as int64, and add up the gradient of the router.
#
# To start it yourself, run `save_script("09.12", expert_layer)`.

# %% nbgrader={"grade": false, "grade_id": "09-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
expert_layer = """
import sys

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional as F


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    k, n_experts = task["k"], len(task["experts"])
    x, experts, gradient = (
        task[name].tensor_split(ranks)[rank].clone() for name in ("x", "experts", "gradient")
    )
    router = task["router"]
    for one in (x, experts, router):
        one.requires_grad_()
    ### BEGIN SOLUTION
    here = [len(part) for part in torch.arange(n_experts).tensor_split(ranks)]
    shares, chosen = (x @ router.T).softmax(-1).topk(k)
    shares = shares / shares.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    token = order // k

    counts = torch.bincount(chosen.flatten(), minlength=n_experts)
    coming = torch.empty(ranks * here[rank], dtype=counts.dtype)
    dist.all_to_all_single(coming, counts, [here[rank]] * ranks, here)
    coming = coming.view(ranks, here[rank])
    to_rank = [int(part.sum()) for part in counts.split(here)]
    from_rank = coming.sum(1).tolist()

    arrived = all_to_all_single_autograd(x[token], from_rank, to_rank, dist.group.WORLD)
    expert = torch.arange(here[rank]).repeat(ranks).repeat_interleave(coming.flatten())
    by_expert = expert.argsort(stable=True)
    stretches = arrived[by_expert].split(coming.sum(0).tolist())
    results = torch.cat([F.silu(rows @ w) for rows, w in zip(stretches, experts, strict=True)])
    home = all_to_all_single_autograd(results[by_expert.argsort()], to_rank, from_rank, dist.group.WORLD)
    weighed = home * shares.flatten()[order, None]
    output = torch.zeros_like(x).index_add(0, token, weighed)
    output.backward(gradient)

    dist.all_reduce(router.grad)
    gradients = {"x": x.grad, "router": router.grad, "experts": experts.grad}
    torch.save({"output": output.detach(), "gradients": gradients}, f"{folder}/answer-{rank}.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("09.12", expert_layer)
# hint("09.12")
