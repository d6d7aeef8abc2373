# %% [markdown]
# # 10 · Less talk: two clusters and a slow line
#
# You have 64 GPUs for Llama 3.1 8B. But half of them stand in this town and half in the next, and the line between the two houses carries 1 Gbit/s<!-- =8 * BETWEEN_CITIES.bandwidth_bytes_per_s / 1e9 -->, with 20 ms<!-- =1e3 * BETWEEN_CITIES.alpha_s --> before the first byte arrives. All that you know so far averages a whole gradient in every step.
#
# **What may a gradient lose before the model notices?** On this page something is lost *on purpose*. So the ladder of all lessons before has to fall, and you will put something else in its place.
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
import torch

from course_lib import comm, costs, less, predict, run_ranks, score, viz
from course_lib.costs import BETWEEN_CITIES, INFINIBAND, NVLINK, TEN_GIGABIT, load_model
from course_lib.costs import Synchronisation, one_synchronisation, sum_time
from course_lib.ranks import ledger
from course_lib.training import Batches, Decoder, ModelConfig, Nesterov, TrainConfig, Trainer
from course_lib.training import at_the_mean, gossip, load_text, local, make_mesh, replicate
from course_lib.verify import identities, museum

torch.set_num_threads(1)  # the laboratory's tensors are small: a second thread would only be waited for
LLAMA, WIRES = load_model("llama3_1_8b"), [NVLINK, INFINIBAND, TEN_GIGABIT, BETWEEN_CITIES]
COMPUTING_S = 2.0  # of a step: 16,384 tokens on each GPU, at 400 TFLOP/s


def prices(ranks):
    return {row.method: row for row in one_synchronisation(LLAMA, ranks=ranks)}


model = ModelConfig(
    name="small",
    hidden_size=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=4,
    ffn_size=64,
    vocab_size=128,
    tied=False,
)
text = Batches(text=bytes(byte % 128 for byte in load_text()), batch_size=16, sequence=32)
ADAMW = TrainConfig(optimizer="adamw", learning_rate=3e-3, max_norm=1.0)


def losses_of(apply, steps=100, **degrees):
    """The loss over all ranks' rows, each tenth step at the mean of all weights."""

    def on_each_rank():
        torch.manual_seed(0)
        trainer = Trainer(Decoder(model), ADAMW, mesh=make_mesh(**degrees), apply=apply)
        losses = []
        for step in range(steps):
            if step % 10 == 0:
                with at_the_mean(trainer), comm.settings(ledger=False):
                    inputs, targets = text.batch(10_000)  # which no step trains on
                    scores = trainer.output(inputs)
                losses.append(
                    torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).item()
                )
            trainer.step(text.batch(step))
        return losses

    with comm.settings(guard=False):
        return run_ranks(on_each_rank, 4, timeout=200)[0]


def between_houses():
    """MB that the last run sent from one house to the other."""
    matrix = ledger().matrix()  # from whom, to whom
    return sum(matrix[here][there] for here in (0, 1) for there in (2, 3)) / 1e6


# %%
viz.plot_wires([prices(2)["all-reduce, ring"]], WIRES, computing_s=COMPUTING_S)

# %% [markdown]
# Each dot is one exchange of the gradient between the two houses, on another kind of wire. The dashed line is what a step computes. Inside a node the dot lies far to the left of it, so the exchange is cheap. On the line between the towns it lies far to the right: for every two seconds of work the GPUs wait two minutes. They work 2 %<!-- =100 * 2 / (2 + one_synchronisation(load_model("llama3_1_8b"), ranks=2)[0].seconds_a_step(BETWEEN_CITIES)) --> of the time.
#
# There are four ways to send less: meet **when** it is needed and not in every step, send less of **how much** there is, ask **whom** you have to hear at all, and do not wait for what comes **late**, which is told under *Going deeper*. You will be able to
# - let two clusters train for themselves and meet, in the way of DiLoCo.
# - compress a gradient so that it is right on average, or so that nothing is lost for good.
# - say which messages may be added up on their way, and what that is worth.
# - prove a method sound that equals nothing.
# - choose by hours, and not by steps or by bytes.
#
# *Fifty minutes; the exercises come on top.*
#
# <details><summary>Before you start</summary>You need lessons 02, 03 and 06. Everything on this page ran on CPUs over gloo; NCCL and a real slow line did not run for it.</details>

# %% [markdown]
# ## When: train for yourself, and meet
#
# The simplest idea first. Let each house take ten steps without the other, then let both take the mean of their weights, and so on. This is **local SGD**; where the workers are telephones it is called **federated averaging**. After ten steps they send what they would have sent after one.
#
# What can go wrong shows on a small map. Two workers have two numbers to learn, and each has data of its own, so each stands in a bowl of its own. One bowl is lowest at (−1, 0), the other at (1, 1), and both together at a third point, where both should end.
#
# **Predict.** Both take 512 steps in all. With a meeting after each step they end at that third point. With a meeting after every 64 steps, how far from it do they end? Give 0 if they arrive, only later, and about 0.6 if they end in the middle between the two lowest points.

# %%
far = less.drift(64, steps=512)
predict("distance from the ring, meeting every 64 steps", guess=None, answer=far.off, tolerance=0.2)
viz.plot_drift([less.drift(1, steps=512), less.drift(8, steps=512), far])

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The ring is the lowest point of both together. Look at the right panel. In 64 steps each worker walks nearly down to the lowest point of its *own* bowl, and their mean is then close to the middle between the two. But one bowl is steep and long, and the other is rounder, so the ring lies elsewhere. The longer the workers are alone, the more they forget where they wanted to go together. In the middle panel they have not had the time, and end almost right.
#
# </details>
#
# The paths that run apart are called **client drift**, and data that differ between workers are called **heterogeneous**. If both had the same bowl, nobody would drift.
#
# > **To keep.** Meeting rarely costs little where data are alike, and pulls the model towards everybody's own optimum where they are not.

# %% [markdown]
# ## Two clusters, for real
#
# Now on four ranks. Ranks 0 and 1 are one house, 2 and 3 the other. A mesh has one more axis for that, `across`. Inside a house gradients are averaged in each step, as ever. Between the houses `local` decides, and the ranks of a house share the sending, so that one copy crosses the line. `losses_of`, in the folded cell at the top, trains a small decoder on Shakespeare and looks at its loss at the mean of all weights.

# %% varies="a hundred steps of rounding differ between processors"
ways = {
    "each step (DDP)": ((replicate(),), {"dp": 4}),
    "meet every 25 steps": ((replicate(), local(25)), {"across": 2, "dp": 2}),
    "DiLoCo, every 25": ((replicate(), local(25, Nesterov(0.7, 0.5))), {"across": 2, "dp": 2}),
}
curves, sent = {}, {}
for name, (apply, degrees) in ways.items():
    curves[name] = losses_of(apply, **degrees)
    sent[name] = between_houses()
    print(f"{name:22} {sent[name]:5.1f} MB between the houses, loss {curves[name][-1]:.2f}")

# %% [markdown]
# The first row sends through the slow line in every step. The second sent the first weights and met four times, a small part of that, while its loss is a little behind. That is one seed of a small model, but it hardly minds! Its two houses read different lines of the same plays, so their bowls are almost alike.
#
# AdamW's own numbers stay at home; only weights are averaged. With plain SGD, no clipping and a meeting after *each* step this is exactly data parallelism, because the mean of two steps is the step of the mean. With AdamW it is not, since AdamW divides, and a mean of quotients is no quotient of means.
#
# ## A mean is a step, too
#
# The third row does one thing more. Say both houses began at 10, and came to 8 and to 6, so their mean is 7. Read the way from 10 to 7 as a *gradient*. It has to point back, 10 − 7 = 3, for a gradient is what an optimizer subtracts. With a learning rate of 1 the step leads to 7 again, which is the mean. But now you may choose another rate, and give the step a momentum: if the last meetings all moved in one direction, go a little further. This gradient that is none is called the **pseudo-gradient**, and local AdamW steps with an outer Nesterov step are called **DiLoCo**.

# %%
from course_lib.training.local_technique import outer_step

viz.show_source(outer_step)

# %% [markdown]
# Mind the sign in the second line. Its authors take a rate of 0.7 and a momentum of 0.9, for hundreds of meetings; we have four, and take less momentum.
#
# > **To keep.** Average weights every so many steps, and take the way to the mean as a gradient: that is all of DiLoCo.

# %% [markdown]
# ## How much: round by dice
#
# Now the other idea: exchange in each step, but with fewer bits. Say there are four levels above 0, each a quarter higher than the last. A number may then be one of five values, which needs very few bits. What becomes of 0.6? Rounded to the nearest it is 0.5, each time, and if all ranks have it the sum is wrong for ever.
#
# So throw dice. Let it become 0.75 in 40 %<!-- =100 * (0.6 - 0.5) / 0.25 --> of all throws, and 0.5 in the others.

# %%
viz.plot_dice(4, [0.6, 0.3, 0.05])

# %% [markdown]
# Each row is a number of a longer vector, and a curve is as broad as its way is likely. The chance is the distance from the level below, in levels. So on average 0.6 comes out: 0.4 · 0.75 + 0.6 · 0.5. Such a compressor is called **unbiased**. Each single number is wrong, but errors of many ranks and many steps cancel. The method is **QSGD**.
#
# What it costs is *variance*, more noise in the gradient. Its measure is **ω**: the mean squared error is at most ω times the squared length of the gradient. Levels reach up to the norm of the vector, and a norm grows with the number of entries. So a long vector is cut into **buckets**, each with a norm of its own.

# %%
gradient = torch.randn(4096, generator=torch.Generator().manual_seed(0))
print("levels  bucket   omega   measured   bytes, of", gradient.nbytes)
for levels, bucket in ((1, 4096), (4, 4096), (4, 64)):
    way, draws = less.qsgd(levels, bucket), torch.Generator().manual_seed(1)
    errors = [less.compressed(way, gradient, draws) - gradient for _ in range(200)]
    measured = torch.stack(errors).square().sum(1).mean() / gradient.square().sum()
    print(f"{levels:6} {bucket:7} {way.omega(4096):7.2f} {measured:10.2f} {way.message_bytes(4096, 4):7}")

# %% [markdown]
# In the first row the noise is seven times as long as the gradient. Such a run diverges unless the learning rate is small. Compare the second row with the third: short buckets, for a few more bytes, help a lot.
#
# > **To keep.** Unbiased means right on average; ω says how loud the noise is, and a large ω needs a small learning rate.

# %% [markdown]
# ## How much: send the largest
#
# Most numbers of a gradient are small. So send the largest hundredth and say for each where it stands: **top-k**. It is never right on average, it is **biased**. Does it matter?
#
# Take three workers with three numbers each, all of them 1 at first, with a loss of 1.75. There each worker's gradient is −5.5 in a place of its own and 4.5 in the two others. Each sends its largest number only.
#
# **Predict.** The true mean gradient is positive everywhere, so the numbers should fall, and the loss with them. Each worker sends its −5.5. The first run has a learning rate of 0.05. For the second you take a fifth of that. Is its loss after 200 steps smaller than at the beginning, or larger?

# %%
alone = less.alone(less.top_k(1 / 3))  # of three numbers, one
fast = less.three_quadratics(alone, rate=0.05, steps=200)
slow = less.three_quadratics(alone, rate=0.01, steps=200)
answer = "larger" if slow[-1] > 1.75 else "smaller"
predict("the slow run's loss after 200 steps", guess=None, answer=answer)
print("rate 0.05:", [f"{loss:.3g}" for loss in fast[::40]])
print("rate 0.01:", [f"{loss:.3g}" for loss in slow[::40]])

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The mean of what is *sent* is −5.5/3 in every place, and that of the gradients is +3.5/3. The sign is wrong everywhere, so each step goes uphill. A smaller rate climbs more slowly, and climbs for ever.
#
# </details>
#
# What was dropped is not worthless, then. So *keep* it: add what is left to the next gradient, before you look for the largest again. A number that is never large enough gathers until it is. This is **error feedback**.

# %%
left = torch.zeros(3, 3)  # a row for each worker
x, rate = torch.ones(3), 0.05
for _ in range(200):
    wanted = less.three_gradients(x.double()).float() + left
    largest = wanted.abs().argmax(1, keepdim=True)
    sent_now = torch.zeros(3, 3).scatter(1, largest, wanted.gather(1, largest))
    left = wanted - sent_now
    x = x - rate * sent_now.mean(0)
print("after 200 steps:", [f"{number:.0e}" for number in x.tolist()])

# %% [markdown]
# It converges, with three messages of one number each. Only `left` is new.
#
# Here is one number over time, in a gradient of which the largest twentieth is sent.

# %%
steps = torch.randn(40, 100, generator=torch.Generator().manual_seed(3)) * 0.6
steps[:, 7] = 0.5 + 0.2 * steps[:, 7]  # small, but always of one sign
viz.plot_residual(less.follow_number(less.top_k(0.05), steps, 7))

# %% [markdown]
# The gradient is never among the largest. What is kept grows step by step, until it is large enough and leaves all at once; then it begins anew. Nothing is lost, it is only *late*.
#
# > **To keep.** A biased compressor may go uphill for ever. With a memory of what it left out, everything is sent in the end.

# %% [markdown]
# ## What may be added on its way
#
# One hundredth of the numbers, so a hundredth of the bytes? Let 64 ranks average a gradient in two bytes a number. A ring all-reduce sends about twice the gradient, however many ranks there are, because sums are as long as their terms. But each rank's largest numbers stand in *other* places. Their sum has more places than each of them, so they cannot be added on their way. Every rank has to get every rank's message: an all-gather.
#
# **Predict.** Each number that is sent takes two bytes for its value and four for its place. How many bytes does a rank send with top-1 %<!-- =1 -->, as a multiple of the whole gradient?

# %%
table = prices(64)
whole = costs.model_parameters(LLAMA) * 2
top = table["top-1 %, all-gather"].bytes_a_step / whole
predict("bytes of top-1 % on 64 ranks, in gradients", guess=None, answer=top, tolerance=0.05)
for name in ("all-reduce, ring", "top-1 %, all-gather", "top-1 %, Double-Squeeze", "PowerSGD, rank 4"):
    print(f"{name:26} {table[name].bytes_a_step / whole:6.3f} gradients")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# A message is 1 %<!-- =1 --> of the numbers, with three times the bytes of a number: 3 %<!-- =3 * 1 --> of the gradient. Each of the other 63 ranks' messages has to pass here, and 63 times as much is 189 %<!-- =63 * 3 -->. A few ranks more, and it is worse than sending everything.
#
# </details>
#
# Two ways lead out. In the first each rank is the *server* of a 64th of the places. All send it what they have there, compressed; it adds up, and sends the sum compressed to all. Both ends keep what they left out. It is called **Double-Squeeze**, and it sends about 6 %<!-- =2 * 3 --> of the gradient, whatever the number of ranks.
#
# The second is a better compressor. A gradient of a matrix $M$ is often nearly the product of two narrow ones, $M \approx P Q^T$, with four columns for example. If all ranks have the same $Q$, then $P = M Q$ is *linear* in $M$: the mean of all ranks' $P$ is the $P$ of their mean. So factors may be added on their way, by a plain all-reduce. All make the columns of $P$ orthonormal, and then $Q = M^T P$ is added up as well. That is **PowerSGD**.
#
# > **To keep.** What is linear in the gradient may be all-reduced. What chooses its places, or like QSGD its scale, must be gathered, and grows with the ranks.

# %% [markdown]
# ## Whom: hear your neighbours only
#
# The last question needs no compression. Must everybody hear everybody? Let each rank after its step take a mean of its own weights and of its two neighbours' on a ring. This is **gossip**, or **decentralised SGD**. Here are sixteen ranks that have an opinion each, and no gradients yet.

# %%
viz.animate_consensus(
    ["ring", "grid", "static_exponential", "one_peer_exponential"],
    [(7 * rank % 16) / 4 for rank in range(16)],
    4,
)

# %% [markdown]
# Every dot moves towards its neighbours, and the dashed mean stays where it is. On the ring opinions spread slowly, because news goes one place a step. In the last panel each rank hears *one* other: its neighbour, then the one two places on, then four, then eight. After these four steps all agree exactly, as in lesson 02's recursive doubling.
#
# Write the weights into a matrix $W$, a row for each rank. Rows add up to one, so that each takes a mean. *Columns* add up to one, too, or the mean of all would move. Of the most stubborn disagreement a step leaves one minus the **spectral gap** of $W$.

# %%
print("topology                hears      gap on 16 ranks")
for name in less.TOPOLOGIES:
    matrices = less.mixing(name, 16)
    hears = [len(less.neighbours(matrices[0], rank).receive_from) for rank in range(16)]
    after = f", over its {len(matrices)} steps" * (len(matrices) > 1)
    print(f"{name:22} {min(hears):3} to {max(hears):2} {less.spectral_gap(*matrices):9.3f}{after}")

# %% [markdown]
# A ring of neighbours sends two whole models a step, and a ring all-reduce sends almost two gradients. So gossip with two neighbours does *not* send less! With one peer it sends half, and there is no more to win. But it waits less: for one or two messages instead of a long row of them, and a rank that is late once holds up its neighbours only. On a slow line, where a hundredth is needed, that does not help.
#
# > **To keep.** Gossip saves latencies and waiting for who is late, and at most half of the bytes. The spectral gap says how fast ranks agree.

# %% [markdown]
# ## A ladder for what equals nothing
#
# Each of these methods ends with other weights than one device. How would you find a bug? No rung of the ladder can tell you, for each is *meant* to be missed. But every method has something that must hold *exactly*. What was sent and what was kept are together what came. A method that is told to lose nothing is data parallelism. A run that was stopped and goes on is the run that was not stopped, to the bit.
#
# So these are the new rungs, and each of them runs on real ranks.

# %% varies="what rounding leaves differs between processors"
print(identities.climb_identities())

# %% [markdown]
# Read the list in three parts. First come averages alone: what they keep, what they do when they may send everything (*k = d*), what may be added up. Then gossip. And at the end whole trainings, stopped and gone on. Where it says *to the bit* a test uses whole numbers, of which sums are exact, or compares two runs. Elsewhere the last digits of a float64 are off by rounding.
#
# One line is why error feedback works: *weights less what is kept = exact weights*. Without what is still to be sent, the weights have followed the exact gradients all along.
#
# > **To keep.** If equality is given up, prove what must hold anyway: nothing is lost for good, nothing is biased, and with nothing to lose it is exact.

# %% [markdown]
# ## Steps, bytes, hours
#
# So which method? The laboratory `less` trains a network of 1,994 numbers by eight workers, all as rows of one tensor, in seconds. For the prices each number stands for 50,000, so that a gradient has 0.4 GB<!-- =1994 * 50_000 * 4 / 1e9 -->. The line is ours, with 1 Gbit/s<!-- =8 * BETWEEN_CITIES.bandwidth_bytes_per_s / 1e9 -->, and a step computes for half a second.


# %% varies="hundreds of steps of rounding differ between processors"
def lab():
    return less.Workers(seeds=2)


runs = {
    "everything": less.descend(lab(), less.psgd()),
    "top-5 %": less.descend(lab(), less.error_feedback(less.top_k(0.05))),
    "both ways": less.descend(lab(), less.double_squeeze(less.top_k(0.05))),
    "PowerSGD": less.descend(lab(), less.power_sgd(1)),
    "local, 10": less.local(lab(), 10),
}
numbers = 1994 * 50_000
part = int(0.05 * numbers) * 8  # bytes: a value and a place for each
matrices = [(4472, 14_310), (14_310, 2236)]  # 20 x 64 and 64 x 10, each side times the root of 50,000
row = {
    "everything": Synchronisation(method="", cost=sum_time(numbers, itemsize=4, ranks=8)),
    "top-5 %": Synchronisation(method="", cost=costs.gather_time(part, ranks=8)),
    "both ways": Synchronisation(method="", cost=costs.double_squeeze_time([part // 8] * 8)),
    "PowerSGD": Synchronisation(method="", cost=costs.power_sgd_time(matrices, 1, itemsize=4, ranks=8)),
    "local, 10": Synchronisation(method="", cost=sum_time(numbers, itemsize=4, ranks=8), every=10),
}
losses = {name: run.mean_losses for name, run in runs.items()}
viz.plot_three_prices(losses, row, link=BETWEEN_CITIES, computing_s=0.5, goal=1.05)

# %% [markdown]
# The curves are the same in all three panels; only the price below them changes. Counted in steps, sending everything is first, and whatever is left out costs some steps. Counted in hours on this line it is *last*. PowerSGD needs a fifth more steps and comes in first, as its messages are almost nothing.
#
# One thing flatters it: a larger matrix has relatively narrower factors, and our sides grow as the root of 50,000.
#
# > **To keep.** Compare methods by the hours on *your* wire to *your* loss. Order by steps and order by hours may be opposite.

# %% [markdown]
# ## Bug museum
#
# Three averages, all of top-10 %<!-- =100 * 0.1 --> with a memory, train the same small decoder on four ranks. One is sound. Look at the losses first; beside them runs plain data parallelism.

# %% varies="forty steps of rounding differ between processors"
names = sorted([*museum.LOSSY_BUGS, "sound"])  # it gives nothing away
kinds = {"A": names[0], "B": names[5], "C": names[3]}  # print them after you have decided
methods = {
    run: museum.SOUND_LOSSY if name == "sound" else museum.LOSSY_BUGS[name].method
    for run, name in kinds.items()
}
losses = {"everything sent": losses_of((replicate(),), 60, dp=4)}
for run, method in methods.items():
    losses[f"run {run}"] = losses_of((replicate(lossy=lambda local, method=method: method),), 60, dp=4)
subtitle = "each tenth step; the broad grey line sends everything"
viz.plot_loss_curves(losses, title="Which of these averages would you trust?", subtitle=subtitle)

# %% [markdown]
# **Predict.** Which one is sound? Decide by the picture. Then let each of them climb.

# %%
sound = next(run for run, name in kinds.items() if name == "sound")
predict("the sound run", guess=None, answer=sound)
for run, method in methods.items():
    try:
        identities.climb_identities(identities.identities_of(method))
        print(f"run {run} holds all")
    except identities.NotHeld as error:
        print(f"run {run} falls: {error}")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Run A adds what was left *after* it has chosen the largest. So its message has no zeros: everything is sent, a step late, and of course its loss is better than that of a tenth. It sends more than plain data parallelism does. Only the bytes show it.
#
# In run C the last one wins: where two ranks send the same place, the code writes `out[places] = values`, and one of the two is lost. Its bytes are right, and its loss can hardly be told from the sound one, as AdamW divides by the size of what comes. The sum tells it.
#
# </details>
#
# > **To keep.** A loss that is *better* than it should be is a finding. Count bytes as you count losses.

# %% [markdown]
# ## In PyTorch alone
#
# [`scripts/10_two_clusters.py`](scripts/10_two_clusters.py) is lesson 03's script with two clusters: DDP inside each, and an outer step between them.
#
# `torchrun --nproc-per-node 4 scripts/10_two_clusters.py`
#
# Your turn: let the clusters meet after each step, with an outer rate of 1 and no momentum, and take plain SGD for AdamW. Then compare the losses with those of `scripts/03_ddp.py`, there with SGD too. Both clip gradients; what has to go for the two to be equal? (The first twenty losses then agree in every digit that is printed. The lengths do not: one is a cluster's gradient, the other that of all.)
#
# For compressed gradients DDP has **communication hooks**: `register_comm_hook(state, hook)` replaces the all-reduce of each bucket. Exercise 10.11 writes one. PowerSGD is among those that PyTorch brings; [`wild/`](../wild/RESULTS.md) shows what a restart does to its memory.
#
# With our own trainer each method is a word: `python -m course_lib train dp=4 across=2 local=25 outer=0.7:0.5`, or `lossy=power_sgd:4`, or `gossip=ring`. There `dp` counts the copies in all clusters. A run that is stopped goes on to the bit.
#
# ## What may I lose, where?

# %%
shown = [
    "all-reduce, ring",
    "local, every 50",
    "local, every 500",
    "top-1 %, all-gather",
    "PowerSGD, rank 4",
]
viz.plot_wires([prices(2)[name] for name in shown], WIRES, computing_s=COMPUTING_S)

# %% [markdown]
# These are the two houses again. Left of the dashes an exchange is shorter than computing, and much of it can be hidden behind backward besides. On NVLink and InfiniBand *everything* lies left. There nothing on this page pays: you would lose accuracy for seconds that you do not have to wait.
#
# On the slow line two are clearly left of the dashes: PowerSGD in every step, and DiLoCo with a meeting after every 500. Each takes about a quarter of a second a step. Meeting after every 50 is still longer than the step. So the choice between the two is not one of seconds, but of what you lose. PowerSGD keeps both houses at the same weights, whatever their data. Rare meetings spread the latency too, which counts with more houses.
#
# | where | what to lose | why |
# | --- | --- | --- |
# | inside a node, or on InfiniBand | nothing | the all-reduce is hidden already |
# | on 10 Gbit/s<!-- =8 * TEN_GIGABIT.bandwidth_bytes_per_s / 1e9 --> | a little in each step, compressed with a memory | a tenth of the bytes is enough, and all ranks stay together |
# | between towns, data alike | meetings: DiLoCo, exact inside each cluster | hundreds of steps between two meetings pay for bytes and latency |
# | between towns, data that differ | a little in each step: PowerSGD | time alone is drift |
# | many ranks, each late now and then | the wait for all: gossip | who is late holds up its neighbours only |
#
# > **To keep.** Lose nothing where wires are fast. Between sites, meet rarely, or send factors.
#
# ## The file behind this lesson
#
# [`course_lib/parallel/lossy/feedback.py`](../course_lib/parallel/lossy/feedback.py), about 100 lines, is your memory on real ranks. It adds messages of bytes, several parameters in one, and draws that a restart repeats. [`course_lib/training/kept.py`](../course_lib/training/kept.py) says what a checkpoint is when ranks differ on purpose.
#
# ## What still hurts
#
# Thirty-two GPUs in each house! Most people who come here have one, with 24 GB<!-- =24 -->. Which bytes can *it* refuse to keep? That is lesson 11.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** the [exercises](../exercises/release/10_less_talk.ipynb), then [lesson 11](11_memory_savers.ipynb).
#
# <details><summary>1. Four ranks keep a residual each, and two of them go on. What should each take?</summary>
# The mean of two. Then the mean over all ranks is what it was, and with it what the run has still to send. Rank 0's for everybody would add one rank's debt twice, and lose the others'.
# </details>
#
# <details><summary>2. Somebody's top-k run on 8 GPUs is as fast as data parallelism, and on 64 slower. Why?</summary>
# Messages are gathered: each rank gets all the others', so bytes grow with the ranks, while an all-reduce of everything does not.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part can be read alone, once the cells above have run, and you can skip all of them.
#
# ## The same loss, for how many bytes?
#
# In the lesson DiLoCo met four times. Here it has six meetings in 300 steps, and we ask after how many steps data parallelism has the same loss.

# %% varies="hundreds of steps of rounding differ between processors"
ways = {"data parallel": ((replicate(),), {"dp": 4})}
ways["DiLoCo"] = ((replicate(), local(50, Nesterov(0.7, 0.5))), {"across": 2, "dp": 2})
reached = {
    name: dict(zip(range(0, 301, 10), losses_of(apply, 301, **degrees), strict=True))
    for name, (apply, degrees) in ways.items()
}
goal = reached["DiLoCo"][300]
steps = less.steps_to(reached["data parallel"], goal)
print(f"loss {goal:.2f}: DiLoCo after 300 steps and 6 meetings, data parallel after {steps:.0f} steps")
print(f"{steps / 6:.0f} times fewer bytes between the houses, and {300 / steps:.2f} times the steps")

# %% [markdown]
# A step of data parallelism sends one gradient through the line, and a meeting one copy of the weights, which are as many bytes. DiLoCo's authors report no more steps at all, with hundreds of meetings and a model that was trained before. At our size that does not come out.
#
# ## Late: a gradient of some steps ago
#
# Nobody waits, and whoever is done takes a step with the gradient that it has. By then the weights have moved. With a **staleness** of τ steps, on a bowl of curvature $h$, a step is $x_{t+1} = x_t - r h x_{t-\tau}$. It is stable only while $r h < 2 \sin\frac{\pi}{2(2\tau + 1)}$, which is about π/(2τ + 1): who is much later has to be as much slower.

# %%
for tau in (0, 1, 2, 4, 8):
    limit = less.largest_rate(tau)
    ends = [abs(less.stale_quadratic(tau, rate=share * limit, steps=2000)[-1]) for share in (0.95, 1.05)]
    print(f"tau {tau}: stable below {limit:.3f}; at 0.95 and 1.05 of it: {ends[0]:.0e}, {ends[1]:.0e}")

# %% [markdown]
# ## Lying: when the mean trusts too much
#
# Among ten workers two send nonsense. A **median** of each number, a **trimmed mean** or **Krum**, which takes the one gradient that lies nearest to the others, are meant not to follow them. All of these are called **Byzantine-robust**. But what do they cost when nobody lies?

# %% varies="hundreds of steps of rounding differ between processors"
print("data     attack                " + "".join(f"{rule:>14}" for rule in less.RULES))
for apart, attack in ((False, ""), (False, "noise"), (False, "a little is enough"), (True, "")):
    losses = []
    for rule in less.RULES:
        ten = less.Workers(seeds=1, workers=10, batch=16, sorted_by_label=apart)
        losses.append(less.attacked(ten, rule, attack).loss)
    told = "".join(f"{loss:14.2f}" for loss in losses)
    print(f"{'sorted' if apart else 'mixed':8} {attack or 'none':21} {told}")

# %% [markdown]
# Against noise the trimmed mean helps. In the third row the liars stay just within what is believed, and only Krum withstands them. Now look at the last row: nobody attacks, but the workers' data differ. A robust rule takes honest minorities for liars, and Krum throws nine tenths of the data away. Robustness is bought with the assumption that honest workers resemble each other.
#
# ## The order in a published table
#
# A talk by Kun Yuan, from which much of this page grew, compares five methods on CIFAR-10 by accuracy. [`wild/ORDERS.md`](../wild/ORDERS.md) has their order on our laboratory, with five seeds and the spread between them. There as here **EF21** stands far apart, and the others differ by about as much as one of them differs between seeds. In *loss* our runs do stand apart. Before you read an order out of a table, look at the spread.
#
# **EF21** lets each message bring an estimate of its gradient nearer, in place of a memory. On the three quadratics of this page, which have no noise, it converges as error feedback does. With mini-batches the estimate runs after a target that jumps, and it needs a smaller learning rate, or momentum at the worker. **NEOLITHIC** follows each message by others of what it left out. Ours is built from its description, since we could not look its listing up.
#
# ## Gossip on real ranks, and in hours
#
# The same decoder with gossip over a ring of four. Each rank has weights of its own, and the loss is that of their mean.

# %% varies="a hundred steps of rounding differ between processors"
for name, apply in {
    "all-reduce": (replicate(),),
    "ring": (gossip("ring"),),
    "ring, tracking": (gossip("ring", track=True),),
}.items():
    reached = losses_of(apply, dp=4)[-1]
    print(f"{name:15} {ledger().bytes_sent(0) / 1e6:5.1f} MB sent by a rank, loss {reached:.2f}")

# %% [markdown]
# **Gradient tracking** sends a second thing along: an estimate of the mean gradient, by which each rank steps in place of its own. It pays where data differ; here they do not.
#
# The same talk reports for ResNet-50 on 256 GPUs a step of 150 ms<!-- =150 --> with gossip, in place of 278 ms<!-- =278 --> with a ring all-reduce. The difference has a formula: a ring of 256 has 510 latencies and sends the gradient nearly twice, and one peer costs a latency and one model.

# %%
for link in WIRES[:3]:
    of_all = sum_time(25_557_032, itemsize=4, ranks=256, algorithm="ring").time_s(link)
    of_one = costs.gossip_time([1] * 256, 4 * 25_557_032).time_s(link)
    print(f"{link.name:12} all-reduce {1e3 * of_all:6.1f} ms, one peer {1e3 * of_one:6.1f} ms")

# %% [markdown]
# The reported gain of 128 ms<!-- =278 - 150 --> is a third more than the last row's difference. What the formula does not have, GPUs that share a card and ranks that are late, may be the rest. For BERT-Large the talk has 30.4 hours in place of 59.02, a factor of 0.52<!-- =30.4 / 59.02 -->. For ResNet-50 the same talk has a factor of 0.95 on 4 nodes of 8 GPUs and one of 0.68 on 32. Never quote one without the number of nodes.
#
# ## A slip about O(n)
#
# The talk says that a ring all-reduce costs O(n), and some pages earlier that it needs less than 2M/B, twice the message over the bandwidth, whatever n is. Both are right: latencies grow with n, and bytes do not. A sentence about cost has to say *which*.
#
# References: McMahan et al. 2017, *Communication-efficient learning of deep networks from decentralized data*; Stich 2019, *Local SGD converges fast and communicates little*; Douillard et al. 2023, *DiLoCo*; Alistarh et al. 2017, *QSGD*; Seide et al. 2014, *1-bit stochastic gradient descent*; Stich, Cordonnier and Jaggi 2018, *Sparsified SGD with memory*; Beznosikov et al. 2020, *On biased compression for distributed learning*; Tang et al. 2019, *DoubleSqueeze*; Vogels, Karimireddy and Jaggi 2019, *PowerSGD*; Richtárik et al. 2021, *EF21*; Huang et al. 2022, *NEOLITHIC*; Lian et al. 2017, *Can decentralized algorithms outperform centralized algorithms?*; Ying et al. 2021, *Exponential graph is provably efficient for decentralized deep training*; Blanchard et al. 2017, *Krum*.
