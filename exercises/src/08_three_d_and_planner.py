# %% [markdown]
# # Exercises 08: three axes and a planner
#
# [Lesson 08](../../notebooks/08_three_d_and_planner.ipynb) let a program choose among a million layouts. Here you write its parts: the mesh, the
# price of a step, the rules, the front, and two searches. At the end you leave the formulas: you profile a step of your own, and mend a
# script that stands still. If you have an hour, do 08.2, 08.3 and 08.6.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("08.1", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with what the course computes. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("08.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
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
from math import exp, sqrt

import torch

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 08.1
#
# *Write · easy · extra · 15 minutes.* **You learn** to say with whom each rank talks, however many axes there are.
#
# Eight ranks stand on a mesh of two by two by two. Its axes are `pp`, `dp` and `tp` in this order, and the last one counts fastest:
#
# ```text
#            pp 0                     pp 1
#          tp 0   tp 1              tp 0   tp 1
# dp 0        0      1       dp 0      4      5
# dp 1        2      3       dp 1      6      7
# ```
#
# Take rank 5. Along `tp` it stands with rank 4, along `dp` with rank 7, and along `pp` with rank 1. In each of these groups one
# coordinate changes, and the two others stay. If four GPUs are in a node, only the group along `pp` reaches over two nodes.

# %% [markdown]
# **Target:** for any sizes of three axes the three groups of a rank, in the order of the axes, each from its smallest rank to its largest.
# And a list of three: in how many nodes the ranks of each group sit. Nodes are filled one after the other, and the last one may have free
# places.


# %% nbgrader={"grade": false, "grade_id": "08-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def groups(rank, sizes, per_node):
    """Return four lists: the ranks along the first axis, the second and the third,
    and the number of nodes of each group.

    sizes: how many ranks each axis has; the last one counts fastest.
    per_node: GPUs in a node, one for each rank.
    """
    ### BEGIN SOLUTION
    found, stride = [], 1
    for size in reversed(sizes):
        first = rank - rank // stride % size * stride
        found.insert(0, [first + other * stride for other in range(size)])
        stride *= size
    return *found, [len({other // per_node for other in group}) for group in found]
    ### END SOLUTION


check("08.1", groups)
# hint("08.1")

# %% [markdown]
# ## 08.2
#
# *Predict · medium · core · 20 minutes.* **You learn** why tp belongs inside the NVLink domain, while the other two axes may leave it.
#
# Somebody trains a Llama of 70 billion parameters on three axes. Every node is one NVLink domain of tp GPUs. A stage has L / pp layers, and each of its
# matrices is cut into tp parts. A replica's pipeline gets m micro-batches in a step, each one sequence of S tokens. Everything that is
# sent has bf16 numbers, and every sum is made in a ring.

# %% nbgrader={"grade": false, "grade_id": "08-2-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
policy = given("08.2", GRADE_SEED)
print(
    f"pp = {policy.pp}, dp = {policy.dp}, tp = {policy.tp}; m = {policy.m} micro-batches, "
    f"each a sequence of S = {policy.S} tokens of H = {policy.H} numbers"
)
print(f"L = {policy.L} layers, each of {policy.layer:,} numbers in its matrices")

# %% [markdown]
# Along `tp` ranks add up activations after attention and after feed-forward, in forward and again in backward. Along `pp` a stage sends
# activations on and gradients back. We take one in the middle of the pipeline. Along `dp` ranks average the gradients of their layers, once
# a step. Nothing is cut along the sequence, so an activation is whole on each rank along tp.
#
# | name | number to give, for one GPU and one step; GB are of 10⁹ bytes |
# | --- | --- |
# | `activation` | bytes of one micro-batch between two layers |
# | `tp_gb`, `pp_gb`, `dp_gb` | GB that the GPU sends along each axis |
# | `network_gb` | GB of these that leave its node |
# | `twice_gb` | `network_gb` if the batch is twice as large, with twice as many micro-batches |
#
# Let Python compute: answers are compared to 7 digits.

# %% nbgrader={"grade": false, "grade_id": "08-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
pp, dp, tp, m, S, H, L, layer = policy
### BEGIN SOLUTION
activation = 2 * S * H
tp_gb = m * L / pp * 4 * 2 * (tp - 1) / tp * activation / 1e9
pp_gb = 2 * m * activation / 1e9
dp_gb = 2 * (dp - 1) / dp * 2 * layer * L / pp / tp / 1e9
network_gb = pp_gb + dp_gb
twice_gb = 2 * pp_gb + dp_gb
### END SOLUTION
sent = ...
check("08.2", sent, seed=GRADE_SEED)
# hint("08.2")

# %% [markdown]
# ## 08.3
#
# *Predict · medium · core · 25 minutes.* **You learn** to price a step with a pencil, before a simulator does.
#
# Here is a Llama of 8 billion parameters on nodes of tp H100s with a slow network. Matrix products run at `reached` operations per
# second on each GPU. The ranks along tp are one node, and a ring inside it runs at `fast` bytes per second. Out of a node lead `cards`
# network cards of `card` bytes per second each. NCCL uses all of them, and all rings that leave a node share them equally.

# %% nbgrader={"grade": false, "grade_id": "08-3-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
nodes = given("08.3", GRADE_SEED)
print(f"pp = {nodes.pp}, dp = {nodes.dp}, tp = {nodes.tp}")
print(f"m = {nodes.m} micro-batches of {nodes.tokens} tokens in each pipeline")
print(f"P = {nodes.P:,} parameters in L = {nodes.L} layers, H = {nodes.H}")
print(f"a GPU reaches {nodes.reached / 1e12:.1f} TFLOP/s of its peak of {nodes.peak / 1e12:.0f}")
print(f"{nodes.fast / 1e9:g} GB/s in a ring inside")
print(f"{nodes.cards} cards of {nodes.card / 1e9:g} GB/s lead out of a node")

# %% [markdown]
# Nothing is recomputed, so a parameter costs six operations for each token. Along `tp` the sums of 08.2 are **exposed communication**: the GPU
# waits for them. The **bubble** is (pp - 1) / m of the time that a GPU spends on its micro-batches, as in lesson 04. Along
# `dp` rings average the gradients, and each GPU has P / (tp · pp) of them, in bf16. They may travel while the last micro-batch goes backward. We let this
# backward take two thirds of the time of one micro-batch, its sums along tp included. What is longer than that is exposed as well. Messages along `pp` are
# short, and we leave them out, and all latencies, too.

# %% [markdown]
# | name | number to give |
# | --- | --- |
# | `multiply_s`, `tp_s` | seconds that a GPU multiplies in a step, and that it waits for sums along tp |
# | `bubble_s` | seconds that it waits for other stages |
# | `dp_s` | seconds for all messages along dp, hidden or not |
# | `exposed_s` | seconds of these that nothing hides |
# | `step_s` | seconds of the whole step |
# | `mfu` | **MFU**: the model's own operations as a share of the peak, between 0 and 1 |
# | `fewer_s` | seconds of a step that reads the same batch in half as many micro-batches, each twice as large |

# %% nbgrader={"grade": false, "grade_id": "08-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
pp, dp, tp, m, tokens, P, H, L, reached, fast, cards, card, peak = nodes
### BEGIN SOLUTION
multiply_s = 6 * P * dp * m * tokens / (pp * dp * tp * reached)
tp_s = m * L / pp * 4 * 2 * (tp - 1) / tp * 2 * tokens * H / fast
bubble_s = (multiply_s + tp_s) * (pp - 1) / m
dp_s = 2 * (dp - 1) / dp * 2 * P / (tp * pp) / (cards * card / tp)
exposed_s = max(0, dp_s - 2 / 3 * (multiply_s + tp_s) / m)
step_s = multiply_s + tp_s + bubble_s + exposed_s
mfu = 6 * P * dp * m * tokens / (pp * dp * tp * peak * step_s)
fewer_s = multiply_s + tp_s + 2 * bubble_s + max(0, dp_s - 2 * 2 / 3 * (multiply_s + tp_s) / m)
### END SOLUTION
times = ...
check("08.3", times, seed=GRADE_SEED)
# hint("08.3")

# %% [markdown]
# ## 08.4
#
# *Find the wrong number · medium · extra · 20 minutes.* **You learn** to ask of every share: a share of what?
#
# Somebody has collected four famous runs, to see whose GPUs were busiest. All numbers before the arrows were published. What stands behind
# the arrows was computed from them, and one of the four is not what its label says.

# %% nbgrader={"grade": false, "grade_id": "08-4-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
c = given("08.4", GRADE_SEED)
print(
    f"1  Megatron-LM, 2019: {c.v100s} V100s do {c.together / 1000:g} PFLOP/s, "
    f"one alone {c.alone:g} TFLOP/s"
)
print(f"   -> {c.labels[0]} {c.together / (c.v100s * c.alone):.0%}")
print(f"2  Megatron-LM, 2020: a step takes {c.small_s:g} s on 8 A100s,")
print(
    f"   and {c.large_s:g} s on 1,024 with 128 times as many sequences "
    f"-> {c.labels[1]} {c.small_s / c.large_s:.0%}"
)
print(
    f"3  Megatron-LM, 2021: {c.name} on {c.a100s:,} A100s, "
    f"{c.a100_each:g} of {c.a100_peak:g} TFLOP/s on each,"
)
print(f"   all activations recomputed -> {c.labels[2]} {c.a100_each / c.a100_peak:.0%}")
print(f"4  Llama 3, 2024: 405B on 8,192 H100s, {c.h100_each:g} of {c.h100_peak:g} TFLOP/s on each,")
print(f"   nothing recomputed -> {c.labels[3]} {c.h100_each / c.h100_peak:.0%}")
print()
print(
    f"the run of line 3: {c.parameters:,} parameters, "
    f"{c.tokens:,} tokens in a step, which takes {c.step_s:g} s"
)

# %% [markdown]
# Model FLOPs utilisation, **MFU**, counts what the *model* needs: six operations for each parameter and token, however often the program does
# them. Hardware FLOPs utilisation, **HFU**, counts all that were done. The rates of lines 3 and 4 count what the GPUs have *done*, by each paper's own count.
# Weak scaling gives more GPUs more work, strong scaling gives them the same. The last line says how long a step of line 3's run took.
# Line 1 measures against one GPU alone, and that one reached 0.30 of its own peak.
#
# | name | number to give; shares are between 0 and 1 |
# | --- | --- |
# | `wrong_line` | the number of the line whose label is wrong |
# | `mfu_of_line_3` | the MFU of line 3's run, from the rate in that line |
# | `from_step` | nearly the same share, now from parameters, tokens and the seconds of the step |
# | `done` | the same with all operations that were done |
# | `of_peak` | line 1's 512 GPUs together, as a share of their peak |
# | `of_sparse` | line 4 as a share of the *sparse* peak, which is twice the dense one |

# %% nbgrader={"grade": false, "grade_id": "08-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
wrong_line = 1 + [
    word in label for word, label in zip(("weak", "weak", "HFU", "MFU"), c.labels, strict=True)
].index(False)
mfu_of_line_3 = 6 / 8 * c.a100_each / c.a100_peak
from_step = 6 * c.parameters * c.tokens / (c.a100s * c.a100_peak * 1e12 * c.step_s)
done = from_step * 8 / 6
of_peak = 0.30 * c.together / (c.v100s * c.alone)
of_sparse = c.h100_each / c.h100_peak / 2
### END SOLUTION
shares = ...
check("08.4", shares, seed=GRADE_SEED)
# hint("08.4")

# %% [markdown]
# ## 08.5
#
# *Write · medium · core · 25 minutes.* **You learn** to throw out most of a million layouts before you price any of them, and to say why.
#
# A small planner knows two degrees and a micro-batch. `tp` and `pp` may be any divisor of the number of GPUs, a micro-batch has 1, 2, 4
# or 8 sequences, and `dp` is what is left. That makes 100 layouts for sixteen GPUs. Six rules throw some of them out:
#
# | rule | a layout is thrown out if |
# | --- | --- |
# | `gpus` | tp · pp does not divide the number of GPUs |
# | `node` | tp is larger than a node |
# | `heads` | the heads do not divide by tp |
# | `layers` | the layers do not divide by pp |
# | `batch` | the batch does not divide by dp times the micro-batch |
# | `memory` | `gigabytes(tp, pp, micro)` is more than there is room for |

# %% [markdown]
# The first five cost a division at most. `gigabytes` is a whole formula, so ask it only about a layout that breaks no other rule.
#
# **Target:** all layouts that are possible, in whichever order, and how many each rule has thrown out. A layout that breaks several rules
# counts at the first of them, in the order of the table, and a rule that has thrown out nothing has a count of 0.


# %% nbgrader={"grade": false, "grade_id": "08-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def legal(gpus, per_node, heads, layers, batch, room, gigabytes):
    """Return two things: a list of the possible layouts, each as (tp, pp, micro),
    and a dict that has a count for every rule.

    room: GB of a GPU. gigabytes: a function of tp, pp and the micro-batch.
    """
    ### BEGIN SOLUTION
    degrees = [n for n in range(1, gpus + 1) if gpus % n == 0]
    possible, rejected = [], dict.fromkeys(["gpus", "node", "heads", "layers", "batch", "memory"], 0)
    for tp in degrees:
        for pp in degrees:
            for micro in (1, 2, 4, 8):
                dp = gpus // (tp * pp)
                if gpus % (tp * pp):
                    rejected["gpus"] += 1
                elif tp > per_node:
                    rejected["node"] += 1
                elif heads % tp:
                    rejected["heads"] += 1
                elif layers % pp:
                    rejected["layers"] += 1
                elif batch % (dp * micro):
                    rejected["batch"] += 1
                elif gigabytes(tp, pp, micro) > room:
                    rejected["memory"] += 1
                else:
                    possible.append((tp, pp, micro))
    return possible, rejected
    ### END SOLUTION


check("08.5", legal)
# hint("08.5")

# %% [markdown]
# ## 08.6
#
# *Write · easy · core · 15 minutes.* **You learn** which of a thousand layouts are worth a second look.
#
# A layout is *beaten* if another one is at least as good in time and in memory, and better in one of them. What nobody beats is the Pareto
# front. Of these five, the one at place 4 is beaten by place 3, and place 2 by place 0:
#
# ```text
# place       0     1     2     3     4
# seconds     5     4     6     7     9
# GB         60    70    65    40    55
# ```
#
# The front is `[3, 0, 1]`: each of them needs more memory than the one before, and is faster.
#
# **Target:** the places of the front, the smallest memory first. Of layouts that are equal in both, the first one stays. Twenty thousand
# layouts must take less than a second.


# %% nbgrader={"grade": false, "grade_id": "08-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def front(seconds, gigabytes):
    """Return the places of the layouts that nobody beats, as a list of whole numbers.

    seconds, gigabytes: a list each, with a number for every layout.
    """
    ### BEGIN SOLUTION
    kept, fastest = [], float("inf")
    for place in sorted(range(len(seconds)), key=lambda place: (gigabytes[place], seconds[place])):
        if seconds[place] < fastest:
            kept.append(place)
            fastest = seconds[place]
    return kept
    ### END SOLUTION


check("08.6", front)
# hint("08.6")

# %% [markdown]
# ## 08.7
#
# *Write · hard · extra · 50 minutes.* **You learn** to find the best of more cuts than anybody could try.
#
# Layers are not alike. An embedding takes hardly any time, the head takes as long as some layers, and some layers are larger than others.
# GPUs are not always alike either. Give each stage some neighbouring layers, so that the *slowest* stage is as fast as possible, since
# all others wait for it:
#
# ```text
# seconds      0.5  3  7  |  4  4  2  3  |  2  9       three stages, all of speed 1
# stages          10.5    |      13      |   11        in no other cut are all below 13
# ```
#
# You could try all cuts of nine layers, but 128 layers on 16 stages have more than 10¹⁹ of them.

# %% [markdown]
# Dynamic programming needs none of that. Suppose that somebody has already told you, for every number of layers that may be left, the best
# for the stages *after* the first. Then you would only try where the first stage ends.
#
# **Target:** the number of layers of each stage, at least one for each. A stage takes the seconds of its layers, divided by the speed of its
# GPU. Where several cuts are equally good, any of them is right. 128 layers on 16 stages take a few seconds at most.


# %% nbgrader={"grade": false, "grade_id": "08-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def assign(seconds, speeds):
    """Return how many layers each stage has: a list of whole numbers.

    seconds: of each layer on a GPU of speed 1. speeds: of each stage's GPU, in the order of the stages.
    """
    ### BEGIN SOLUTION
    n, p = len(seconds), len(speeds)
    best = {
        (n, p): (0.0, [])
    }  # (first layer, stage): the slowest of the stages from this one on, and their sizes
    for stage in reversed(range(p)):
        for first in range(stage, n):
            here, choices = 0.0, []
            for end in range(first + 1, n + 1):
                here += seconds[end - 1] / speeds[stage]
                if (end, stage + 1) in best:
                    rest, sizes = best[end, stage + 1]
                    choices.append((max(here, rest), [end - first, *sizes]))
            if choices:
                best[first, stage] = min(choices)
    return best[0, 0][1]
    ### END SOLUTION


check("08.7", assign)
# hint("08.7")

# %% [markdown]
# ## 08.8
#
# *Predict · medium · extra · 30 minutes.* **You learn** to plan for stops, which come whether you plan for them or not.
#
# While Llama 3.1 405B was trained, Meta counted how often the run stopped without being asked to:

# %% nbgrader={"grade": false, "grade_id": "08-8-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
fleet = given("08.8", GRADE_SEED)
print(f"{fleet.gpus:,} GPUs, {fleet.stops} stops in {fleet.days} days")
print(f"a checkpoint of {fleet.nbytes:,} bytes, a storage that takes {fleet.storage / 1e12:g} TB/s")
print(f"{fleet.restart_min:g} minutes from a stop until training goes on")
print(f"and a cluster of {fleet.more:,} such GPUs, with the same storage")

# %% [markdown]
# Any GPU that fails stops all of them. Three things then cost time. While a checkpoint is written, nobody trains. A stop destroys all work
# since the last checkpoint, and it comes at any moment, as likely soon after one as shortly before the next. And each stop costs a restart.
# Say that a run writes a checkpoint every τ seconds, that one takes δ, and that a stop comes every M seconds: which share of the time is
# lost to each of the three? Write less often, and one of them shrinks while another grows. Where is their sum least?
#
# | name | number to give |
# | --- | --- |
# | `mtbf_h` | hours from one stop of the run to the next, on average |
# | `gpu_years` | years from stop to stop if a single GPU ran alone, with 365.25 days in a year |
# | `checkpoint_s` | seconds to write a checkpoint |
# | `interval_min` | the best interval, in minutes |
# | `goodput` | the share of the time that trains, by these three losses |
# | `lazy_min` | the longest interval, in minutes, that loses only 0.01 of all the time more than the best one |
# | `larger_min`, `larger_goodput` | the same two for the larger cluster |

# %% nbgrader={"grade": false, "grade_id": "08-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
gpus, days, stops, nbytes, storage, restart_min, more = fleet
### BEGIN SOLUTION
mtbf_h = 24 * days / stops
gpu_years = mtbf_h * gpus / (24 * 365.25)
checkpoint_s = nbytes / storage
interval_min = sqrt(2 * checkpoint_s * 3600 * mtbf_h) / 60
goodput = 1 - checkpoint_s / (60 * interval_min) - (30 * interval_min + 60 * restart_min) / (3600 * mtbf_h)
lazy_min = interval_min + 60 * mtbf_h * (0.01 + sqrt(0.01**2 + 0.02 * interval_min / (60 * mtbf_h)))
larger_min = interval_min * sqrt(gpus / more)
larger_goodput = (
    1
    - checkpoint_s / (60 * larger_min)
    - (30 * larger_min + 60 * restart_min) / (3600 * mtbf_h * gpus / more)
)
### END SOLUTION
plan = ...
check("08.8", plan, seed=GRADE_SEED)
# hint("08.8")

# %% [markdown]
# A formula with averages in it may be wrong. So play the 54 days with dice, by your own interval and by others. Each line is the mean of eight
# runs:


# %%
def played(interval_min):
    from course_lib.planner import DAY_S, Reliability, play_run

    run = Reliability(mtbf_s=3600 * mtbf_h, checkpoint_s=checkpoint_s, restart_s=60 * restart_min)
    ends = [play_run(run, 60 * interval_min, elapsed_s=days * DAY_S, seed=seed) for seed in range(8)]
    return sum(end.shares.training for end in ends) / len(ends)


if goodput is not None:
    print(f"by your formula {goodput:.3f}")
    for factor in (0.1, 0.5, 1, 2, 10):
        print(f"{factor * interval_min:7.2f} minutes: played {played(factor * interval_min):.3f}")

# %% [markdown]
# ## 08.9
#
# *Write · hard · extra · 45 minutes.* **You learn** why a search must sometimes take a worse step. Here all prices are known, so a search can be judged.
#
# Here are nearly eight thousand layouts of a Llama of 8 billion parameters on 128 GPUs. Each has seven numbers, from `tp` to the stages of
# a rank, and the closed form knows its step time. You stand at the worst one that is possible, and in one step you may look at one *neighbour*, which
# differs in a single number. The search may look at four thousand, many of them twice.
#
# If you always go to the better neighbour, you end in the first hollow: a layout with no better neighbour, while a better one lies behind
# a hill. There are dozens of hollows. So sometimes go *up*.

# %% [markdown]
# *Simulated annealing* has a temperature. A better neighbour is always taken. A worse one is taken with probability exp(-d / temperature), where
# d says by how many seconds it is worse. So a temperature is in seconds too: let it begin as a share of the first price. Hot, nearly everything
# is taken. The temperature falls step by step, and at the end it is so cold that the search only goes down.
#
# **Target:** the best layout that was seen. In at least 8 of 12 runs, each with other dice, it must be the best of all layouts. Ask `price` once in each
# step, and once at the beginning. Every number that is left to chance comes from `random`, so that the same dice make the same search.


# %% nbgrader={"grade": false, "grade_id": "08-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def anneal(start, neighbour, price, steps, random):
    """Return the best layout that was seen: start, or one that neighbour(...) has given.

    neighbour(layout, random): one of the layouts beside it, by chance.
    price(layout): seconds of a step, infinite if it is not possible.
    random: Python's generator; random.random() is a number between 0 and 1.
    """
    ### BEGIN SOLUTION
    now = best = start
    here = least = first = price(start)
    for step in range(steps):
        temperature = first * 0.3 * (0.001 / 0.3) ** (step / steps)
        other = neighbour(now, random)
        there = price(other)
        if there <= here or random.random() < exp((here - there) / temperature):
            now, here = other, there
            if here < least:
                best, least = now, here
    return best
    ### END SOLUTION


check("08.9", anneal)
# hint("08.9")

# %% [markdown]
# ## 08.10
#
# *Find the bug · hard · useful · 45 minutes.* **You learn** when replicas may average, if a pipeline stands in each of them.
#
# Four ranks stand on pp 2 by dp 2. Somebody wants to overlap: as soon as a gradient arrives, average it with the other replica, while
# the pipeline goes on. `arrived` is called each time when the backward of a micro-batch has added to a parameter's gradient.


# %% nbgrader={"grade": false, "grade_id": "suspect-early", "locked": true, "schema_version": 3, "solution": false, "task": false}
from functools import partial

from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.data.replicate import broadcast_state
from course_lib.schedules import make_schedule
from course_lib.training.techniques import stages
from course_lib.training.trainer import Trainer


class Suspect(Trainer):
    def __init__(self, model, config, pp=2, dp=2, micro_batches=4):
        self.micro_batches, self.seen = micro_batches, {}
        schedule = make_schedule("1f1b", pp, micro_batches)
        super().__init__(
            model, config, mesh=make_mesh(pp=pp, dp=dp), apply=(stages(schedule), self.overlapped)
        )

    def overlapped(self, setup):
        """A technique: replicas begin alike, and whenever a gradient arrives we hear of it."""
        setup.begin("replicate", "dp")
        setup.local.layout.averaged.add("dp")
        broadcast_state(
            setup.model, setup.local.group("dp"), setup.local.name_of(**{**setup.local.at, "dp": 0})
        )
        for name, parameter in setup.local.parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self.arrived, name))

    def compute_gradients(self, batch):
        self.seen.clear()
        return super().compute_gradients(batch)

    def average(self, parameter):
        """Replace the gradient by its mean over the replicas."""
        total = comm.all_reduce(parameter.grad, group=self.local.group("dp"))
        parameter.grad.copy_(total / self.local.size("dp"))

    def arrived(self, name, parameter):
        if name not in self.seen:
            self.seen[name] = True
            self.average(parameter)


# %% [markdown]
# Train it beside one device:


# %%
from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.ranks import run_ranks
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals


def task(number):
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def losses(trainer_class):
    torch.manual_seed(0)
    trainer = trainer_class(MLP(gelu=True), TrainConfig(learning_rate=0.3))
    return [trainer.step(task(number)) for number in range(60)]


one_device, on_ranks = losses(Trainer), run_ranks(losses, 4, Suspect)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   suspect {on_ranks[at - 1]:.3f}")

# %% [markdown]
# It learns nearly as well. Climb the ladder nevertheless, with `climb(Suspect)`. And `apart(Suspect)` trains for five steps, and then says how
# far the two replicas of each stage are apart:


# %%
def climb(trainer_class, rungs=RUNGS):
    def make(kind):
        return lambda config: kind(MLP(gelu=True), config)

    try:
        print(assert_parallel_equals(make(Trainer), make(trainer_class), task, world_size=4, rungs=rungs))
    except NotEqual as error:
        print(error)


def apart(trainer_class):
    def distances():
        torch.manual_seed(0)
        trainer = trainer_class(MLP(gelu=True), TrainConfig(learning_rate=0.3))
        for number in range(5):
            trainer.step(task(number))
        mine = torch.cat([p.detach().flatten() for p in trainer.local.parameters.values()])
        both = comm.all_gather(mine.unsqueeze(0), group=trainer.local.group("dp"))
        return (both[0] - both[1]).abs().max().item()

    for rank, found in enumerate(run_ranks(distances, 4)):
        print(f"rank {rank}: a weight differs from the other replica's by up to {found:.3f}")


# %% [markdown]
# Write down the name of the first rung that fails, as `climb` prints it, and of how many of a step's four micro-batches the gradients are
# averaged. Then write `arrived` again.
#
# **Target:** the gradients of one device, with one average of each parameter in a step, made in `arrived` and not after the step, since
# only then it can overlap. Try it with `climb(Repaired)` and `apart(Repaired)`.


# %% nbgrader={"grade": false, "grade_id": "08-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Suspect):
    def diagnosis(self):
        """Return two things: the first rung that fails,
        and of how many of four micro-batches the gradients are averaged.
        """
        ### BEGIN SOLUTION
        return "gradients", 1
        ### END SOLUTION

    def arrived(self, name, parameter):
        """Called each time when a backward has added to the gradient of a parameter of this rank."""
        ### BEGIN SOLUTION
        self.seen[name] = self.seen.get(name, 0) + 1
        if self.seen[name] == self.micro_batches:
            self.average(parameter)
        ### END SOLUTION


check("08.10", Repaired)
# hint("08.10")

# %% [markdown]
# ## 08.11
#
# *Own file · hard · core · 45 minutes.* **You learn** to find in a profile which communication costs time, and to hide it.
#
# A formula says what a step should take, and a profile says what it took. PyTorch's profiler writes what each thread did into a file that
# a browser shows, and a program can read. A collective costs a step nothing while the rank computes something else. The rest of it is
# **exposed**. Write a script for `torchrun` that measures this, and then a step that exposes less.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lie a trace, `made.json`, and `task.pt`,
# a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which every process starts |
# | `x` | all rows; a process takes its part of `x.chunk(world_size)`, and its loss is `model(rows).square().mean()` |
# | `buckets` | three lists of parameter names, in the order in which backward has their gradients ready |
#
# In both steps the gradients are averaged over the ranks by hand, without DDP: a bucket's gradients are joined into one flat tensor, it
# is summed by one `all_reduce`, and divided. The parts go back into the parameters' `grad`.
#
# - **after**: backward first, and then one bucket after the other.
# - **during**: each bucket is launched by a hook as soon as its last gradient is there, with `async_op=True`. Backward goes on meanwhile.
#   When it is over, the step waits for all of them.

# %% [markdown]
# Profile each step by itself, from its forward to its averaged gradients, on every rank. Export it with `export_chrome_trace`, on rank 0 as
# `after0.json` and `during0.json`, and so on. Under `traceEvents` such a file has a list of dicts. Those with `"ph": "X"` have a `name`, a
# `cat`, and `ts` and `dur`, their start and duration in microseconds:
#
# ```text
# c10d::allreduce_    the launch, on the thread that computes
# gloo:all_reduce     the collective itself, on a thread of gloo's
# aten::...           an op that computes; it may stand inside another one
# autograd::...       what only stands around the ops of one step of backward
# ```
#
# Write a parser, for which 25 lines are enough. It gets the path of a trace and returns how many microseconds there are in which a
# `gloo:` event runs and no `aten::` op does, whatever thread either of them is on. If two collectives run at the same time, that time
# counts once.
#
# Your own two traces need not show all that can stand in one. So `made.json` is a trace that nobody has measured. Some of its collectives
# run at the same time, one of them gathers, and one is hidden from its beginning to its end. Two threads compute, and the file keeps no
# order. Your parser has to read this one, too.
#
# At the end every rank saves a dict, rank 0 as `rank0.pt` and so on: under `made`, `after` and `during` what the parser says of
# `made.json` and of the rank's two traces, and under `gradients_after` and `gradients_during` the averaged gradients by the parameters'
# names.

# %% [markdown]
# **Target:** the average of all ranks' gradients in both steps, and the microseconds that the check's own parser finds in the three traces. In the
# second step all buckets are launched before backward has ended. The check does not judge by speed: on a busy machine the second step may
# well expose as much as the first.
#
# To start it yourself, run `save_script("08.11", profiled)`, and open a trace at <https://ui.perfetto.dev>.

# %% nbgrader={"grade": false, "grade_id": "08-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
profiled = """
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile


def make_model():
    return nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(6)]).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    rows = task["x"].chunk(ranks)[rank]
    model = make_model()
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    parameters = dict(model.named_parameters())
    buckets = [[parameters[name] for name in names] for names in task["buckets"]]

    def launch(bucket, wait):
        flat = torch.cat([p.grad.flatten() for p in bucket])
        return bucket, flat, dist.all_reduce(flat, async_op=not wait)

    def put_back(bucket, flat):
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad.copy_(part.view_as(p) / ranks)

    def after():
        model(rows).square().mean().backward()
        for bucket in buckets:
            put_back(*launch(bucket, wait=True)[:2])

    def during():
        left, under_way = [len(bucket) for bucket in buckets], []

        def ready(p):
            number = next(i for i, bucket in enumerate(buckets) if any(p is one for one in bucket))
            left[number] -= 1
            if left[number] == 0:
                under_way.append(launch(buckets[number], wait=False))

        hooks = [p.register_post_accumulate_grad_hook(ready) for p in model.parameters()]
        model(rows).square().mean().backward()
        for bucket, flat, handle in under_way:
            handle.wait()
            put_back(bucket, flat)
        for hook in hooks:
            hook.remove()

    saved = {"made": exposed(f"{folder}/made.json")}
    for name, step in (("after", after), ("during", during)):
        model.zero_grad()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            step()
        path = f"{folder}/{name}{rank}.json"
        seen.export_chrome_trace(path)
        saved[name] = exposed(path)
        saved[f"gradients_{name}"] = {key: p.grad.clone() for key, p in parameters.items()}
        print(f"rank {rank}, {name}: {saved[name]:.0f} us exposed")
    torch.save(saved, f"{folder}/rank{rank}.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


def exposed(path):
    # Microseconds in which a collective runs and no op does.
    ### BEGIN SOLUTION
    with open(path) as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    edges = []
    for one in events:
        kind = 0 if one["name"].startswith("gloo:") else 1
        if kind == 0 or one["name"].startswith("aten::"):
            edges += [(one["ts"], kind, 1), (one["ts"] + one["dur"], kind, -1)]
    running, total, before = [0, 0], 0.0, 0.0
    for time, kind, change in sorted(edges):
        if running[0] > 0 and running[1] == 0:
            total += time - before
        running[kind] += change
        before = time
    return total
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("08.11", profiled)
# hint("08.11")

# %% [markdown]
# ## 08.12
#
# *Find the bug · hard · core · 40 minutes.* **You learn** to find in a script that somebody else has started on a cluster why it stands still, and
# why it learns something else.
#
# A colleague has written two axes by hand, tensor parallelism of blocks and data parallelism around them, and now wants help: "It hangs. And
# once, on four processes, it did go through, and the losses looked fine, but the weights are not those of one GPU." Here is the
# script. It has **two** bugs, and they have nothing to do with each other.


# %% nbgrader={"grade": false, "grade_id": "suspect-axes", "locked": true, "schema_version": 3, "solution": false, "task": false}
suspect_axes = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import functional as F


class Enter(torch.autograd.Function):
    # Into a block: every rank of the group has all of x, and each knows a part of its gradient.
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    # Out of a block: the ranks' parts are added up.
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def forward(x, w, group):
    for up, down in (("up0", "down0"), ("up1", "down1")):
        hidden = F.gelu(Enter.apply(x, group) @ w[up].T)
        x = x + Leave.apply(hidden @ w[down].T, group)
    return x @ w["head"].T


def clip(w, max_norm, dp):
    # Each rank has the squares of its pieces, and dp ranks have the same ones.
    # The head is whole everywhere.
    square = sum(w[name].grad.square().sum() for name in w if name != "head") / dp
    if dp * square > max_norm**2:  # small gradients need no collective
        dist.all_reduce(square)
        norm = (square + w["head"].grad.square().sum()).sqrt()
        for p in w.values():
            p.grad.mul_(min(1.0, max_norm / norm.item()))


def main(folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, task = dist.get_rank(), torch.load(f"{folder}/task.pt")
    tp, dp = task["tp"], dist.get_world_size() // task["tp"]

    # Neighbours share a block; along dp stand those who hold the same pieces.
    tp_groups = [dist.new_group(range(i * tp, i * tp + tp)) for i in range(dp)]
    dp_groups = [dist.new_group(range(j * dp, j * dp + dp)) for j in range(tp)]
    tp_group, dp_group = tp_groups[rank // tp], dp_groups[rank // dp]

    w = {}
    for name, whole in task["weights"].items():
        if name != "head":
            whole = whole.chunk(tp, dim=0 if name.startswith("up") else 1)[rank % tp].clone()
        w[name] = whole.requires_grad_()
    optimizer = getattr(torch.optim, task["optimizer"])(w.values(), lr=task["rate"])

    for x, y in task["batches"]:
        rows, targets = (part.chunk(dp)[rank // tp] for part in (x, y))
        loss = F.cross_entropy(forward(rows, w, tp_group), targets)
        loss.backward()
        for p in w.values():
            dist.all_reduce(p.grad, group=dp_group)
            p.grad /= dp
        clip(w, task["max_norm"], dp)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.data, group=dp_group)
        if rank == 0:
            print(f"loss {loss.item() / dp:.4f}")
    torch.save({name: p.detach() for name, p in w.items()}, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

# %% [markdown]
# It is given a folder, and there `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | tensors by name: `up0` and `up1` are (16, 8), `down0` and `down1` are (8, 16), and `head` is (4, 8) |
# | `batches` | pairs `(x, y)` of all 8 rows of a batch, one for each step |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
# | `tp` | how many ranks share a block, here 2; the rest is dp |
# | `max_norm` | gradients whose common norm is larger are multiplied by `max_norm / norm` |
#
# Run `save_script("08.12", suspect_axes)` to get it as a file, with a task, and start it by `torchrun` on 2 and on 4 processes. Print what you
# need: who is where, and which numbers should be equal on which ranks? A hang ends after ten seconds, since the script has told
# `init_process_group` to wait no longer.
#
# Then copy it into the cell below, in place of the line with `NotImplementedError`, and mend it.
#
# **Target:** each rank saves its pieces of one device's weights after the same steps, on 2 processes and on 4, with SGD and with AdamW. The
# model stays cut, and the gradients are averaged along dp: what travels on both axes is what the suspect meant to send. The norm may
# travel as you like.

# %% nbgrader={"grade": false, "grade_id": "08-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
mended_axes = """
### BEGIN SOLUTION
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import functional as F


class Enter(torch.autograd.Function):
    # Into a block: every rank of the group has all of x, and each knows a part of its gradient.
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    # Out of a block: the ranks' parts are added up.
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def forward(x, w, group):
    for up, down in (("up0", "down0"), ("up1", "down1")):
        hidden = F.gelu(Enter.apply(x, group) @ w[up].T)
        x = x + Leave.apply(hidden @ w[down].T, group)
    return x @ w["head"].T


def clip(w, max_norm, dp):
    # Each rank has the squares of its pieces, and dp ranks have the same ones.
    # The head is whole everywhere.
    square = sum(w[name].grad.square().sum() for name in w if name != "head") / dp
    dist.all_reduce(square)
    norm = (square + w["head"].grad.square().sum()).sqrt()
    for p in w.values():
        p.grad.mul_(min(1.0, max_norm / norm.item()))


def main(folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank, task = dist.get_rank(), torch.load(f"{folder}/task.pt")
    tp, dp = task["tp"], dist.get_world_size() // task["tp"]

    # Neighbours share a block; along dp stand those who hold the same pieces.
    tp_groups = [dist.new_group(range(i * tp, i * tp + tp)) for i in range(dp)]
    dp_groups = [dist.new_group(range(j, dp * tp, tp)) for j in range(tp)]
    tp_group, dp_group = tp_groups[rank // tp], dp_groups[rank % tp]

    w = {}
    for name, whole in task["weights"].items():
        if name != "head":
            whole = whole.chunk(tp, dim=0 if name.startswith("up") else 1)[rank % tp].clone()
        w[name] = whole.requires_grad_()
    optimizer = getattr(torch.optim, task["optimizer"])(w.values(), lr=task["rate"])

    for x, y in task["batches"]:
        rows, targets = (part.chunk(dp)[rank // tp] for part in (x, y))
        loss = F.cross_entropy(forward(rows, w, tp_group), targets)
        loss.backward()
        for p in w.values():
            dist.all_reduce(p.grad, group=dp_group)
            p.grad /= dp
        clip(w, task["max_norm"], dp)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.data, group=dp_group)
        if rank == 0:
            print(f"loss {loss.item() / dp:.4f}")
    torch.save({name: p.detach() for name, p in w.items()}, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
### END SOLUTION
"""

check("08.12", mended_axes)
# hint("08.12")

# %% [markdown]
# ## Where this leads
#
# First to [the project](../project/ASSIGNMENT.md), where all modules meet: three trainers in plain PyTorch, each with three bugs, and you bring
# them up the ladder.
#
# You have priced a step, thrown out what cannot be, kept what nobody beats, and found the best of the rest in two ways. That is a planner.
# Its axes are still three. Sequences that are too long for one GPU need a fourth, and so do models with experts: lesson 09 adds both.
