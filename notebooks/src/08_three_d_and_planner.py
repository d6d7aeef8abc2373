# %% [markdown]
# # 08 · Three axes and a planner: let a program search
#
# Lesson 07 ended with a thousand GPUs and thousands of layouts. Here is somebody who has sixteen thousand. They have 16,384 GPUs in nodes of eight, and are going to train Llama 3.1 405B. A step takes 2048 texts of 8192 tokens each. There are 15.6 trillion tokens to read, which makes about 930,000 steps. So each second that a step takes longer is eleven days of waiting, for sixteen thousand GPUs.
#
# Three colleagues each propose a layout.

# %% folded=true
# %load_ext course_lib
import json
from contextlib import chdir
from dataclasses import replace
from statistics import fmean
from tempfile import TemporaryDirectory
from textwrap import fill

import numpy as np

from course_lib import costs, planner, sim, viz
from course_lib.checks import predict, score
from course_lib.cli.plan import plan_command
from course_lib.config import ModelConfig, TrainConfig, load_model
from course_lib.hardware import load_cluster
from course_lib.models.decoder import Decoder
from course_lib.parallel.layout import coordinates
from course_lib.parallel.mesh import make_mesh
from course_lib.planner import Reliability, Space, search
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.batches import Batches
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals

# %%
LLAMA, NODE = load_model("llama3_1_405b"), load_cluster("dgx_h100")
JOB = planner.Job(model=LLAMA, cluster=replace(NODE, n_nodes=2048), batch=2048, sequence=8192)
proposals = [(8, 32), (8, 1), (2, 32)]  # tp and pp; dp is what is left of the GPUs
first_of = [search(JOB, Space(tp=(tp,), pp=(pp,), cp=(1,))) for tp, pp in proposals]
viz.plot_step_causes([planner.ranked(found, 1)[0] for found in first_of], title="Three layouts, one training")

# %% [markdown]
# All three fit into memory, and all three compute the same model. Yet the third step takes more than twice as long as the first. Over the whole training that difference is four months.
#
# Look for the longest colour beside the matrix products. The second layout has no stages, and waits for messages along `dp`. The other two have 32 stages each, and these are idle for much of the time. The third is so much worse because each of its pipelines gets only eight micro-batches. Is there a fourth that is better than all of them? And how would you know, before you have rented the GPUs?

# %% [markdown]
# You will be able to
# - put three kinds of parallelism on one mesh, and prove that it is still the same training.
# - say by hand how long a step takes, and what it is made of.
# - say how far such a prediction is off, and on whose runs.
# - search all layouts for a model and a cluster, and say why the others lose.
# - choose how often a long run writes a checkpoint.
#
# *One hour.*
#
# <details><summary>Before you start</summary>You need pipelines from lesson 04, tensor parallelism from 05, ZeRO from 06, and the mesh from 07. The eight ranks are CPUs over gloo. Times of clusters are formulas, beside times that others have published.</details>

# %% [markdown]
# ## Three cuts at once
#
# Before we price three axes, let us see that they work. Take eight ranks and cut by two along each axis. Which rank lies where? The axes stand in the order `pp`, `dp`, `tp`, and the last one counts fastest:
#
# $$\text{rank} = 4 \cdot \text{pp} + 2 \cdot \text{dp} + \text{tp}$$
#
# So rank 5 has pp 1, dp 0 and tp 1. Along each axis it has one partner, which differs in that coordinate alone. With one it adds up activations, with another gradients, and with the third it exchanges what leaves a stage.
#
# **Predict.** With which rank does rank 5 add up gradients?

# %%
SMALL = ModelConfig(
    name="small", hidden_size=64, n_layers=4, n_heads=8, n_kv_heads=4, ffn_size=176, vocab_size=512, tied=False
)
SCHEDULE = make_schedule("1f1b", 2, 2)  # two ranks, two micro-batches


def llama_alone(train):
    return Trainer(Decoder(SMALL), train)


def llama_3d(train):
    apply = (tensor(sequence_parallel="regather"), stages(SCHEDULE), replicate())
    return Trainer(Decoder(SMALL), train, mesh=make_mesh(pp=2, dp=2, tp=2), apply=apply)


layout = run_ranks(lambda: llama_3d(TrainConfig()).local.layout, 8)[0]
places = [*coordinates(layout.sizes)]
partner = next(rank for rank, at in enumerate(places) if at == {**places[5], "dp": 1 - places[5]["dp"]})
predict("the rank", guess=None, answer=partner)
shown = [name for name in layout.parameters if name.split(".")[0] != "layers" or ".0." in name or ".3." in name]
regions = {name: layout.regions()[name] for name in shown if "norm" not in name and "k_proj" not in name}
viz.plot_layout(regions, layout.shapes(), places, title="A small Llama on 2 × 2 × 2")

# %% [markdown]
# Rank 7: the same stage, the same half of every matrix, other texts.
#
# Look at the picture. Ranks 0 to 3 have the first layer and nothing of the last, ranks 4 to 7 the other way round. That was the pipeline. Within four, even and odd ranks have different halves, because `tp` cuts. Ranks 0 and 2 have the same, because `dp` copies.
#
# Neighbours share matrices, because `tp` sends most and nothing hides it. The pipeline sends least, so its partners may live farthest apart.
#
# Three techniques work on the same weights, and none knows the others. Does that go well? Climb the ladder on all eight ranks.

# %% varies="the last digits of rounding differ between processors"
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32)
report = assert_parallel_equals(llama_alone, llama_3d, text, world_size=8)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# On every rung the eight ranks are one device. So whichever layout you take, only two questions are left: does it fit, and how long does a step take? The first is the arithmetic of lessons 01 and 06. The second is new.
#
# ## How long is one step?
#
# Take one run that somebody has measured. In 2021 the authors of Megatron-LM trained a GPT of 39.1 billion parameters on 512 A100s. A step read 1536 texts of 2048 tokens. Each replica is cut into two stages and each matrix into eight, so `dp` is 32. Four texts go through the pipeline at a time, which makes twelve micro-batches. All activations are computed again in backward.

# %% [markdown]
# ### 1 · Multiply
#
# Almost all work is multiplying matrices. A parameter meets a token with one multiplication and one addition, so that is two operations. Backward takes four more. Here the forward pass is done twice, so add another two. That makes eight for each parameter and token.
#
# The data sheet of an A100 says 312 TFLOP/s<!-- =load_cluster("dgx_a100").device.dense_flops_per_s["bf16"] / 1e12 -->, but no program reaches it. In large products, published runs reach 0.85 of it. All 512 GPUs share the work.
#
# **Predict.** How many seconds does a step take, if it does nothing else?

# %%
run = next(run for run in sim.published_runs() if run.name == "mlm21t1-005")
rates = sim.rates_of(run.machine, run.software)
step_tokens = 1536 * 2048
multiply_s = 8 * costs.model_parameters(run.model) * step_tokens / (512 * rates.matmul_flops_per_s)
predict("seconds", guess=None, answer=multiply_s, tolerance=0.05)
print(f"by hand {multiply_s:.1f} s, measured {run.step_s:.1f} s")

# %% [markdown]
# Only half of the measured step! So the GPUs spend as long on something else. Where could that be?
#
# ### 2 · Wait for messages
#
# Along `tp` eight GPUs add up activations after attention and after feed-forward. They do so in forward, in the second forward, and in backward, which makes six sums for each layer. One activation is four texts of 2048 tokens with 8192 numbers of two bytes. A ring sends it 2 · 7/8 times, as you know from lesson 02. NVLink should carry 300 GB/s<!-- =load_cluster("dgx_a100").inside.bandwidth_bytes_per_s / GB -->, and rings in published runs reach about two thirds of that.
#
# A GPU has 24 of the 48 layers, and does all of this for twelve micro-batches.

# %% [markdown]
# ### 3 · Wait for the other stage
#
# At the beginning the second stage has nothing to do, and at the end the first. You counted this in lesson 04: with $p$ stages and $m$ micro-batches, idle time over busy time is
#
# $$\frac{p-1}{m}$$
#
# Here that is one twelfth. Do these three explain the measured step?

# %%
activation = 4 * 2048 * run.model.hidden_size * 2  # bytes
sums = 6 * 24 * 12  # for each layer, layers of a GPU, micro-batches
tp_s = sums * 2 * 7 / 8 * activation / rates.inside_bytes_per_s
bubble_s = (multiply_s + tp_s) / 12
for name, seconds in {"multiply": multiply_s, "along tp": tp_s, "idle": bubble_s}.items():
    print(f"{name:9} {seconds:5.2f} s")
print(f"together  {multiply_s + tp_s + bubble_s:5.2f} s of {run.step_s:.2f} s")

# %% [markdown]
# Seven tenths of the step are explained. What we left out is what does *not* multiply: softmax over the scores of attention, norms, GELU. These compute little, but read and write every number in memory, and in 2021 all scores of attention were written there. Gradients also travel along `dp`, as far as backward does not hide them, and the optimizer has its turn.
#
# None of this is harder than what you just did, only more of it. So the library does all of it in the same way. `step_times` returns each cause by itself.

# %%
times = sim.step_times(run.model, rates, run.policies)
for cause in sim.CAUSES:
    seconds = float(getattr(times, cause)[0])
    if seconds > 0:
        print(f"{cause:10} {seconds:5.2f} s {'█' * round(8 * seconds)}")
print(f"{'together':10} {times.total[0]:5.2f} s, measured {run.step_s:.2f} s")

# %% [markdown]
# Find your own three. `matmul` is smaller than yours, because the second forward stands by itself under `recompute`. It is a little more than three quarters of yours, since only large products reach 0.85, and `tp` makes them smaller. `tp` is yours, and `bubble` is larger, since idle stages also wait for everything that you had left out. Attention and the pointwise operations, also where they are done again, fill about half of the gap. `fixed` is the host, and the wait for the slowest GPU.
#
# This sum of causes is what we call the **closed form**: no clock, no loop over micro-batches, about 250 operations of arithmetic. Remember that price: we shall pay it often.

# %% [markdown]
# ## Is it true?
#
# One run that comes out right proves nothing: the constants could have been chosen for it. There are a few dozen of them, such as the 0.85 above, one for each kind of GPU, wire or software. They were fitted to 515 steps from 13 published sources, whose pages are listed in `course_lib/sim/data/published.json`.
#
# So here is the harder test. Leave one source out, fit the constants to the other twelve, and predict the source that nobody has looked at. Do that for each of the thirteen.

# %%
viz.plot_calibration()

# %% [markdown]
# Each line is one source. The filled dot knows other rows of the same source, the open dot knows none. In twelve of the lines they are at most about three points apart, so the formula has not merely learnt these sources by heart.
#
# For half of the sources left out, the middle error is at most 5 %<!-- =100 * float(next(row["median"] for row in sim.committed_records() if row["test"] == "sources" and row["group"] == "median of groups")) -->. That is about as far as the same run lies apart in two published tables, which is shaded. One line sticks out. All runs of InternEvo are about a fifth slower than similar ones, and no constant can know why. If *your* cluster is like that, three steps of your own will tell: see *Going deeper*.

# %% [markdown]
# ### A table, row by row
#
# Medians hide things. So look at one whole table, the one that our run of 512 GPUs is from. In the picture it is `mlm21t1`. It goes from 1.7 billion parameters on 32 GPUs to a trillion on three thousand. These ten rows were among those fitted, so expect them to look better than new ones would.

# %%
print(f"{'model':11} {'GPUs':>5} {'tp':>3} {'pp':>3} {'dp':>3} {'measured':>9} {'predicted':>10}    off")
for one in sim.published_runs():
    if one.source == "mlm21t1":
        said = float(sim.step_times(one.model, sim.rates_of(one.machine, one.software), one.policies).total[0])
        degrees = " ".join(f"{one.policy[axis]:3}" for axis in ("tp", "pp", "dp"))
        off = said / one.step_s - 1
        print(f"{one.model.name:11} {one.gpus:5} {degrees} {one.step_s:7.1f} s {said:8.1f} s {off:+6.1%}")
left_out = next(row for row in sim.committed_records() if (row["test"], row["group"]) == ("sources", "mlm21t1"))
print(f"the same table, left out: half of the rows are off by {float(left_out['median']):.1%} or more")

# %% [markdown]
# From a few seconds to almost two minutes, on up to a hundred times as many GPUs, and no row is off by a tenth. But every sign is the same: real steps took a little longer than predicted. The row of 76 billion parameters is farthest off. Its ranks take turns between several stages, and so do those of the next three rows. Two of these are off as well, but the third is not. So ten rows cannot tell the cause.
#
# So take away two things. A difference of a third between two layouts is real. A difference of three percent is not worth an argument.

# %% [markdown]
# ## Search
#
# Back to the sixteen thousand GPUs. If a step costs 250 operations of arithmetic, why think? Try everything.
#
# 16,384 is $2^{14}$, so it has 15 divisors. Take each of them for `tp`, for `pp`, and for `cp`, which cuts every text into pieces; `dp` is what is left. For each of these take four stages of ZeRO, 0 to 3, and micro-batches of 1, 2, 4 or 8 texts. Compute nothing again, half of the layers, or all. And choose one of six schedules: GPipe, 1F1B, zero bubble, or turns between 2, 4 or 8 stages.
#
# **Predict.** How many ways are there?

# %%
found = search(JOB)
predict("ways", guess=None, answer=found.n_tried)
print(f"{found.n_tried:9,} ways")
for rule, count in sorted(found.rejected.items(), key=lambda item: -item[1]):
    if count:
        print(fill(f"{-count:9,} {planner.RULES[rule]}", 100, subsequent_indent=" " * 10))
print(f"{len(found):9,} are possible")

# %% [markdown]
# Almost a million, and the search needs less than a second for them. The list says which rule took away how many. Most of them ask for more GPUs than there are. The next line is lesson 07's advice as a rule: `tp` stays in a node.
#
# Each way is counted at the first rule that it breaks, and memory is the last of them. It still took more than half of what had been left. That order saves time: rules cost hardly anything, memory costs some arithmetic, and only what fits is timed.

# %% [markdown]
# ### The first four
#
# We know what was really done. In 2024 Meta trained this model on 16,384 H100s, and published the degrees. In this phase they did not cut the texts, so leave `cp` at 1 for now. From each set of degrees we draw only its fastest way.
#
# The winner has sixteen stages and sixteen micro-batches, and its ranks take turns between four stages each. In lesson 04 such turns divided the bubble by their number.
#
# **Predict.** What is idle time over busy time, by the formula?

# %%
whole = search(JOB, Space(cp=(1,)))
best = planner.ranked(whole, 4)
first = best[0].policy
bubble = (first["pp"] - 1) / first["n_microbatches"] / first["stages_per_rank"]
predict("idle over busy", guess=None, answer=bubble, tolerance=0.05)
viz.plot_step_causes(best, title="Llama 3.1 405B on 16,384 GPUs, no text cut")

# %% [markdown]
# `tp` 8, `pp` 16, `dp` 128: these are the degrees that Meta published! Nobody had told the program. It knows matrices, wires, memory, and how long 515 steps of other people took.
#
# In the bar the idle time is a little longer than your formula says. 126 layers do not divide by sixteen, so most stages have eight, and the others wait for them.
#
# Why do the next ones lose? Ask for the differences, cause by cause.

# %%
for one in best[1:]:
    degrees = " ".join(f"{axis}={one.policy[axis]}" for axis in ("dp", "tp", "pp"))
    print(fill(f"{degrees}: {planner.why_slower(one, best[0])}", 100, subsequent_indent="    "))
print(f"the winner uses {best[0].mfu:.1%} of the peak for the model's own operations")

# %% [markdown]
# The second has half as many stages, so it idles less. But twice as many layers lie on each GPU, and they fit only if *all* activations are computed again. That costs more than the bubble saves. With 32 or 64 stages the bubble is longer, and hardly anything is shorter. So sixteen lies between two walls. But the second is only six percent behind, hardly more than the formula's error: measure both.
#
# Meta reports four percent of the peak more. By our formulas half of the layers must be computed again, or it does not fit. They freed tensors by hand that our formulas keep, and recomputed nothing. A program finds the best of what it knows.

# %% [markdown]
# ### And if texts may be cut?
#
# The whole search also tried `cp`. Cutting a text in two lets two GPUs share its activations, and each sends its keys and values to the other. How that works is lesson 09; here you only need its price. Compare the best of all ways with Meta's degrees.

# %%
place = found.place_of(tp=8, pp=16, dp=128)
meta = found.distinct[place]
print(f"{place} other sets of degrees have a faster way than Meta's")
with_cut, without = planner.described(found, [0, meta])
print(fill(planner.why_slower(without, with_cut), 100))
viz.plot_step_causes([with_cut, without], title="With and without a cut of the texts")

# %% [markdown]
# So many sets come before Meta's! Look at what is missing in the upper bar: nothing is computed again. Half a text needs half the activations, so they fit. And with half as many replicas each pipeline gets 32 micro-batches instead of sixteen, which halves the bubble. The messages along `cp` are too short to be seen.
#
# Was Meta wrong? By freeing tensors they had escaped the recomputing already, so less was left to gain. And nobody here has measured the upper bar. What a search gives you is not the truth, but the first things to try.

# %% [markdown]
# ### Time against memory
#
# Suppose that you need room on the GPUs, because your framework keeps more than our formulas know. What does it cost? Draw all possible ways as points. Most of them are useless: another one is faster *and* smaller. Those that nothing beats in both make a line, the **Pareto front**.

# %%
viz.plot_policy_front(found, named={"the fastest": 0, "Meta's degrees": meta})

# %% [markdown]
# The ring of Meta's degrees lies above the line. Start at the fastest way, and walk along the line to the left. At first room is almost free: half of the memory can be had for a few percent more time, with more stages and smaller pieces of text. Then the line climbs, because hundreds of small pieces keep the host busy and fill no GPU. Farther left activations are computed again as well. In the end replicas share even the weights, gather them anew for each micro-batch, and a step takes twice as long.
#
# If someone tells you that their layout is the only one that fits, ask where on this line it lies.

# %% [markdown]
# ## Three hours later
#
# The best layout is chosen, and the run begins. Three hours later it stands still. Sixteen thousand GPUs have power supplies, cables and memory, and whenever one of these fails, all others wait. Meta counted 419 unplanned stops in 54 days, which is one every three hours.
#
# After a stop you go back to the last checkpoint. So write them often? But writing takes time as well. A checkpoint of this model holds 14 bytes<!-- =14 --> for each parameter. Their storage takes 2 TB/s<!-- =planner.LLAMA_3_STORAGE_BYTES_PER_S / 1e12 -->, so it is written in 2.8 s<!-- =14 * costs.model_parameters(load_model("llama3_1_405b")) / planner.LLAMA_3_STORAGE_BYTES_PER_S -->.

# %% [markdown]
# How often is best? Say that you write every $\tau$ seconds, and each time lasts $\delta$. That costs a share $\delta/\tau$ of the time. A stop comes every $M$ seconds, somewhere between two checkpoints, so on average half an interval of work is lost. That costs $\tau/2M$. The first shrinks with $\tau$ and the second grows, so their sum is smallest where the two are equal:
#
# $$\tau = \sqrt{2\,\delta\,M}$$
#
# **Predict.** After how many minutes should this run write a checkpoint?

# %%
checkpoint_s = 14 * costs.model_parameters(LLAMA) / planner.LLAMA_3_STORAGE_BYTES_PER_S
mtbf_s = planner.LLAMA_3_STOPS.mtbf_s
restart_s = planner.longest_restart_s(mtbf_s, checkpoint_s, planner.LLAMA_3_STOPS.least_goodput)
meta_run = Reliability(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
predict("minutes", guess=None, answer=planner.young_interval_s(meta_run) / 60, tolerance=0.05)
runs = {"as Meta": meta_run, "a checkpoint takes a minute": replace(meta_run, checkpoint_s=60.0)}


def with_dice(run, interval_s):
    ends = [planner.play_run(run, interval_s, elapsed_s=54 * planner.DAY_S, seed=seed) for seed in range(4)]
    return fmean(one.shares.training for one in ends)


played = {name: {tau: with_dice(run, tau) for tau in (60.0, 300.0, 1800.0, 7200.0)} for name, run in runs.items()}
viz.plot_goodput(runs, played=played, wanted=planner.LLAMA_3_STOPS.least_goodput)

# %% [markdown]
# The share of time that trains is called **goodput**. On the left you write too often, on the right you lose too much, and the ring marks the best interval between. The small marks are 54 days played with dice, and lie on the lines.
#
# Now compare the two lines. If a checkpoint takes a minute, even the best interval loses much more. Meta reports more than nine tenths, the dotted line. By our formula that leaves about a quarter of an hour for each restart.
#
# The dashed line is our sum, and its best interval is Young's, of 1974. It needs intervals much shorter than the time between stops. Daly's does not, and the ring is his.

# %% [markdown]
# ## Back to the eleven days
#
# Now all parts are there: a step, the number of steps, and the share of time that trains. How long does the whole training take?

# %%
steps = 15.6e12 / (JOB.batch * JOB.sequence)
share = planner.goodput(meta_run, planner.daly_interval_s(meta_run))
steps_s = {
    "the slowest proposal": first_of[2].step_s[0],
    "Meta's degrees": whole.step_s[0],
    "texts cut": found.step_s[0],
}
for name, step_s in steps_s.items():
    print(f"{name:21} {step_s:5.1f} s a step, {steps * step_s / share / planner.DAY_S:4.0f} days")
print(f"published: 30.84 million GPU-hours, {30.84e6 / 24 / JOB.cluster.n_gpus:.0f} days of all GPUs")

# %% [markdown]
# Meta's own number lies between our last two lines: they used these degrees, but computed nothing again. The hours are from the model card of Llama 3.1, and also hold phases with smaller batches and longer texts, so expect a rough agreement only. The third colleague would have waited months longer.
#
# ## Take it home
#
# All of this is one command. Give it your model, which may be a folder from Hugging Face, and your cluster.
#
# `python -m course_lib plan model=llama3_1_8b cluster=dgx_h100 cluster.n_nodes=4 batch=256 retime=0 out=plan.json`
#
# Any number of a cluster can be changed, as `cluster.between.bandwidth_bytes_per_s=25e9`. With `out=` everything goes into a file, too, and `retime=0` skips a second look that *Going deeper* explains.

# %% varies="how long the search took"
overrides = ["model=llama3_1_8b", "cluster=dgx_h100", "cluster.n_nodes=4", "batch=256", "retime=0"]
with TemporaryDirectory() as folder, chdir(folder):
    plan_command([*overrides, "out=plan.json"])
    with open("plan.json") as file:
        plan = json.load(file)

# %% [markdown]
# Read it from the top: how many ways there are, which rules took most of them, and the five best, each compared with the first. Every step has a range beside it, because the formula may be off by as much.
#
# Look at the percentages. All five lie within two percent of each other, so for us they are equal. Then look at the memory: the first way fills its GPUs almost to the last GiB. Would you dare? The lines at the end say what room costs. For a twentieth more time, little more than half of that memory is enough.

# %%
print("in the file:", ", ".join(plan))
print("of each of the best:", ", ".join(plan["best"][0]))
toy = planner.toy_of(best[0].policy)
print(fill(f"for Llama 405B: python -m course_lib train {' '.join(toy.overrides)}", 100, subsequent_indent="    "))
print(*(f"left out: {words}" for words in toy.left_out), sep="\n")

# %% [markdown]
# The last command is the winner of sixteen thousand GPUs, shrunk until it runs on eight ranks of your machine. Every degree above one stays above one, so the same techniques meet. `plan … train=FOLDER` runs it at once, and the notebook leaves that to you.
#
# The same search has knobs, too. Press the buttons, and see whether the winner changes when the network slows down. The last button asks for the impossible, and learns what it lacks.

# %%
viz.planner_explorer()

# %% [markdown]
# | what you want to know | ask |
# | --- | --- |
# | does it fit, and how fast is it | `plan model=… cluster=…` |
# | how fast is exactly this layout | `plan … tp=8 pp=16 cp=1` |
# | what do my own measured steps say | `predict runs=… calibrate=MY_RUNS.json` |
# | does the combination work at all | `plan … train=FOLDER` |
#
# ## What still hurts
#
# The search has found a use for `cp`, and we took its price on trust. How can two GPUs share one text, if every token looks at all tokens before it? And there is another axis that stood at 1 all the time, `ep`, for models with experts. Both are what lesson 09 is about.

# %%
score()

# %% [markdown]
# ## Questions
#
# <details><summary>1. On 2 × 2 × 2, with whom does rank 6 exchange what leaves its stage?</summary>
# Rank 6 has pp 1, dp 1 and tp 0. Its partner along pp is rank 2.
# </details>
#
# <details><summary>2. Two layouts are predicted to be two percent apart. Which do you take?</summary>
# Either. The formula is off by more than that, so take the one that is simpler, or measure both.
# </details>
#
# <details><summary>3. Your cluster grows to four times as many GPUs, each as reliable as before. What happens to the best interval between checkpoints?</summary>
# Stops come four times as often, so the interval is halved, if a checkpoint takes as long as before.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## Three steps of your own
#
# InternEvo's runs are slower than the formula thinks, all of them. Suppose that this is your cluster, and that nothing of it was ever fitted. Measure three steps. Their mean error becomes a factor for all others, drawn towards 1, because three rows may be wrong by chance.

# %%
values = {name: value for name, value in sim.load_constants().values.items() if name != "stack.internevo"}
own = [one for one in sim.published_runs() if one.source == "internevo"]
off = sim.errors(sim.table_of(own), values)  # log(predicted/measured) of each run
factor = sim.own_factor(off[:3].tolist())
print(f"the factor of three steps: {factor:.2f}")
print(f"the other {len(own) - 3}: off by {np.median(sim.off_by(off[3:])):.0%} before, ", end="")
print(f"{np.median(sim.off_by(off[3:] + np.log(factor))):.0%} after")
for row in sim.committed_records():
    if row["group"] == "median of groups" and row["test"] in ("sources, without", "sources, three own rows"):
        print(f"all {row['rows']} clusters, {row['test'].removeprefix('sources, ')}: {float(row['median']):.1%}")

# %% [markdown]
# For a cluster with a peculiarity three rows are worth a lot. The last two lines leave out all sources in turn, those with several kinds of GPU once for each kind, and draw the three rows at random. There they help less, because most clusters had little to correct.
#
# ## The lists check the formula
#
# The closed form knows a pipeline by a single fraction. Lesson 04's instruction lists know every forward and backward. So take the ten fastest ways once more, and let the lists say how long their pipelines last. The picture shows the fastest one, pass by pass.

# %%
recheck = planner.retimed(whole, range(10))
for one in recheck.policies[:4]:
    print(f"{one.closed_s:6.3f} s by the formula, {one.exact_s:6.3f} s by the lists: {one.name}")
print(f"in the middle {recheck.median_off:.1%} off, at most {abs(recheck.most_off.off):.1%}")
viz.plot_step_timeline(whole, recheck.policies[0].index)

# %% [markdown]
# That is far below what either is off from a real cluster. So the fast way may choose.
#
# ## Layers on unlike GPUs
#
# So far all GPUs were alike. Somebody else has two H100s and two A100s, and wants the 32 layers of Llama 8B on four stages. The slowest stage sets the pace, so an A100 should get fewer layers. Which stage gets which GPU, and how many layers? Embedding and head are to be placed as well.
#
# Five methods search. Try all. Build the best answer from best answers to smaller questions. Hand it to a solver for whole numbers. Change a random answer a little, again and again. Or learn by rewards.

# %% varies="the seconds of each search"
problem = planner.stage_problem(
    load_model("llama3_1_8b"), {"h100_sxm_80": 2, "a100_sxm_80": 2}, sequence=8192, micro_batch=1, n_microbatches=8
)
print(f"{planner.n_assignments(problem):,} ways, on {' and '.join(gpu.name for gpu in problem.gpus)}")
for one in planner.compare_methods(problem):
    on = ", ".join(
        f"{size} on {problem.gpus[gpu].name[:4]}" for size, gpu in zip(one.answer.sizes, one.answer.gpus, strict=True)
    )
    print(f"{one.method:15} {one.slowest_s:.4f} s for the slowest stage, found in {one.search_s:5.2f} s: {on}")

# %% [markdown]
# All five reach the same pace. Only the first three know that nothing is better: the others have merely stopped. Dynamic programming, the second line, is by far the quickest, because it may use that stages lie in a row.
#
# References: Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*; Grattafiori et al. 2024, *The Llama 3 herd of models*, for tokens, degrees and stops; Meta 2024, [model card of Llama 3.1](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md), for GPU hours; Korthikanti et al. 2022, *Reducing activation recomputation*; Young 1974, *A first order approximation to the optimum checkpoint interval*; Daly 2006, *A higher order estimate of the optimum checkpoint interval*.
