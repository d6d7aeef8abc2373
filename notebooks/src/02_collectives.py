# %% [markdown]
# # 02 · Collectives: how ranks agree, and what it costs
#
# | | |
# | --- | --- |
# | **Time** | about 90 minutes, exercises not counted |
# | **You need** | notebook 00: ranks, all-reduce, the ledger |
# | **You will prove** | six all-reduce algorithms give one device's sum and PyTorch's result; each moves exactly the bytes that its formula says |
# | **Back ends** | checked here on CPU over gloo; NCCL (GPUs) and Slurm were not run for this page, see section 10 |

# %% [markdown]
# ## 1 · The problem
#
# In notebook 00, rank 0 collected everything. Now take the gradient of **one** Llama 3.1 8B layer: 436 MB<!-- =2 * layer_parameters(LLAMA_3_1_8B) / MB --> in
# bfloat16.
#
# With 1000 ranks, 999 such gradients must reach rank 0 through one network card. At 50 GB/s<!-- =INFINIBAND.bandwidth_bytes_per_s / GB --> that takes
# 8.7 s<!-- =999 * 2 * layer_parameters(LLAMA_3_1_8B) / INFINIBAND.bandwidth_bytes_per_s -->, for one layer out of 32, in every training step.
#
# The ring that you build today needs 0.045 s<!-- =comm_time("all_reduce", "ring", world_size=1000, length=layer_parameters(LLAMA_3_1_8B), itemsize=2).time_s(INFINIBAND) --> for the whole all-reduce.

# %% folded=true
# %load_ext course_lib
import torch
import torch.distributed as dist

from course_lib import viz
from course_lib.checks import predict, score
from course_lib.comm import ring as ring_code
from course_lib.config import LLAMA_3_1_8B
from course_lib.costs import SweepPoint, comm_time, fit_alpha_beta, layer_messages
from course_lib.hardware import INFINIBAND, NVLINK
from course_lib.ranks import ledger, run_ranks
from course_lib.units import MiB

# %% [markdown]
# ## 2 · The reference: one device
#
# Four gradients of 12 numbers each, all on one device. Their sum is the truth that everything below must match.

# %%
torch.manual_seed(0)
gradients = torch.randint(0, 10, (4, 12)).float()
total = gradients.sum(dim=0)
total

# %% [markdown]
# ## 3 · Who holds what
#
# Eight **primitives** cover all of distributed training. Read each picture as *before → after*. One row is one rank. A
# colour says which rank a chunk came from. A chunk with all colours is a sum.

# %%
viz.primitives_overview()

# %% [markdown]
# Some only *move* data; those with "reduce" in their name also *add* it. Look for pairs: gather undoes scatter; reduce sends
# broadcast's messages backwards, and adds.
#
# The most important fact is one picture after the other, if what all-gather collects are the finished sums:
#
# **all-reduce = reduce-scatter, then all-gather.**

# %%
display(viz.who_holds_what("reduce_scatter", 4), viz.who_holds_what("all_gather", 4))

# %% [markdown]
# ### By hand, with ranks as variables
#
# No processes yet: four lists play the four ranks. In each step every rank passes **one** chunk to the next rank, which
# adds its own part. After three steps each rank owns one finished chunk.

# %%
chunks = [list(gradient.clone().chunk(4)) for gradient in gradients]  # chunks[rank][c], 3 numbers each

for step in range(1, 4):
    moving = [(rank, (rank - step) % 4) for rank in range(4)]
    sent = [chunks[rank][c] for rank, c in moving]
    for (rank, c), data in zip(moving, sent, strict=True):
        chunks[(rank + 1) % 4][c] = chunks[(rank + 1) % 4][c] + data

torch.equal(torch.cat([chunks[rank][rank] for rank in range(4)]), total)

# %% [markdown]
# `True`: rank 0 owns the sum of chunk 0, rank 1 of chunk 1, and so on. That was a **reduce-scatter** as a ring. Three
# more steps of passing on, without adding, make it an all-reduce.
#
# In JupyterLab, move the slider and follow one chunk.

# %%
viz.ring_stepper(4)

# %% [markdown]
# ## 4 · Predict
#
# Each of 4 ranks holds 1 MiB<!-- =MiB / MiB -->. They call ring all-reduce: three steps that add, three that pass on. In every step
# a rank sends one chunk, a quarter of the whole.
#
# **How many bytes does each rank send?** Put your number in place of `None`. It may be a product, such as `2 * MiB`.

# %%
ring = comm_time("all_reduce", "ring", world_size=4, length=MiB // 4, itemsize=4)
predict(
    "bytes that each rank sends",
    guess=None,
    answer=ring.sent_bytes[0],
    unit="bytes",
    think="how often a rank sends, and how large is what it sends",
)

# %% [markdown]
# Six sends of a quarter: one and a half times the tensor. In general, with $M$ the bytes of the **whole** tensor and $p$
# ranks:
#
# $$\text{bytes sent per rank} = 2\,\frac{p-1}{p}\,M$$
#
# With more and more ranks this comes close to $2M$ and never passes it. That is why a ring scales.

# %% [markdown]
# ## 5 · From scratch
#
# The library's ring, the code that really runs. Compare it with the loop above: the same index arithmetic, but each
# rank runs only its own part. `port.isend` and `port.irecv` start a message; `wait()` waits until it has passed. `port.rooms` is
# memory for what arrives.

# %%
display(viz.show_source(ring_code.reduce_scatter), viz.show_source(ring_code.all_gather))

# %% [markdown]
# Now on four real processes. Each gets its own row of `gradients`.

# %%
# %%ranks 4 --push gradients --pull result
from course_lib import comm

result = comm.all_reduce(gradients[rank], algorithm="ring")

# %%
[torch.equal(mine, total) for mine in result]

# %% [markdown]
# ## 6 · Verify: every algorithm, 1 to 6 ranks
#
# A ring is one of six ways:
#
# - **Naive**: rank 0 serves everybody, one after the other.
# - **Tree**: who has the data helps to spread it, so the number of holders doubles in each step; backwards for the sum.
# - **Recursive doubling**: swap everything with a partner at distance 1, then 2, then 4, and add.
# - **Halving-doubling**: swap half of the tensor, then a quarter, ...; and the finished parts back again.
# - **Hierarchical**: reduce-scatter inside a node (a machine with several GPUs), all-reduce of the own chunk between nodes, all-gather inside.

# %%
viz.plot_messages(["naive", "ring", "tree", "recursive_doubling", "halving_doubling"], world_size=4)

# %% [markdown]
# The test: 13 numbers, which 2, 3, 4 and 6 do not divide, in float64, against one device. World size 3 matters: with 2 ranks left and right neighbour
# are the same, and a ring whose direction does not fit its chunk indices would pass. Hierarchy needs at least 4: two nodes of two.

# %%
from course_lib import comm


def error_of(algorithm):
    rank, p = dist.get_rank(), dist.get_world_size()
    xs = torch.randn(p, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    mine = comm.all_reduce(xs[rank], algorithm=algorithm, node_size=p // 2 if p > 2 and p % 2 == 0 else 1)
    return (mine - xs.sum(dim=0)).abs().max().item()


for p in (1, 2, 3, 4, 6):
    equal = {algorithm: max(run_ranks(error_of, p, algorithm)) < 1e-14 for algorithm in comm.ALGORITHMS["all_reduce"]}
    print(f"{p} ranks, equal to one device: {', '.join(name for name in equal if equal[name])}")

# %% [markdown]
# All six are equal to one device, on every number of ranks. Here the comparison ends at the output, because a collective has no
# parameters. From module 03 on it climbs further: to gradients, their norm, and parameters after several steps.
#
# ## 7 · Measure
#
# So the values are right. But **what did they cost**? Let us first look at who sent how much to whom. We run the naive way and
# the ring, both on the same 1 MiB<!-- =MiB / MiB -->.


# %%
def all_reduce_of_1_mib(algorithm):
    comm.all_reduce(torch.ones(MiB // 4), algorithm=algorithm, node_size=2)


for algorithm in ("naive", "ring"):
    run_ranks(all_reduce_of_1_mib, 4, algorithm)
    display(viz.plot_bytes_matrix(ledger(), title=f"{algorithm}: bytes from each rank to each rank"))

# %% [markdown]
# In the naive picture everything touches rank 0: its row is all that it sends, its column all that it receives. In the ring every
# rank has one entry, to its right neighbour.
#
# Now add up all the numbers in each picture. Both are 6 MiB<!-- =comm_time("all_reduce", "ring", world_size=4, length=MiB, itemsize=1).total_bytes / MiB -->! The ring does not send less than the naive way. It makes four
# network cards carry what one had to carry alone.

# %% [markdown]
# ### The ledger against the formula
#
# How many bytes should each rank have sent? For that `comm_time` has a formula of each algorithm, which knows nothing of the code
# that sends. We put it beside what the ledger has counted. **Before you run it:** which algorithm makes its busiest rank send
# least?

# %%
print(f"{'on 4 ranks, 1 MiB':20} {'busiest rank sent':>18} {'formula':>10} {'steps':>6}")
for algorithm in comm.ALGORITHMS["all_reduce"]:
    run_ranks(all_reduce_of_1_mib, 4, algorithm)
    formula = comm_time("all_reduce", algorithm, world_size=4, length=MiB // 4, itemsize=4, node_size=2)
    measured = [ledger().bytes_sent(rank) for rank in range(4)]
    assert tuple(measured) == formula.sent_bytes
    print(f"{algorithm:20} {max(measured):18,} {max(formula.sent_bytes):10,} {formula.steps:6}")

# %% [markdown]
# Ledger and formula are equal to the last byte, on every rank. Three algorithms share the smallest number, and nobody can do
# better: no all-reduce among ranks lets its busiest rank send less (Patarasuk and Yuan, 2009). But look at the last column. The
# three differ in their **steps**, and a step is not free.

# %% [markdown]
# ### Two numbers describe a link
#
# Any message costs something, even an empty one: that is the latency, **α**. On top of it each byte takes its time, **β**.
#
# Now let an algorithm make $s$ steps, one after the other. In each of them everybody waits for the largest message. Let $n$ be
# the bytes of these largest messages, added up. Then the algorithm takes
#
# $$T = s\,\alpha + n\,\beta$$
#
# Small tensors pay for steps, and large ones pay for bytes. So the best algorithm depends on the size, which is why some of the
# lines below cross.

# %%
viz.plot_cost_lines(["naive", "tree", "recursive_doubling", "ring"], world_size=16, link=INFINIBAND)

# %% [markdown]
# ### α and β of your machine
#
# How large are α and β on your machine? We time real all-reduces on 4 ranks, from small tensors to large ones, and fit the two
# numbers to what we see. PyTorch's own all-reduce, over gloo, takes turns with ours.

# %% varies="measured times"
sizes = [2**k for k in range(10, 25, 2)]
names = ["ring", "recursive_doubling", "native"]
timings = run_ranks(comm.sweep_all_reduce, 4, sizes, names, timeout=50)[0]
sweep = [SweepPoint(*timing) for timing in timings]
ours = [point for point in sweep if point.algorithm != "native"]
fit = fit_alpha_beta([(point.steps, point.critical_bytes, point.seconds) for point in ours])
display(viz.plot_bandwidth(sweep), viz.plot_fit(sweep, fit))

# %% [markdown]
# The points are what your machine did, and the curve is $s\,\alpha + n\,\beta$ with the two fitted numbers. The lower panel shows
# what this model misses, and often it misses by half and more. If you have more processes than cores, waiting for a core costs as
# much as sending. PyTorch's points were left out of the fit: each of its steps also waits for the receiver, so its latency is
# another.
#
# **When did what happen?** Below you see one ring all-reduce, as it just ran. Each rank waits for its left neighbour. The time may
# differ a lot from the sweep's median.

# %% varies="measured times"
run_ranks(all_reduce_of_1_mib, 4, "ring")
viz.plot_timeline(ledger(), title="Ring all-reduce of 1 MiB on 4 ranks, as it just ran")

# %% [markdown]
# ## 7b · Two nodes on one laptop
#
# Real clusters have two kinds of links: fast inside a node, slow between nodes. Each GPU has its own way out.

# %%
viz.plot_topology(node_size=2, n_nodes=2, inside=NVLINK, between=INFINIBAND)

# %% [markdown]
# Your laptop has neither. So we **emulate** them: under `comm.emulated` each message is slept through for α + β·bytes of its link.
# All of it runs 2000 times slower than real, and the times shown are divided by 2000 again. So no hardware was measured here.
#
# **Predict:** two nodes of 2 ranks, 16 MiB<!-- =16 * MiB / MiB -->. The ring takes 6 steps of a quarter, each as slow as the slow link. Hierarchical takes 2 steps of a half
# inside and 2 of a quarter between. By what factor is it faster?


# %%
def under_the_clock(algorithm, clock):
    with comm.emulated(clock):
        comm.all_reduce(torch.ones(4 * MiB), algorithm=algorithm, node_size=2)


clock = comm.EmulatedClock(inside=NVLINK, between=INFINIBAND, node_size=2, slowdown=2000)
seconds = {}
for algorithm in ("ring", "hierarchical"):
    run_ranks(under_the_clock, 4, algorithm, clock)
    seconds[algorithm] = ledger().span_s
predict(
    "ring time over hierarchical time",
    guess=None,
    answer=seconds["ring"] / seconds["hierarchical"],
    tolerance=0.05,
    think="how many bytes each of the two sends over the slow link, one after the other",
)

for algorithm in ("ring", "hierarchical"):
    formula = comm_time("all_reduce", algorithm, world_size=4, length=4 * MiB, itemsize=4, node_size=2)
    expected = formula.time_s(NVLINK, INFINIBAND)
    print(f"{algorithm:13} formula {expected * 1e6:6.0f} us, emulated {seconds[algorithm] * 1e6:6.0f} us")

viz.plot_timeline(ledger(), title="Hierarchical all-reduce on the emulated clock: 2 nodes of 2")

# %% [markdown]
# The emulation follows the formula, since its messages come in the order that the formula assumes. But why is the gain so small,
# if NVLink is three times as fast? Because each rank still sends half of the tensor to the other node. With 8 GPUs in each of the
# two nodes it would be an eighth. This is one reason why nodes are built large.


# %% [markdown]
# ## 8 · PyTorch's own
#
# `algorithm="native"` calls `torch.distributed` behind the same signature. This is what you use in earnest; ours shows what is
# inside.

# %%
# %%ranks 3
from course_lib import comm

x = torch.arange(7.0) * (rank + 1)
native = comm.all_reduce(x, algorithm="native")
pairs = [(comm.all_reduce(x, algorithm=name, node_size=3), native) for name in comm.ALGORITHMS["all_reduce"]]
pairs += [
    (comm.reduce_scatter(x), comm.reduce_scatter(x, algorithm="native")),
    (comm.broadcast(x, src=1), comm.broadcast(x, src=1, algorithm="native")),
    (comm.all_to_all(x), comm.all_to_all(x, algorithm="native")),
]
[torch.equal(ours, theirs) for ours, theirs in pairs]

# %% [markdown]
# ### To take home
#
# [`scripts/02_collectives.py`](scripts/02_collectives.py) does all this in PyTorch alone. Start it in a terminal with
# `torchrun --nproc-per-node 4 02_collectives.py`, then change it.
#
# | here | in PyTorch | what is different there |
# | --- | --- | --- |
# | `comm.all_reduce(x)` | `dist.all_reduce(x)` | the sum is written over `x` |
# | `comm.reduce_scatter(x)` | `dist.reduce_scatter_single(chunk, x)` | you bring the result's tensor, and p must divide the length |
# | `comm.all_gather(chunk)` | `dist.all_gather_single(x, chunk)` | all chunks are equally long |
# | `comm.broadcast(x, src=1)` | `dist.broadcast(x, src=1)` | the others' `x` is written over |
# | `%%ranks 4` | `torchrun --nproc-per-node 4` | the processes end with the script |
#
# Before PyTorch 2.13 the two with `single` were called `reduce_scatter_tensor` and `all_gather_into_tensor`.

# %% [markdown]
# ## 9 · Bug museum
#
# Two rings that a code review let pass. Both give the right sum in the test below. Each hides a silent bug.


# %%
def ring_a(x):
    total = moving = x
    for _ in range(dist.get_world_size() - 1):
        inbox = torch.empty_like(moving)
        sending = comm.isend(moving, right())
        comm.recv(inbox, left())
        sending.wait()
        moving, total = inbox, total + inbox
    return total


def ring_b(x):
    p, x = dist.get_world_size(), x.clone()
    chunks = x[: len(x) // p * p].chunk(p)
    for step in range(2 * p - 2):
        inbox = torch.empty_like(chunks[0])
        sending = comm.isend(chunks[(dist.get_rank() - step) % p], right())
        comm.recv(inbox, left())
        sending.wait()
        mine = chunks[(dist.get_rank() - step - 1) % p]
        mine.copy_(mine + inbox if step < p - 1 else inbox)
    return x


# %%
def right():
    return (dist.get_rank() + 1) % dist.get_world_size()


def left():
    return (dist.get_rank() - 1) % dist.get_world_size()


def check_sum(ring, length):
    mine = torch.arange(float(length)) + dist.get_rank()
    return torch.equal(ring(mine), comm.all_reduce(mine))


[(ring.__name__, run_ranks(check_sum, 4, ring, 12)) for ring in (ring_a, ring_b)]

# %% [markdown]
# All `True`. So look where values do not: at the bytes, and at lengths that do not divide. **Predict** how many bytes rank 0 sends in
# `ring_a` for 48 numbers of 4 bytes<!-- =4 --> each on 4 ranks. A right ring sends 288 bytes<!-- =comm_time("all_reduce", "ring", world_size=4, length=48, itemsize=4).sent_bytes[0] -->.

# %%
run_ranks(lambda: ring_a(torch.ones(48)), 4)
predict(
    "bytes that rank 0 sends in ring_a",
    guess=None,
    answer=ledger().bytes_sent(0),
    unit="bytes",
    think="what `moving` holds in each of the three rounds",
)

# %%
[(ring.__name__, run_ranks(check_sum, 4, ring, 13)) for ring in (ring_a, ring_b)]

# %% [markdown]
# - `ring_a` sends the **whole tensor** at every step: (p−1)·M bytes. Right values, and on 1000 ranks 500 times the traffic. It is
#   easy to ship, because a test of values passes.
# - `ring_b` cuts the tail off: with 13 numbers on 4 ranks, the last one is never summed. One parameter in 13 trains alone, and no
#   loss curve shows it.

# %% [markdown]
# ## 10 · In a Llama
#
# What one layer of Llama 3.1 8B sends in bfloat16, with one sequence of 8192 tokens per rank (the gradients are section 1's, now in MiB). Each row is a parallelism of a later
# module. **DDP** copies the model and averages gradients. **FSDP** keeps a shard of it per rank. Tensor parallelism splits each layer.

# %%
messages = layer_messages(LLAMA_3_1_8B, batch=1, sequence=8192, itemsize=2)
print(*messages, sep="\n")
print()
for link in (NVLINK, INFINIBAND):
    for message in messages[:1] + messages[3:4]:
        cost = comm_time("all_reduce", "ring", world_size=8, length=message.elements, itemsize=2)
        print(f"{message.technique:16} {message.tensor:24} over {link.name:10} {cost.time_s(link) * 1e3:6.2f} ms")

# %% [markdown]
# One message of tensor parallelism is smaller. But a layer sends four of them, and nothing can run meanwhile: 10 ms<!-- =4 * comm_time("all_reduce", "ring", world_size=8, length=8192 * 4096, itemsize=2).time_s(INFINIBAND) * 1e3 --> over InfiniBand that nothing hides. So it belongs on NVLink. DDP's gradients
# travel while the backward pass still computes. Modules 03 and 05 show both.
#
# *On a GPU node:* the cells stay as they are, the back end becomes NCCL. *Under Slurm:* `srun torchrun … -m course_lib.ranks module:function`. Neither was run
# for this page.

# %% [markdown]
# ### Find the wrong number
#
# A public talk says: all-gather takes $M/B$, **independent of the number of nodes**, with $M$ the data *on each rank*. Another slide: every GPU
# of a 4-GPU node talks to each other one at 75 GB/s<!-- =NVLINK.bandwidth_bytes_per_s / 2 / GB --> one way.
#
# Both are wrong. The cell below shows the first: bytes that pass one after the other, for $M$ on each rank and for $M$ in all. The second you correct
# in exercise 02.10.

# %%
for p in (2, 8, 64):
    per_rank = comm_time("all_gather", "ring", world_size=p, length=p * MiB, itemsize=1)
    whole = comm_time("all_gather", "ring", world_size=p, length=64 * MiB, itemsize=1)
    print(
        f"{p:3} ranks: {per_rank.critical_bytes / MiB:4.0f} MiB if each has 1 MiB, {whole.critical_bytes / MiB:4.0f} MiB if all have 64"
    )

# %% [markdown]
# ## 11 · Takeaways
#
# - All-reduce is reduce-scatter plus all-gather.
# - A ring sends $2\frac{p-1}{p}M$ bytes per rank: the minimum. A root sends $(p-1)M$.
# - Time is steps·α + bytes·β: doubling for small tensors, rings for large ones, hierarchy for nodes.
# - Right values prove half. Count the bytes, use 3 ranks and lengths that do not divide.
#
# **Next:** the exercises `02_collectives` are ten tasks on real ranks: write the ring, the tree and the hierarchy, predict costs, find two bugs and two wrong numbers.
#
# References: Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*; Thakur, Rabenseifner and Gropp 2005, *Optimization of collective communication
# operations in MPICH*; [PyTorch collectives](https://docs.pytorch.org/docs/stable/distributed.html).

# %%
score()

# %% [markdown]
# ## Quiz
#
# <details><summary>1. Why does a test with 2 ranks not find a ring that sends to the wrong side?</summary>
# With two ranks, next and previous are the same rank.
# </details>
#
# <details><summary>2. 1000 ranks, 4-byte tensor. Ring or tree?</summary>
# Tree: some 20 steps against 1998. Bytes do not matter here.
# </details>
#
# <details><summary>3. Which two primitives does FSDP need, if every rank keeps one shard of all parameters?</summary>
# All-gather for the parameters, reduce-scatter for the gradients.
# </details>
