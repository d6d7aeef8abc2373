# %% [markdown]
# # 02 · Collectives: a thousand ranks, one sum
#
# Lesson 01 ended with a question: who sends what to whom, and how long does it take? A thousand GPUs train Llama 3.1 8B together. Each has read different sequences, so their gradients differ, but all need the sum before the next step. An exchange in which every rank takes part is a **collective**; this one is the **all-reduce** of lesson 00.
#
# Everybody could send to rank 0, which adds and sends the sum back. Four ranks do that here, each with 16 MiB<!-- =4 * 4 * MiB / MiB -->. Their network is **emulated**: each rank sleeps 2000 times as long as its message would take, so your processor's own work hardly counts.
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, ledger, predict, run_ranks, score, viz
from course_lib.comm import ring as ring_code
from course_lib.costs import (
    INFINIBAND,
    LLAMA_3_1_8B,
    NVLINK,
    GiB,
    MiB,
    SweepPoint,
    collective_s,
    comm_time,
    crossing_bytes,
    fit_alpha_beta,
    layer_parameters,
    load_cluster,
    wires,
)


# %%
def on_the_clock(algorithm, length, clock):
    with comm.emulated(clock):
        comm.all_reduce(torch.ones(length), algorithm=algorithm, node_size=2)  # nodes come in later


network = comm.EmulatedClock(
    inside=INFINIBAND, slowdown=2000
)  # the ranks sleep 2000 times as long as drawn
run_ranks(
    on_the_clock, 4, "naive", 16 * MiB // 4, network
)  # a number has 4 bytes; this starts four processes
viz.plot_timeline(ledger(), title="Four ranks add up through rank 0")

# %% [markdown]
# Look at rank 0's row. The others send at once, but rank 0's network card takes in one message at a time. So two wait in the network, as their long arrows show. Then the sum goes out, again in three messages. This **naive** way takes six messages in a row on four ranks, and 1998 on a thousand.
#
# How long is that? One layer's gradient is 436 MB<!-- =2 * layer_parameters(LLAMA_3_1_8B) / MB --> in bfloat16, and a good network card sends 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB -->. One message takes 8.7 ms<!-- =1e3 * INFINIBAND.time_s(2 * layer_parameters(LLAMA_3_1_8B)) -->, and all together take **17.5 s**<!-- =comm_time("all_reduce", "naive", world_size=1000, length=layer_parameters(LLAMA_3_1_8B), itemsize=2).time_s(INFINIBAND) -->, for one layer of 32, in every training step.
#
# The last way of this lesson takes 13 ms<!-- =1e3 * collective_s("all_reduce", "hierarchical", nbytes=2 * layer_parameters(LLAMA_3_1_8B), ranks=1000, wires=wires(load_cluster("kempner_h100"))) -->, on a thousand H100s in the nodes of a real cluster, Kempner's at Harvard, each with four GPUs and four network cards. You will be able to
# - build an all-reduce from send and receive, and prove it.
# - say beforehand what each rank sends, and how long it takes.
# - choose an algorithm for a size and a wire.
# - write it in plain PyTorch, as a script.
# - find a mistake that a test with a tolerance lets pass.
#
# *Fifty minutes; the exercises take over three hours.*
#
# <details><summary>Before you start</summary>You need lesson 00; what we take from lesson 01 is said again. Everything here ran on CPUs, nothing on a GPU or a cluster.</details>

# %% [markdown]
# ## First attempt: a circle
#
# Four ranks have twelve numbers each. Whatever we build must give the sums that one device gets.
#
# Rank 0 is what hurts, so put the ranks in a circle, where nobody is special. Each sends its tensor to the right neighbour and adds what comes from the left. In the next round it passes on what it has just received, so after three rounds everybody has seen every tensor.
#
# In our emulated network a message may wait until somebody takes it, but not every network does that. In lesson 00 `send` returned only when its message was taken, and if all four wait for that, nobody is left to take one. So `isend` only starts a message, and `wait` comes after the receive.

# %%
torch.manual_seed(0)
gradients = torch.randint(0, 10, (4, 12)).float()
total = gradients.sum(dim=0)  # what one device says


def right():
    return (dist.get_rank() + 1) % dist.get_world_size()


def left():
    return (dist.get_rank() - 1) % dist.get_world_size()


def pass_it_on(x):
    summed = moving = x
    for _ in range(dist.get_world_size() - 1):
        sending = comm.isend(moving, right())
        moving = comm.recv(torch.empty_like(moving), left())
        sending.wait()
        summed = summed + moving
    return summed


def on_my_row(add_up, rows):
    return add_up(rows[dist.get_rank()])


[torch.equal(mine, total) for mine in run_ranks(on_my_row, 4, pass_it_on, gradients)]

# %% [markdown]
# Four times `True`: the sum is right on every rank. Is it also faster?
#
# **Predict.** Each of the four ranks holds 1 MiB<!-- =MiB / MiB -->. Through rank 0, six messages would carry 6 MiB<!-- =6 * MiB / MiB -->. How many MiB do they send together now?


# %%
def through_rank_0(x):
    return comm.all_reduce(x, algorithm="naive")


def on_1_mib(add_up):
    add_up(torch.ones(MiB // 4))


run_ranks(on_1_mib, 4, pass_it_on)
passed_on = ledger()
predict(
    "MiB that all ranks send",
    guess=None,
    answer=sum(map(passed_on.bytes_sent, range(4))) / MiB,
    think="how many messages there are now, and what each of them carries",
)
run_ranks(on_1_mib, 4, through_rank_0)
display(
    viz.plot_bytes_matrix(
        ledger(), title="Through rank 0: bytes from rank to rank", darkest=passed_on.bytes_sent(0)
    ),
    viz.plot_bytes_matrix(passed_on, title="In a circle: bytes from rank to rank"),
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# A row shows what one rank sends. Find rank 0 in the upper picture: its row has three entries, while every other row has one. In the lower picture every row has a single entry, but it is 3 MiB<!-- =3 * MiB / MiB -->, as much as rank 0's three together. We wanted to take the load off rank 0, and we have given its load to everybody!
#
# Yet the circle is better than it looks, because now each network card sends while it receives. Rank 0 first took everything in and then gave everything out. In the circle both happen at once, so a thousand ranks need only half as many messages in a row. That halves the naive time, which is still far too long.
#
# </details>
#
# > **To keep.** In a circle all ranks send at the same time, but whoever passes on whole tensors sends as much as rank 0 did.

# %% [markdown]
# ## Second attempt: everybody adds a quarter
#
# Where is the waste? Follow one number of the tensor. All four ranks compute its sum, each for itself, and all get the same. It would be enough if **one** rank did so and sent the result to the others.
#
# So share the adding. Cut the tensor into four chunks and give each an owner: rank 0 owns chunk 0, rank 1 owns chunk 1, and so on. First the parts of each chunk are added up at its owner, and then the owners hand their finished sums around.

# %%
viz.all_reduce_halves(4)

# %% [markdown]
# One row is one rank. At the left each rank has four chunks in its own colour. In the middle it has only one chunk, but in all four colours, because this chunk is a finished sum. At the right every rank has all the finished chunks.
#
# The first half, up to the middle, is called **reduce-scatter**, and the second **all-gather**. One after the other, they make an all-reduce. Remember the middle. Ranks that are short of memory can stop there, update a quarter of the weights each, and hand those around instead. Lesson 01 called that ZeRO-1.
#
# ### How does a chunk get to its owner?
#
# Each rank could send its part of chunk 2 straight to rank 2, and do the same with the other chunks. But unless all take turns, messages to one owner queue up. And among a thousand ranks, many would have to squeeze through the same wires.
#
# In the circle each rank sends to one neighbour and receives from one, so nothing queues. So we keep it, and let each sum grow on its way: every rank adds its part and passes the sum on.

# %% [markdown]
# ### Which chunk, when?
#
# Follow chunk 2 through the first half. It must visit all ranks and end at its owner, rank 2. If all pass to the right, only one way does that: it starts at rank 3, just *past* the owner, and goes round from there.
#
# Sit down at rank 3. In step 1 you send the chunk whose way starts there: chunk 2, your number minus one. In step 2 you pass on what rank 2 sent. That was its number minus one, so it is chunk 1, your number minus two.
#
# So in step `s` rank `r` sends chunk `(r - s) % 4`. Check rank 0, where it wraps around.

# %%
chunks = [
    list(gradient.clone().chunk(4)) for gradient in gradients
]  # chunks[rank][c]: four lists play four ranks

for step in (1, 2, 3):
    moving = [(rank, (rank - step) % 4) for rank in range(4)]
    sent = [chunks[rank][c] for rank, c in moving]
    for (rank, c), data in zip(moving, sent, strict=True):
        chunks[(rank + 1) % 4][c] = chunks[(rank + 1) % 4][c] + data

torch.equal(torch.cat([chunks[rank][rank] for rank in range(4)]), total)

# %% [markdown]
# `True`: each rank owns one finished chunk. The second half goes round the same circle, but nothing is added any more. What does rank 3 send first now? It has finished only its own chunk 3, so it sends that one. Then it passes on what comes from the left, first chunk 2 and then chunk 1. The rule stays the same, except that the steps count from zero. The two halves together are called the **ring**.
#
# **Predict.** Each of four ranks holds 1 MiB<!-- =MiB / MiB -->. How many MiB leave one rank in both halves together?

# %%
for step in (0, 1, 2):
    moving = [(rank, (rank - step) % 4) for rank in range(4)]
    sent = [chunks[rank][c] for rank, c in moving]
    for (rank, c), data in zip(moving, sent, strict=True):
        chunks[(rank + 1) % 4][c] = data


def by_the_ring(x):
    return comm.all_reduce(x, algorithm="ring")


run_ranks(on_1_mib, 4, by_the_ring)
predict(
    "MiB that each rank sends",
    guess=None,
    answer=ledger().bytes_sent(0) / MiB,
    think="how many chunks leave a rank in each half, and how large a chunk is",
)
print([torch.equal(torch.cat(row), total) for row in chunks])
viz.plot_bytes_matrix(ledger(), title="The ring: bytes from rank to rank", darkest=passed_on.bytes_sent(0))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Four times `True`: the ring is complete. In the table every rank has one entry of 1.5 MiB<!-- =6 / 4 -->, which are six messages of a quarter each. Add up the whole table, and then the naive one: both are 6 MiB<!-- =4 * 6 / 4 -->! The ring sends no less, but it makes four network cards carry what one had to carry alone.
#
# What becomes of the 1.5 on more ranks? In each half a rank sends $p-1$ chunks, all but one, and a chunk is one $p$-th of the tensor's $M$ bytes.
#
# $$\text{each rank sends}\quad 2\,(p-1)\,\frac{M}{p}$$
#
# For a thousand ranks that is 1.998 tensors, and it never reaches two. Unless the network itself can add, no way does with less. *Going deeper* shows why.
#
# </details>
#
# > **To keep.** Each rank adds up one chunk, then all hand their sums around. However many they are, nobody sends as much as two tensors.

# %% [markdown]
# ## On real ranks
#
# So far four lists have played the ranks. Here is the library's ring, as each real rank runs it. Find the chunk that is sent, and then the line that adds. Around them, `port` sends and receives, `rooms` makes memory for what arrives, and the receives in `arriving` start before the loop.

# %%
display(
    viz.show_source(ring_code.reduce_scatter), viz.show_source(ring_code.all_gather), viz.ring_stepper(4)
)

# %% [markdown]
# Below the code is the ring behind a slider. Follow chunk 2: in step 1 it leaves rank 3 for rank 0, takes on a colour at each stop, and then goes round once more with all its colours. Stop at step 2, and put `r = 0` and `step = 2` into the first function. Does the code agree?
#
# ### Prove it
#
# On two ranks left and right are the same neighbour, which hides a wrong turn, so we also try three. And we take thirteen numbers, whose chunks cannot be equally long. We compare the sums with those of one device, and the bytes with those of `comm_time`, a formula that knows nothing of the code that sends.


# %%
def error_of(algorithm):
    rank, p = dist.get_rank(), dist.get_world_size()
    xs = torch.randn(p, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    return (comm.all_reduce(xs[rank], algorithm=algorithm) - xs.sum(dim=0)).abs().max().item()


for p in (1, 2, 3, 4, 6):
    for algorithm in ("naive", "ring"):
        close = max(run_ranks(error_of, p, algorithm)) < 1e-14
        formula = comm_time("all_reduce", algorithm, world_size=p, length=13, itemsize=8)
        sent = tuple(ledger().bytes_sent(rank) for rank in range(p))
        assert close and sent == formula.sent_bytes
        print(f"{p} ranks, {algorithm:5}  right up to rounding; each sends {sent}, as the formula says")

# %% [markdown]
# Find the ring on four ranks in the output. Ranks 0 and 3 send a little less than the others, because chunk 0 is one number longer, and they send it once, the others twice.
#
# > **To keep.** Test an algorithm by its sums *and* by its bytes, against a formula that knows nothing of the code.
#
# ## How long does it take?
#
# You know the bytes, so you should know the time. Try it on the network of the first picture.
#
# **Predict.** The ring on four ranks takes 1091 µs<!-- =1e6 * comm_time("all_reduce", "ring", world_size=4, length=8 * MiB, itemsize=4).time_s(INFINIBAND) --> for 32 MiB<!-- =32 -->. How many µs does it take for 1 KiB<!-- =1 -->? Ask first whether the bytes of the large tensor explain its time. The network sends 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB -->, and a MiB is 1.049 MB<!-- =MiB / 1e6 -->.

# %%
run_ranks(on_the_clock, 4, "ring", 8 * MiB, network)
large = ledger()
run_ranks(on_the_clock, 4, "ring", 256, network)
small = ledger()
predict("µs for 1 KiB", guess=None, answer=round(1e6 * small.span_s), tolerance=0.05)
viz.plot_starts({"32 MiB": large, "1 KiB": small}, INFINIBAND)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# 84 µs<!-- =6e6 * INFINIBAND.time_s(256) -->! One part in thirty thousand of the data takes a thirteenth of the time. Look at the lower row. It has six messages, and each takes 14 µs<!-- =1e6 * INFINIBAND.alpha_s --> although hardly anything travels. Every message has this price, however short. It is the **latency**, α.
#
# Now look at the upper row, where each bar begins with the same dark stretch. The pale rest takes 167.8 µs<!-- =1e6 * 8 * MiB * INFINIBAND.beta_s_per_byte -->, because a quarter of the tensor has to pass. Each byte has a price as well, then, β. It is one divided by the **bandwidth**, so at 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB --> it is a fiftieth of a nanosecond.
#
# </details>

# %% [markdown]
# You pay twice: each message costs a **latency** α, and each byte costs β, one divided by the **bandwidth**. If $s$ messages in a row carry $n$ bytes together, they take
#
# $$T = s\,\alpha + n\,\beta$$
#
# This is the **α-β model**. Try it on the upper row: six latencies and six quarters of the tensor make 1091 µs<!-- =1e6 * comm_time("all_reduce", "ring", world_size=4, length=8 * MiB, itemsize=4).time_s(INFINIBAND) -->.
#
# On a thousand ranks our layer pays 28 ms<!-- =1998e3 * INFINIBAND.alpha_s --> for 1998 latencies and 17 ms<!-- =1e3 * 2 * 999 / 1000 * 2 * layer_parameters(LLAMA_3_1_8B) * INFINIBAND.beta_s_per_byte --> for almost two tensors, if each message goes through one network card. That is **45 ms**<!-- =1e3 * comm_time("all_reduce", "ring", world_size=1000, length=layer_parameters(LLAMA_3_1_8B), itemsize=2).time_s(INFINIBAND) --> in place of 17.5 s<!-- =comm_time("all_reduce", "naive", world_size=1000, length=layer_parameters(LLAMA_3_1_8B), itemsize=2).time_s(INFINIBAND) -->! The ring has as many messages in a row as the naive way, but short ones, so now latency costs most.
#
# > **To keep.** Ask of every message: is it so short that I pay for latency, or so long that I pay for bandwidth?

# %% [markdown]
# ## Two kinds of wire
#
# So far all wires were alike, but GPUs live in nodes. In a node of four H100s each sends 150 GB/s<!-- =NVLINK.bandwidth_bytes_per_s / GB --> to every other by NVLink. Out of the node, a network card sends only a third of that. The textbook's ring puts each message on one card, and waits in each step until all messages have arrived. So it gains nothing from NVLink, because somewhere it leaves the node.
#
# Therefore do inside what can be done inside. First a reduce-scatter in the node gives each GPU one chunk of its node's sum. Then each GPU adds up only its chunk, with those that hold the same chunk in other nodes. An all-gather inside puts the chunks together. This is the **hierarchical** all-reduce.

# %% [markdown]
# Follow rank 0 in two nodes of two. It swaps halves with rank 1 and then holds half of its node's sum. Rank 2 holds the same half of the other node's sum, so these two add it up. As a ring of two, they need two steps, each with a quarter of the tensor. At the end ranks 0 and 1 swap their finished halves.
#
# **Predict.** On our emulated network each rank has a card of its own, and the ring on all four takes six steps, also with a quarter each, and all at the pace of the slow wire. How many times faster is the hierarchy? Inside, a byte takes a third of the time; forget the latencies.

# %%
nodes = comm.EmulatedClock(inside=NVLINK, between=INFINIBAND, node_size=2, slowdown=2000)
seconds = {}
for algorithm in ("ring", "hierarchical"):
    run_ranks(on_the_clock, 4, algorithm, 4 * MiB, nodes)
    seconds[algorithm] = ledger().span_s
times_faster = seconds["ring"] / seconds["hierarchical"]
predict("times faster", guess=None, answer=round(times_faster, 2), tolerance=0.05)
print({name: f"{1e6 * span:.0f} µs" for name, span in seconds.items()})
viz.plot_timeline(ledger(), title="Two nodes of two: inside, between, inside", node_size=2)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In teal you see what stays inside the node, in slate the two steps that cross. Bytes alone gave 1.8. The clock says a little more, because the ring pays six latencies of the slow wire and the hierarchy only two.
#
# </details>
#
# So much for one card. A node of Kempner's has four, and NVIDIA's library **NCCL** uses all of them: it cuts the tensor and sends each piece round a ring of its own, its **channel**, which leaves the node through its own card. Our layer's bytes then take 4.4 ms<!-- =1e3 * 2 * 999 / 1000 * 2 * layer_parameters(LLAMA_3_1_8B) / wires(load_cluster("kempner_h100")).network_bytes_per_s -->, a quarter of before.
#
# And latency? A real rank need not wait until its message has arrived, for it can send the next one meanwhile. So follow a single chunk, and count the latencies that *it* meets. Of its 1998 hops every fourth leaves a node, and these cost 7 ms<!-- =498e3 * INFINIBAND.alpha_s -->. The hops inside are three times as many, but NVLink's latency is only 3.4 µs<!-- =1e6 * wires(load_cluster("kempner_h100")).pair.alpha_s -->, so together they cost 5 ms<!-- =1500e3 * wires(load_cluster("kempner_h100")).pair.alpha_s -->. All in all, the ring through all cards takes 16 ms<!-- =1e3 * collective_s("all_reduce", "ring", nbytes=2 * layer_parameters(LLAMA_3_1_8B), ranks=1000, wires=wires(load_cluster("kempner_h100"))) -->.
#
# The hierarchy has all cards busy as well, because the four GPUs of a node talk with other nodes side by side. Its rings through the nodes take as many slow steps. But of the hops inside it keeps only six, and that saves nearly all that they cost. It loses some of that again, because its bytes travel first inside and then between, while a ring's do both at once. It takes **13 ms**<!-- =1e3 * collective_s("all_reduce", "hierarchical", nbytes=2 * layer_parameters(LLAMA_3_1_8B), ranks=1000, wires=wires(load_cluster("kempner_h100"))) -->.
#
# > **To keep.** The hierarchy takes far fewer steps. On many nodes it wins, until its bytes cost more than the latencies that it saves.

# %% [markdown]
# ## In PyTorch alone
#
# From now on you may let PyTorch do it. [`scripts/02_collectives.py`](scripts/02_collectives.py) needs nothing of this course. Read as far as the first sum; we come back to the other blocks when we need them.

# %%
from pathlib import Path

display(viz.show_source(Path("scripts/02_collectives.py")))

# %% [markdown]
# How do these processes find each other? `torchrun` starts them and tells each in environment variables who it is, how many there are, and where to meet. `init_process_group` reads them and connects the processes, by gloo on CPUs and by NCCL on GPUs.
#
# The next cell starts the script, as `torchrun --nproc-per-node 4 scripts/02_collectives.py` does in a terminal. Then our ring adds up the same numbers.

# %%
import subprocess
import sys

torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
run = subprocess.run([*torchrun, "scripts/02_collectives.py"], capture_output=True, text=True, check=True)
print("the script says:", run.stdout.strip())
inputs = torch.arange(48.0).reshape(4, 12)
print("our ring says:  ", run_ranks(on_my_row, 4, by_the_ring, inputs)[0].int().tolist())

# %% [markdown]
# Both say the same. Here is what to write in place of our calls:
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `comm.all_reduce(x)` | `dist.all_reduce(x)` | the sum is written over `x` |
# | `comm.reduce_scatter(x)` | `dist.reduce_scatter_single(chunk, x)` | you bring the result's tensor; p divides the length; before PyTorch 2.13 `reduce_scatter_tensor` |
# | `comm.all_gather(chunk)` | `dist.all_gather_single(x, chunk)` | all chunks are equally long; before 2.13 `all_gather_into_tensor` |
# | `algorithm="ring"` | – | the back end chooses; `NCCL_ALGO` forces NCCL's choice, and `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING` tells it |
# | `ledger()` | – | nobody counts; use a profiler |
#
# > **To keep.** In PyTorch you name the collective, and the back end chooses the algorithm. NCCL estimates each of its own by latency and bandwidth, as you did: rings, a pair of **trees**, and switches that add (**NVLS**, **SHARP**).

# %% [markdown]
# ## Bug museum
#
# Three colleagues offer their all-reduce. Ring A is your first circle. Rings B and C go round in chunks, both halves in one loop that counts from zero. All three pass the test that your first circle passed. But that test has twelve small whole numbers on each rank, and a real gradient looks different.
#
# **Predict.** Read B and C in the next cell. All four ranks of a training go on with the sums that they hold. Which of the three would you let in? Give their letters in one string, or `"none"`. The folded cell holds a harder test. Run it, but unfold it only when you have decided.


# %%
def go_round(chunks):
    p, rank = dist.get_world_size(), dist.get_rank()
    for step in range(2 * p - 2):
        mine = chunks[(rank - step - 2) % p]
        sending = comm.isend(chunks[(rank - step - 1) % p], right())
        inbox = comm.recv(torch.empty_like(mine), left())
        sending.wait()
        mine.copy_(mine + inbox if step < p - 1 else inbox)


def ring_b(x):
    p, x = dist.get_world_size(), x.clone()
    go_round(x[: len(x) // p * p].chunk(p))
    return x


def ring_c(x):
    x = x.clone()
    go_round(x.tensor_split(dist.get_world_size()))
    return x


rings = {"A": pass_it_on, "B": ring_b, "C": ring_c}
for name, ring in rings.items():
    print(name, [torch.equal(mine, total) for mine in run_ranks(on_my_row, 4, ring, gradients)])

# %% folded=true
rows = torch.randn(4, 1001, generator=torch.Generator().manual_seed(0))
sums = {
    f"ring {name}": [x.tolist() for x in run_ranks(on_my_row, 4, ring, rows)]
    for name, ring in rings.items()
}
exact = rows.double().sum(dim=0)  # one device, with twice the digits
off = {name: (torch.tensor(held).double() - exact).abs().max().item() for name, held in sums.items()}
sound = [name[-1] for name, held in sums.items() if off[name] < 1e-5 and held == [held[0]] * 4]
disagreement = viz.plot_disagreement(sums, title="Which sums differ from those of rank 0")

# %% varies="the last digits of rounding differ between processors"
predict(
    "the sound rings",
    guess=None,
    answer="".join(sound) or "none",
    think="what twelve whole numbers on each rank cannot show",
)
for name in sums:
    print(f"{name} is off by at most {off[name]:.1g}")
disagreement

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Now each rank has 1001 numbers that are not whole. Ring B is off by 3, and each of its panels has one dark dot. Four does not divide 1001, so each rank keeps its own last number.
#
# A and C are off by rounding alone. Yet A's ranks disagree in four places of ten! Each rank starts with its own tensor and adds the others as they arrive. Call the four a, b, c, d. Rank 0 computes $((a + d) + c) + b$, but rank 1 computes $((b + a) + d) + c$. A computer rounds after every addition, so the order shows. Small whole numbers need no rounding, so the first test saw nothing.
#
# </details>

# %% [markdown]
# In ring C each sum is finished on one rank and then copied, so all ranks hold the same bits. We cut the tensor to save bytes, and got equal sums on top. *Going deeper* trains a model with both rings: with A the ranks' losses agree, but their weights come apart, so there is no longer *one* model.
#
# A test with a tolerance lets ring A pass. The last block of your script would not, because it compares every bit with rank 0's.
#
# > **To keep.** A sum has to be right, and it has to be the *same* on all ranks, to the last bit.

# %% [markdown]
# ## When to use what
#
# Ask first whether you pay for latency or for bandwidth, and then which wires the ranks share. Two of the ways are under *Going deeper*, in *Fewer messages in a row*: there ranks swap in pairs, and each swap doubles what a rank knows, so ten steps do for 1024 ranks.
#
# | your tensor | the way | because |
# | --- | --- | --- |
# | short: below 1 MiB<!-- =crossing_bytes("recursive_doubling", "halving_doubling", world_size=64, link=INFINIBAND) / MiB --> on 64 ranks | recursive doubling | fewest latencies |
# | long, on 4, 8, 16, … ranks with a card each | halving-doubling | few latencies, if no wires are shared |
# | long, on other numbers of such ranks | a ring | few bytes, only to neighbours |
# | long, in nodes with several cards | a ring through all cards | inside and between at once |
# | long, on hundreds of nodes: one layer | the hierarchy | few latencies |
#
# *Going deeper* tries the table on a thousand ranks, and holds our formula against a measurement.
#
# > **To keep.** Short tensors and many ranks ask for few steps, long tensors for all wires at once.

# %% [markdown]
# ## Back to the thousand ranks
#
# One layer went from 17.5 s<!-- =comm_time("all_reduce", "naive", world_size=1000, length=layer_parameters(LLAMA_3_1_8B), itemsize=2).time_s(INFINIBAND) --> to 13 ms<!-- =1e3 * collective_s("all_reduce", "hierarchical", nbytes=2 * layer_parameters(LLAMA_3_1_8B), ranks=1000, wires=wires(load_cluster("kempner_h100"))) -->, by the hierarchy on Kempner's nodes with all their cards. And all 32 layers in one tensor? Now the ring through all cards wins with 152 ms<!-- =1e3 * collective_s("all_reduce", "ring", nbytes=64 * layer_parameters(LLAMA_3_1_8B), ranks=1000, wires=wires(load_cluster("kempner_h100"))) -->, because it pays its latencies only once for so many bytes.
#
# Is that much? Suppose each GPU reads 8192 tokens in a step. By lesson 01's count, six operations for each parameter and token, an H100 at 40 %<!-- =40 --> of its peak needs 1.0 s<!-- =6 * model_parameters(LLAMA_3_1_8B) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) --> for them. If the sum comes after that, about an eighth of each step is waiting.
#
# Yet the last layer's gradient was ready long before the first's. Why must it wait? Lesson 03 begins there.

# %%
score()

# %% [markdown]
# ## Two questions
#
# **Next:** the [exercises](../exercises/release/02_collectives.ipynb), then [lesson 03](03_mlp_ddp.ipynb). [Slides](../slides/02_collectives.md).
#
# <details><summary>1. On two ranks, ring A's sums always agree. Why?</summary>
# Each rank makes a single addition, and a + b rounds as b + a does. Orders can differ only from three numbers on.
# </details>
#
# <details><summary>2. A ring grows from 500 ranks to 1000. How do each rank's bytes and latencies change?</summary>
# The bytes stay just below two tensors. The latencies double, from 998 to 1998: two for each new rank.
# </details>
#
# References: Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*; Thakur, Rabenseifner and Gropp 2005, *Optimization of collective communication operations*. Wires: NVIDIA's H100 white paper and ConnectX-7 data sheet, NCCL's tuning table. [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html).

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## The file behind this lesson
#
# [`course_lib/comm/ring.py`](../course_lib/comm/ring.py), about 60 lines, is what runs whenever this course adds up. You know both of its loops. To your own lines it adds receives that begin before the first send, so that a message finds its place ready.
#
# ## What NCCL really does
#
# Somebody has measured it: 32 B200s in four nodes of eight, with eight cards of 50 GB/s<!-- =wires(load_cluster("dgx_b200")).card.bandwidth_bytes_per_s / GB --> in each, added up 4 GiB<!-- =4 -->. The textbook's ring, with one card a message, would need 167 ms<!-- =1e3 * next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB)).one_card_s -->. But NCCL's ring uses all eight.
#
# **Predict.** How many milliseconds were measured? A ring makes each node send almost two tensors, whose bytes share the eight cards.

# %%
from course_lib.sim.collectives import priced
from course_lib.sim.published import published_rows

row = next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB))
predict("ms for 4 GiB over 32 B200", guess=None, answer=1e3 * row.measured_s, unit="ms", tolerance=0.1)
print(row)
print("measured by", next(found["source"]["ref"] for found in published_rows() if found["id"] == row.name))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# 22.05 ms<!-- =1e3 * next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB)).measured_s -->. Our formula says 21 ms<!-- =1e3 * next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB)).by("ring") --> for the ring through all cards. The textbook's ring is nearly eight times as slow, because seven of its node's eight cards are idle.
#
# The hierarchy would take 25 ms<!-- =1e3 * next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB)).by("hierarchical") -->. Its cards have nothing to do while it sends inside, which takes 8 ms<!-- =2e3 * (7 / 8) * 4 * GiB / wires(load_cluster("dgx_b200")).inside_bytes_per_s + 14e3 * wires(load_cluster("dgx_b200")).pair.alpha_s -->. On 32 H200s somebody compared two of NCCL's ways by name. Its ring took 22.8 ms<!-- =1e3 * next(row.measured_s for row in priced() if (row.ranks, row.algorithm) == (32, "Ring")) -->, and `NVLSTree`, which adds in the switch of each node first, took 26.8 ms<!-- =1e3 * next(row.measured_s for row in priced() if (row.ranks, row.algorithm) == (32, "NVLSTree (forced)")) -->.
#
# Shorter tensors are further off. At 1 MiB<!-- =1 --> the formula says 0.30 ms<!-- =1e3 * next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, MiB)).by("ring") -->, and 0.38 ms<!-- =1e3 * next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, MiB)).measured_s --> were measured. Between 8 and 256 MiB<!-- =256 --> measured times lie a third and more above the formula, and latency cannot explain all of that. The formula's latencies are those of NCCL's own table, and this cluster has another network, EFA. Had we made every step wait for the slow wire, the formula would say 0.87 ms<!-- =1e3 * (next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, MiB)).by("ring") + 62 * 28 / 32 * (14e-6 - 3.4e-6)) -->, more than twice what was measured. So a real ring does not wait like that.
#
# Such tables mostly print the **bus bandwidth**, `busbw`: the bytes that a rank of a ring sends, over the seconds. For this row it is 377 GB/s<!-- =2 * 31 / 32 * 4 * GiB / next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB)).measured_s / GB -->.
#
# > **To keep.** A ring over nodes is as fast as all cards of a node together. Price it with one card, and you are wrong by their number.
#
# </details>

# %% [markdown]
# ## Fewer messages in a row
#
# Our thousand ranks also add up their loss. A single number cannot be cut, so the ring carries one chunk round, and its 1998 latencies take 28 ms<!-- =1e3 * comm_time("all_reduce", "ring", world_size=1000, length=1, itemsize=4).time_s(INFINIBAND) -->.
#
# How few would do? If you swap with your neighbour, both know the sum of two. If each then swaps with one of the next pair, four know the sum of four. Each step doubles what a rank knows, so ten do for 1024, in 0.14 ms<!-- =1e3 * comm_time("all_reduce", "recursive_doubling", world_size=1024, length=1, itemsize=4).time_s(INFINIBAND) -->. This is **recursive doubling**.
#
# Yet each step carries a whole tensor, which is nothing for a loss but too much for a layer. The ring has shown the cure: share the adding. Run the cell and follow rank 0.

# %%
viz.plot_messages(["recursive_doubling", "halving_doubling"], world_size=8, follow=0)

# %% [markdown]
# At the right rank 0 swaps halves with rank 4, and each adds up the half that it keeps. Then rank 0 swaps quarters with rank 2 and eighths with rank 1. Now each rank owns a finished eighth, and the same swaps backwards hand them out.
#
# This is **halving-doubling**. It carries 1.75 tensors in six steps, where the ring takes fourteen to carry as much.
#
# **Predict.** On 64 ranks recursive doubling pays six latencies and carries six tensors. Halving-doubling pays twelve latencies and carries almost two tensors. From how many MiB on is halving-doubling faster? In the time of one latency 0.7 MB<!-- =INFINIBAND.alpha_s * INFINIBAND.bandwidth_bytes_per_s / MB --> could have passed.

# %%
meet = crossing_bytes("recursive_doubling", "halving_doubling", world_size=64, link=INFINIBAND)
predict(
    "MiB from which halving-doubling is faster", guess=None, answer=round(meet / MiB, 1), tolerance=0.1
)
viz.plot_cost_lines(
    ["naive", "recursive_doubling", "halving_doubling", "ring"], world_size=64, link=INFINIBAND
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Recursive doubling carries four tensors more, but pays six latencies fewer, and in their time 4.2 MB<!-- =6 * INFINIBAND.alpha_s * INFINIBAND.bandwidth_bytes_per_s / MB --> could pass. The lines cross where four tensors have those bytes, at about 1 MiB<!-- =crossing_bytes("recursive_doubling", "halving_doubling", world_size=64, link=INFINIBAND) / MiB --> each.
#
# Now look for the ring in the bar at the foot: it never wins! Halving-doubling carries as few bytes, with a tenth of the ring's latencies.
#
# Why build rings? Our formula gives each pair its own wire, but in the widest step 32 pairs swap far apart and may share a few wires. A ring's messages go only to neighbours. Doubling also needs a power of two: of a thousand ranks 512 swap, and the other 488 hand in their tensors and get sums back.
#
# </details>
#
# > **To keep.** For short tensors save latencies by doubling, for long ones save bytes by sharing the adding.

# %% [markdown]
# ## All eight collectives
#
# Not everything that travels is a sum for everybody, so first ask who needs what.
#
# | who has and needs what | its name |
# | --- | --- |
# | one rank has weights that all need | broadcast |
# | each holds a part, and needs the whole | all-gather |
# | each needs one chunk of the sum | reduce-scatter |
# | each has a different chunk for every rank | all-to-all |
#
# Run the cell to see all eight. Read each picture as *before → after*; those with "reduce" also add up what they move. Scatter deals out the chunks of one rank and gather undoes that, and a reduce is a broadcast backwards.

# %%
viz.primitives_overview()

# %% [markdown]
# ## What becomes of ring A in a training
#
# Does it matter that ring A's ranks disagree? In bfloat16 you can watch it, because there 256 + 1 is 256, as in lesson 01. Below, rank 0 first brings 256 and every other rank brings 1. Then four ranks train one small model from the same start, with gradients in bfloat16. After 200 steps the cell prints how far their weights are apart.


# %% varies="two hundred steps of rounding differ between processors"
def after_training(add_up):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    data = torch.randn(64, 8)
    target = torch.sin(3 * data[:, :1]) * data[:, 1:2]
    mine = slice(16 * dist.get_rank(), 16 * dist.get_rank() + 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(model(data[mine]), target[mine]).backward()
        for weight in model.parameters():
            weight.grad = add_up(weight.grad.bfloat16().flatten()).float().reshape(weight.shape) / 4
        optimizer.step()
    return F.mse_loss(model(data), target).item(), torch.cat(
        [w.detach().flatten() for w in model.parameters()]
    )


ones = torch.tensor([[256.0], [1.0], [1.0], [1.0]], dtype=torch.bfloat16)
for name in ("A", "C"):
    print(
        f"ring {name}: 256 + 1 + 1 + 1 is", *(x.item() for x in run_ranks(on_my_row, 4, rings[name], ones))
    )
    losses, weights = zip(*run_ranks(after_training, 4, rings[name]), strict=True)
    apart = max((other - weights[0]).abs().max().item() for other in weights)
    print(
        f"   after training: losses {min(losses):.3f} to {max(losses):.3f}, weights apart by {apart:.0e}"
    )

# %% [markdown]
# The exact sum, 259, lies between the bfloat16 numbers 258 and 260, so every ring has to round. But ring A gives two answers: ranks 0 and 1 add each 1 to 256, where it is lost, and ranks 2 and 3 add ones to ones first.
#
# In the training all losses agree to three decimals, yet ring A's weights are apart. Suppose the loop ended at a low enough loss. A rank that got there alone would leave, and the others would hang as in lesson 00.
#
# ## Which way on a thousand GPUs?
#
# Of the ways below, the two doublings are from *Fewer messages in a row*.
#
# **Predict.** A thousand H100s in Kempner's nodes, of four GPUs and four cards, add up one number in case **A**, and 32 layers in one tensor in **B**. **C** is B with each GPU alone in its node, beside a card of its own. Where is nothing faster than the ring? Ask first what costs most, latency or bytes. Then ask who sends inside and between nodes at the same time. Give the letters.

# %%
from dataclasses import replace

names = ("ring", "recursive_doubling", "halving_doubling", "hierarchical")
kempner, layers = load_cluster("kempner_h100"), 2 * 32 * layer_parameters(LLAMA_3_1_8B)
alone = replace(kempner, gpus_per_node=1, cards=1)
cases = {"A": (2, kempner), "B": (layers, kempner), "C": (layers, alone)}
ms = {}
for case, (nbytes, cluster) in cases.items():
    job = {"nbytes": nbytes, "ranks": 1000, "wires": wires(cluster)}
    ms[case] = [1e3 * collective_s("all_reduce", name, **job) for name in names]
predict(
    "where the ring is fastest",
    guess=None,
    answer="".join(case for case in cases if ms[case][0] == min(ms[case])),
)
print("milliseconds", *(f"{name:>18}" for name in names))
for case, row in ms.items():
    print(f"{case:12}", *(f"{one:18.2f}" for one in row))

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In A only latency counts, and recursive doubling has the fewest steps. In B the bytes count. The ring's 12 ms<!-- =498e3 * INFINIBAND.alpha_s + 1500e3 * wires(load_cluster("kempner_h100")).pair.alpha_s --> of latency are a twelfth of its time, and its bytes travel inside and between nodes at once. The hierarchy saves some latency, but its bytes travel first inside and then between. In halving-doubling all four GPUs of a node send through its cards at once, four times a ring's bytes.
#
# In C each node has a single GPU, so the hierarchy *is* the ring. Recursive doubling takes longer than in B, because there two of its swaps stayed inside a node. Halving-doubling needs a power of two, so 488 ranks are too many. They hand in whole tensors and get whole tensors back, each through one card, which doubles its time.
#
# </details>

# %% [markdown]
# ## Ranks alone cannot do with less
#
# Why can no way send fewer bytes than the ring? Take one number, and the moment when the first rank knows its sum. By then each of the $p-1$ others has sent a message, and must still receive the sum. That makes at least $2\,(p-1)$ messages. The ring shares them equally, so unless the network itself adds, no way gives its busiest rank less.
#
# Why are six steps the fewest on 64 ranks? At first only rank 0 knows its number. In each step everybody who knows it can tell one other, so after six steps 64 ranks do. These limits are the dashed line in the last picture of *Fewer messages in a row*.
#
# ## What your machine does
#
# Now without the clock. We time real all-reduces on four of your processes, and look for the α and β that fit best.

# %% varies="measured times"
names = ["ring", "recursive_doubling", "native"]
timings = run_ranks(comm.sweep_all_reduce, 4, [2**k for k in range(10, 25, 2)], names, timeout=50)[0]
sweep = [SweepPoint(*timing) for timing in timings]
ours = [point for point in sweep if point.algorithm != "native"]
viz.plot_fit(sweep, fit_alpha_beta([(point.steps, point.critical_bytes, point.seconds) for point in ours]))

# %% [markdown]
# Both curves are flat at the left, where you pay for latency, and climb at the right, where you pay for bandwidth.
#
# The lower panel divides each measured time by the predicted one. Where a point lies at 1 ×, the two numbers explain it. On one machine they cannot explain all: four processes share its cores and its memory, and whoever else computes there makes messages wait for their turn. The crosses are PyTorch's own all-reduce, which was left out of the fit.
#
# ## All six, PyTorch's own, and groups
#
# `algorithm="native"` hands the tensor to `torch.distributed`. Below, seven numbers on four ranks go through five algorithms, two of them from *Fewer messages in a row*, and a sixth, the tree, which adds up along branches. Each must give what PyTorch gives. Then the ranks form groups, as the hierarchy does. *All* ranks make *all* groups, but only the members call a collective in one.
#
# The second cell asks of all six what ring A failed: do all ranks get the same bits? Most finish each sum on one rank and copy it. In recursive doubling, two ranks that swap add the same two numbers, and a + b rounds as b + a does.

# %%
# %%ranks 4
from course_lib import comm

x = torch.arange(7.0) * (rank + 1)
native = comm.all_reduce(x, algorithm="native")
equal = [
    torch.equal(comm.all_reduce(x, algorithm=a, node_size=2), native)
    for a in comm.ALGORITHMS["all_reduce"]
]
inside = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
print(equal, "the sum of my node:", comm.all_reduce(x, group=inside)[-1].item())

# %%
from functools import partial

for algorithm in comm.ALGORITHMS["all_reduce"]:
    held = [
        x.tolist()
        for x in run_ranks(on_my_row, 4, partial(comm.all_reduce, algorithm=algorithm, node_size=2), rows)
    ]
    print(f"{algorithm:20} the same bits on all ranks: {held == [held[0]] * 4}")
