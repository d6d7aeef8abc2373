# %% [markdown]
# # 09 · Long contexts and experts: one sequence, two ranks
#
# Llama 3.1 405B reads sequences of 131,072 tokens, as long as a book. A single one leaves so many activations that no GPU of 80 GB<!-- =80 --> can hold its part, not even when eight share every matrix.
#
# So two GPUs have to share one *sequence*. **How can they, if every token looks at all tokens before it?** The second half asks another question, and finds the same messages in its answer: why does a model with eight times the weights not cost eight times the work?
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import comm, costs, predict, run_ranks, score, viz
from course_lib.costs import MiB, gathered_context, ring_attention, ulysses
from course_lib.parallel import SequenceCut, Spread, gathered_attention
from course_lib.training import Batches, Decoder, ModelConfig, MoEDecoder, TrainConfig, Trainer
from course_lib.training import (
    balanced,
    context,
    experts,
    fully_shard,
    load_model,
    load_text,
    load_tokens,
    make_mesh,
    recompute,
)
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals, museum

# %%
viz.plot_context_memory()

# %% [markdown]
# Look at the upper two bars. Tensor parallelism alone is far too much. **Sequence parallelism**, from the end of lesson 05, lets each rank do the norms for some positions only, and more than halves the bar. It is still too long, and more ranks of `tp` would leave their node. (A bar is one micro-batch, of which a pipeline keeps several. Nothing is recomputed.)
#
# The lower two bars cut the sequence everywhere: this is **context parallelism**, `cp`. You will be able to
# - compute attention over keys that lie on other ranks, and prove it.
# - say what each of three ways sends, and which one sends least.
# - share causal attention so that no rank waits.
# - send tokens to experts on other ranks and back.
# - find a gradient that is wrong in a model of experts, when the loss says nothing.
#
# *Fifty minutes; the exercises come on top.*
#
# <details><summary>Before you start</summary>You need lessons 02, 05 and 06. Everything on this page ran on CPUs over gloo; NCCL and Slurm did not run for it.</details>

# %% [markdown]
# ## What can be cut, and what cannot
#
# Take six tokens and two ranks. Rank 0 gets tokens 0, 1 and 2, and rank 1 the rest. Most of a decoder does not notice. A norm, a matrix, a GELU: each makes a token's output from that token alone. They are **position-wise**, so a rank with three tokens computes what one device computes for these.
#
# Attention is the exception. The *query* of a token meets the *keys* of all tokens up to itself, and takes a mean of their *values*. In the cell two ranks, still entries of a list, use their own tokens only.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 6, 4)  # of six tokens, four numbers each
sees = torch.ones(6, 6, dtype=torch.bool).tril()  # a token sees itself and those before it


def attention(q, k, v, sees):
    scores = (q @ k.T / 2).masked_fill(~sees, -torch.inf)
    return scores.softmax(-1) @ v


right = attention(q, k, v, sees)  # what one device says
halves = [slice(0, 3), slice(3, 6)]
alone = torch.cat([attention(q[half], k[half], v[half], sees[half, half]) for half in halves])
print([torch.allclose(mine, one) for mine, one in zip(alone, right, strict=True)])

# %% [markdown]
# Rank 0 is right, because under the causal mask its queries see nothing of rank 1. But the queries of rank 1 lack three keys each, and all of its outputs are wrong. They must meet the keys of rank 0. Could rank 1 then compute attention over its own keys, attention over the others', and add the two?
#
# One trap lies in the labels: a token's label is the next token, which may be on another rank. Shift first, then cut.
#
# > **To keep.** All of a decoder but attention works position by position. Only keys and values must travel.

# %% [markdown]
# ## Two softmaxes
#
# Take one query, that of token 5. To its six keys it has these scores, and each value is a single number.

# %%
scores, values = [1.0, 0.0, 2.0, 0.0, 3.0, 1.0], [2.0, 4.0, 1.0, 3.0, 6.0, 2.0]
viz.plot_two_softmaxes(scores, values, carried=False)

# %% [markdown]
# The first two panels are what each half gives alone. In both the bars add up to one, as a softmax must, so together they add up to two. Compare the dashed outlines in the last panel: in the whole, rank 0's keys have become small. For key 4, with its high score, stands on the other side.
#
# But within each half the bars keep their *proportions*. So nothing is lost: each half has to shrink by a factor of its own. Which one? A softmax divides $e^{\text{score}}$ by the sum of all of them. Each half has divided by a sum of its own.
#
# Do it by hand, with rounder numbers. Rank 0's sum is 1 and its result 8. Rank 1's sum is 3 and its result 4. Undo both divisions: rank 0 had 1 · 8, and rank 1 had 3 · 4. Together 20, the sum of all is 4, which makes 5. It is a mean of the two, and each counts as much as its sum.
#
# > **To keep.** Two softmaxes cannot be added, but two *undivided* ones can: carry the sum along, and divide once at the end.
#
# ## The trick, in a few lines
#
# One thing is missing: $e^{\text{score}}$ overflows when scores are large. So a softmax first subtracts the largest score. Two halves have two different maxima, and before their sums are added, both must be brought to the larger one. You have met this in lesson 05, in the loss without logits. A softmax that grows block by block in this way is called an **online softmax**, and FlashAttention is built on it.


# %%
def attend(q, k, v, sees):
    """Of these keys: the largest score, the sum, and the output that is not divided yet."""
    scores = (q @ k.T / 2).masked_fill(~sees, -1e9)  # finite, or a query that sees nothing gives NaN
    largest = scores.amax(-1, keepdim=True)
    terms = (scores - largest).exp()
    return largest, terms.sum(-1, keepdim=True), terms @ v


def put_together(one, other):
    """Bring both to the larger maximum, and add."""
    largest = torch.maximum(one[0], other[0])
    a, b = (one[0] - largest).exp(), (other[0] - largest).exp()
    return largest, a * one[1] + b * other[1], a * one[2] + b * other[2]


mine, theirs = halves[1], halves[0]
own = attend(q[mine], k[mine], v[mine], sees[mine, mine])
far = attend(q[mine], k[theirs], v[theirs], sees[mine, theirs])
_, total, output = put_together(own, far)
print("rank 1 equals one device:", torch.allclose(output / total, right[mine]))
viz.plot_two_softmaxes(scores, values)  # the query of the picture, with what is carried

# %% [markdown]
# What is carried for each query is small: a maximum, a sum, and one row of output. Rank 0's maximum is 2 and the whole's is 3, so its sum and its output shrink by $e^{2-3}$, the *factor*. Rank 1 has the larger maximum and stays as it is. Then sums and outputs are added, and the last row divides. So the keys may come in any order and in any number of pieces.
#
# > **To keep.** With maximum, sum and undivided output, attention can be computed block by block, on any rank, in any order.

# %% [markdown]
# ## First attempt: gather all keys and values
#
# How do the keys come to the queries? The simplest way is one you know: an all-gather, after which each rank has the keys and values of all positions. Its queries stay. This is what **Llama 3** does, and there is a good reason to try it first: backward comes for free.
#
# In forward every rank reads the gathered keys. So each rank finds a *term* of their gradient, from its own queries. The terms have to be added, and each rank wants the sum for its own positions. Add up and keep your part: that is a reduce-scatter, the same pair as in sequence parallelism and in FSDP.

# %%
viz.show_source(gathered_attention)

# %% [markdown]
# Two lines do it. `gather_sequence` gathers forward and reduce-scatters backward. The mask compares positions, because a rank's third query need not be the third token. Rotary angles, too, must know where a token really stands.
#
# What does it cost? In one layer of the 405B, the queries of our long sequence take 4 GiB<!-- =load_model("llama3_1_405b").query_size * 2 * 131072 / GiB -->. Its keys and values take only 0.5 GiB<!-- =2 * load_model("llama3_1_405b").kv_size * 2 * 131072 / GiB -->, because sixteen query heads share one kv head. Eight tensor-parallel ranks cut both once more, and one can afford to gather the keys.
#
# Two things still hurt. Every rank holds all keys and values of a layer, so this part does not shrink, however many ranks you add. And attention cannot begin before the gather has ended.
#
# > **To keep.** Gathering keys and values is simple, and cheap where few kv heads serve many queries. Its memory grows with the whole sequence.

# %% [markdown]
# ## Second attempt: let them go round
#
# Your attention takes its keys in pieces, so nobody needs all of them at once. Put the ranks in a circle, as in lesson 02. Each rank computes with the keys that it has, and meanwhile passes them on to its neighbour. After $p$ steps every query has met every key. This is **ring attention**.

# %%
viz.animate_ring_attention(SequenceCut(12, 3))

# %% [markdown]
# Follow rank 0's colour on the left. Its keys and values visit all ranks, the queries never move. On the right, a row is a rank's queries, and the number in a cell is the step in which it meets these keys. At its end stands what is carried. Some cells say *skip*; we come back to them.
#
# Here it is on four ranks, with your own two functions.


# %%
def goes_round(q, k, v, sees, cut):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = cut.positions(rank)
    here, carried = torch.stack([k[mine], v[mine]]), None
    for step in range(p):
        whose = cut.positions((rank - step) % p)
        if step < p - 1:
            sending = comm.isend(here, (rank + 1) % p)
        found = attend(q[mine], *here, sees[mine][:, whose])  # while the message is under way
        carried = put_together(carried, found) if step else found
        if step < p - 1:
            here = comm.recv(torch.empty_like(here), (rank - 1) % p)
            sending.wait()
    return carried[2] / carried[1]


Q, K, V = torch.randn(3, 16, 4)
triangle = torch.ones(16, 16, dtype=torch.bool).tril()
parts = run_ranks(goes_round, 4, Q, K, V, triangle, SequenceCut(16, 4))
print("equal to one device:", torch.allclose(torch.cat(parts), attention(Q, K, V, triangle)))

# %% [markdown]
# Backward needs more care. Keys and values go round once more. Their *gradients* travel with them, and every rank adds its term. When the last rank has added, they are one place short of home, so they make one hop more than the keys.
#
# So in a whole step the ring sends more than the gather: on four ranks five bytes to three. It buys memory, because a rank holds a few pieces, however many ranks there are, and **overlap**: a message hides behind attention, if computing takes longer than sending. Attention grows with the square of a piece and the message with the piece, so with long pieces it does.
#
# > **To keep.** In ring attention queries stay, keys and values travel, and gradients travel home. It sends more than a gather, hides it, and holds less.

# %% [markdown]
# ## Who has to wait?
#
# Under the causal mask the keys of later tokens are not looked at. So rank 0, with the first part of the sequence, skips all steps but one.
#
# **Predict.** Four ranks, a long sequence, each with a quarter of the positions in order. Which share of *all* attention work, in percent, has the last rank?

# %%
long = SequenceCut(4096, 4)
whole = sum(long.work(rank) for rank in range(4))
predict("percent of the work on rank 3", guess=None, answer=100 * long.work(3) / whole, tolerance=0.05)
viz.plot_causal(SequenceCut(16, 4), SequenceCut(16, 4, "zigzag"))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Cut the triangle into quarters both ways: there are six whole squares and four half ones, on the diagonal. In half squares that is 16, and the last rank has 7 of them. All wait for it, so four ranks are little more than twice as fast as one.
#
# </details>
#
# The cure is in the picture, on the right: cut the sequence into *eight* pieces, and give each rank one from the front and the one as far from the end. Rank 0 has the first and the last, rank 3 the two in the middle. What one piece sees too little, the other sees too much, and all bars are equally long. This order is called **zigzag**.
#
# It costs no byte, since each rank still has as many tokens. But it asks for care with positions: count from 0 on each rank, and angles and mask are wrong, while everything runs.
#
# > **To keep.** Under a causal mask equal pieces are unequal work. Zigzag gives everybody an early piece and a late one.
#
# ## Third attempt: change what is cut
#
# Lesson 05 cut attention too, without any trick, because heads do not look at each other. So why not cut *positions* everywhere, and *heads* in attention alone? Before attention a rank has all heads of some positions. It needs some heads of all positions. Each rank has something for each other rank: that is an **all-to-all**. After attention a second one brings the outputs back. This way is called **Ulysses**.

# %%
piece = 16 * MiB  # queries of one rank, all heads
viz.plot_all_to_all([[piece // 4] * 4] * 4, title="Queries, from positions to heads, on four ranks")

# %% [markdown]
# A row is what one rank has before: all heads of its positions, in four parts. A column is what one rank has after. The diagonal stays where it is. So with $p$ ranks each message is a $p$-th of a piece that is itself a $p$-th of the sequence.
#
# **Predict.** A sequence grows eight times, and so do the ranks, from 8 to 64. There are 64 heads of queries and 64 of keys. How many times as many bytes does each rank send for one layer forward?

# %%
shape = replace(load_model("llama3_1_70b"), n_kv_heads=64)


def sent(way, ranks, config=shape, when="forward"):
    cut = SequenceCut(8192 * ranks, ranks)
    return max(way(config, cut, batch=1, itemsize=2, when=when).sent_bytes)


predict(
    "times as many, by Ulysses", guess=None, answer=sent(ulysses, 64) / sent(ulysses, 8), tolerance=0.15
)
print(f"ring attention: {sent(ring_attention, 64) / sent(ring_attention, 8):.1f} times as many")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Nearly the same! A rank's piece is as long as before, and it gives away nearly all of it, to more ranks in smaller messages. In the ring every rank passes on all pieces but one: 63 of them, and before only 7.
#
# </details>
#
# So is Ulysses always best? It has two weak points. A rank needs at least one query head (a kv head that several need is sent to each), so a model with 64 heads ends at 64 ranks, or at eight if `tp` has taken the others. And it moves queries and outputs, which the others leave at home.
#
# **Predict.** Four ranks, four query heads, and one kv head that all of them share. Count a whole step, forward and backward. How many times as many bytes as the gather does Ulysses send?

# %%
ways = {"ring": ring_attention, "gather": gathered_context, "ulysses": ulysses}
few = replace(shape, hidden_size=512, n_heads=4, n_kv_heads=1)
in_a_step = {name: sent(way, 4, few) + sent(way, 4, few, "backward") for name, way in ways.items()}
times = in_a_step["ulysses"] / in_a_step["gather"]
predict("times as many as the gather", guess=None, answer=times, tolerance=0.2)
for name, nbytes in in_a_step.items():
    print(f"{name:8} {nbytes / MiB:6.1f} MiB")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# With one kv head, keys and values are small, and in the gather only they travel. Ulysses also sends the queries and the outputs, four times as wide, and each rank needs a copy of the one kv head. With eight kv heads in place of one, the gather loses from about sixteen ranks on.
#
# </details>
#
# > **To keep.** Ulysses sends the same however long the sequence, if ranks grow with it and each still has kv heads of its own. Where few kv heads serve many queries, moving the keys is cheaper.

# %% [markdown]
# ## Experts: many weights, little work
#
# So much for long sequences. In Mixtral 8x7B the feed-forward block of each layer stands there *eight* times. These blocks are its **experts**, and the whole is a **mixture of experts**, MoE. In front of them a small matrix, the **router**, gives each token eight scores. The token goes through the two experts with the highest, and their outputs are averaged by its softmax over the two. The other six experts do not compute for this token at all.
#
# **Predict.** Mixtral has 46.7<!-- =model_parameters(load_model("mixtral_8x7b")) / 1e9 --> billion parameters. Attention and embeddings are no experts, and everyone passes them. Through how many billions does one token go?

# %%
MIXTRAL = load_model("mixtral_8x7b")
active = costs.active_parameters(MIXTRAL) / 1e9
predict("billions of parameters for one token", guess=None, answer=active, tolerance=0.05)
for name in ("mixtral_8x7b", "deepseek_v3"):
    model = load_model(name)
    whole, passed = costs.model_parameters(model), costs.active_parameters(model)
    share = f"{passed / 1e9:.1f}, {passed / whole:.0%}"
    print(f"{model.name}: {whole / 1e9:.1f} billion, of which a token passes {share}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Two of eight experts are a quarter of the experts' weights, and what is no expert comes on top. The name misleads: 8 times 7 would be 56, but the eight share one attention. So a token has the work of a small model, and the GPUs the *memory* of a large one.
#
# </details>
#
# > **To keep.** A mixture of experts has the memory of all its experts, and the work of the few that a token passes.
#
# ### To the expert and back
#
# If the memory is what hurts, share the experts over the ranks: this is **expert parallelism**, `ep`. Its ranks read different sequences, as along `dp`, and only the experts are shared. So each rank has some experts and some tokens, and the tokens want experts of other ranks. So tokens travel: every rank sends its rows to the ranks of their experts, the **dispatch**. These compute, and the results go home, the **combine**. It is the all-to-all of Ulysses once more, but with unequal parts, because a router chooses as it likes.

# %%
torch.manual_seed(3)
router = torch.randn(16, 4)
tokens_of_two = torch.randn(2, 8, 16) + 0.5 * router[:, 1]  # sequences that lean towards expert 1
chosen = (tokens_of_two @ router).topk(2, -1).indices
viz.plot_experts(chosen.tolist(), 4, ranks=2)

# %% [markdown]
# Each of sixteen tokens has two lines, to the experts of its choice. The dashed line is a fair share, and one expert has twice as much. Its rank computes longest, and all others wait for it before they get their results. **Load imbalance** is idle time.
#
# A limit on each expert, or a term in the loss, makes it even; *Going deeper* has both.
#
# Before the rows travel, the ranks tell each other how many will come, or nobody would know how much room to make. Backward takes the same ways. And an *expert's gradient* has seen the rows of all these ranks. Keep that thought.
#
# > **To keep.** Dispatch and combine are two all-to-alls with unequal parts. The expert that most tokens choose sets the pace.

# %% [markdown]
# ## Prove it
#
# A small Llama on four ranks: two share each sequence, and two such pairs read different ones. FSDP shards weights and states over all four. Then a small mixture: along one axis two ranks share its sequences, along the other its experts. One device reads the same text, in float64.

# %% varies="the last digits of rounding differ between processors"
SMALL = ModelConfig(
    name="small",
    hidden_size=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=48,
    vocab_size=512,
    tied=False,
)
MIXED = replace(SMALL, name="small mixture", n_experts=4, experts_per_token=2)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32, ragged=True)


def dense_alone(train):
    return Trainer(Decoder(SMALL), train)


def dense_on_ranks(train):
    return Trainer(
        Decoder(SMALL), train, mesh=make_mesh(cp=2, dp=2), apply=(context("ring"), fully_shard())
    )


def mixed_alone(train):
    return Trainer(MoEDecoder(MIXED), train)


def mixed_on_ranks(train, *bugs):
    return Trainer(MoEDecoder(MIXED), train, mesh=make_mesh(ep=2), apply=(experts(), *bugs))


def mixed_and_sharded(train):
    apply = (context("all_gather"), experts(), fully_shard())
    return Trainer(MoEDecoder(MIXED), train, mesh=make_mesh(cp=2, ep=2), apply=apply)


reports = [
    assert_parallel_equals(dense_alone, dense_on_ranks, text, world_size=4),
    assert_parallel_equals(mixed_alone, mixed_and_sharded, text, world_size=4),
]
for report in reports:
    print(f"largest deviation on any rung: {report.max_deviation:.0e}")
viz.plot_ladder(reports[1].deviations, tolerance=reports[1].tolerance)

# %% [markdown]
# Both climb to the top. Whose gradients are added up? A *dense* weight has a term on every rank, along `cp` and along `ep`. An expert has terms along `cp` only. FSDP adds and shards over these axes at once.

# %% [markdown]
# ## Bug museum
#
# Three trainings of our mixture on two ranks, with AdamW. One is sound. The two others have bugs that have happened in well-known libraries. Would you trust A, B or C?

# %% varies="thirty steps of rounding differ between processors"
names = sorted([*museum.EXPERT_BUGS, "sound"], key=lambda name: name[-2:])  # it gives nothing away
exhibits = {"A": names[3], "B": names[2], "C": names[0]}  # print them after you have decided
makers = {
    run: museum.EXPERT_BUGS[name].planted(mixed_on_ranks) if name != "sound" else mixed_on_ranks
    for run, name in exhibits.items()
}
curves = {"one device": museum.curve_alone(mixed_alone, text.batch, 30)}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, text.batch, world_size=2, steps=30)
losses = {name: curve.losses for name, curve in curves.items()}
subtitle = "loss in nats; the broad grey line is one device"
viz.plot_loss_curves(losses, title="Which of these runs would you trust?", subtitle=subtitle)

# %% [markdown]
# **Predict.** In one of these runs the experts' gradients are exactly twice too large, and nothing else is wrong. Which one is it? Say also on which rung it falls: the output, the gradients, their norm, or the parameters after some steps. Then let the ladder speak.

# %%
from textwrap import fill

falls = dict.fromkeys(makers)
for run, make in makers.items():
    try:
        assert_parallel_equals(mixed_alone, make, text, world_size=2, rungs=RUNGS[:5])
    except NotEqual as error:
        falls[run] = error
doubled = next(run for run, name in exhibits.items() if name == names[2])
predict("the run with doubled gradients", guess=None, answer=doubled)
for run, error in falls.items():
    print(f"run {run}", f"falls on: {error.rung}" if error else "is equal on every rung")
    if error:
        for what, words in zip(("expected: ", "found: "), str(error).split("; ", 2)[1:], strict=True):
            print(fill(what + words[:430], 105, initial_indent="    ", subsequent_indent="    "))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The output knows nothing of gradients. The second rung compares each of them with one device's, and names those that differ: in run B the experts' alone.
#
# Why does its curve look right? AdamW divides each gradient by its own size, so one that is *always* twice too large makes nearly the same step: only a small number in the divisor does not grow with it. And where does the factor come from? An expert has seen the rows of all `ep` ranks, so its gradient is their sum already. Where the loss is one sum over all ranks, that is what one wants. Where each rank takes the mean of its own rows, gradients are averaged, and this one has to be divided like all others. If it is not, you get [exactly this](https://github.com/pytorch/pytorch/issues/160285).
#
# In run C the routers, which every rank has, learned on each rank from this rank's tokens alone.
#
# </details>
#
# > **To keep.** Along `ep` an expert's gradient is a sum already. Where gradients are averaged, it is divided by as many ranks as every other one, those along `ep` too.

# %% [markdown]
# ## In PyTorch alone
#
# [`scripts/09_long_contexts.py`](scripts/09_long_contexts.py) is the next stage of the script, with one device's losses: FSDP over all ranks, and two of them share each sequence in zigzag. The differentiable gather is `all_gather_single_autograd` in PyTorch:
#
# `torchrun --nproc-per-node 4 scripts/09_long_contexts.py`
#
# [`scripts/09_experts.py`](scripts/09_experts.py) sends rows to experts and back, and compares outputs and gradients with one device's.
#
# Your turn: in the first script, give each rank its positions in order instead of in zigzag. Remove the folder `checkpoints/` before each start, or it goes on where the last one ended, and has nothing to do. Only `positions_of` has to change, and the losses must stay. *Going deeper* shows what is new.
#
# ## When to use which
#
# | what hurts | take | because |
# | --- | --- | --- |
# | a sequence is too long, few kv heads | gather, zigzag | keys are small, and it is simple |
# | as long, many kv heads, long pieces | ring attention, zigzag | it hides its messages and holds little |
# | as long, many heads, fast wires | Ulysses | it sends least, and attention stays as it was |
# | experts take the memory | expert parallelism, inside the NVLink domain if they fit | two all-to-alls in every layer, which another micro-batch can hide |
# | nothing: it fits, and there are sequences for all | neither | they only add messages |
#
# For its 131,072 tokens **Llama 3** took 16 ranks along `cp`, beside eight along `tp` and 16 pipeline stages, and gathered in zigzag. *Going deeper* says why more than four.
#
# > **To keep.** Share a sequence when it does not fit, or when there are more GPUs than sequences. Share experts when they do not fit.
#
# ## The file behind this lesson
#
# [`course_lib/parallel/sequence/ring_attention.py`](../course_lib/parallel/sequence/ring_attention.py), about 115 lines, is your ring. It adds backward, in which gradients travel home, and pieces of unequal length. In place of maximum and sum it carries one number, `lse`, the maximum plus the logarithm of the sum, beside an output that is divided already.
#
# ## What still hurts
#
# All our messages had good wires. But your other eight GPUs stand in another house, joined by the internet. There even one gradient a step is too much. Lesson 10 sends less than everything, and asks what is lost by it.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/09_long_contexts_and_experts.ipynb), then [lesson 10](10_less_talk.ipynb) for slow lines, or [lesson 12](12_on_the_cluster.ipynb) on the cluster.
#
# <details><summary>1. Somebody counts rotary angles from 0 on each rank. Which ranks are wrong, and on which rung does it show?</summary>
# All but the first, and in zigzag also the first, in its second piece. It shows in the output already.
# </details>
#
# <details><summary>2. A batch has one sequence, you have 64 GPUs, and everything fits on eight. What do you do with the rest?</summary>
# More ranks along <code>cp</code>: they make this sequence faster. Data parallelism would need more sequences.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part can be read alone, once the cells above have run, and you can skip all of them.
#
# ## Turn the mask yourself

# %%
viz.causal_explorer(length=16, ranks=4, order="zigzag")

# %% [markdown]
# Try a length that does not divide by twice the ranks. The pieces are then unequal, and zigzag is no longer perfect.
#
# ## Too many tokens for one expert
#
# There are two remedies, and both have a price. A **capacity** is a limit: an expert takes so many tokens of a sequence, and those that come later are **dropped**, they skip it. A **balance loss** is added to the loss, and grows when the router prefers some experts. Too small, and it does not help; too large, and the router thinks of nothing else.

# %%
viz.plot_experts(chosen.tolist(), 4, ranks=2, capacity=1.25)

# %% [markdown]
# With a capacity of 1.25 fair shares the long bar is cut, and what stood above it is lost.
#
# ## Dispatch and combine, the code

# %%
viz.show_source(Spread.dispatch)

# %% [markdown]
# The counts travel first, then the rows. They arrive by rank and are wanted by expert, so they are sorted, and what comes of them goes back the same way.
#
# ## What is new in the script

# %%
viz.show_difference(Path("scripts/08_resume.py"), Path("scripts/09_long_contexts.py"))

# %% [markdown]
# Most of it is what no longer stands there: no plan for tensor parallelism. New are a rank's positions, in angles and mask, and the gather.
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `gather_sequence` | `all_gather_single_autograd` | both names stand in a module that begins with an underscore |
# | `comm.all_to_all_uneven` | `all_to_all_single_autograd` | one tensor and sizes, in place of lists |
# | `context("ring")` | `context_parallel(...)` | needs a GPU: on CPUs it does not run in version 2.13 |
#
# ## Why more than four ranks along `cp`?
#
# The first picture says that four are enough for one of Llama 3's sequences at a time. (It took 14 stages, which divide the layers, where they took 16.) But a batch of 16<!-- =131072 * 128 // 2**20 --> million tokens has only 128 of these sequences. With `cp` 4 each of 32 replicas would have four sequences for 16 stages, and lesson 04's formula makes 79 %<!-- =100 * 15 / (4 + 15) --> of a step bubble. With `cp` 16 it has sixteen, 48 %<!-- =100 * 15 / (16 + 15) --> are bubble, and each GPU has a quarter of the positions.
#
# Lesson 08 took the price of `cp` on trust. Its planner now knows the three ways. Look for the line that begins with *along cp*:
#
# `python -m course_lib plan model=llama3_1_405b cluster=dgx_h100 cluster.n_nodes=2048 sequence=131072 batch=128 tp=8 pp=16 cp=16`
#
# It finds the ring cheapest here. Meta gathered because that is simple, and any mask works with it.
#
# ## When does the ring hide its messages?
#
# Let a rank have $c$ tokens. To meet one piece of keys it computes $4 c^2 H$ operations, and meanwhile it sends $4 c H$ bytes, if there are as many kv heads as query heads, in two bytes a number. So computing takes longer if $c$ is larger than the GPU's operations a second over the wire's bytes a second.

# %%
a100 = 312e12  # operations a second, by its data sheet
for name, bytes_per_s in (("NVLink, 300 GB/s", 300e9), ("InfiniBand, 12.5 GB/s", 12.5e9)):
    print(f"{name:22} pieces of {a100 / bytes_per_s:,.0f} tokens or more")

# %% [markdown]
# Table 2 of *Ring Attention* counts in the same way. With one kv head for sixteen query heads a sixteenth is enough. Under a causal mask half of the products fall away, and twice as much is needed.
#
# ## Packed documents
#
# A long sequence is often made of several documents, and no token should look into another one. Then the triangle becomes several small ones, and zigzag is no longer fair: a rank may have two pieces with little to see. Frameworks balance by work instead, or cut every document into pieces for all ranks.
#
# ## Losses that are no mean over tokens
#
# The balance loss multiplies two means: the share of choices that fell on an expert, and its mean probability. A product of means is not a mean of products. Taken over each rank's batch, every layout has another loss, and the ladder says so. Taken for each *sequence*, as in DeepSeek-V3, it is the same however sequences are spread. Where `cp` shares a sequence, the counts are added up over its ranks; they have no gradient, so that is exact.
#
# Capacity asks who came *first* in a sequence. A rank that has some positions cannot know that without the others, so `context()` refuses a model with a capacity. That refusal is worth more than a number that depends on the layout.


# %% tags=["raises-exception"]
def with_capacity():
    model = MoEDecoder(MIXED, capacity=1.0)
    return Trainer(model, TrainConfig(), mesh=make_mesh(cp=2), apply=(context(),)).local.layout


run_ranks(with_capacity, 2)

# %% [markdown]
# ## A last exhibit: twice the balance loss
#
# A colleague trains the mixture with a balance loss, and shows its sum over the layers in the log. To save memory she lets the layers be **recomputed** in backward. The loss keeps falling. But look at what her log says of the balance loss before and after.


# %%
def balanced_alone(train):
    return Trainer(MoEDecoder(MIXED), train, apply=(balanced(0.1),))


def balanced_on_ranks(train, again):
    saver = [recompute()] if again else []
    apply = (experts(), *saver, balanced(0.1), museum.balance_shown)
    return Trainer(MoEDecoder(MIXED), train, mesh=make_mesh(ep=2), apply=apply)


def logged(again):
    torch.manual_seed(0)
    trainer = balanced_on_ranks(TrainConfig(), again)
    trainer.step(text.batch(0))
    return trainer.model.shown


before, after = (run_ranks(logged, 2, again)[0] for again in (False, True))
print(f"rank 0 shows {before:.2f}; with recomputation {after:.2f}, {after / before:.2f} times as much")
viz.show_source(museum.balance_shown)

# %% [markdown]
# The number is exactly twice as large, as if the balance loss counted double now. She is about to halve its factor.
#
# **Predict.** Call the run before A, and that with recomputation B. Both are compared with one device that trains with the same balance loss. Which of them falls from the ladder: `"A"`, `"B"`, `"AB"` or `"none"`?


# %%
def falls(again):
    try:
        assert_parallel_equals(
            balanced_alone,
            lambda train: balanced_on_ranks(train, again),
            text,
            world_size=2,
            rungs=RUNGS[:5],
        )
        return False
    except NotEqual:
        return True


fallen = "".join(run for run, again in (("A", False), ("B", True)) if falls(again))
predict("the runs that fall", guess=None, answer=fallen or "none")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Neither: both are equal to one device on every rung. A layer that is recomputed runs twice in a step, and whatever hangs on its forward runs twice as well: the line that adds to the log is called once more. The loss is taken only once, after the first forward, so its gradient is right. Had she halved the factor, she would have *made* a bug, and no curve would have told her. In Megatron-LM [just this was reported](https://github.com/NVIDIA/Megatron-LM/issues/1330), and answered: a matter of the display alone.
#
# </details>
#
# > **To keep.** A number that is shown is not yet a number that is trained. Climb before you mend.
#
# ## Sums in the ring
#
# In bfloat16 a sum that is rounded at each of sixteen steps is two or three times as inexact as one that is rounded once. So the library carries the output in float32, whatever the model's type. Keys and values are only passed on, and keep theirs. The sum of their gradients travels in the model's type as well, which halves its bytes, and so it is rounded at every hop: a price that one can also refuse to pay.
#
# ## Backward of the ring, by hand
#
# How can a rank find its term of a gradient without the other ranks' scores? Forward has left `lse` for each query, the logarithm of the *whole* sum. With it a block's weights come out right at once, $P = e^{S - \text{lse}}$. The gradient of a softmax needs one more number for a query, the sum of $P$ times its gradient over *all* keys. But that is the same as the output times its gradient, $\delta = \sum O \cdot dO$, and a rank has both.


# %%
def block_gradients(q, k, v, sees, lse, delta, of_output):
    weights = ((q @ k.T / 2).masked_fill(~sees, -torch.inf) - lse).exp()
    of_scores = weights * (of_output @ v.T - delta) / 2
    return of_scores @ k, of_scores.T @ q, weights.T @ of_output


inputs = [x.clone().requires_grad_() for x in (q, k, v)]
attention(*inputs, sees).square().sum().backward()  # one device
lse = (q @ k.T / 2).masked_fill(~sees, -torch.inf).logsumexp(-1, keepdim=True)
of_output = 2 * right  # of the sum of squares
delta = (right * of_output).sum(-1, keepdim=True)
terms = [
    block_gradients(
        q[mine], k[theirs], v[theirs], sees[mine, theirs], lse[mine], delta[mine], of_output[mine]
    )
    for mine in halves
    for theirs in halves
]
of_keys = torch.cat([terms[0][1] + terms[2][1], terms[1][1] + terms[3][1]])
print("keys' gradients equal one device's:", torch.allclose(of_keys, inputs[1].grad, atol=1e-6))

# %% [markdown]
# Each of the four calls is what one rank computes for one block. The two terms of rank 0's keys come from both ranks, and they meet on the way round.
#
# ## PyTorch's own `context_parallel`
#
# It replaces `scaled_dot_product_attention` inside a `with` block by a ring or a gather, and has zigzag as its load balancer. In version 2.13 it needs a kernel that CPUs do not have: our runs over gloo ended with "does not have a sharding strategy registered". So our scripts use the differentiable collectives below it. On GPUs it is the first thing to try. None of that ran for this page.
#
# ## Deeper in DeepSeek
#
# DeepSeek-V3 has 256 experts in a layer, and its rows cross between nodes. Its authors report about as much time for messages as for computing, and built a schedule in which two micro-batches hide each other's. A token may choose experts on at most four nodes, so that a row crosses between nodes once and spreads inside by NVLink. And it has no balance loss to speak of: a bias for each expert, added to the score only for the choice, rises when the expert has too little to do. A bias that only chooses has no gradient, and does not fight with the loss.
#
# References: Liu, Zaharia and Abbeel 2023, *Ring attention with blockwise transformers*; Milakov and Gimelshein 2018, *Online normalizer calculation for softmax*; Dao et al. 2022, *FlashAttention*; Jacobs et al. 2023, *DeepSpeed Ulysses*; Brandon et al. 2023, *Striped attention*; Grattafiori et al. 2024, *The Llama 3 herd of models*, section 3.3.2; Lepikhin et al. 2020, *GShard*; Fedus et al. 2021, *Switch transformers*; Jiang et al. 2024, *Mixtral of experts*; DeepSeek-AI 2024, *DeepSeek-V3 technical report*.
