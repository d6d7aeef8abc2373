# %% [markdown]
# # 08 · Three axes and a planner: let a program search
#
# Somebody has 16,384 GPUs, in nodes of eight, to train Llama 3.1 405B on 15.6 trillion tokens. Each step reads 2048 sequences of 8192 tokens, and a second more in each costs eleven days.
#
# Three colleagues cut each matrix into `tp` parts and spread the layers over `pp` ranks. The GPUs form `dp` such pipelines, which share the sequences.
#
# | colleague | `tp` | `pp` |
# | --- | --- | --- |
# | the first | 8 | 32 |
# | the second | 8 | 1 |
# | the third | 2 | 32 |
#
# All else is as good as possible. Who is right?
#
# **Predict.** Who is *slowest*? Compare a pipeline's sequences with its ranks, and a GPU's weights with 80 GB<!-- =load_cluster("dgx_h100").device.memory_bytes() / GB -->. (ZeRO may share out what does not fit, and pays with messages.)
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from dataclasses import replace
from textwrap import fill

import numpy as np

from course_lib import costs, planner, predict, run_ranks, score, sim, viz
from course_lib.costs import GiB, load_cluster
from course_lib.parallel import coordinates
from course_lib.planner import Reliability, Space, search
from course_lib.training import (
    Batches,
    Decoder,
    ModelConfig,
    TrainConfig,
    Trainer,
    load_model,
    load_text,
    load_tokens,
    make_mesh,
    make_schedule,
    replicate,
    stages,
    tensor,
)
from course_lib.verify import assert_parallel_equals

# %%
LLAMA, NODE = load_model("llama3_1_405b"), load_cluster("dgx_h100")
JOB = planner.Job(
    model=LLAMA, cluster=replace(NODE, n_nodes=2048), batch=2048, sequence=8192, reserve=0.1
)  # a tenth of each GPU's memory stays free
cuts = {"first": (8, 32), "second": (8, 1), "third": (2, 32)}  # tp and pp; dp is what is left of the GPUs
proposals = {who: search(JOB, Space(tp=(tp,), pp=(pp,), cp=(1,))) for who, (tp, pp) in cuts.items()}
bars = {who: planner.ranked(found, 1)[0] for who, found in proposals.items()}
predict("first, second or third", guess=None, answer=max(bars, key=lambda who: bars[who].step_s))
named = [replace(bars[who], name=f"{who}: tp {tp}, pp {pp}") for who, (tp, pp) in cuts.items()]
viz.plot_step_causes(named, title="Three layouts, one training")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The light violet beginnings are alike, because all compute the same model. What follows is the layout's price.
#
# In the third bar look at the **bubble** of lesson 04, ranks that have nothing to do. Its 256 pipelines share 2048 sequences, so each gets eight micro-batches. Then 32 ranks would each work for 8 micro-batches and wait for 31. The **zero bubble** schedule fills a part of that. In the second bar look at the messages along `dp`. An eighth of the weights is 101 GB<!-- =2 * costs.model_parameters(load_model("llama3_1_405b")) / 8 / GB -->, too much for a GPU, so ZeRO 3 fetches each layer from other replicas.
#
# The third takes over three months longer than the first. Is there a better fourth layout? How would you know, before you rent?
#
# </details>

# %% [markdown]
# You will be able to
# - put three kinds of parallelism on one mesh (**3-D parallelism**), and prove that the training is the same.
# - say by hand what a step's time is made of.
# - say how far such a prediction is off.
# - search all layouts for a model and a cluster, and say why the others lose.
# - choose how often a long run writes a checkpoint.
#
# *Fifty minutes; the exercises take four hours.*
#
# <details><summary>Before you start</summary>You need pipelines from lesson 04, tensor parallelism from 05, ZeRO from 06, and the mesh from 07.</details>

# %% [markdown]
# ## Three cuts at once
#
# Take eight ranks, two along each axis. The axes stand in the order `pp`, `dp`, `tp`, and the last one counts fastest:
#
# $$\text{rank} = 4 \cdot \text{pp} + 2 \cdot \text{dp} + \text{tp}$$
#
# So rank 5 has pp 1, dp 0 and tp 1. Along each axis it has one partner, which differs in that coordinate alone. Along `tp` the two add up activations, and along `dp` gradients. Along `pp` one passes activations on and the other passes gradients back.
#
# With which rank does rank 5 add up gradients? Work it out, then check in the picture that both hold the same weights.

# %%
SMALL = ModelConfig(
    name="small",
    hidden_size=64,
    n_layers=4,
    n_heads=8,
    n_kv_heads=4,
    ffn_size=176,
    vocab_size=512,
    tied=False,
)
SCHEDULE = make_schedule("1f1b", 2, 2)  # two ranks, two micro-batches


def llama_alone(train):
    return Trainer(Decoder(SMALL), train)


def llama_3d(train):
    apply = (tensor(sequence_parallel="regather"), stages(SCHEDULE), replicate())
    return Trainer(Decoder(SMALL), train, mesh=make_mesh(pp=2, dp=2, tp=2), apply=apply)


layout = run_ranks(lambda: llama_3d(TrainConfig()).local.layout, 8)[0]
places = [*coordinates(layout.sizes)]
shown = [
    name for name in layout.parameters if name.split(".")[0] != "layers" or ".0." in name or ".3." in name
]
regions = {name: layout.regions()[name] for name in shown if "norm" not in name and "k_proj" not in name}
viz.plot_layout(regions, layout.shapes(), places, title="Layers 0 and 3 of a small Llama on 2 × 2 × 2")

# %% [markdown]
# The upper rows are layer 0 and the lower ones layer 3. Different ranks hold them, because the pipeline shares out the layers; layers between, `k_proj` and norms are not drawn. Even and odd ranks hold different halves of a matrix, because `tp` cuts it. But ranks 5 and 7 hold the same, because `dp` copies, so these two add up gradients.
#
# Why does `tp` count fastest? It sends inside every layer, so it needs the fastest wires, which join neighbouring ranks in one NVLink domain.
#
# Three techniques work on the same weights, and none knows of the others. Do they still train the same model as one device? Climb the ladder.

# %% varies="the last digits of rounding differ between processors"
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=8, sequence=32)
report = assert_parallel_equals(llama_alone, llama_3d, text, world_size=8)
viz.plot_ladder(report.deviations, tolerance=report.tolerance)

# %% [markdown]
# They do! Even the longest line, the gradients, stays thousands of times below the tolerance.
#
# > **To keep.** Each axis has its own partners: along `tp` ranks share activations, along `dp` gradients, along `pp` they pass both on.
#
# So much for what is computed. Now time.
#
# ## How long is one step?
#
# Take a run that was measured, a GPT of Megatron-LM's authors, in 2021:
#
# | what | how much |
# | --- | --- |
# | the model | 39.1 billion parameters in 48 layers |
# | the cluster | 512 A100s, with `tp` 8 and `pp` 2 |
# | one step | 1536 sequences of 2048 tokens |
#
# That makes 32 pipelines, and each took its sequences four at once, in twelve micro-batches. To save memory, backward computed all activations a second time: **recomputation**, or activation checkpointing.

# %% [markdown]
# ### 1 · Multiply
#
# Almost all work is multiplying matrices, so begin there. In the forward pass a parameter meets a token with one multiplication and one addition, which are two operations. Backward makes two gradients, so it takes four more. Recomputation does forward a second time, and that takes another two. So there are eight operations for each parameter and token.
#
# The data sheet of an A100 says 312 TFLOP/s<!-- =load_cluster("dgx_a100").device.dense_flops_per_s["bf16"] / 1e12 -->, but no program reaches it. For large products take 0.85 of it, a number that we shall question later. All 512 GPUs share the work.
#
# **Predict.** The step was measured to take 14.5 s<!-- =next(run for run in sim.published_runs() if run.name == "mlm21t1-005").step_s -->. Which share of that is multiplying?

# %%
run = next(run for run in sim.published_runs() if run.name == "mlm21t1-005")
step_tokens = 1536 * 2048
multiply_s = 8 * 39.1e9 * step_tokens / (512 * 0.85 * 312e12)
predict("share of the step", guess=None, answer=multiply_s / run.step_s, tolerance=0.05)
print(f"by hand {multiply_s:.1f} s; measured {run.step_s:.1f} s, from the FLOP/s that the paper reports")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Eight operations, times parameters, times three million tokens, over all GPUs at what they reach. That explains half. Where is the other half?
#
# </details>
#
# ### 2 · Wait for messages
#
# Next comes **exposed communication**, messages that nothing hides. Along `tp` eight GPUs add up activations after attention and after feed-forward, in two forwards, and in backward their gradients. That makes six sums in a layer, for half of the layers and twelve micro-batches. One activation is four sequences of 2048 tokens, each with 8192 numbers of two bytes. A ring sends it 2 · 7/8 times. NVLink's data sheet says 300 GB/s<!-- =load_cluster("dgx_a100").inside.bandwidth_bytes_per_s / GB -->; as with the FLOP/s, take what programs reach, two thirds.
#
# ### 3 · Wait for the pipeline
#
# The two ranks of each pipeline also wait for each other, as in lesson 04. For $p$ ranks and $m$ micro-batches this bubble is $(p-1)/m$ of the busy time, here one twelfth.

# %%
activation = 4 * 2048 * run.model.hidden_size * 2  # bytes
sums = 6 * 24 * 12  # for each layer, layers of a GPU, micro-batches
tp_s = sums * 2 * 7 / 8 * activation / (2 / 3 * 300e9)
bubble_s = (multiply_s + tp_s) / 12
for name, seconds in {"multiply": multiply_s, "along tp": tp_s, "bubble": bubble_s}.items():
    print(f"{name:9} {seconds:5.2f} s")
print(f"together  {multiply_s + tp_s + bubble_s:5.2f} s of {run.step_s:.2f} s")

# %% [markdown]
# Seven tenths of the step are explained. What did we leave out? First, the scores of attention: queries times keys belong to no parameter, so our eight operations do not count them. Second, there is all that does not multiply matrices, such as softmax, norms and GELU. It computes little, but reads and writes every number in memory. Third, gradients travel along `dp`, although backward hides a part of that. Then the optimizer has its turn. Each micro-batch also starts every kernel anew, and adds up gradients. Last, GPUs wait for their **host**, the CPU that starts their work, and for the slowest among them, the **stragglers**.
#
# The library has a formula for each of these, with constants like your 0.85. Its `step_times` returns each cause.

# %%
rates = sim.rates_of(run.machine, run.software)
times = sim.step_times(run.model, rates, run.policies)
for cause, name in sim.CAUSE_NAMES.items():
    seconds = float(getattr(times, cause)[0])
    if seconds > 0:
        print(f"{name:42} {seconds:5.2f} s {'█' * round(6 * seconds)}")
print(f"{'together':42} {times.total[0]:5.2f} s, measured {run.step_s:.2f} s")

# %% [markdown]
# Find your own three in the list.
#
# | cause | beside yours | why |
# | --- | --- | --- |
# | matrix products | slightly over six eighths | the second forward has a line of its own, but narrow matrices multiply more slowly |
# | messages along tp | nearly as much | your two thirds were slightly low |
# | bubble | more | they also wait for all that you had left out |
#
# The three lines above recomputation are one forward and one backward, which is as long as two forwards. So one more forward is a third of the three.
#
# This sum of causes is a **cost model** in **closed form**, because it never plays the micro-batches through one by one. It is so cheap that we can afford it thousands of times.
#
# > **To keep.** A step is multiplying, exposed communication, the bubble, and a long rest of small causes; the first three you can find by hand.

# %% [markdown]
# ### Is it true?
#
# One run that comes out right proves nothing. More than eighty constants, your 0.85 among them, were fitted to steps that other people have measured, and may have learnt these by heart. So each source was left out once, and predicted from all others: in the middle it was off by 6 %<!-- =100 * float(next(row["median"] for row in sim.committed_records() if row["test"] == "sources" and row["group"] == "median of groups")) -->.
#
# But often another source has the same program. So each program was left out too, and its runs predicted as if nobody knew it: half of them were off by 13 %<!-- =100 * float(next(row["median"] for row in sim.committed_records() if row["test"] == "stacks" and row["group"] == "all rows")) --> or more.
#
# *Going deeper* has the picture, and tries what matters more to us, the *order* of two layouts. If the formula sees less than two percent between them, it is little better than a coin. Above a tenth it is right almost nine times in ten, though less surely where one layout does a kind of work that the other does not.
#
# > **To keep.** A predicted time is off by some percent on a program that was measured, and by an eighth on one that nobody knows; the order of two layouts mostly survives if they are more than a tenth apart.

# %% [markdown]
# ## Search
#
# If a step is so cheap to price, try everything on our 16,384 GPUs!
#
# That number is $2^{14}$, so it has 15 divisors. Take each for `tp`, for `pp` and for `cp`, **context parallelism**, which cuts sequences into pieces. `dp` gets the rest. Combine these with the four stages of ZeRO, with four sizes of micro-batch, with six schedules (in the **interleaved** ones each rank has several small stages), and with none, half or all layers recomputed. That makes almost a million layouts.
#
# **Predict.** How many percent are possible: about 2, 20 or 60? Begin with the GPUs that they need.

# %% varies="how long the search took"
found = search(JOB)
predict("percent", guess=None, answer=100 * len(found) / found.n_tried, tolerance=0.3)
print(f"{found.n_tried:9,} layouts")
for rule, count in found.rejected.items():
    if count:
        print(fill(f"{-count:9,} {planner.RULES[rule]}", 100, subsequent_indent=" " * 10))
print(f"{len(found):9,} are possible, found in {1000 * found.search_s:.0f} ms")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Read the list from the top: each layout is counted at the first rule that it breaks. Four of five ask for more GPUs than there are. Why so many? Each of the three degrees is a power of two with an exponent from 0 to 14, and the three exponents may add up to 14 at most. Only every fifth choice does.
#
# The second rule is lesson 07's advice that `tp` stays in its NVLink domain. The third refuses more stages than the model's 126 layers, and the four small ones ask what sequences, schedule and ZeRO allow.
#
# Memory comes last, and still took more than half of what was left. Only a layout that fits is priced.
#
# > **To keep.** Most layouts break a rule, and of the rest most do not fit. Speed decides among few.
#
# </details>

# %% [markdown]
# ### Is there a fourth?
#
# Back to the question of the first screen. The colleagues left the sequences whole, so keep `cp` at 1, and search all such layouts. Of those with the same **degrees**, which are `dp`, `tp`, `pp` and `cp`, the program keeps the fastest, and it draws the best four.
#
# A *stage* is a piece of the model, and with `interleaved x 4` each of the `pp` ranks has four. With `recompute=half` half of the layers are recomputed.
#
# **Predict.** How large is the winner's `pp`? If it is small, many layers must fit on each GPU. If it is large, the pipeline is long, and so is its bubble.

# %%
whole = search(JOB, Space(cp=(1,)))
best = planner.ranked(whole, 4)
predict("pp", guess=None, answer=best[0].policy["pp"])
print("        bubble   recompute   weights, gradients   activations   other memory")
for one in best:
    held = {part: size / GiB for part, size in one.memory.items()}
    states, other = held["weights"] + held["gradients"], one.memory_bytes / GiB
    other -= states + held["activations"]
    print(
        f"pp {one.policy['pp']:2}   {one.causes_s['bubble']:.2f} s      {one.causes_s['recompute']:.2f} s",
        end="",
    )
    print(f"{states:17.1f} GiB{held['activations']:10.1f} GiB{other:11.1f} GiB")
viz.plot_step_causes(best, title="Llama 3.1 405B on 16,384 GPUs, sequences left whole")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Yes, there is! The top bar needs 1.31 s<!-- =planner.search(planner.Job(model=load_model("llama3_1_405b"), cluster=__import__("dataclasses").replace(load_cluster("dgx_h100"), n_nodes=2048), batch=2048, sequence=8192, reserve=0.1), planner.Space(tp=(8,), pp=(32,), cp=(1,))).step_s[0] - planner.search(planner.Job(model=load_model("llama3_1_405b"), cluster=__import__("dataclasses").replace(load_cluster("dgx_h100"), n_nodes=2048), batch=2048, sequence=8192, reserve=0.1), planner.Space(cp=(1,))).step_s[0] --> less than `pp` 32, the first colleague's layout.
#
# Why 16? With sixteen ranks a pipeline gets 16 sequences. Halve the ranks, and twice as many pipelines get half the sequences each. So $m$ always equals $p$, and a long pipeline's bubble of $(p-1)/m$ would be almost as long as the work. Interleaving divides it by the stages of a rank, and fewer ranks have more stages each. So a shorter pipeline has less bubble.
#
# But its ranks hold more layers. In the lower two bars only ZeRO 3 has room for the weights, and to fetch them takes two seconds along `dp`.
#
# </details>

# %% [markdown]
# Why do eight ranks lose? Look at the memory columns. Half as many ranks hold twice the layers, so weights and gradients double. If eight ranks recomputed half, as sixteen do, activations would stay the same: twice the layers, half the sequences. With other memory, a little more of it than in the table, that makes 76. A GPU offers 79.1 GiB<!-- =load_cluster("dgx_h100").device.usable_bytes / GiB -->, and we wanted to leave a tenth of it free.
#
# So with ZeRO 1 eight ranks must recompute *all* layers, and keep hardly any activations. By the first two columns `recompute` costs a little more than `bubble` saves, and messages along `tp` and `dp` take longer.
#
# > **To keep.** On this network the winner has ZeRO 1, and the shortest pipeline that then fits without recomputing everything.
#
# ### How much room do you leave?
#
# That tenth decides. Here is the same search with all that an H100 offers to a program.

# %%
full = search(replace(JOB, reserve=0), Space(cp=(1,)))
for one in planner.ranked(full, 3):
    fills = f"{one.memory_bytes / GiB:.1f} GiB of {NODE.device.usable_bytes / GiB:.1f}"
    print(f"pp {one.policy['pp']:2}: {one.step_s:.2f} s, with {fills}; ", end="")
    print(f"{100 * one.fit_chance:.0f} in 100 fit")

# %% [markdown]
# Now `pp` 8 wins, by a twelfth, and leaves less than three GiB. Would you rent 16,384 GPUs on so thin a margin? Formulas of memory were held against measured peaks too. The last column says how many of a hundred such runs would have room. `pp` 8 is a coin. The command `plan`, which you meet below, leaves six hundredths free by default.
#
# > **To keep.** A layout that fits by three GiB has not won yet. Leave room for what the formula does not know.
#
# Now play the winner's step through, the one with room, each box as long as the formula says, in interleaved order.

# %%
viz.plot_step_timeline(whole)

# %% [markdown]
# Each lane is 1,024 GPUs. Its four shades are its four stages, and the dark foot is the share of messages along `tp`. Look at the top lane. When its forwards are done, it waits almost a second, until the first gradient has come back through all ranks. Then come narrow slits, because later ranks still go forward between two gradients. The bottom lane waits at both ends instead.
#
# Meta trained with exactly these degrees. Did the fit learn them from its steps of this model? No: fitted without those steps the same layout wins, as *Going deeper* shows.

# %% [markdown]
# ## Three hours later
#
# The layout is chosen, and the run begins. Three hours later it stands still. Sixteen thousand GPUs have power supplies, cables and memory, and whenever one of these fails, all others wait. Meta counted 419 unplanned stops in 54 days, which is one every three hours.
#
# After a stop you go back to the last checkpoint. So should you write checkpoints often? You would lose less work, but writing takes time as well. For each parameter a checkpoint holds 14 bytes<!-- =14 -->, two of weights and twelve of AdamW. Meta's storage takes 2 TB/s<!-- =planner.LLAMA_3_STORAGE_BYTES_PER_S / 1e12 -->, so a checkpoint is written in 2.8 s<!-- =14 * costs.model_parameters(load_model("llama3_1_405b")) / planner.LLAMA_3_STORAGE_BYTES_PER_S -->.
#
# How often is best? Say that you write every $\tau$ seconds, and that training waits $\delta$ seconds for each write. Writing then costs a share $\delta/\tau$ of the time. A stop comes every $M$ seconds, somewhere between two checkpoints. So on average half an interval of work is lost, and stops cost a share $\tau/2M$.
#
# **Predict.** After how many minutes should this run write a checkpoint: about 0.3, 4 or 60?

# %%
from statistics import fmean

checkpoint_s = 14 * costs.model_parameters(LLAMA) / planner.LLAMA_3_STORAGE_BYTES_PER_S
mtbf_s, reported = planner.LLAMA_3_STOPS.mtbf_s, planner.LLAMA_3_STOPS.least_goodput
quick = Reliability(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=0)
predict(
    "minutes",
    guess=None,
    answer=planner.young_interval_s(quick) / 60,
    tolerance=0.05,
    think="which of the two costs grows with the interval, and which one shrinks",
)
restart_s = planner.longest_restart_s(mtbf_s, checkpoint_s, reported)
runs = {"back at once": quick, "after a restart": replace(quick, restart_s=restart_s)}
runs["slow checkpoints too"] = replace(runs["after a restart"], checkpoint_s=60)


def with_dice(run, interval_s):
    ends = [
        planner.play_run(run, interval_s, elapsed_s=54 * planner.DAY_S, seed=seed) for seed in range(4)
    ]
    return fmean(one.shares.training for one in ends)


played = {
    name: {tau: with_dice(run, tau) for tau in (60.0, 300.0, 1800.0, 7200.0)} for name, run in runs.items()
}
print(f"at most {restart_s / 60:.1f} minutes for each restart")
viz.plot_goodput(runs, played=played, reported=reported)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Multiply the two shares, and $\tau$ cancels. Two numbers whose product stays the same have the smallest sum when they are equal, so set $\delta/\tau = \tau/2M$ and solve for $\tau$:
#
# $$\tau = \sqrt{2\,\delta\,M}$$
#
# This is **Young's formula**, and $M$ is the **MTBF**, the *mean time between failures*. Daly's adds a correction.
#
# That is 4.2 minutes here. The share of time that is spent on training is called **goodput**. Find the line `back at once` and its ring, where only two percent are lost. Left of the ring you write too often, and right of it you lose too much. The dashed line is our sum, which is good while $\tau$ lies well between $\delta$ and $M$. The small marks are 54 days played with dice, and they agree.
#
# > **To keep.** Write so often that writing costs as much time as the work that stops destroy.
#
# </details>
#
# But nobody is back at once, and Meta says only that their goodput was above nine tenths. How long may restarts have taken? In `after a restart` we made them longer until the ring sank to the dotted line, at a quarter of an hour. So by this model Meta's restarts took no longer on average.
#
# In `slow checkpoints too` a write takes a minute, and goodput sinks by seven points more. That is more than `pp` 8 with everything recomputed would cost.
#
# ## Back to the three colleagues
#
# Multiply a step's time by the number of steps, and divide by Meta's goodput, nine tenths. How many days does each colleague need?

# %%
steps = 15.6e12 / (JOB.batch * JOB.sequence)
steps_s = {f"the {who} colleague": found_one.step_s[0] for who, found_one in proposals.items()}
steps_s |= {"Meta's degrees": whole.step_s[0], "sequences cut": found.step_s[0]}
days = {name: steps * step_s / reported / planner.DAY_S for name, step_s in steps_s.items()}
for name in days:
    print(f"{name:20} {steps_s[name]:5.1f} s a step, {days[name]:4.0f} days")
print(f"published: 30.84 million GPU-hours, {30.84e6 / 24 / JOB.cluster.n_gpus:.0f} days of all GPUs")

# %% [markdown]
# Who was right? Of the three it was the second, a hair before the first. But there is a fourth: Meta's degrees save over twelve days. `sequences cut` is the fastest layout of the whole search, with `cp` 2; *Going deeper* shows where it saves.
#
# How would you know, before you rent? Each number may be off by a tenth or two. But the second colleague's step is a sixth longer than the fourth's, and of pairs so far apart almost nine in ten kept their order. His loss is all messages along `dp`, so how well do you know the network? The first one's is all bubble, twice as long as the fourth's; all else is alike, so there an error hits both.
#
# > **To keep.** Before you rent, ask how wrong the formula would have to be to change your answer.
#
# Meta's own hours make 78 days, a little less. But these hold other phases too, and we took their goodput, so this is no proof.
#
# ## Take it home
#
# All this is one command.

# %% varies="how long the search took"
from contextlib import chdir
from course_lib.cli.plan import plan_command
from tempfile import TemporaryDirectory

# Look at the best three: are they three different answers? In a shell:
# python -m course_lib plan model=llama3_1_8b cluster=dgx_h100 cluster.n_nodes=4 batch=256 out=plan.json
with TemporaryDirectory() as folder, chdir(folder):
    plan_command(
        ["model=llama3_1_8b", "cluster=dgx_h100", "cluster.n_nodes=4", "batch=256", "out=plan.json"]
    )

# %% [markdown]
# | block | what it says |
# | --- | --- |
# | the rules | as above, for 8B on 32 GPUs |
# | the best three | less than one percent apart, so for us equal: take the simplest |
# | likely | four of five steps of sources that were left out lay in a range as wide |
# | fits in … of 100 | so many such runs had room for their peak |
# | MFU | the model's own operations, as a share of the peak |
# | assumed | what you did not say: read it before you believe the rest |
# | nearest published run | where it is far, the range is wider |
# | memory | where it goes, and how much less of it there is for more time |
# | small enough | how to try it here |
# | played through | the best hundred agree within three percent |
#
# Below is our search with whole sequences, in a running notebook with controls; it leaves six hundredths of the memory free. Make the network four times slower, then twice as fast. When does the winner change?

# %%
viz.planner_explorer()

# %% [markdown]
# <details><summary>What you may have found</summary>On the slow network <code>pp</code> 16 still wins, but <code>pp</code> 64 is as good: its ranks hold fewer gradients. On the fast one <code>pp</code> 1 wins with ZeRO 3, and 2, 4 and 8 are as good. Fetching takes a second or two, but nothing is recomputed, and the bubble is small.</details>
#
# | what you want to know | ask |
# | --- | --- |
# | my own model, my own wires | `plan model=FOLDER cluster.card.bandwidth_bytes_per_s=25e9 …` |
# | how fast this one layout is | `plan … tp=8 pp=16 cp=1` |
# | my own measured steps | `predict runs=… calibrate=MY_RUNS.json` |
#
# ## In PyTorch alone: a run that can be stopped
#
# A plan for weeks has to outlive a dead node. [`scripts/08_resume.py`](scripts/08_resume.py) is the script's last stage so far, and this is what changes:

# %%
from pathlib import Path

viz.show_difference(Path("scripts/07_fsdp_tp.py"), Path("scripts/08_resume.py"))

# %% [markdown]
# Each rank writes its own pieces, and any layout can read them.
#
# **Your turn.** Kill the script with `kill -9` after step 5, and start it again, on 2 processes instead of 4. Where does it go on, and with which losses?
#
# <details><summary>What you should see</summary>Behind its last whole checkpoint, at step 6, 11 or 16, and with the losses of a run that was never stopped.</details>
#
# ## The file behind this lesson
#
# [`course_lib/planner/policy_search.py`](../course_lib/planner/policy_search.py), about 140 lines, prices all layouts at once. What breaks a rule is dropped and counted, so you hear why nothing is left.
#
# ## What still hurts
#
# Cut sequences would save almost two weeks, if the formula is right, but we took the price of `cp` on trust. How can two GPUs share one sequence, if every token looks at all tokens before it? And another axis stood at 1 all the time, `ep`, for models with experts. Lesson 09 begins with these two.
#
# **Next:** the [exercises](../exercises/release/08_three_d_and_planner.ipynb), then [lesson 09](09_long_contexts_and_experts.ipynb).

# %%
score()

# %% [markdown]
# ## Questions
#
# <details><summary>1. With two ranks along each axis, who is rank 6's partner along pp?</summary>
# Rank 2, because only pp may differ, and it counts four.
# </details>
#
# <details><summary>2. Two layouts are predicted to be one percent apart. Which do you take?</summary>
# Either: so close together the formula is a coin. Take the simpler one, or measure both.
# </details>
#
# <details><summary>3. In about 60 days OPT-175B was restarted 35 times by hand and about twice as often by itself. If a checkpoint took a minute, how often would you write one?</summary>
# A stop came every 13.7 hours, so every 41 minutes.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part stands alone and can be skipped.
#
# ## Is it true? Each source left out once
#
# One run that comes out right proves nothing, because the constants may have been chosen for it. There are more than eighty of them, your 0.85 among them, and each belongs to a kind of GPU, to a wire or to a program. They were fitted to steps that other people have measured, whose pages are listed in `course_lib/sim/data/published.json`.
#
# So leave one source out, fit the constants to all others, and predict the source that this fit has never seen.

# %%
viz.plot_calibration()

# %% [markdown]
# Each diamond says how far off the formula was for one source that its fit had never seen. The middle one, the **median**, lies at 6 %<!-- =100 * float(next(row["median"] for row in sim.committed_records() if row["test"] == "sources" and row["group"] == "median of groups")) -->, with five sources that have too few runs to be drawn. Measurements may be hardly better: two published tables of the same run lie as far apart as the shading is wide.
#
# The upright stroke is the error of a fit that *has* seen other runs of the same source. Compare each stroke with its diamond. Left out, most sources are at most twice as far off. So little was learnt by heart.
#
# Now look at the two lowest lines. DeepSpeed's runs on Azure are far off only if they were left out: no other source has their program, whose messages nothing hides. The model zoo's are far off even if some of them were seen. Of its runs with long sequences the predicted steps are too long, and the longer the sequence, the more, so attention is probably faster there than the formula believes. Some of its short ones are farther off still, and we do not know why. If your cluster is like DeepSpeed's, measure three steps of your own; *Two more questions to the fit* shows what they are worth. If it is like the model zoo's, nothing but a better formula helps.
#
# Does it help if somebody has measured a run like yours? Take each ratio between two runs as a number of **doublings**, so that twice the sequence is one, and a quarter of the stages is two. Add these up over the model's size, the sequence, the micro-batch, their number, and all degrees; ZeRO-3 in only one of the two counts as one more. Now leave each source out, and pretend to know of its program only that it is like Megatron, say, as `plan` does of yours. Half of the runs with a neighbour in another source within three doublings were off by at most 7 %<!-- =100 * float(next(row["median"] for row in sim.committed_records() if row["test"] == "intervals, kind, near" and row["group"] == "all rows")) -->, and half of the others by at most 14 %<!-- =100 * float(next(row["median"] for row in sim.committed_records() if row["test"] == "intervals, kind, far" and row["group"] == "all rows")) -->.
#
# So `plan` names the nearest run, and where it is far the likely range is wider: it reaches up to 49 %<!-- =100 * (sim.load_constants().far["kind"][1] - 1) --> above the prediction, in place of 31 %<!-- =100 * (sim.load_constants().near["kind"][1] - 1) -->. Below, it reaches only 13 %<!-- =100 * (1 - sim.load_constants().far["kind"][0]) --> or 9 %<!-- =100 * (1 - sim.load_constants().near["kind"][0]) -->, for of the runs that were off by much, most were slower than predicted.

# %% [markdown]
# ## Is the order right?
#
# To choose between two layouts we need not know their times, only which is faster. Whatever slows down a whole cluster slows down both layouts, so their order may survive.
#
# Ten of the sources measured several layouts of the same training on the same GPUs. Take all pairs of such layouts, and predict them with their source left out of the fit. Now look only at the pairs that are predicted to lie two to ten percent apart.
#
# **Predict.** In how many percent of them is the predicted winner really faster: about 55, 70 or 95?

# %%
orders = [row for row in sim.committed_records() if row["test"] == sim.ORDER]
predict("percent", guess=None, answer=round(100 * float(orders[1]["covered"])), tolerance=0.05)
for row in orders:
    print(
        f"{row['group']:17} {row['rows']:>3} pairs, "
        f"{float(row['covered']):4.0%} in the right order; {row['note']}"
    )

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In the first line, below two percent, the formula was little better than a coin. From two to ten it was right in seven pairs of ten, and beyond in almost nine.
#
# Why not better? Read the notes. Most of the pairs come from one source, whose layouts differ in everything: one stage or many, one GPU along `tp` or four, all recomputed or nothing. An error cancels if both layouts do the same kind of work, and here they often do not.
#
# > **To keep.** Two layouts less than two percent apart are equal until you have measured both. If they are further apart, ask whether one does a kind of work that the other does not, such as recomputation: then measure as well.
#
# </details>
#
# ## A sweep that the fit had never seen
#
# A **sweep** is one training that was measured under several layouts. To ask which of two is faster flatters the formula, since many pairs are easy. Who rents wants the *fastest* of many layouts. In each of the 26<!-- =sum(row["test"] == "sweep" for row in sim.committed_records()) - 1 --> sweeps below take the layout that the formula likes best, fitted without that source: how much slower was it than the best one measured?
#
# **Predict.** In how many of these sweeps did the favourite lose more than a tenth?

# %%
middle, *each = (row for row in sim.committed_records() if row["test"] == sim.SWEEP)
lost = [float(row["median"]) for row in each]
predict(
    "sweeps",
    guess=None,
    answer=sum(share > 0.1 for share in lost),
    tolerance=0.35,
    think="which errors all layouts of a sweep share, and which only some of them",
)
print(f"in the middle the favourite loses {float(middle['median']):.1%}, at worst {max(lost):.0%}")
for row in sorted(each, key=lambda row: -float(row["median"]))[:4]:
    name = row["group"].partition(", ")[2].partition(",")[0]
    print(f"{float(row['median']):4.0%} with {row['rows']:>2} layouts to choose from, {name}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In half of the sweeps the favourite is the fastest layout, or a hair behind it. Where it fails, it fails by a lot. There the layouts differ in a cost that the formula does not have, such as messages along `dp` that take several times what the network would.
#
# But you need not trust one favourite. The best of the three that the formula likes is the fastest in 22<!-- =int(next(row for row in sim.committed_records() if row["test"] == sim.SWEEP_OF_THREE)["note"].split("; ")[1].split()[0]) --> of the sweeps, and never more than 7 %<!-- =100 * float(next(row for row in sim.committed_records() if row["test"] == sim.SWEEP_OF_THREE)["p90"]) --> slower.
#
# > **To keep.** Measure the three layouts that the formula likes best, not one.
#
# </details>

# %% [markdown]
# ## And if sequences may be cut?
#
# The core looked at layouts that leave sequences whole, and there `pp` 16 is the best. Our search of a million layouts also tried `cp`. If two GPUs share a sequence, each keeps only half of its activations, and sends its keys and values to the other. Lesson 09 shows how that works. Here it is enough to know that these messages hide almost wholly behind computing.
#
# The fastest of all layouts has `cp` 2 and half of Meta's `dp`. You have seen the fastest layout with Meta's degrees: it was the top bar in *Is there a fourth?*. Which of its parts can shrink now, and by how much?
#
# **Predict.** How many percent longer does a step take with Meta's degrees?

# %%
place = found.place_of(tp=8, pp=16, dp=128)
meta = found.distinct[place]
with_cut, without = planner.described(found, [0, meta])
predict("percent", guess=None, answer=100 * (without.step_s / with_cut.step_s - 1), tolerance=0.2)
print(f"{place} other sets of degrees have a faster layout than Meta's")
print(fill(planner.why_slower(without, with_cut), 100))
print(f"messages along cp that nothing hides: {with_cut.causes_s['cp']:.3f} s")
kept = search(JOB, Space(tp=(8,), pp=(16,), cp=(1,), recompute=("none",)))
zeros = ", ".join(map(str, np.unique(kept.policies.zero_stage)))
print(f"Meta's degrees, nothing recomputed: only with ZeRO {zeros}, {kept.step_s[0]:.1f} s a step")
print(f"the lower bar has an MFU of {without.mfu:.1%}: the peak's share for the model's own operations")
viz.plot_step_causes([with_cut, without], title="Sequences cut in two, and left whole")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The upper bar recomputes nothing, because the activations of half a sequence fit. Its bubble is half as long, because half the replicas get 32 micro-batches each, not 16. Only along `dp` more messages show: they hide behind one micro-batch, now half as long. And launching kernels takes almost twice as long, for twice as many micro-batches.
#
# Was Meta wrong? By our formulas two dozen sets of degrees are faster, all with cut sequences. But Meta, with whole sequences, recomputed nothing either, which in our formulas fits only with slow ZeRO 3. They freed by hand tensors that our formulas keep. And they shared out gradients along `dp` while each rank kept its weights, which our rules do not allow beside a pipeline. Their own operations reached 41 %<!-- =41 --> of the peak, a share that is called **MFU** (with recomputation counted it would be HFU), and that is what our lower bar has, recomputation and all.
#
# > **To keep.** A search does not tell you the truth, but what to try first.
#
# </details>

# %% [markdown]
# ## Time against memory
#
# Suppose that you need room, because your framework keeps more than our formulas know. What does that room cost? Draw a dot for each layout that takes at most twice as long as the fastest. Most of these dots are useless, because another one is faster *and* smaller. The few that nothing beats in both make a line, which is called the **Pareto front**.
#
# **Predict.** Give each GPU half of the fastest layout's memory. Longer pipelines and sequences in more pieces make the model fit. How many percent longer is the best step then: about 4, 15 or 50?

# %%
meta = found.distinct[found.place_of(tp=8, pp=16, dp=128)]
half, seventh = (int(np.argmax(found.memory_bytes <= found.memory_bytes[0] / part)) for part in (2, 7))
predict("percent", guess=None, answer=100 * (found.step_s[half] / found.step_s[0] - 1), tolerance=0.3)
named = {"the fastest": 0, "Meta's degrees": meta, "half the memory": half, "a seventh": seventh}
for name, index in named.items():
    print(f"{name:15} {planner.policy_name(found.policies, index)}")
least, fastest = planner.described(found, [seventh, 0])
print(fill(f"a seventh is {planner.why_slower(least, fastest)}", 100))
viz.plot_policy_front(found, named=named)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Start at the fastest layout, lower right, and walk left along the line. At first room is cheap. With half of the memory a step takes a seventh longer: pipelines are twice as long, but a quarter of the replicas gives each four times the micro-batches. Then the line climbs. A seventh of the memory makes a step half as long again, because everything is recomputed, and weights are fetched along `dp`.
#
# Now find the ring of Meta's degrees. It lies above the line, so by our formulas other layouts are faster and smaller at once. If someone says that only their layout fits, ask where it lies here.
#
# > **To keep.** Near the fastest layout memory is cheap, if sequences may be cut: half of it costs a seventh of the time.
#
# </details>

# %% [markdown]
# ## Two more questions to the fit
#
# One source, InternEvo, has runs that are all slower than the formula thinks. Suppose that this is your cluster, and predict it as a program that nobody knows. The constants have seen its runs, which helps a little. Now measure three steps. Their mean error becomes a factor for all other steps. We draw it towards 1, because three may err by chance.
#
# The second question is about Meta's degrees. Of the fitted steps 46<!-- =sum("405B" in one.model.name for one in sim.published_runs()) --> are of this very model, and a fit may learn by heart. So the second cell fits without them, and prices all layouts with whole sequences anew.

# %%
theirs = [one for one in sim.published_runs() if one.source == "internevo"]
own = [replace(one, software=sim.nothing_known(one.software)) for one in theirs]
off = sim.errors(sim.table_of(own), sim.load_constants().values)  # log(predicted/measured) of each run
factor = sim.own_factor(off[:3].tolist())
print(f"the factor of three steps: {factor:.2f}")
print(f"the other {len(own) - 3}: off by {np.median(sim.off_by(off[3:])):.0%} before, ", end="")
print(f"{np.median(sim.off_by(off[3:] + np.log(factor))):.0%} after")
medians = {row["test"]: row for row in sim.committed_records() if row["group"] == "median of groups"}
for left_out in ("sources", "stacks"):
    for own_rows, words in {"without": "no own step", "three own rows": "three own steps"}.items():
        row = medians[f"{left_out}, {own_rows}"]
        print(f"{row['rows']:>2} clusters, {left_out} left out, {words}: ", end="")
        print(f"off by {float(row['median']):.1%}")

# %%
from course_lib.sim.fit import fit

strangers = [run for run in sim.published_runs() if "405B" not in run.model.name]
values = fit(strangers, start=sim.load_constants().values)
machine = sim.machine_of(JOB.cluster)
names = sim.constant_names(machine.generation, JOB.software)
coefficients = {name: values[constant] for name, constant in names.items()}
# What the same machine would do by these constants, and the steps of all layouts on it.
unseen = sim.rates_from(
    machine, coefficients, fp8=0, keeps_scores=0, gradient_bytes=JOB.software.gradient_bytes
)
step_s = sim.step_times(LLAMA, unseen, whole.policies).total
winner = planner.policy_name(whole.policies, int(step_s.argmin()))
print(f"fitted to {len(strangers)} steps: {winner}, {step_s.min():.2f} s")

# %% [markdown]
# For a peculiar cluster three steps are worth a lot; with another three of its runs it may be less. In the next two lines of the first cell each source was left out once, and one with several kinds of GPU counts as several clusters. There three steps help little, because most clusters had little to correct. In the last two lines each program was left out. Where nobody knows the program, three steps take away more than a third of the error. And Meta's degrees win without any step of their model.
#
# > **To keep.** If nobody has published your program, three measured steps take away more than a third of the error. If somebody has, they take away little.
#
# ## Megatron's tables, row by row
#
# Here are ten fitted rows of 2021, among them our run. `v` says how many stages each rank interleaves. Below them is a run that was not fitted. In 2019 Megatron-LM trained 8.3 billion parameters on 512 V100s with a weak-scaling efficiency of 76 %<!-- =100 * costs.MEGATRON_2019_FLOPS_PER_S / costs.MEGATRON_2019_GPUS / costs.MEGATRON_2019_ALONE_FLOPS_PER_S -->, against one GPU alone with 1.2 billion.

# %%
rows = {one.name: one for one in sim.published_runs()}
for one in (row for row in rows.values() if row.source == "mlm21t1"):
    said = float(sim.step_times(one.model, sim.rates_of(one.machine, one.software), one.policies).total[0])
    cut = " ".join(f"{axis} {one.policy[axis]:2}" for axis in ("tp", "pp", "dp"))
    print(f"{one.model.name:11} {one.gpus:4} GPUs, {cut}, v {one.policy['stages_per_rank']}: ", end="")
    print(f"measured {one.step_s:5.1f} s, predicted {said:5.1f} s, {said / one.step_s - 1:+5.1%}")

v100, reached = rows["mlm20-004"], {}
rates = sim.rates_of(v100.machine, v100.software)
measured = {1: costs.MEGATRON_2019_ALONE_FLOPS_PER_S, 512: costs.MEGATRON_2019_FLOPS_PER_S / 512}
for gpus, (hidden, layers, heads, tp) in {1: (1536, 40, 16, 1), 512: (3072, 72, 32, 8)}.items():
    sizes = {
        "hidden_size": hidden,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": heads,
        "ffn_size": 4 * hidden,
    }
    model, policy = (
        replace(v100.model, **sizes),
        replace(v100.policies, tp=tp, dp=gpus // tp, micro_batch=8),
    )
    said = sim.step_times(model, rates, policy).total
    reached[gpus] = float(sim.utilisation(model, policy, said, rates)[1][0]) * rates.peak_flops_per_s
    print(
        f"{gpus:3} V100s: predicted {reached[gpus] / 1e12:.1f} TFLOP/s each, "
        f"reported {measured[gpus] / 1e12:.1f}"
    )
print(f"efficiency: predicted {reached[512] / reached[1]:.0%}, reported {measured[512] / measured[1]:.0%}")

# %% [markdown]
# No row is off by a tenth, but all signs agree: real steps took longer. Constants shared by several sources can leave such a bias. Of the two speeds at the end, one is predicted a tenth too high and the other almost a tenth too low, if the paper counts operations as we do. So their quotient is off by more. An efficiency is a share of *another* run, and a slow one makes it look good.
#
# ## Layers on unlike GPUs
#
# Somebody has two H100s and two A100s, and wants the 32 layers of Llama 8B on four stages. Embedding and head count as two more. The slowest stage sets the pace, so an A100 should get fewer. Five methods search.

# %% varies="the seconds of each search"
problem = planner.stage_problem(
    load_model("llama3_1_8b"),
    {"h100_sxm_80": 2, "a100_sxm_80": 2},
    sequence=8192,
    micro_batch=1,
    n_microbatches=8,
)
print(f"{planner.n_assignments(problem):,} assignments of {len(problem.layers)} layers")
for one in planner.compare_methods(problem):
    on = ", ".join(
        f"{size} on {problem.gpus[gpu].name[:4]}"
        for size, gpu in zip(one.answer.sizes, one.answer.gpus, strict=True)
    )
    print(
        f"{one.method:15} {one.slowest_s:.4f} s for the slowest stage, "
        f"found in {1000 * one.search_s:5.1f} ms: {on}"
    )

# %% [markdown]
# All five reach the same pace. The first three also know that nothing is better: they try all, build on best answers to smaller questions, or ask a solver for whole numbers. The last two change a random answer, or learn by rewards, and have merely stopped. The second is by far the quickest, because it never solves the same smaller question twice.
#
# References: Narayanan et al. 2021, *Efficient large-scale language model training on GPU clusters using Megatron-LM*; Shoeybi et al. 2019, *Megatron-LM*; Grattafiori et al. 2024, *The Llama 3 herd of models*; Zhang et al. 2022, *OPT*; Meta 2024, [model card of Llama 3.1](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md); Young 1974 and Daly 2006, on checkpoints.
