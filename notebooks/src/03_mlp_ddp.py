# %% [markdown]
# # 03 · Data parallelism: many ranks, one training
#
# A small Llama reads Shakespeare on one device. Then somebody gives you three more devices, so that each of the four reads a quarter of every batch. After backward you add their gradients up, and since lesson 00 you do not forget to divide by four. Run the two folded cells below first, and again whenever you restart the kernel: they load what the lesson uses, and draw the losses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm, costs, ledger, predict, run_ranks, score, viz
from course_lib.costs import ETHERNET, MiB, ddp_step, ddp_time, load_cluster, load_device, wires
from course_lib.parallel import DistributedDataParallel, fill, trained
from course_lib.training import (
    MLP,
    Batches,
    Decoder,
    DistributedSampler,
    ModelConfig,
    Trainer,
    load_model,
    load_text,
    load_tokens,
    make_mesh,
    pace,
    replicate,
)
from course_lib.verify import NotEqual, assert_parallel_equals, museum

# %% folded=true varies="36 steps of rounding differ between processors"
SMALL = ModelConfig(
    name="small",
    hidden_size=64,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=176,
    vocab_size=512,
    tied=False,
)
tokenizer, tokens = load_tokens(load_text(), 512)
text = Batches(text=tokens, batch_size=16, sequence=32, ragged=True)


def llama_alone(config):
    return Trainer(Decoder(SMALL), config)


def llama_on_ranks(config, *bugs):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(Decoder(SMALL), config, mesh=mesh, apply=(replicate(), *bugs))


one_device = museum.curve_alone(llama_alone, text.batch, 36)
first_screen = [*museum.BUGS.values()][6].planted(
    llama_on_ranks
)  # what is wrong with it, you will find out below
four_ranks = museum.curve_on_ranks(first_screen, text.batch, world_size=4, steps=36)
viz.plot_loss_curves(
    {"one device": one_device.losses, "four ranks": four_ranks.losses},
    title="The same training, on one device and on four ranks?",
    subtitle="loss in nats; the broad grey line is one device",
    hues={"four ranks": viz.ink.style.RUN_HUES[-1]},  # none of the museum's runs
)

# %% [markdown]
# After 15 steps the ranks' line is mostly higher. Is that noise? The picture cannot say, and yet the gradients were wrong **from the first step**.
#
# How do you know it is the same training, and is it four times as fast? You will be able to
# - prove that many ranks train like one device, and say when they do not.
# - send gradients while others are computed.
# - find a mistake behind a loss that looks right.
# - read and change such a training in PyTorch alone.
#
# *50 minutes; exercises, about five hours.*
#
# <details><summary>Before you start</summary>You need lessons 00 and 02. Everything ran on CPUs, over gloo.</details>

# %% [markdown]
# ## What is right
#
# This perceptron is so small that you can look at every number. It has six inputs, four hidden numbers and two outputs, which makes 24 + 4 + 8 + 2 = **38 parameters**.
#
# The perceptron reads eight rows, and says of each whether the first number is larger than the second. One device takes the mean of the eight losses, goes backward, and finds 38 gradients.
#
# > **To keep.** Whatever our ranks do, they have to end with one device's gradients.

# %%
torch.manual_seed(0)
model = MLP()
inputs = torch.randn(8, 6)
targets = (inputs[:, 0] > inputs[:, 1]).long()
F.cross_entropy(model(inputs), targets).backward()  # the mean over the eight rows
whole = {name: weight.grad.clone() for name, weight in model.named_parameters()}

viz.plot_mlp(dict(model.named_parameters()))

# %% [markdown]
# The f in the middle of the picture is an activation's place, still empty.
#
# ## Half of the rows each
#
# Now two ranks have these weights, and each reads four of the eight rows. Nobody sends anything yet, so each rank finds the gradient of the mean of its own four losses.
#
# **Predict.** Take one weight, the first in the lowest row of $W_1$. One device's gradient there is 0.07, and rank 0 finds 0.23. What does rank 1 find?


# %%
def of_my_rows(model, inputs, targets):
    rank, p = dist.get_rank(), dist.get_world_size()
    model.zero_grad()
    F.cross_entropy(model(inputs.chunk(p)[rank]), targets.chunk(p)[rank]).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


halves = run_ranks(of_my_rows, 2, model, inputs, targets)
predict(
    "rank 1's gradient",
    guess=None,
    answer=halves[1]["layer1.weight"][3, 0].item(),
    tolerance=0.02,
    think="what the mean of the two has to be",
)
opposite = sum((halves[0][name] * halves[1][name] < 0).sum().item() for name in whole)
print(f"the two ranks' gradients have opposite signs in {opposite} of 38 places")
viz.plot_gradients(halves, whole)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Find our weight at the left end of the fourth row: −9 hundredths on rank 1. So rank 0 wants to lower a weight that rank 1 wants to raise. Neither rank is wrong, because each has seen only its own four rows.
#
# Below the line stands the average. It agrees with one device at the foot, in all 38 places!
#
# </details>

# %% [markdown]
# It had to be so, because the mean of eight losses is the average of two means of four, and the gradient of an average is the average of the gradients. With $\ell_i$ for the loss of row $i$:
#
# $$\frac{1}{8}\sum_{i=1}^{8}\ell_i \;=\; \frac{1}{2}\,\Bigg(\underbrace{\frac{1}{4}\sum_{i=1}^{4}\ell_i}_{\text{mean of rank 0}} \;+\; \underbrace{\frac{1}{4}\sum_{i=5}^{8}\ell_i}_{\text{mean of rank 1}}\Bigg)$$
#
# This is **data parallelism**, in PyTorch **DDP**. Every rank has a copy of the whole model, called its **replica**, reads its own rows, and updates with the average of all gradients.
#
# > **To keep.** The average of the ranks' gradients is the gradient of the whole batch, under two conditions: all ranks average equally many losses, and no row's loss depends on other rows.

# %% [markdown]
# ## The same, step after step
#
# To train like this we need one loop more, which averages the gradients before each update. How do you prove it right, when a loss curve cannot tell?
#
# Forward makes an **output**. Backward makes **gradients**, whose length is the **gradient norm**: the root of the sum of all their squares. The update makes new **parameters**, and several steps make a **loss curve**.
#
# An error in one spreads to the later ones, unless something hides it. So compare in this order. Elsewhere such a comparison is called a test of **numerical parity**, and its last part **loss parity**. We call the five a **ladder**, and each a rung.


# %%
def average(model):
    for weight in model.parameters():
        weight.grad = comm.all_reduce(weight.grad) / dist.get_world_size()


def batch(step):
    rows = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return rows, (rows[:, 0] > rows[:, 1]).long()


def perceptron():
    return MLP(gelu=True)


# %% [markdown]
# Below, our loop `average` runs where `combine(model)` stands. Output, gradients and norm are those of the first step, the parameters those after the third. A **GELU** now stands in the place of f, so that we do not prove it for linear models alone.
#
# Run on one rank, the same code is our one device. On each rung we take the largest difference between the ranks and one device, and divide it by one device's largest number, so that rungs can be compared.


# %%
def climb(combine, make=perceptron, optimizer=torch.optim.SGD, lr=0.1, max_norm=1e9, **options):
    # train three steps, and write down the five rungs; other models, optimizers and limits come later
    rank, p, losses = dist.get_rank(), dist.get_world_size(), []
    torch.manual_seed(0)
    model = make().double()
    optimizer = optimizer(model.parameters(), lr=lr, **options)
    for step in range(3):
        inputs, targets = (rows.chunk(p)[rank] for rows in batch(step))
        output = model(inputs)
        loss = F.cross_entropy(output, targets)
        optimizer.zero_grad()
        loss.backward()
        combine(model)
        if step == 0:
            outputs = comm.all_gather(output.detach())
            gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        torch.nn.utils.clip_grad_norm_(
            model.parameters(), max_norm
        )  # cuts nothing while the limit is huge
        optimizer.step()
        losses.append(comm.all_reduce(loss.detach()) / p)
    rungs = {"output": outputs, "gradients": gradients, "gradient norm": gradients.norm()}
    parameters = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return rungs | {"parameters": parameters, "loss curve": torch.stack(losses)}


# %% varies="the last digits of rounding differ between processors"
def furthest(one, ranks):
    off = {
        rung: [(mine[rung] - right).abs().max() / right.abs().max() for mine in ranks]
        for rung, right in one.items()
    }
    return {rung: max(each).item() for rung, each in off.items()}


alone = run_ranks(climb, 1, average)[0]
viz.plot_ladder(furthest(alone, run_ranks(climb, 4, average)), tolerance=1e-11)

# %% [markdown]
# From the foot up, every rung equals one device's up to about 1e-16, where float64 has its last digit. Right answers may differ there, because ranks add the same numbers in another order, and each addition rounds.
#
# Where does rounding end and a bug begin? We draw the dashed line at **1e-11**. Ten thousand roundings stay below it even if all go the same way, and the smallest mistake of this lesson is far above it. In float32 rounding would come too near such a mistake, so we prove in float64.

# %% [markdown]
# ### Why plain SGD?
#
# We climbed with plain SGD, but people train with AdamW. In lesson 00 Adam hid a forgotten division. It divides each gradient by that gradient's typical size, so a factor that is in every step falls out again. **Clipping** can hide a factor as well, because it cuts a gradient that is longer than a limit to that limit.
#
# AdamW hides nothing on the first three rungs, because they come before the update. But on the two above them it would hide a factor. So climb with **plain SGD** first: then parameters and losses show it, too.
#
# > **To keep.** Compare from output to loss curve: the first rung that differs tells you where to look.

# %% [markdown]
# ## When is it *not* the same training?
#
# The proof's first condition was that all ranks average equally many losses. So break it: one row goes to rank 0, and seven go to rank 1. Each rank takes the mean of its own losses, and then the two means are averaged.
#
# **Predict.** On one device each row counts an eighth. How many times as much as it should does each of the seven count?

# %%
row_losses = torch.rand(8, requires_grad=True)
lonely, crowd = row_losses[:1], row_losses[1:]
((lonely.mean() + crowd.mean()) / 2).backward()
counts = row_losses.grad * 8  # 1 is right
predict(
    "times as much as it should, for one of the seven",
    guess=None,
    answer=counts[1].item(),
    think="what one row counts in a mean of seven, and what the second mean makes of that",
)
print(f"the lonely row counts {counts[0].item():g} times as much as it should")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# In the mean of seven each row counts a seventh, and the average halves that. A fourteenth is 0.57 of an eighth. But the lonely row is alone in its mean, so it counts one half, which is four times its due! This mistake is the **mean of means**.
#
# The cure has two parts. Each rank takes the **sum** of its losses, and divides it by eight, the number of *all* rows. The average over ranks will divide by two as well, so it multiplies by two first. Then each row counts half of 2/8, an eighth. In the libraries' words this is *per-token loss normalization*. Hugging Face's Trainer divides by `num_items_in_batch`, and counts it over all ranks if `average_tokens_across_devices` is on.
#
# </details>

# %% [markdown]
# The second condition is that no row's loss depends on other rows. **Batch normalization** breaks it, because this layer subtracts the mean over the rows of a batch and divides by their spread.
#
# Put such a layer in the place of f, and climb with `average`. **Before you run it**: which rung differs first, and could a cleverer `combine` repair it?


# %%
def normalized():
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


alone = run_ranks(partial(climb, average, make=normalized), 1)[0]
ranks = run_ranks(partial(climb, average, make=normalized), 2)
viz.plot_ladder(
    furthest(alone, ranks), tolerance=1e-11, title="With batch normalization two ranks are not one device"
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# The lowest rung, the output, is apart before there is any gradient, so no `combine` can repair it. Each rank has subtracted the mean of its own four rows, while one device subtracts that of all eight. It is **another training**, with a batch of four in this one layer. PyTorch's `SyncBatchNorm` gets back to eight.
#
# RMSNorm and attention stay within one row, but a contrastive loss compares rows. Dropout is random, and ranks do not draw what one device would, so climb without it.
#
# </details>
#
# > **To keep.** Count what each rank averages, and ask of every layer and loss whether it looks across rows.

# %% [markdown]
# ## Four times as fast?
#
# Give each rank a quarter of the batch, which is **strong scaling**, and it computes less but sends as much. Give each a **whole** batch, which is **weak scaling**, and together they train like one device with four times the batch. Then only communication makes a step longer. The batch of all ranks together is the **global batch**.
#
# What do messages cost? Over lesson 02's ring of four ranks each gradient makes three hops to be added up, and the sum three more to be handed out. With p ranks that is 2 (p − 1) hops.
#
# OLMo 1B has 1.2<!-- =costs.model_parameters(load_model("olmo_1b")) / 1e9 --> billion gradients. Suppose that we send them in bfloat16, as 2.4 GB<!-- =2 * costs.model_parameters(load_model("olmo_1b")) / GB -->. That halves float32's bytes but rounds each sum. So Megatron-LM and torchtitan default to float32 for this **reduce dtype**. On 64 H100s at Kempner each node has four GPUs and four network cards of 50 GB/s<!-- =wires(load_cluster("kempner_h100")).card.bandwidth_bytes_per_s / GB --> each. NCCL makes four rings, each through a card of its own. Each sends a quarter of the bytes almost twice, in 23 ms<!-- =1e3 * comm_time("all_reduce", "ring", world_size=64, length=costs.model_parameters(load_model("olmo_1b")), itemsize=2).sent_bytes[0] / wires(load_cluster("kempner_h100")).network_bytes_per_s -->.
#
# Training takes six operations for each parameter and token, two forward and four backward. With 8192 tokens on each GPU that is 146 ms<!-- =6e3 * costs.model_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->, if an H100 reaches 40 %<!-- =40 --> of its peak, its **MFU**. Sent after backward, the bytes alone would fill a seventh of the step, and latency comes on top.

# %% [markdown]
# ### Why wait?
#
# Backward begins at the last layer, so that layer's gradient is ready long before the first layer's. But our loop sends it only after backward. So send it **at once**! Computing and sending then **overlap**.
#
# PyTorch can call a function of ours, a **hook**, as soon as a parameter's gradient is complete. Ours starts `all_reduce_` with `async_op=True`, so the all-reduce runs in the background, and its result takes the gradient's place. Before we use the average, we wait for it.


# %%
def launch_when_ready(model):
    handles = []

    def launch(weight):
        handles.append(comm.all_reduce_(weight.grad, op=dist.ReduceOp.AVG, async_op=True))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(launch)
    return handles


def overlapped(model, inputs, targets):
    rank, p = dist.get_rank(), dist.get_world_size()
    model.zero_grad()
    handles = launch_when_ready(model)
    F.cross_entropy(model(inputs.chunk(p)[rank]), targets.chunk(p)[rank]).backward()
    for handle in handles:
        handle.wait()
    return {name: weight.grad for name, weight in model.named_parameters()}


sent_at_once = run_ranks(overlapped, 4, model, inputs, targets)
right = [all(torch.allclose(mine[name], whole[name]) for name in whole) for mine in sent_at_once]
print("one device's gradients on ranks 0 to 3:", right)

# %% [markdown]
# The gradients are right, but now every tensor makes its own all-reduce. OLMo 1B has 113<!-- =16 * 7 + 1 --> of them, and each pays the latencies of a whole ring, however short the tensor is.
#
# So put several gradients into one long tensor, a **bucket**, and send it when it reaches a limit.

# %%
weights = trained(MLP())  # by name, the last layer first
name_of = {weight: name for name, weight in weights.items()}
buckets = [[name_of[weight] for weight in bucket] for bucket in fill(weights.values(), bucket_bytes=40)]
viz.plot_buckets([(name, w.nbytes) for name, w in reversed(weights.items())], buckets, bucket_bytes=40)

# %% [markdown]
# Backward goes up the left side, so layer 2's gradients fill bucket 1, which leaves while layer 1 still works.
#
# ### Watch it
#
# Ranks on a laptop share its cores, so we take lesson 02's emulated clock, on which ranks only sleep. Each of six layers has 0.5 ms<!-- =0.5 --> of forward, 1 ms<!-- =1 --> of backward and 1 MiB<!-- =MiB / MiB --> of gradients, one bucket. Four ranks send over Ethernet.
#
# **Predict.** If sending waits for backward, a step takes 13.1 ms<!-- =1e3 * ddp_time([[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=4, inside=ETHERNET, bucket_bytes=MiB).in_turn_s -->: 9 ms<!-- =6 * 1.5 --> of computing, then six buckets. How long does it take if every bucket leaves when full?


# %%
def timed_step(link, bucket_cap_mb, overlap):
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    with comm.settings(ledger=False):
        # what the ranks send to get equal weights is not part of a step
        model = DistributedDataParallel(
            torch.nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb, overlap=overlap
        )
    clock = comm.EmulatedClock(inside=link, slowdown=50)
    # instead of computing, each layer sleeps for its time
    with comm.emulated(clock), pace(layers, forward_s=0.5e-3, backward_s=1e-3):
        model(torch.ones(1, 512)).sum().backward()


runs = {}
for name, overlap in (("in turn", False), ("overlapped", True)):
    run_ranks(timed_step, 4, ETHERNET, 1, overlap)
    runs[name] = ledger()
predict(
    "ms of an overlapped step",
    guess=None,
    answer=1e3 * runs["overlapped"].span_s,
    unit="ms",
    think="which buckets travel while something is still computed, and which one does not",
)
print("on the clock:", ", ".join(f"{name} {1e3 * run.span_s:.1f} ms" for name, run in runs.items()))
six = {"forward_s": 0.5e-3, "backward_s": 1e-3, "world_size": 4, "inside": ETHERNET, "bucket_bytes": MiB}
viz.animate_overlap([[512 * 512, 512]] * 6, **six)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Follow the lower half, with which the ranks' clock agrees. The first bucket fills while one layer goes backward and travels while the next one does, so it costs nothing, like the next four. But the last is full only when backward ends, so nothing hides it: this is **exposed communication**.
#
# </details>
#
# Hiding works as long as a bucket is sent faster than the next one fills. But each bucket pays its own latencies, so should buckets be larger? PyTorch's limit is 25 MiB<!-- =25 * MiB / MiB -->, if you set none, so give ours the same.
#
# **Predict.** How long does our step take now? Over Ethernet a message's latency is 30 µs<!-- =1e6 * ETHERNET.alpha_s -->.

# %%
run_ranks(timed_step, 4, ETHERNET, 25, True)
predict(
    "ms with buckets of 25 MiB",
    guess=None,
    answer=1e3 * ledger().span_s,
    unit="ms",
    think="when such a bucket is full, if all layers together have 6 MiB",
)
runs_on_the_clock = {"limit 1 MiB": runs["overlapped"], "limit 25 MiB": ledger()}
viz.plot_overlap(runs_on_the_clock, title="The same step with small buckets and with large ones")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# 12.2 ms<!-- =1e3 * ddp_time([[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=4, inside=ETHERNET).overlapped_s --> instead of 9.7<!-- =1e3 * ddp_time([[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=4, inside=ETHERNET, bucket_bytes=MiB).overlapped_s -->! Our 6 MiB<!-- =6 --> never fill such a bucket, so it leaves when backward ends. Nothing is left to hide it behind.
#
# So if a small model scales badly, set `bucket_cap_mb` to a small part of its gradients.
#
# </details>
#
# So much for a small model. OLMo has the opposite trouble, too many buckets. On a ring of 64 GPUs each all-reduce pays 0.76 ms<!-- =1e3 * costs.collective_s("all_reduce", "ring", nbytes=4, ranks=64, wires=wires(load_cluster("kempner_h100"))) --> of latencies before the first byte counts. One tensor at a time that makes 86 ms<!-- =113 * 1e3 * costs.collective_s("all_reduce", "ring", nbytes=4, ranks=64, wires=wires(load_cluster("kempner_h100"))) -->, in buckets of 25 MiB<!-- =25 * MiB / MiB --> still more than half, and with a whole layer in each bucket 13 ms<!-- =len(ddp_time([[load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size], *[[4 * 2048**2] * 3 + [2048**2] * 4] * 16], forward_s=0, backward_s=0, world_size=64, inside=INFINIBAND, itemsize=2, bucket_bytes=128 * MiB).ready_s) * 1e3 * costs.collective_s("all_reduce", "ring", nbytes=4, ranks=64, wires=wires(load_cluster("kempner_h100"))) -->. Backward hides most of the bytes; *Going deeper* counts what is left.
#
# > **To keep.** Send each gradient while others are computed, in buckets large enough to be worth their latency and small enough to leave early.

# %% [markdown]
# ## Prove it on a Llama
#
# Hooks and buckets are new, so we prove the training once more. The library's `DistributedDataParallel` puts them around any model. First it gives all ranks rank 0's weights, because equal gradients only *keep* models equal.
#
# The library's ladder has two more rungs: **AdamW** with decay and clipping, and **save and load**, because AdamW remembers what a checkpoint could forget.
#
# **Before you run it**: on the first screen each rank read four of 16 sequences, and yet one of the two conditions was broken. Which one, and how? On which rung does it show?

# %% varies="the last digits of rounding differ between processors"
try:
    assert_parallel_equals(llama_alone, first_screen, text, world_size=4)
except NotEqual as error:
    print(f"the first screen: {str(error).split('; ')[0].partition(': ')[2]}")
    fall = museum.Fall(
        rung=error.rung, deviation=error.deviation, losses=four_ranks.losses, reference=one_device.losses
    )
print(
    "targets on ranks 0 to 3 in step 1:",
    [(part != -100).sum().item() for part in text.batch(0)[1].chunk(4)],
)
report = assert_parallel_equals(llama_alone, llama_on_ranks, text, world_size=4)
display(viz.animate_ladder("the first screen", fall))
viz.plot_ladder(
    report.deviations, tolerance=report.tolerance, title="The small Llama: four ranks equal one device"
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Let the first picture move. The first screen breaks at the gradients, but "not by a constant factor", so it was no forgotten division. RMSNorm and attention stay within a row, which leaves the first condition. Each rank read four rows, but a row of text has a loss for each **target**, a token to be guessed. Longer ones have more, so rank 2 averaged 31 losses and rank 1 91: the mean of means!
#
# Below it the right run passes all seven rungs, because its `Trainer` has the lonely row's cure.
#
# </details>
#
# > **To keep.** Climb with the real model and real text: sequences of different lengths broke a condition that equal rows kept.

# %% [markdown]
# ## In PyTorch alone
#
# From now on one script grows with the course, and it needs PyTorch alone. Its first stage, [`scripts/01_one_device.py`](scripts/01_one_device.py), trains a small decoder on one device; each later stage makes the same training run on several ranks. What changes so that ranks share a batch?

# %%
from pathlib import Path

viz.show_difference(Path("scripts/01_one_device.py"), Path("scripts/03_ddp.py"))

# %% [markdown]
# Read the lines with a plus. Each process takes a device, and `init_process_group` lets them meet. `DistributedDataParallel` makes backward average the gradients. Here every process makes the whole batch and keeps its rows; larger data needs a **sampler**, `DistributedSampler`, that deals rows out.
#
# A batch that is too large for memory comes in **micro-batches**, whose gradients add up: **gradient accumulation**. Only the whole sum has to be averaged, so all but the last run under `no_sync()`, which sends nothing. Divide by the number of micro-batches only if they hold equally many targets. If not, it is the mean of means again, on a single device.
#
# | here | in PyTorch |
# | --- | --- |
# | `DistributedDataParallel` | the same name; `model.module` is the model inside |
# | `run_ranks` stops a hang | `init_process_group(timeout=…)` |
# | a gradient that did not come counts as zero | only with `find_unused_parameters=True`; without it the next step fails with *Expected to have finished reduction in the prior iteration* |
#
# Run `python scripts/01_one_device.py`, then [`scripts/03_ddp.py`](scripts/03_ddp.py) on 2 and on 4 processes: `torchrun --nproc-per-node 4 scripts/03_ddp.py`. All three print the same losses.
#
# **Your turn.** Change `scripts/03_ddp.py`: put every backward under `no_sync()`. Undo it, and divide `loss` by `ranks` once more. Run each on 4 processes. Which numbers give them away?
#
# <details><summary>What you should see</summary>Without an average, the first printed length is that of rank 0's rows alone, and from step 2 on the losses are too high, because each rank trains a model of its own. Divided twice, losses and lengths are a quarter.</details>
#
# > **To keep.** Data parallelism changes few lines of a training script, and none of its losses.

# %% [markdown]
# ## Bug museum
#
# The small Llama reads again, with AdamW and clipping to 1. A to D are new runs on four ranks, and each **may** have a bug found in published code. The next cell draws their losses, and prints a loss and the first gradients' lengths before clipping.
#
# A run is **sound** if it trains as one device does, apart from float32's rounding, which starts in the seventh digit and grows. Which are sound?
#
# **Predict**, after the next cell. One of the wrong runs has the right gradients in its first step. Which one? Ask how four ranks could make each wrong length, and which wrong *gradients* could make it.

# %% varies="36 steps of rounding differ between processors"
names = sorted([*museum.BUGS, "sound"], key=lambda name: name[::-1])  # an order that gives nothing away
exhibits = {
    "A": names[6],
    "B": names[11],
    "C": names[4],
    "D": names[10],
}  # print them after you have decided
makers = {
    run: museum.BUGS[name].planted(llama_on_ranks) if name in museum.BUGS else llama_on_ranks
    for run, name in exhibits.items()
}
logs = {"one device": one_device}
for run, make in makers.items():
    logs[f"run {run}"] = museum.curve_on_ranks(make, text.batch, world_size=4, steps=36)
curves = {run: curve.losses for run, curve in logs.items()}
for run, curve in logs.items():
    print(
        f"{run:10}  loss of step 3 {curve.losses[2]:.4f}   lengths",
        *(f"{norm:.4f}" for norm in curve.norms[:5]),
    )
viz.plot_loss_curves(
    curves,
    title="Which of these runs are sound?",
    subtitle="loss in nats; the broad grey line is one device",
)

# %% varies="36 steps of rounding differ between processors"
falls, said = {}, []
for run, make in makers.items():
    both = {"losses": curves[f"run {run}"], "reference": one_device.losses}
    try:
        assert_parallel_equals(llama_alone, make, text, world_size=4)
        falls[f"run {run}"] = museum.Fall(rung=None, deviation=None, **both)
    except NotEqual as error:
        falls[f"run {run}"] = museum.Fall(rung=error.rung, deviation=error.deviation, **both)
        what, _, way_out = str(error).split("; ", 2)
        said.append(f"run {run}: {what.partition(': ')[2]}\n    {way_out}")
right_gradients = "".join(
    run for run in exhibits if falls[f"run {run}"].rung not in (None, "output", "gradients")
)
predict("the wrong run with the right gradients", guess=None, answer=right_gradients)
print(*said, sep="\n")
display(
    viz.plot_museum(falls),
    viz.plot_loss_differences(curves, title="How far each run's loss is from one device's"),
)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# A red box is the first rung to break. **A** breaks at the gradients, because it [divides twice](https://github.com/meta-pytorch/torchtune/pull/2172): by all targets and by the ranks. **D** breaks there too, though by little. It was to send float32 and sends [bfloat16](https://github.com/pytorch/pytorch/issues/106395). That is allowed if you choose it, and a bug if you do not know it.
#
# **B** has the right gradients, but it [adds their squares up](https://github.com/modelscope/twinkle/pull/290) over four ranks, and the root of four is two. The lengths alone could not tell that from doubled gradients; the ladder can, because gradients stand below their norm. **C** is sound. In the last picture it lies far below the others, because its roundings need thirty steps to reach a thousandth.
#
# </details>
#
# So why do the curves look alike? AdamW hides a factor only while it stays the same. One device cuts its first three gradients to length 1. **A**'s are shorter and stay uncut. So the factor changes, and after two updates A's loss is off.
#
# **B** cuts to half of one device's length. AdamW hides that half almost wholly. But in step 4 one device stops cutting, and B's next loss is off. **D**'s rounding is no factor, so nothing hides it.
#
# > **To keep.** A loss curve shows a mistake late. Gradients show it in the first step, and often their norm does, too.

# %% [markdown]
# ## When to use it
#
# The **whole model has to fit**, with activations and 16 bytes<!-- =costs.find_convention("zero").bytes_per_parameter --> for each parameter, and **backward has to outlast the communication**. An all-reduce also waits for the slowest rank, the **straggler**.
#
# | your case | take |
# | --- | --- |
# | fits, backward outlasts the communication | data parallelism |
# | fits, communication is exposed | more tokens for each all-reduce, as by gradient accumulation; on many nodes the hierarchical one (lesson 02) |
# | does not fit | lessons 04 to 06 |
#
# With 8192 tokens on each of 64 GPUs, OLMo's backward takes 97 ms<!-- =4e3 * costs.model_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->. On Kempner's nodes, sent with a layer in each bucket, the gradients take 36 ms<!-- =1e3 * (16 * comm_time("all_reduce", "ring", world_size=64, length=costs.layer_parameters(load_model("olmo_1b")), itemsize=2, node_size=4).time_s(wires(load_cluster("kempner_h100"))) + comm_time("all_reduce", "ring", world_size=64, length=load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size, itemsize=2, node_size=4).time_s(wires(load_cluster("kempner_h100")))) --> through all cards, a third of it latency. Backward hides all of it but the last two buckets. With a quarter of the tokens it no longer could.
#
# > **To keep.** Data parallelism is the first choice as long as the model fits and each GPU has tokens enough to hide its communication.

# %% [markdown]
# ## The file behind this lesson
#
# [`course_lib/parallel/data/buckets.py`](../course_lib/parallel/data/buckets.py), about 290 lines, has three ways to average, one below the other: your loop over all gradients, the same in buckets, and buckets that leave while backward goes on. To your hook it adds an order, because ranks fill their buckets at different times: a full bucket waits until all before it have left.
#
# ## What still hurts
#
# It is the same training, on seven rungs. Is it four times as fast? With a whole batch each, in weak scaling, our six layers have **3.7 times** the **throughput**, a **scaling efficiency** of 93 %<!-- =100 * 9 / (1e3 * ddp_time([[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=4, inside=ETHERNET, bucket_bytes=MiB).overlapped_s) -->: four batches take 9.7 ms<!-- =1e3 * ddp_time([[512 * 512, 512]] * 6, forward_s=0.5e-3, backward_s=1e-3, world_size=4, inside=ETHERNET, bucket_bytes=MiB).overlapped_s --> instead of four times 9<!-- =6 * 1.5 -->. In strong scaling it is **1.8 times**, because computing shrinks, but buckets do not.
#
# > **To keep.** Data parallelism shares out the rows, but every rank keeps the whole model.
#
# Llama 3.1 8B takes 128 GB<!-- =costs.find_convention("zero").bytes_per_parameter * costs.model_parameters(load_model("llama3_1_8b")) / GB -->, but an H100 has 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB -->. What if we cut the **model**?
#
# **Next:** the [exercises](../exercises/release/03_mlp_ddp.ipynb), then [lesson 04](04_model_and_pipeline_parallelism.ipynb). [Slides](../slides/03_mlp_ddp.md).

# %%
score()

# %% [markdown]
# ## Two questions
#
# <details><summary>1. On 4 ranks every gradient is a quarter of the right one. What happened?</summary>The loss was divided by all ranks' targets, and by four again.</details>
#
# <details><summary>2. Your ladder passes on 2 ranks with 8 rows. What have you not seen?</summary>Uneven shares, more ranks, and mistakes after three steps.</details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## What `no_sync` saves, and what a sampler deals out
#
# A step has three micro-batches, and the model fills two buckets. Averaging after each micro-batch and adding gives the same as adding first, so one average at the end is enough. The sampler has a problem of its own: three ranks share ten rows, but each needs equally many, because a rank that is through first would leave the others waiting.
#
# **Before you run it**: how many all-reduces does a step make, with `no_sync` and without? And how many rows does each rank get, if none may be left out?


# %%
def accumulate(use_no_sync):
    model = DistributedDataParallel(MLP(gelu=True), bucket_cap_mb=40 / MiB)
    for number, part in enumerate(torch.randn(9, 6).chunk(3)):
        with model.no_sync() if use_no_sync and number < 2 else nullcontext():
            model(part).square().mean().div(3).backward()


for use_no_sync in (False, True):
    run_ranks(accumulate, 4, use_no_sync)
    print(f"no_sync {use_no_sync}: {len(ledger().of('all_reduce').calls())} all-reduces")
# Ten rows make no three equal lists, so two rows come twice and count twice in that epoch, as with
# PyTorch's sampler.
for rank in range(3):
    sampler = DistributedSampler(10, rank=rank, world_size=3)
    first = list(sampler)
    sampler.set_epoch(1)  # else epoch 1 would have the lists of epoch 0
    print(f"rank {rank}: epoch 0 {first}, epoch 1 {list(sampler)}")

# %% [markdown]
# ## Does the ledger agree?
#
# By the formula each gradient makes 2 (p − 1) hops on a ring of p ranks. The cell counts what four real ranks send when they average the perceptron's gradients.


# %%
def one_step():
    model = MLP()
    model(torch.randn(2, 6)).sum().backward()
    average(model)


run_ranks(one_step, 4)
sent = [ledger().bytes_sent(rank) for rank in range(4)]
print(f"38 gradients of 4 bytes, sent {sum(sent) / (38 * 4):g} times")
formula = ddp_step([24, 4, 8, 2], world_size=4, bucket_bytes=1)  # a call for each parameter
# Ranks differ by up to 8 bytes, because the two numbers of layer2.bias make no four equal chunks.
print(f"each rank {sent}, by the formula {formula.sent_bytes}")

# %% [markdown]
# Six hops each, as the formula says.
#
# ## Which settings hide a forgotten division?
#
# If you climb with AdamW after SGD, choose settings that let a mistake show. Adam divides a gradient by its own typical size, plus an $\varepsilon$ that prevents a division by zero.
#
# **Predict.** Five trainings of three steps all forget to divide by four, so gradients are four times too large. With AdamW, one device's gradients have the lengths 0.40, 0.63 and 0.40. After which of the five are the weights **nearest** to those of one device with the same settings?
#
# - **A** plain SGD.
# - **B** AdamW, PyTorch's $\varepsilon$ of 1e-8.
# - **C** AdamW, an $\varepsilon$ of 1e-3.
# - **D** like B, clipped to the length 0.1.
# - **E** like B, clipped to the length 0.5.


# %%
def add_up(model):
    for weight in model.parameters():
        weight.grad = comm.all_reduce(weight.grad)


adamw = {"optimizer": torch.optim.AdamW, "lr": 0.01}
trainings = {
    "A": {},
    "B": adamw,
    "C": adamw | {"eps": 1e-3},
    "D": adamw | {"max_norm": 0.1},
    "E": adamw | {"max_norm": 0.5},
}
off = {}
for name, options in trainings.items():
    right = run_ranks(partial(climb, average, **options), 1)[0]
    off[name] = furthest(right, run_ranks(partial(climb, add_up, **options), 4))
nearest = min(off, key=lambda name: off[name]["parameters"])
predict("the training that hides the mistake best", guess=None, answer=nearest)
for name, rungs in off.items():
    print(
        f"{name}  gradients apart by {rungs['gradients']:.1f}, then weights by {rungs['parameters']:.0e}"
    )

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Let $m$ be the running mean of a gradient, and $v$ the running mean of its square. Four times the gradient gives four times $m$, but sixteen times $v$:
#
# $$\frac{4\,m}{\sqrt{16\,v}+\varepsilon} \;\approx\; \frac{m}{\sqrt{v}+\varepsilon}$$
#
# So B hides the four well. Only $\varepsilon$ does not grow with the gradients, and that is where the last few hundred-thousandths come from. C's is not small beside gradients of a few hundredths.
#
# D hides it best. Even one device's gradients are longer than its limit, so all are cut to the same length before Adam sees them. In E one device cuts only the second gradient, but with four times the length all three are cut.
#
# So take an $\varepsilon$ as in C, and a limit as in E.
#
# </details>

# %% [markdown]
# ## How much of each GPU is left?
#
# More GPUs only help as long as they do not wait. So follow the buckets.
#
# **Predict.** OLMo 1B trains on 64 H100s in Kempner's nodes, through all cards, with 8192 tokens on each and buckets of 128 MiB<!-- =2 * costs.layer_parameters(load_model("olmo_1b")) / MiB -->.
#
# - One device computes 146 ms<!-- =6e3 * costs.model_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->.
# - In backward each of 16 layers fills a bucket every 5.6 ms<!-- =4e3 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s()) -->, the first layer's as backward ends.
# - A bucket travels for 2.1 ms<!-- =1e3 * comm_time("all_reduce", "ring", world_size=64, length=costs.layer_parameters(load_model("olmo_1b")), itemsize=2, node_size=4).time_s(wires(load_cluster("kempner_h100"))) -->, latency included. Last comes the embedding table, which the head shares, with 2.8 ms<!-- =1e3 * comm_time("all_reduce", "ring", world_size=64, length=load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size, itemsize=2, node_size=4).time_s(wires(load_cluster("kempner_h100"))) -->.
#
# When is everything sent? Guess the **efficiency**: one device's step over that time.

# %%
OLMO = load_model("olmo_1b")


def efficiency(network, gpus, tokens):
    layer, table = costs.layer_parameters(OLMO), OLMO.vocab_size * OLMO.hidden_size
    per_second = 0.4 * load_device("h100_sxm_80").peak_flops_per_s()
    forward_s = [0, *[2 * layer * tokens / per_second] * OLMO.n_layers, 2 * table * tokens / per_second]
    time = ddp_time(
        [
            [table],
            *[[layer]] * OLMO.n_layers,
            [],
        ],  # the head shares the table, whose gradient is ready last
        forward_s=forward_s,
        backward_s=[2 * seconds for seconds in forward_s],
        world_size=gpus,
        inside=network,
        bucket_bytes=128 * MiB,
        itemsize=2,
    )
    return time.efficiency()


KEMPNER = wires(load_cluster("kempner_h100"))
predict("efficiency with 8192 tokens", guess=None, answer=efficiency(KEMPNER, 64, 8192), tolerance=0.01)
ways = {f"Kempner, {tokens:,} tokens": (KEMPNER, tokens) for tokens in (32768, 8192, 2048)}
ways |= {"Ethernet, 32,768 tokens": (ETHERNET, 32768)}
lines = {
    name: {gpus: efficiency(network, gpus, tokens) for gpus in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    for name, (network, tokens) in ways.items()
}
words = "OLMo 1B, by formula; 100%: 64 GPUs are 64 times as fast as one"
viz.plot_scaling(lines, title="What is left of each GPU, by wires and tokens on each", subtitle=words)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Buckets fill more slowly than they travel, so none has to queue. Only the first layer's and the table's are exposed, because they are full when backward ends. So the step is longer by both of their times, 151 ms<!-- =1e3 * ddp_time([[load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size], *[[costs.layer_parameters(load_model("olmo_1b"))]] * 16, []], forward_s=[0, *[2 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())] * 16, 2 * load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())], backward_s=[0, *[4 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())] * 16, 4 * load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())], world_size=64, inside=wires(load_cluster("kempner_h100")), itemsize=2, bucket_bytes=128 * MiB).overlapped_s -->, of which one device's are 97 %<!-- =100 * ddp_time([[load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size], *[[costs.layer_parameters(load_model("olmo_1b"))]] * 16, []], forward_s=[0, *[2 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())] * 16, 2 * load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())], backward_s=[0, *[4 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())] * 16, 4 * load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())], world_size=64, inside=wires(load_cluster("kempner_h100")), itemsize=2, bucket_bytes=128 * MiB).efficiency() -->. By the same formula, 65 buckets of 25 MiB<!-- =25 * MiB / MiB --> would leave 95 %<!-- =100 * ddp_time([[load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size], *[[4 * 2048**2] * 3 + [2048**2] * 4] * 16, []], forward_s=[0, *[2 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())] * 16, 2 * load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())], backward_s=[0, *[4 * costs.layer_parameters(load_model("olmo_1b")) * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())] * 16, 4 * load_model("olmo_1b").vocab_size * load_model("olmo_1b").hidden_size * 8192 / (0.4 * load_device("h100_sxm_80").peak_flops_per_s())], world_size=64, inside=wires(load_cluster("kempner_h100")), itemsize=2).efficiency() -->: they pay more latencies, but each still travels while the next one fills.
#
# In the top curve, with 32,768 tokens, backward hides all but these two. With 8192 it does so, too; but the two pay more latencies on a longer ring, so that on 256 GPUs they cost six hundredths. With 2048 the same two weigh four times as much. Besides, from 16 GPUs on a bucket travels longer than the next one fills, so buckets queue. Over Ethernet, with one card a GPU, even 32,768 tokens are too few.
#
# </details>

# %% [markdown]
# ## What does a larger batch buy?
#
# Twice the ranks read twice the rows. Is training over in half the steps? More rows make a gradient less noisy, and a gradient with less noise allows **longer** steps. Picture a bowl. `N` workers see its slope with noise, and step along their average. At the bottom the slope is zero. So we call the slope's square, averaged over all steps of the run, the error. The theorem of **parallel SGD** says that after enough steps, with the right learning rate, it falls like $1/\sqrt{NT}$.
#
# The right learning rate grows like $\sqrt{N/T}$. So `N` workers need an `N`-th of the steps, and their learning rate is `N` times as large: the **linear scaling rule**. One worker makes 3072 steps, 4 make 768, 16 make 192, 64 make 48. **Before you run it**: up to how many workers does the error stay the same? And what if all keep one worker's learning rate?

# %%
from course_lib.training.psgd import Quadratic, psgd_alone, stepsize, transient_steps

problem, workers = Quadratic(), (1, 2, 4, 8, 16, 32)
for n in (1, 4, 16, 64):
    scaled, kept = (psgd_alone(problem, n, 3072 // n, rate) for rate in (None, stepsize(problem, 1, 3072)))
    print(f"{n:2} workers, {3072 // n:4} steps: error {scaled:.3f}, at one worker's rate {kept:.3f}")
errors = {steps: {n: psgd_alone(problem, n, steps) for n in workers} for steps in (30, 300, 3000)}
viz.plot_speedup(errors, {n: transient_steps(problem, n) for n in workers})

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Up to 4 workers the error stays. With one worker's learning rate 4 are already three times as far off: less noise alone buys nothing, if the steps stay short.
#
# With 64 workers the rule asks for a learning rate of 3.1. The theorem allows at most one over the bowl's curvature, here 1. Their 48 steps are too few, and "enough steps" grows with `N`: open circles have too few. The theorem gives a bound, so filled circles come near their dashed line and need not lie on it. In the line of 30 most of the error is the way still to go, which no average shortens.
#
# </details>
#
# [McCandlish and others](https://arxiv.org/abs/1812.06162) found this bend in real models. With a batch $B$ the steps to a given loss are
#
# $$S = S_{\min}\,\Big(1 + \frac{B_{\text{crit}}}{B}\Big)$$
#
# Well below the **critical batch size** twice the batch halves the steps. At that size you need twice $S_{\min}$ steps, and an endless batch would only halve them.
#
# References: Li et al. 2020, *PyTorch Distributed*; Kempner Institute 2024, the perceptron.
