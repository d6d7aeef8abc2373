# %% [markdown]
# # 01 · Why distributed: where the memory and the time go
#
# | | |
# | --- | --- |
# | **Time** | about 75 minutes |
# | **You need** | notebook 00: what a rank is; one training loop that you have written yourself, with Adam; a rough idea of attention |
# | **You will prove** | the formulas for parameters, weights, gradients, optimizer, activations and operations give what real tensors on this machine take |
# | **Back ends** | checked here on CPU over gloo; NCCL (GPUs) and Slurm were not run for this page, see section 10 |

# %% [markdown]
# ## 1 · The problem
#
# Llama 3.1 70B has 70.6<!-- =model_parameters(load_model("llama3_1_70b")) / 1e9 --> billion parameters. In bfloat16 its weights take 141 GB<!-- =2 * model_parameters(load_model("llama3_1_70b")) / GB -->. An H100 has
# 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB -->. So two GPUs?
#
# To train it you need 1129 GB<!-- =16 * model_parameters(load_model("llama3_1_70b")) / GB -->, before the first token enters. And on one GPU the training lasts
# 509<!-- =training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_70b")), 15e12), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 365 --> years (15 trillion tokens, at 40 %<!-- =40 --> of what the GPU can do at best). Today you compute both numbers yourself.

# %% folded=true
# %load_ext course_lib
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import costs, viz
from course_lib.checks import predict, score
from course_lib.config import LLAMA_3_1_8B, ModelConfig, ParallelConfig, load_model
from course_lib.hardware import load_cluster, load_device
from course_lib.models.decoder import Decoder
from course_lib.ranks import run_ranks
from course_lib.units import GB, GiB

# %% [markdown]
# ## 2 · What a decoder is made of
#
# A token becomes a vector of H numbers. Each of the L layers adds something to it: first **attention**, which looks at earlier tokens, then the **feed-forward** block, which looks at
# this token alone. The head turns the vector into one score for each token of the vocabulary.
#
# Most parameters sit in matrices inside the layers. Many people remember 12 H² per layer: attention has four matrices H × H, the feed-forward block two of H × 4H.
#
# **Predict** the parameters of Llama 3.1 8B: H is 4096, L is 32. Is 12 L H² the whole story?

# %%
exact = costs.model_parameters(LLAMA_3_1_8B)
predict("parameters of Llama 3.1 8B", guess=None, answer=exact, tolerance=0)
viz.plot_anatomy(LLAMA_3_1_8B)

# %% [markdown]
# Three things differ. The feed-forward block has **three** matrices, of inner size F: 1.34 billion parameters more. Keys and values are **narrower** than H, since 8 kv heads serve 32 query
# heads (**grouped-query attention**): 0.81 billion fewer. And the vocabulary's table exists twice, as embedding and as head: 1.05 billion. The last two nearly cancel, so a formula without either would come close, by luck.
#
# $$P = L\,(\underbrace{2H^2 + 2HK}_{\text{attention}} + \underbrace{3HF}_{\text{feed-forward}} + \underbrace{2H}_{\text{norms}}) + 2VH + H$$
#
# with $K$ the width of the keys, which is also that of the values, and $V$ the vocabulary. A **norm** rescales a vector by H learned numbers.

# %%
L, H, F_inner, V = LLAMA_3_1_8B.n_layers, LLAMA_3_1_8B.hidden_size, LLAMA_3_1_8B.ffn_size, LLAMA_3_1_8B.vocab_size
K = LLAMA_3_1_8B.n_kv_heads * H // LLAMA_3_1_8B.n_heads

by_hand = L * (2 * H**2 + 2 * H * K + 3 * H * F_inner + 2 * H) + 2 * V * H + H
with torch.device("meta"):  # a tensor on this device has a shape and no data
    built = sum(p.numel() for p in Decoder(LLAMA_3_1_8B).parameters())
print(f"by hand {by_hand:,}\nexact   {exact:,}\nbuilt   {built:,}")

# %% [markdown]
# ### A formula belongs to a shape
#
# The Kempner Institute's workshop on training OLMo prints this formula, here in our letters, with S positions:
#
# $$L(12H^2 + 10H) + H(V + S) + 2H + V(H + 1)$$
#
# Its 1B model has H = 2048, 16 layers, V = 32100 and S = 2048: 941,346,148. The OLMo 1B that was released has three feed-forward matrices of inner
# size 8192, no biases, norms without numbers of their own, no table of positions, and **one** table of 50,304 rows for embedding and head (they are **tied**). **Predict** its parameters.

# %%
workshop, real = load_model("olmo_1b_workshop"), load_model("olmo_1b")
predict("parameters of the real OLMo 1B", guess=None, answer=costs.model_parameters(real), tolerance=0)

counts = costs.parameters_by_part(workshop), costs.parameters_by_part(real)
print(f"{'':10} {'formula':>15} {'real OLMo 1B':>15}")
for part in costs.PARTS:
    if part in counts[0] or part in counts[1]:
        print(f"{part:10} {counts[0].get(part, 0):15,} {counts[1].get(part, 0):15,}")
print(f"{'together':10} {sum(counts[0].values()):15,} {sum(counts[1].values()):15,}")

# %% [markdown]
# The formula is exact, for another model: a GPT with learned positions, biases and a two-matrix feed-forward block. (Its 10H: four for two norms, five for the biases of the
# feed-forward block, one for that of attention.) Even the vocabulary differs. It misses 20 %<!-- =100 * (1 - costs.workshop_parameters(load_model("olmo_1b_workshop")) / model_parameters(load_model("olmo_1b"))) --> of what the real one has.
#
# Before you use a formula, ask which shape it counts.
#
# ## 3 · The bits of one number
#
# How many bytes is a parameter? That depends on its format. Each box is a bit: one sign, some **exponent** (how large), some **mantissa**
# (how exact). Look at 65504 + 16.

# %%
viz.float_bits(65504 + 16)

# %% [markdown]
# fp16 has five bits of exponent and ends at 65504: the sum overflows to infinity. bf16 has fp32's eight and does not
# overflow. But it pays in mantissa: seven bits, and the leading 1 that is not stored.
#
# **Predict**: a bf16 weight is 256. The optimizer adds 1. What is the weight now?

# %%
weight = torch.tensor(256.0, dtype=torch.bfloat16)
predict("256 + 1 in bf16", guess=None, answer=(weight + 1).item(), tolerance=0)
for start, update in ((256, 1), (258, 1), (1, 0.001)):
    print(f"{start} + {update} = {(torch.tensor(float(start), dtype=torch.bfloat16) + update).item():g}")

# %% [markdown]
# From 256 on, bf16 counts in steps of 2. 257 lies in the middle and goes to the neighbour whose last bit is 0: nothing happens, or twice the update. Nothing warns. Updates in
# training are often a thousandth of the weight, so a bf16 weight would stand still. Therefore the optimizer keeps its own **fp32 copy** of each weight: compute in half precision, step in
# single. This is **mixed precision**. Remember the copy: it costs memory.
#
# In JupyterLab, type other numbers: `0.1`, `1e-8`, `448 + 32`. The two fp8 rows have no room left for a step of training; they serve in products.

# %%
viz.float_bits_explorer()

# %% [markdown]
# ## 4 · Predict: what a parameter costs
#
# Llama's weights are in bf16, so a parameter takes 2 bytes<!-- =find_convention("zero").weights -->. **How many bytes does it take in mixed-precision training with Adam?**
# Newcomers count the weight and its gradient. What else does the optimizer's step need?

# %%
zero = costs.find_convention("zero")
predict("bytes per parameter in training", guess=None, answer=zero.bytes_per_parameter, unit="bytes")

# %% [markdown]
# Weight 2, gradient 2, and 12 for what only the optimizer's step reads: the fp32 copy, and Adam's two **moments** in fp32, each 4. Together these are the training's **states**.
#
# Other people count otherwise. Each line below was printed in a paper, a talk or a manual (`c.source` names it).

# %%
P = costs.model_parameters(load_model("llama3_1_70b"))
print("               weights + gradients + optimizer, bytes per parameter; Llama 3.1 70B")
for c in costs.CONVENTIONS.values():
    total = c.bytes_per_parameter
    print(
        f"{c.name:14} {c.weights} + {c.gradients} + {c.optimizer:2} = {total:2} {total * P / GB:6,.0f} GB  {c.assumes}"
    )

# %% [markdown]
# The same model, and more than a factor of three between the lines. The sums are right. What they count differs: other formats, and `workshop` leaves out the gradients. A
# number of bytes without its convention says little.
#
# ### ZeRO: store each number once
#
# In **data parallelism** each rank has the whole model and its own part of the batch; after each step all hold the same weights again. So p ranks store the same
# states p times. **ZeRO** cuts them into p **shards**, one for each rank: stage 1 the optimizer's, stage 2 the gradients too, stage 3
# the weights too.
#
# **Predict**: 7.5 billion parameters, 64 ranks, stage 1. Which of the states are divided by 64?

# %%
stages = [costs.state_bytes(7_500_000_000, zero, zero_stage=stage, shards=64) for stage in range(4)]
predict("GB on each rank under ZeRO-1", guess=None, answer=stages[1].total / GB, unit="GB")

print(f"{'ZeRO stage':10} {'weights':>8} {'gradients':>10} {'optimizer':>10} {'sum in GB':>10}")
for stage, held in enumerate(stages):
    print(
        f"{stage:10} {held.weights / GB:8.2f} {held.gradients / GB:10.2f}"
        f" {held.optimizer / GB:10.2f} {held.total / GB:10.1f}"
    )

# %% [markdown]
# These are the numbers of the ZeRO paper. Stage 1 leaves weights and gradients whole: 30 GB<!-- =4 * 7.5 --> that no number of ranks makes smaller.
# Only stage 3 divides all.
#
# ## 5 · From scratch: ZeRO-1 on real ranks
#
# Two collectives are enough; notebook 02 explains them. **Reduce-scatter** gives each rank the sum of one
# chunk of the gradients. The rank updates its chunk of the weights, and gives the optimizer nothing else: so only that chunk gets moments. **All-gather** collects the new weights.

# %%
from course_lib import comm

display(viz.who_holds_what("reduce_scatter", 3), viz.who_holds_what("all_gather", 3))


def train_zero_1(weights, gradients, make_optimizer, divide=True):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].clone())
    optimizer = make_optimizer([mine], lr=0.1)
    for per_rank in gradients:
        mine.grad = comm.reduce_scatter(per_rank[rank]) / (p if divide else 1)
        optimizer.step()
        weights = comm.all_gather(mine.detach(), length=len(weights))  # the next forward needs all
    moments = [x for x in optimizer.state[mine].values() if x.dim()]  # without the counter of steps
    return weights, sum(x.nbytes for x in moments)


# %% [markdown]
# ## 6 · Verify: is it still the same training?
#
# The reference is one device that takes the average gradient. Three steps, 13 weights, three ranks: 13 does not divide by 3.

# %%
torch.manual_seed(0)
weights, gradients = torch.randn(13), torch.randint(-4, 5, (3, 3, 13)).float()  # [step][rank][weight]


def ranks_that_agree(make_optimizer, divide=True):
    alone = torch.nn.Parameter(weights.clone())
    optimizer = make_optimizer([alone], lr=0.1)
    for per_rank in gradients:
        alone.grad = per_rank.mean(dim=0)
        optimizer.step()
    results = run_ranks(train_zero_1, 3, weights, gradients, make_optimizer, divide)
    print("bytes of moments, per rank:", [nbytes for _, nbytes in results])
    return sum(torch.allclose(new, alone.detach(), atol=1e-6) for new, _ in results)


print("ranks that agree with one device:", ranks_that_agree(torch.optim.SGD), "of 3")

# %% [markdown]
# SGD has no moments, and all ranks agree. Now a bug: we forget to divide by p, so every gradient is three times too large. And we use AdamW, as everybody does.
#
# **Predict**: how many of the three ranks still agree with one device?

# %%
predict("ranks that agree, without the division", guess=None, answer=ranks_that_agree(torch.optim.AdamW, divide=False))
print("and under SGD:", ranks_that_agree(torch.optim.SGD, divide=False))

# %% [markdown]
# Adam divides by the gradient's own size, so it forgives the factor: nobody sees the bug until somebody clips gradients, uses Adam's old L2 decay, or changes p in the middle of a run. **Verify with SGD.** Module 03 makes an
# instrument of this.
#
# The moments are a third of 104 bytes<!-- =2 * 13 * 4 -->. Rank 0 has one number more, because somebody must take the remainder.
#
# ## 7 · Measure: bytes of real tensors
#
# The cost formulas know no tensors. So hold them against some. A small decoder of Llama's shape, with hidden size 256, trains one step
# in fp32. Then we count.

# %%
small = ModelConfig(
    name="small", hidden_size=256, n_layers=4, n_heads=8, n_kv_heads=2, ffn_size=704, vocab_size=1000, tied=False
)
torch.manual_seed(0)
model = Decoder(small)
tokens, targets = torch.randint(1000, (2, 2, 64)).unbind()


def small_loss(model):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


optimizer = torch.optim.AdamW(model.parameters())
small_loss(model).backward()
optimizer.step()

expected = costs.state_bytes(costs.model_parameters(small), costs.find_convention("fp32"))
found = {
    "weights": sum(p.nbytes for p in model.parameters()),
    "gradients": sum(p.grad.nbytes for p in model.parameters()),
    "optimizer": sum(x.nbytes for state in optimizer.state.values() for x in state.values()),
}
for name, nbytes in found.items():
    print(f"{name:10} real tensors {nbytes:11,}   formula {getattr(expected, name):11,}")

# %% [markdown]
# Weights and gradients to the byte. The optimizer has a few bytes more: PyTorch counts the steps of each tensor in one fp32 number.
#
# ### Activations
#
# Backward needs what forward computed. These **activations** grow with the tokens of a batch; states do not. PyTorch
# lets us watch: a hook sees every tensor that autograd saves. Tensors may share memory, so we count **storages**, the memory behind tensors, once each, without the weights.


# %%
from course_lib.verify.memory import recompute_layers, saved_bytes

viz.show_source(saved_bytes)

# %%
shape = {"batch": 2, "sequence": 64, "itemsize": 4}
layer = sum(saved.nbytes for saved in costs.layer_activations(small, **shape))
head = sum(saved.nbytes for saved in costs.head_activations(small, **shape))
print(
    f"saved by autograd {saved_bytes(model, lambda: small_loss(model)):,}\nformula           {small.n_layers * layer + head:,}"
)

# %% [markdown]
# The difference is one number of 4 bytes<!-- =4 -->, by which cross-entropy divides. The formula adds up these tensors:

# %%
for saved in sorted(costs.layer_activations(small, **shape), key=lambda saved: -saved.nbytes):
    print(f"{saved.nbytes:9,} bytes  {saved.name}")

# %% [markdown]
# Four tensors of the feed-forward block are most of it. And where are attention's scores, one for each pair of tokens? PyTorch's attention does not keep them: it keeps one number for each token
# and head, and computes the scores again in backward. So activations grow with S, not with S².
#
# The same trick for whole layers is **recomputation**: keep a layer's input alone, and run its forward once more in backward. PyTorch calls it *activation checkpointing* (it
# has nothing to do with saving a model).

# %%
again = copy.deepcopy(model)
recompute_layers(again)
inputs = sum(saved.nbytes for saved in costs.checkpointed_activations(small, **shape))
print(f"saved with recompute {saved_bytes(again, lambda: small_loss(again)):,}")
print(f"formula              {small.n_layers * inputs + head:,}")

# %% [markdown]
# One eighth, at the price of one more forward. The rest is the table of rotation angles, 4096 bytes<!-- =64 * 16 * 4 -->, which all layers share, and cross-entropy's number.
#
# **Predict** for the large one. Llama 3.1 70B reads one sequence of 8192 tokens in bf16: H = 8192, F = 28672, 80 layers, keys and values of 1024. On GPUs a norm keeps only its input. What does a layer
# keep besides its input?

# %%
llama = load_model("llama3_1_70b")
one = costs.layer_activations(llama, batch=1, sequence=8192, itemsize=2, fused_norms=True)
layers_gb = llama.n_layers * sum(saved.nbytes for saved in one) / GB
predict("GB of activations, all layers", guess=None, answer=layers_gb, unit="GB")

# %% [markdown]
# A layer keeps some twenty times its input, unless it recomputes.
#
# ### The printed formulas, measured
#
# Now that we have an exact count, hold the published formulas against it, for our small model in bf16. They use their own letters: D, d or h for H, N for L, s or T for S, b or B for sequences, a for heads. *Selective* and *full* say what is
# recomputed; the Explorer is a public memory calculator, and NO_OP its name for "no ZeRO".

# %%
for gap in costs.published_gaps(small, batch=2, sequence=64):
    print(f"{gap.off:+7.1%}  {gap.counts}: {gap.name}\n         {gap.because}")

# %% [markdown]
# Few are slips; most count another shape or another attention.
#
# ## 8 · Why 70B does not fit
#
# **dp**: copies of the model, with different data. **tp**: GPUs that split every matrix. **pp**: GPUs that each hold some layers.
# **Micro-batch**: the sequences that one copy reads at a time. **Gathered**: the largest piece that ZeRO-3 has just put together, here embedding and head. **GiB**: 2³⁰ bytes, 7 %<!-- =100 * (GiB / GB - 1) --> more than a GB; tools report it.
#
# The dashed line is what the GPU has. We read the printed number as GB, which is careful: `nvidia-smi` shows some 5 GiB<!-- =load_device("h100_sxm_80").memory_bytes(binary=True) / GiB - load_device("h100_sxm_80").memory_bytes() / GiB --> more, but CUDA, NCCL and fragmentation take their part.

# %%
work = costs.Work(sequence=4096, microbatch=1)
redone = costs.Work(sequence=4096, microbatch=1, recompute="full")
zero_3 = ParallelConfig(dp=64, zero_stage=3)
with_tp = ParallelConfig(dp=8, tp=8, zero_stage=3, sequence_parallel=True)
rows = {
    "64 GPUs, ZeRO-3": costs.gpu_memory(llama, zero_3, work, zero),
    "64 GPUs, ZeRO-3, recompute": costs.gpu_memory(llama, zero_3, redone, zero),
    "64 GPUs, tp 8, ZeRO-3": costs.gpu_memory(llama, with_tp, work, zero),
}
print(f"one GPU alone: {costs.gpu_memory(llama, ParallelConfig(), work, zero).total / GiB:,.0f} GiB")
viz.plot_gpu_memory(rows, load_device("h100_sxm_80"), title="Llama 3.1 70B, one sequence of 4096 tokens")

# %% [markdown]
# Sharding the states is not enough: the activations of a GPU's own sequence stay. Recompute them (what stays are 80 inputs and the one layer that is being redone), or split each layer over several GPUs.
#
# Now it is your turn. In JupyterLab, turn one control at a time. **What is the smallest number of GPUs on which 70B fits?** Say a number first, from the
# bytes of the states alone.

# %%
viz.memory_explorer()

# %% [markdown]
# ## 9 · Time: six operations per parameter and token
#
# Memory decides whether you can start. Time decides when you finish. Each parameter in a matrix takes part in one multiplication and one addition per token: 2 operations. Backward does it
# twice, for the gradient of the input and for that of the weight: 4 more. **Predict** by this rule what PyTorch counts in one forward and backward of the small model, on 64 tokens.

# %%
from torch.utils.flop_counter import FlopCounterMode

in_matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
with FlopCounterMode(display=False) as counter:
    F.cross_entropy(model(tokens[:1]).flatten(0, 1), targets[:1].flatten()).backward()
predict("operations", guess=None, answer=counter.get_total_flops(), tolerance=0)

# %% [markdown]
# To the operation. Not in the rule: attention's products of tokens with tokens, which PyTorch does not count on a CPU. For 70B at 8192 tokens they
# add 8 %<!-- =100 * forward_flops(load_model("llama3_1_70b"), sequence=8192, causal=True).scores / forward_flops(load_model("llama3_1_70b"), sequence=8192, causal=True).matrices -->. With T tokens, G GPUs of peak R, and the **utilisation** U:
#
# $$\text{operations} = 6\,P\,T \qquad \text{time} = \frac{6\,P\,T}{G\,R\,U}$$
#
# Full recompute runs forward again: 8PT for the hardware. So there are two utilisations, the model's (**MFU**) and the hardware's (**HFU**).
#
# ### The bug museum: printed numbers
#
# #### First exhibit
#
# LLaMA 65B: 65.2 billion parameters, 1.4 trillion tokens, 2048 A100s with a peak of 312 TFLOP/s<!-- =load_device("a100_sxm_80").peak_flops_per_s() / 1e12 --> each, 21 days. A talk on distributed training (K. Yuan, 2024) prints its utilisation as 0.3. **Predict** it from these numbers.

# %%
run = costs.LLAMA_65B
predict("model utilisation of LLaMA 65B", guess=None, answer=run.model_utilisation())

for run in (costs.GPT3_PROJECTED, costs.LLAMA_65B):
    days, mfu, hfu = run.seconds / 86400, run.model_utilisation(), run.hardware_utilisation()
    print(f"{run.name:32} {days:.0f} days: model {mfu:.3f}, hardware {hfu:.3f} if all is recomputed")

# %% [markdown]
# The 0.3 comes from neither formula. For GPT-3 the talk prints 0.44, the **hardware's** share, beside it: two kinds in one table would not compare, even if both
# were right. And its GPT-3 numbers are Megatron's projection on A100s; OpenAI used V100s.
#
# LLaMA's paper says that it recomputed only a part, so its hardware's share lies between the two.
#
# #### Second exhibit
#
# A cluster of 384 H100s is said to do 759 PFLOP/s<!-- =int(load_cluster("kempner_h100").peak_flops_per_s(sparse=True) / 1e15) --> in bf16. **Predict** what dense training can use at most.

# %%
cluster = load_cluster("kempner_h100")
dense, sparse = (cluster.peak_flops_per_s(sparse=with_zeros) / 1e15 for with_zeros in (False, True))
predict("dense peak in PFLOP/s", guess=None, answer=dense, unit="PFLOP/s")
print(f"{cluster.n_gpus} GPUs: {dense:.1f} dense, {sparse:.1f} if two of four weights are zero")

# %% [markdown]
# The data sheet prints the larger peak, "with sparsity": products with two zeros among four weights, which are skipped. Training a dense model never reaches it.
#
# #### Third exhibit
#
# The workshop's 70B formula (a GPT shape of 65 billion) times 14 bytes<!-- =find_convention("workshop").bytes_per_parameter -->, "needs 23 A100s". **Say what is missing** before you run: there are two things.

# %%
seventy = load_model("olmo_70b_workshop")
states = costs.find_convention("workshop").bytes_per_parameter * costs.workshop_parameters(seventy)
for name in ("a100_sxm_40", "h100_sxm_80"):
    device = load_device(name)
    needed = [costs.gpus_needed(states, device.memory_bytes(binary)) for binary in (False, True)]
    print(f"{device.name}: {states / GB:.2f} GB need {needed[0]} GPUs if it has GB, {needed[1]} if GiB")

for batch in (1, 256):
    numbers = costs.workshop_activations(seventy, batch=batch, sequence=4096)
    print(f"its own activations in bf16, batch {batch}: {2 * numbers / GB:,.0f} GB")

# %% [markdown]
# Gradients are missing, and activations. Its own formula keeps the scores of attention, which PyTorch's attention does not; still, a single sequence needs more than two
# GPUs, and its batch of 256 at once fifty times the states. GB or GiB moves the answer by one GPU; what was forgotten moves it by far more.

# %% [markdown]
# ## 10 · In a Llama: how long on a real cluster?
#
# Llama 3 405B reached 400 TFLOP/s<!-- =costs.LLAMA_3_FLOPS_PER_S / 1e12 --> on each of 16,384 H100s: a utilisation of 0.404<!-- =costs.LLAMA_3_FLOPS_PER_S / load_device("h100_sxm_80").peak_flops_per_s() -->. Take 0.4 for 70B and 15 trillion tokens. Change the numbers: this is your calculator.

# %%
peak, tokens_read = load_device("h100_sxm_80").peak_flops_per_s(), 15e12
flops = costs.rule_of_thumb_flops(costs.model_parameters(llama), tokens_read)
chinchilla = costs.chinchilla_tokens(costs.model_parameters(llama))
print(f"peak {peak / 1e12:.0f} TFLOP/s, {flops:.2e} operations; Chinchilla's tokens: {chinchilla / 1e12:.2f} trillion")
for gpus in (1, 384, 16384):
    seconds = costs.training_seconds(flops=flops, gpus=gpus, peak_flops_per_s=peak, utilisation=0.4)
    hours = costs.gpu_hours(gpus=gpus, seconds=seconds)
    print(f"{gpus:6} GPUs: {seconds / 86400 / 365:7.2f} years = {seconds / 86400:9,.0f} days, {hours:,.0f} GPU-hours")

# %% [markdown]
# A run on one GPU ends after the year 2500. Meta's model card reports 7.0 million GPU-hours for the 70B, over half as many again: restarts, longer
# sequences, a smaller utilisation than the best. A rule of thumb gives a floor. (P counts the embedding too, 1.5 %<!-- =100 * load_model("llama3_1_70b").vocab_size * load_model("llama3_1_70b").hidden_size / model_parameters(load_model("llama3_1_70b")) --> too much.)
#
# Chinchilla's rule, 20 tokens for each parameter, makes best use of compute **spent on training**. Llama trains ten times longer, because a small model is
# cheap to use afterwards.
#
# *On a GPU node:* states are the same bytes; activations are less where norms are fused; `torch.cuda.max_memory_allocated` also counts what the allocator
# rounds up. *Under Slurm:* nothing changes in the arithmetic. Neither was run for this page.

# %% [markdown]
# ## 11 · Takeaways
#
# - A formula belongs to a shape. Count the tensors.
# - Verify with SGD: Adam hides a wrong scale.
# - Mixed precision with Adam keeps eight times the weights' bytes; ask for the convention.
# - ZeRO shards states. Activations need recompute, or a split model.
# - Model utilisation from 6PT, hardware utilisation from what ran; always the dense peak.
#
# **Next:** the exercises `01_why_distributed`; then notebook 02: how ranks sum gradients.
#
# References: Rajbhandari et al. 2020, *ZeRO*; Narayanan et al. 2021, *Efficient large-scale language model training*; Korthikanti et al. 2022, *Reducing activation
# recomputation*; Hoffmann et al. 2022 (Chinchilla); Touvron et al. 2023, *LLaMA*; Peng et al. 2023, *FP8-LM*; Grattafiori et al. 2024, *Llama 3*.

# %%
score()

# %% [markdown]
# ## Quiz
#
# <details><summary>1. A million H100s, one rank on each, ZeRO-1. Why does a 70B model not fit?</summary>
# Weights and gradients stay whole: over three times the GPU.
# </details>
#
# <details><summary>2. On how few H100s can 70B fit, at the very least?</summary>
# The states alone fill 15<!-- =gpus_needed(16 * model_parameters(load_model("llama3_1_70b")), load_device("h100_sxm_80").memory_bytes()) -->. Activations come on top: try dp 4, tp 2, pp 2 with ZeRO-3 and recompute.
# </details>
#
# <details><summary>3. You halve the sequence, with as many sequences. Which part of the memory halves?</summary>
# Activations. States do not know the sequence.
# </details>
#
# <details><summary>4. A report says 52 %<!-- =52 --> utilisation with full recompute, by 8PT. What is the model's?</summary>
# Three quarters of it: 39 %<!-- =52 * 6 / 8 -->.
# </details>
