# %% [markdown]
# # 03 · Data parallelism: many ranks, one training
#
# | | |
# | --- | --- |
# | **Time** | about 100 minutes, exercises not counted |
# | **You need** | notebook 00 (ranks, all-reduce, the ledger); from 02 the ring and its $2\frac{p-1}{p}M$ bytes |
# | **You will prove** | ranks that each read a part of the batch end with the weights of one device that reads all of it; DDP sends exactly the bytes of its formula; four silent bugs do not get past a ladder of seven rungs |
# | **Back ends** | checked here on CPU over gloo; NCCL (GPUs) and Slurm were not run for this page, see section 10 |

# %% [markdown]
# ## 1 · The problem
#
# On one H100, Llama 3.1 70B trains for 509<!-- =training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_70b")), 15e12), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 365 --> years
# (notebook 01). A thousand GPUs that each read a thousandth of the text would need half a year. This is **data parallelism**: every rank has the whole
# model, a **replica**, and its own part of each batch.
#
# But is it still the same training? Rank 3 never sees what rank 0 reads.
#
# Today you make it the same, to the last digit that rounding allows. Then you meet bugs that make it another training, under a loss curve that looks right.

# %% folded=true
# %load_ext course_lib
import copy
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, costs, viz
from course_lib.checks import predict, score
from course_lib.config import LLAMA_3_1_8B, ModelConfig
from course_lib.costs.comm.ddp import ddp_step, ddp_time, ddp_wrapping
from course_lib.hardware import ETHERNET, INFINIBAND, NVLINK, load_device
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.ddp import DistributedDataParallel
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.replicate import average_gradients
from course_lib.ranks import ledger, run_ranks
from course_lib.training.step import sgd_update
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer
from course_lib.units import GB, MiB
from course_lib.verify import NotEqual, assert_parallel_equals

# %% [markdown]
# ## 2 · The reference: one device, 38 parameters
#
# Six inputs, four hidden numbers, two outputs: the perceptron of the Kempner Institute's workshop. Its 6 × 4 + 4 + 4 × 2 + 2 = 38 parameters are few enough to see each.
#
# $$y = W_2\, f(W_1 x + b_1) + b_2$$
#
# **One legend for the whole course.** $x$ is a column, so each *row* of $W$ makes one output: $W$ has the shape (out, in). PyTorch stores `weight` just so. The workshop writes $xW$, with the transpose.
#
# For now $f$ does nothing, as in the workshop. The task: is the first input larger than the second? One backward pass over all eight rows gives 38 gradients, our truth.

# %%
torch.manual_seed(0)
model = MLP()
inputs = torch.randn(8, 6)
targets = (inputs[:, 0] > inputs[:, 1]).long()
F.cross_entropy(model(inputs), targets).backward()  # the mean over the eight rows
whole = {name: weight.grad.clone() for name, weight in model.named_parameters()}

viz.plot_mlp(dict(model.named_parameters()))

# %% [markdown]
# ## 3 · By hand: half of the batch each
#
# Two ranks, the same weights, four rows each. No communication yet. **Before you run it:** will each rank's gradient be half of the whole one?

# %%
# %%ranks 2 --push model,inputs,targets --pull halves
import torch.nn.functional as F

mine, goals = inputs.chunk(2)[rank], targets.chunk(2)[rank]
F.cross_entropy(model(mine), goals).backward()
halves = {name: weight.grad for name, weight in model.named_parameters()}
print(f"gradient norm {torch.cat([g.flatten() for g in halves.values()]).norm():.4f}")

# %%
viz.plot_gradients(halves, whole)

# %% [markdown]
# No. Each is the gradient of that rank's own mean, and they disagree, some cells even in sign, because the rows differ. But their **average** is the whole batch's gradient, in all 38 cells. The reason is one line: the gradient of a sum is the sum
# of the gradients. With $B$ rows of loss $\ell_i$ on $p$ ranks:
#
# $$\nabla\,\frac{1}{B}\sum_{i=1}^{B}\ell_i \;=\; \frac{1}{p}\sum_{r=1}^{p}\;\nabla\,\underbrace{\frac{p}{B}\sum_{i\ \text{on rank}\ r}\ell_i}_{\text{the mean loss of rank } r}$$
#
# So data parallelism is no new method. It **is** SGD on the large batch. Keep one thing in mind: a rank's mean has $\frac{p}{B}$ in front only if all ranks have equally many rows. Section 9 comes back to it.

# %% [markdown]
# ## 4 · Predict: what does a step send?
#
# One all-reduce of the gradients makes the average. The perceptron's gradient has 38 numbers of 4 bytes<!-- =4 -->, together 152 bytes<!-- =4 * 38 -->.
#
# **How many bytes do four ranks send in one step, all together?** Remember the ring: how often does each chunk travel? (`DistributedDataParallel` is what section 5 builds: it averages in every backward.)


# %%
def one_backward(bucket_cap_mb=25):
    torch.manual_seed(dist.get_rank())
    ddp = DistributedDataParallel(MLP(), bucket_cap_mb=bucket_cap_mb)
    ddp(torch.randn(8, 6)).sum().backward()


run_ranks(one_backward, 4)
formula = ddp_step([24, 4, 8, 2], world_size=4)
predict("bytes that four ranks send", guess=None, answer=formula.total_bytes, unit="bytes")
print("the ledger:", ledger().of("all_reduce").matrix())

# %% [markdown]
# Twice around, minus what stays at home: $2\frac{p-1}{p}M$ for each rank, $2(p-1)M$ together. The ledger, bytes from each rank (row) to each rank (column), agrees: 38 does not divide by 4, so some chunks have ten numbers and some nine.
#
# Now Llama 3.1 8B: $\Phi$ = 8.03<!-- =model_parameters(LLAMA_3_1_8B) / 1e9 --> billion parameters with gradients in bfloat16. A talk on distributed training (K. Yuan, 2024) prints: data parallelism "incurs $2\Phi$ bytes to communicate".
# **How many does each of 8 ranks send?**

# %%
gradient_bytes = 2 * costs.model_parameters(LLAMA_3_1_8B)
ring = costs.comm_time("all_reduce", "ring", world_size=8, length=gradient_bytes // 2, itemsize=2)
predict("GB that each rank sends", guess=None, answer=ring.sent_bytes[0] / GB, unit="GB", world_size=8)
print(f"over NVLink {ring.time_s(NVLINK):.2f} s, over InfiniBand {ring.time_s(INFINIBAND):.2f} s")

# %% [markdown]
# $2\Phi$ bytes is what the gradient *is*. An all-reduce *sends* nearly twice that. (The same slide counts the states as $2 \cdot 4\Phi$, 8 bytes<!-- =2 * 4 --> for each parameter: all in half precision. Notebook 01 counted 16.)
#
# Between nodes that is half a second. Is it much? Computing on one sequence of 8192 tokens takes 1.0 s<!-- =training_seconds(flops=rule_of_thumb_flops(model_parameters(LLAMA_3_1_8B), 8192), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) -->
# (at 40 %<!-- =40 --> of an H100). Who waits for the gradients loses a third of the GPU. So the next section is about not waiting.

# %% [markdown]
# ## 5 · From scratch, in three tries
#
# ### First try: naive
#
# After backward, one all-reduce for each parameter. `AVG` adds and divides.

# %%
viz.show_source(average_gradients)

# %% [markdown]
# Right, and slow for two reasons. Llama 3.1 8B has 291<!-- =32 * 9 + 3 --> tensors of parameters, so a step makes as many all-reduces, and each pays the latency of all its messages. And nothing is sent until backward is through.
#
# ### Second: buckets
#
# Against the first: put many gradients side by side into one flat tensor, a **bucket**, and average them together. Backward goes from the last layer to the first, so the last layer's gradients go into the first bucket.

# %%
from course_lib.parallel.buckets import average_gradients_in_buckets, fill, trained

weights = trained(MLP())  # by name, the last layer first
name_of = {weight: name for name, weight in weights.items()}
buckets = [[name_of[weight] for weight in bucket] for bucket in fill(weights.values(), bucket_bytes=40)]
named = [(name, weight.nbytes) for name, weight in reversed(weights.items())]
display(viz.plot_buckets(named, buckets, bucket_bytes=40), viz.show_source(average_gradients_in_buckets))

# %% [markdown]
# ### Third: overlap
#
# Against the second: the last layer's gradient is ready long before the first layer's. Send it *while* backward computes the rest.
#
# PyTorch lets us know: a **hook** is a function of ours that PyTorch calls, here as soon as a parameter's gradient is complete. And `all_reduce_` with `async_op=True` only *starts* an all-reduce; it runs in the background until somebody waits. Overlap is then ten lines.


# %%
def average_in_background(model):
    handles = []

    def launch_one(parameter):
        handles.append(comm.all_reduce_(parameter.grad, op=dist.ReduceOp.AVG, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(launch_one)
    return handles


def overlapped_gradients(model, inputs, targets):
    rank, p = dist.get_rank(), dist.get_world_size()
    handles = average_in_background(model)
    F.cross_entropy(model(inputs.chunk(p)[rank]), targets.chunk(p)[rank]).backward()
    for handle in handles:
        handle.wait()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


on_each = run_ranks(overlapped_gradients, 4, model, inputs, targets)
[all(torch.allclose(mine[name], whole[name]) for name in whole) for mine in on_each]

# %% [markdown]
# The library adds buckets, in one fixed order on all ranks, and a last hook that waits: `DistributedDataParallel` wraps a model, and a user only calls `loss.backward()`.
#
# ### See it
#
# A laptop cannot show overlap: its cores are busy with everybody's computing. So we use the **emulated clock** of notebook 02. Six layers of 1 MiB<!-- =MiB / MiB --> gradients each; we say that a layer's forward takes
# 0.5 ms<!-- =0.5 --> and its backward 1 ms<!-- =1 -->; messages take the time of 25 Gb/s<!-- =8 * ETHERNET.bandwidth_bytes_per_s / 1e9 --> Ethernet. All is slept through, 50 times slower than shown.
#
# **Predict.** In turn, a step takes 13.1 ms<!-- =1e3 * ddp_time([[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=4, inside=ETHERNET, bucket_bytes=MiB).in_turn_s -->: 9 of computing, and the rest for six buckets. How long with overlap? Ask which buckets have something to hide behind.

# %%
from course_lib.training.pace import pace


def timed_step(link, bucket_cap_mb=0, overlap=True):
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    with comm.settings(ledger=False):
        ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, overlap=overlap) if bucket_cap_mb else model
    clock = comm.EmulatedClock(inside=link, slowdown=50)
    with comm.emulated(clock), pace(layers, forward_s=0.5e-3, backward_s=1e-3):
        ddp(torch.ones(1, 512)).sum().backward()
        if not bucket_cap_mb:
            average_gradients(model)


runs = {}
for name, options in {"naive": (), "buckets": (1, False), "buckets, overlapped": (1, True)}.items():
    run_ranks(timed_step, 4, ETHERNET, *options)
    runs[name] = ledger()
predict("ms of an overlapped step", guess=None, answer=1e3 * runs["buckets, overlapped"].span_s, unit="ms")
viz.plot_overlap(runs, subtitle="emulated clock, no real network; rank 0; the line is the end of the step")

# %% [markdown]
# Only the **last** bucket is seen: its gradients come at the very end, and nothing is left to hide it behind. Everything before is free, as long as a bucket is sent faster than the next one fills.
#
# Larger buckets pay less latency. PyTorch's default is 25 MiB<!-- =25 * MiB / MiB -->. **Predict** the step with overlap switched on and such buckets. Ask when the first bucket can leave. (A message over this Ethernet waits 30 µs<!-- =1e6 * ETHERNET.alpha_s -->; a ring of four makes six.)

# %%
run_ranks(timed_step, 4, ETHERNET, 25, True)
predict("ms with 25 MiB buckets", guess=None, answer=1e3 * ledger().span_s, unit="ms")

# %% [markdown]
# Surprise: overlap is on, and nothing overlaps. All gradients fit into one bucket, which is full when backward ends. (PyTorch makes its first bucket 1 MiB<!-- =1 --> for this reason.) Remember it when a small model scales badly.
#
# ### The same weights at the start
#
# Equal gradients keep replicas equal. They do not *make* them equal. So wrapping a model copies rank 0's parameters to all, and its **buffers** (numbers that belong to the model but are not trained, such as a running mean). Here each
# rank is seeded differently on purpose. And from here on $f$ is a **GELU**, as in real models.

# %%
# %%ranks 4
from course_lib.models.mlp import MLP
from course_lib.parallel import ddp

torch.manual_seed(rank)
model = MLP(gelu=True)
born = model.layer1.bias[0].item()
model = ddp.DistributedDataParallel(model)
print(f"born with {born:+.4f}, wrapped {model.module.layer1.bias[0].item():+.4f}")

# %% [markdown]
# ### Accumulation and `no_sync`
#
# A batch may be too large for memory. Then a rank takes it in **micro-batches**: several backwards, whose gradients add up, before one step. This is gradient accumulation. The average of the ranks' sums is the sum of their averages, so one all-reduce at the
# end is enough; `no_sync()` switches off the others, if forward and backward both stand under it. (The OLMo configuration of the workshop says `grad_sync_mode: batch`, which is the same.)
#
# **Predict** the all-reduces of a step with 3 micro-batches, two of them under `no_sync`, if the model fills two buckets.


# %%
def accumulate(use_no_sync):
    torch.manual_seed(dist.get_rank())
    ddp = DistributedDataParallel(MLP(gelu=True), bucket_cap_mb=40 / MiB)
    *first, last = torch.randn(9, 6).chunk(3)
    for part in first:
        with ddp.no_sync() if use_no_sync else nullcontext():
            ddp(part).square().mean().div(3).backward()
    ddp(last).square().mean().div(3).backward()
    return ddp.module.layer1.weight.grad


always, wasted = run_ranks(accumulate, 4, False)[0], len(ledger().of("all_reduce").calls())
once, needed = run_ranks(accumulate, 4, True)[0], len(ledger().of("all_reduce").calls())
predict("all-reduces of a step", guess=None, answer=needed)
print(f"without no_sync {wasted}; the same gradient: {torch.allclose(always, once)}")

# %% [markdown]
# ## 6 · Verify: the ladder
#
# A **trainer** is one step of training as an object. On ranks it also gets a **mesh**, which names their axes, and **techniques**: here the axis `dp`, and `replicate()`, which wraps the model. The **ladder** runs both on the same batches and compares them rung by rung, as an error would show:
#
# 1 output, 2 gradients of each parameter, 3 gradient norm, 4 parameters after three steps of **SGD**, 5 loss curve, 6 **AdamW** with weight decay and clipping, 7 save and load. A *deviation* is the largest difference over the largest number.
#
# Seven rows on 3 ranks are 3, 2 and 2: nothing works only because it divides.


# %% varies="the last digits of rounding differ between processors"
def task(step, rows=7):
    inputs = torch.randn(rows, 6, generator=torch.Generator().manual_seed(step))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def mlp_alone(config):
    return Trainer(MLP(gelu=True), config)


def mlp_on_ranks(config, *bugs):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(MLP(gelu=True), config, mesh=mesh, apply=(replicate(), *bugs))


print(assert_parallel_equals(mlp_alone, mlp_on_ranks, task, world_size=3))

# %% [markdown]
# Every rung is equal up to rounding: in float64 a deviation of some 1e-16 is the last bit of a number. The tolerance, 1e-11, is far above; not one rung comes near it. If a rung failed, the ladder would stop there, with an error.
#
# ### Why SGD first?
#
# Plant the most common bug: the gradients' sum instead of their average. The library's **bug museum** keeps it: a bug is one more technique, applied last, and this one puts a sum where the average was. Climb the AdamW rung alone, then the SGD rung alone, then the ladder from its foot.

# %%
from course_lib.verify import RUNGS, museum


def first_fall(reference, bug, parallel, batches, rungs, world_size=4):
    try:
        assert_parallel_equals(reference, bug.planted(parallel), batches, world_size=world_size, rungs=rungs)
    except NotEqual as error:
        what, _, way_out = str(error).split("; ", 2)
        return what.partition(": ")[2], way_out
    return "equal", ""


bug = museum.BUGS["summed"]
print("It happened here:", bug.where.link)
for rungs in (["AdamW"], ["parameters"], RUNGS[:5]):
    print(*first_fall(mlp_alone, bug, mlp_on_ranks, task, rungs, world_size=3), sep="\n    ")

# %% [markdown]
# Under AdamW the weights are off by less than a thousandth: it divides each gradient by its own typical size. Under SGD they are off more than a hundred times as much. Neither says why; both send you down, to a rung that we skipped. There is the gradient, before any optimizer: 3.0 times one device's, on three ranks.
#
# ## 7 · Measure
#
# ### Bytes against the formula
#
# Wrapping is a broadcast of the state along a tree; a step is one ring all-reduce for each bucket. Here a bucket closes at 40 bytes<!-- =40 -->, so that there are two.

# %%
lengths = [p.numel() for p in MLP().parameters()]
for p in (3, 2, 4):
    run_ranks(one_backward, p, 40 / MiB)
    formula = ddp_wrapping([(lengths, 4)], world_size=p) + ddp_step(lengths, world_size=p, bucket_bytes=40)
    sent = tuple(ledger().bytes_sent(rank) for rank in range(p))
    assert sent == formula.sent_bytes
    print(f"{p} ranks sent {sent}, formula {formula.sent_bytes}")

# %% [markdown]
# To the byte, for every rank. Rank 0 sends most, since the broadcast begins there; of four, rank 2 passes it on to rank 3.
#
# ### Scaling efficiency
#
# Give every rank its own batch of fixed size. With perfect scaling a step takes as long as on one rank. **Efficiency** is one rank's time over that of $p$ ranks. The lines below come from `ddp_time`, which puts computing and all-reduces on two streams; the marks were run under the emulated clock.


# %%
def efficiency(link, p):
    paper = ddp_time(
        [[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=p, inside=link, bucket_bytes=MiB
    )
    return paper.efficiency()


links, emulated = (NVLINK, INFINIBAND, ETHERNET), {}
for p in (4, 2):
    for link in links:
        run_ranks(timed_step, p, link, 1)
        emulated.setdefault(link.name, {})[p] = 9e-3 / ledger().span_s
predicted = {link.name: {p: efficiency(link, p) for p in (1, 2, 4, 8, 16, 32, 64)} for link in links}
viz.plot_scaling(
    predicted,
    emulated,
    marks="emulated",
    title="Efficiency: one rank's step over that of p ranks",
    subtitle="six layers of 1 MiB; lines: formula; marks: emulated clock, no real links",
)

# %% [markdown]
# The bytes of a rank hardly grow with $p$; why do the lines fall? A ring has $2(p-1)$ steps, and each costs a latency. With messages this small, latency is most of it from 16 GPUs on. A line breaks where a bucket takes longer to send than a layer's backward: from there on overlap cannot hide it.
#
# A large model sends large messages. **Predict** for Llama 3.1 8B on 64 GPUs over InfiniBand, one sequence of 8192 tokens each: which efficiency, with overlap? Section 4 feared two thirds.

# %%
layer, table = costs.layer_parameters(LLAMA_3_1_8B), LLAMA_3_1_8B.vocab_size * LLAMA_3_1_8B.hidden_size
per_second = 0.4 * load_device("h100_sxm_80").peak_flops_per_s()
forward_s = [0] + [2 * size * 8192 / per_second for size in [layer] * 32 + [table]]  # the embedding only looks up
sizes, times = [[table], *[[layer]] * 32, [table]], {}
for link in links:
    times[link.name] = ddp_time(
        sizes, forward_s=forward_s, backward_s=[2 * t for t in forward_s], world_size=64, inside=link, itemsize=2
    )
predict("efficiency over InfiniBand", guess=None, answer=times["InfiniBand"].efficiency())
for name, time_of in times.items():
    print(f"{name:10} in turn {time_of.efficiency(overlap=False):4.0%}, overlapped {time_of.efficiency():4.0%}")

# %% [markdown]
# Most is hidden. But the network is never idle: the head's gradients leave it late, each layer takes a little longer to send than to compute, and at the end comes the embedding's, a large one with nothing to hide behind.
#
# (NVLink connects the GPUs of one node; a ring is as fast as its slowest link.)
#
# ### And this machine, honestly
#
# Real steps of a small decoder, in real time. Ranks share cores here: even two on two cores pay. This says nothing about GPUs. Below is your last step on four ranks. A backward's bar contains the wait for the last bucket, so look at when the first calls (#) begin.


# %% varies="measured times"
SMALL = ModelConfig(
    name="small", hidden_size=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=176, vocab_size=512, tied=False
)


def real_steps(steps=15):
    ddp, seconds = DistributedDataParallel(Decoder(SMALL), bucket_cap_mb=1 / 8), []
    tokens = torch.randint(512, (8, 64))
    for _ in range(steps):
        comm.ledger.clear()  # keep the last step alone
        started = time.perf_counter()
        with comm.settings(guard=False):
            with comm.span("forward"):
                loss = F.cross_entropy(ddp(tokens).flatten(0, 1), tokens.flatten())
            with comm.span("backward"):
                loss.backward()
            with comm.span("optimizer"):
                sgd_update(ddp, 0.1)
                ddp.zero_grad()
        seconds.append(time.perf_counter() - started)
    return min(seconds)  # a busy machine makes the others longer


seconds = {p: max(run_ranks(real_steps, p)) for p in (1, 2, 4)}
for p, step_s in seconds.items():
    print(f"ranks {p}: efficiency {seconds[1] / step_s:4.0%}, cores allow {min(1, os.cpu_count() / p):4.0%}")
viz.plot_timeline(ledger(), title="One DDP step on four ranks, as it just ran")

# %% [markdown]
# ## 8 · PyTorch's own
#
# You would use `torch.nn.parallel.DistributedDataParallel`: the same wrapper, the same `no_sync`, in C++ and on NCCL. From the same weights, on the same shares, both must leave the same gradients.


# %%
def ours_and_theirs():
    torch.manual_seed(0)
    first, rank = Decoder(SMALL).double(), dist.get_rank()
    ours = DistributedDataParallel(copy.deepcopy(first), bucket_cap_mb=1 / 8)
    theirs = torch.nn.parallel.DistributedDataParallel(first, process_group=dist.new_group())
    tokens = torch.randint(512, (8, 16)).chunk(4)[rank]
    for wrapped in (ours, theirs):
        F.cross_entropy(wrapped(tokens).flatten(0, 1), tokens.flatten()).backward()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return all(torch.allclose(mine.grad, other.grad, rtol=0, atol=1e-14) for mine, other in pairs)


run_ranks(ours_and_theirs, 4)

# %% [markdown]
# ## 9 · Bug museum
#
# A small Llama-shaped decoder reads Shakespeare on four ranks, with AdamW and clipping, as people train. The broad line is one device. Runs A to D are on ranks. Each *may* have a bug that happened to others in public.
#
# **Decide**: how many of the four are sound?

# %% varies="forty steps of rounding differ between processors"
from course_lib.training.batches import Batches
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens

tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=16, sequence=32, ragged=True)


def decoder_alone(config):
    return Trainer(Decoder(SMALL), config)


def decoder_on_ranks(config, *bugs):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(Decoder(SMALL), config, mesh=mesh, apply=(replicate(), *bugs))


names = [*museum.BUGS, "sound"]
exhibits = {"A": names[7], "B": names[8], "C": names[6], "D": names[16]}  # print them after you have decided
makers = {
    run: museum.BUGS[name].planted(decoder_on_ranks) if name in museum.BUGS else decoder_on_ranks
    for run, name in exhibits.items()
}
curves = {"one device": museum.curve_alone(decoder_alone, text.batch, 40)}
for run, make in makers.items():
    curves[f"run {run}"] = museum.curve_on_ranks(make, text.batch, world_size=4, steps=40)
losses, norms = ({run: getattr(curve, what) for run, curve in curves.items()} for what in ("losses", "norms"))
viz.plot_loss_curves(losses, title="Which of these runs are sound?")

# %% [markdown]
# One: run D, which stays on one device's line. The gradients' norms, which the losses hide, give one of the others away. So climb: the ladder names the first rung that fails, where, and the likely cause. **Predict** for A, B and C the number of the rung, 1 (output) to 7 (save and load).

# %%
guesses = {"A": None, "B": None, "C": None}

for run, name in list(exhibits.items())[:3]:
    what, way_out = first_fall(decoder_alone, museum.BUGS[name], decoder_on_ranks, text, RUNGS[:5])
    rung = RUNGS.index(what.partition(",")[0]) + 1
    predict(f"number of the rung at which run {run} falls", guess=guesses[run], answer=rung)
    print(f"{what.partition(', deviation')[0]}\n    {way_out}\n    met in public: {museum.BUGS[name].where.link}")

# %% varies="forty steps of rounding differ between processors"
viz.plot_loss_curves(losses, norms, title="The same runs, with what the losses hide")

# %% [markdown]
# Run A divided twice: by all targets, and by the ranks. B sent its gradients in bfloat16: half of the bytes, and an error in the third digit.
#
# C is the **mean of means**. The sequences have unequal numbers of **targets** (tokens that the loss counts), as padded text does, and every rank took the mean over its own. Count it by hand: 8 rows on two ranks, one on the first and seven on the second.
#
# **Predict**: how many times its right weight does the lonely row get?

# %%
row_losses = torch.rand(8, requires_grad=True)
one, seven = row_losses[:1], row_losses[1:]
((one.mean() + seven.mean()) / 2).backward()
counts = row_losses.grad * 8  # 1 is right: every row an eighth
predict("times that row 0 counts", guess=None, answer=counts[0].item())
print(f"each of the other seven: {counts[1].item():.3f}")

# %% [markdown]
# No loss is wrong by much, and no gradient by a clean factor. The run trains on a text in which some words count several times. The cure: rank $r$'s loss is $p$ times its *sum*, over the targets of *all* ranks; DDP's average takes the $p$ away again. (Without the $p$ you have built run A.) The trainer asks for the number of targets before each forward.
#
# ### Who reads what
#
# A **sampler** deals the samples out. Three ranks, ten samples, one epoch: **predict** how many samples are read in all.

# %%
from course_lib.training.sampler import DistributedSampler

samplers = [DistributedSampler(10, rank=rank, world_size=3) for rank in range(3)]
predict("samples read in one epoch", guess=None, answer=sum(len(sampler) for sampler in samplers))
for rank, sampler in enumerate(samplers):
    first = list(sampler)
    sampler.set_epoch(1)
    print(f"rank {rank}: epoch 0 {first}, epoch 1 {list(sampler)}")

# %% [markdown]
# Ten does not divide by three, so two samples come twice; PyTorch's sampler does the same. And who forgets `set_epoch` reads every epoch in the order of the first, another exhibit of the museum.
#
# ## 10 · In a Llama, on real text
#
# The block scales as it is: the same wrapper around a decoder of Llama's shape, on Shakespeare in 512 tokens made by byte-pair encoding (frequent pairs of bytes become one token). The whole ladder, in float32, sequences of unequal length:

# %% varies="the last digits of rounding differ between processors"
print([tokenizer.decode([token]) for token in text.batch(0)[0][0, :10]])
report = assert_parallel_equals(decoder_alone, decoder_on_ranks, text, world_size=4, dtype=torch.float32)
print(report)
print("bytes of weights and gradients on each rank:", report.peak_state_bytes)

# %% [markdown]
# The last line is the price: every rank stores everything. Data parallelism divides the time. It does not divide the states; that is module 06.
#
# ### What does a larger batch buy?
#
# More samples, less noise. The theorem of **parallel SGD** (PSGD): N workers, a loss of smoothness L that starts D above its minimum, gradients with noise σ². With the stepsize
#
# $$\gamma = \min\left(\frac{1}{L},\ \frac{1}{\sigma}\sqrt{\frac{2DN}{LT}}\right)$$
#
# the mean squared gradient over T steps is, after a transient, at most $2\sqrt{2LD\sigma^2/(NT)}$: N workers need 1/N of the steps. This is the **linear speed-up**.
#
# One worker and 3072 steps; 64 workers and 48 steps. The same work; the transient is some 7 N steps here. **Predict** the ratio of their errors.

# %%
from course_lib.training.psgd import Quadratic, psgd_alone, psgd_rank, transient_steps

problem = Quadratic()
error_of = {n: psgd_alone(problem, n, 3072 // n) for n in (1, 4, 16, 64)}
predict("error with 64 workers over error with one", guess=None, answer=error_of[64] / error_of[1])
for n, error in error_of.items():
    print(f"{n:2} workers, {3072 // n:4} steps: error {error:.3f}; transient {transient_steps(problem, n)} steps")
print(f" 4 real ranks,  768 steps: error {run_ranks(psgd_rank, 4, problem, 768)[0]:.3f}")
workers = (1, 2, 4, 8, 16, 32)
errors = {steps: {n: psgd_alone(problem, n, steps) for n in workers} for steps in (30, 300, 3000)}
viz.plot_speedup(errors, {n: transient_steps(problem, n) for n in workers})

# %% [markdown]
# Up to 16 workers the speed-up is nearly there. But the promise holds only after the **transient**, $2LDN/\sigma^2$ steps, which grows with N; the talk's slide leaves it out. Before, $\gamma$ stands at its cap 1/L, and more workers average noise that was no longer the problem. In practice: beyond a *critical batch size* more data parallelism saves no steps.
#
# Note the square root: at equal T, 16 workers have a quarter of the error, not a sixteenth.

# %% [markdown]
# ### On a GPU node and on a cluster
#
# *On a GPU node:* the cells stay as they are. Each rank takes a GPU, and NCCL runs on a stream of its own: section 5's overlap, in hardware.
#
# *Under Slurm or torchrun:* the library's trainer is also a command. It was run here on two ranks, with CPUs:
#
# ```bash
# python -m course_lib train dp=2                                            # own ranks
# torchrun --nproc-per-node 2 -m course_lib train dp=2                       # torchrun's
# srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \
#     --rdzv-endpoint $HOST:29500 -m course_lib train dp=8 engine=torch      # two nodes; not run here
# ```
#
# The workshop's OLMo 1B: `distributed_strategy: ddp`, `find_unused_params: false` (every backward reaches every parameter).

# %% [markdown]
# ## 11 · Takeaways
#
# - Data parallelism is SGD on the large batch, exactly, if every target counts alike.
# - A step sends $2\frac{p-1}{p}M$ bytes per rank. Overlap hides all but the last bucket, while a bucket is sent faster than the next one fills.
# - Broadcast at the start, average in every backward.
# - A loss curve proves nothing. Climb.
# - The states stay whole on every rank.
#
# **Next:** the exercises `03_mlp_ddp`; then module 04, which cuts the model instead of the batch.
#
# References: Li et al. 2020, *PyTorch Distributed*; Ghadimi and Lan 2013, *Stochastic first- and zeroth-order methods*; McCandlish et al. 2018, *An empirical model of large-batch training*; Kempner Institute 2024, workshop; K. Yuan 2024, talk.

# %%
score()

# %% [markdown]
# ## Quiz
#
# <details><summary>1. All gradients are exactly a quarter of the right ones, on 4 ranks. What happened?</summary>
# The loss was divided by the global number of targets, and averaging divided by 4 again.
# </details>
#
# <details><summary>2. You train with overlap, and every message waits until the last gradient is ready. Why?</summary>
# One bucket holds all gradients. Make buckets smaller.
# </details>
#
# <details><summary>3. Twice the ranks, the same batch per rank, and no fewer steps to the goal. Is DDP broken?</summary>
# Not if the ladder passes: you are within the transient, beyond the critical batch.
# </details>
