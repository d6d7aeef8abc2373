# %% [markdown]
# # 01 · Why distributed: where the memory and the time go
#
# | | |
# | --- | --- |
# | **Time** | about 75 minutes |
# | **You need** | notebook 00: what a rank is; one training loop that you have written yourself |
# | **You will prove** | the formulas for parameters, states and activations give the bytes of real tensors on this machine |
# | **Back ends** | checked here on CPU over gloo; NCCL (GPUs) and Slurm were not run for this page, see section 10 |

# %% [markdown]
# ## 1 · The problem
#
# Llama 3.1 70B has 70.6<!-- =model_parameters(load_model("llama3_1_70b")) / 1e9 --> billion parameters. In bfloat16 its weights take 141 GB<!-- =2 * model_parameters(load_model("llama3_1_70b")) / GB -->. An H100 has
# 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB -->. So two GPUs?
#
# To train it you need 1129 GB<!-- =16 * model_parameters(load_model("llama3_1_70b")) / GB -->, before the first token enters. And on one GPU the training lasts
# 509<!-- =training_seconds(flops=rule_of_thumb_flops(model_parameters(load_model("llama3_1_70b")), 15e12), gpus=1, peak_flops_per_s=load_device("h100_sxm_80").peak_flops_per_s(), utilisation=0.4) / 86400 / 365 --> years (15 trillion tokens, at 40 %<!-- =40 --> of the peak). Today you compute both numbers yourself.

# %%
# %load_ext course_lib
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
# Read from top to bottom. A token becomes a vector of H numbers. Each of the layers adds something to it: first
# **attention**, which looks at earlier tokens, then the **feed-forward** block, which looks at this token alone. The head turns the
# vector into one score for each word of the vocabulary.

# %%
viz.plot_anatomy(LLAMA_3_1_8B)

# %% [markdown]
# Nearly all parameters sit in matrices inside the layers. Many people remember one formula for them: each layer has 12 H², because
# attention has four matrices H × H, and the feed-forward block two of H × 4H.
#
# **Predict** the parameters of Llama 3.1 8B: H is 4096, and it has 32 layers. The guess is 12 L H². Put in your own.

# %%
exact = costs.model_parameters(LLAMA_3_1_8B)
predict("parameters of Llama 3.1 8B", guess=12 * 32 * 4096**2, answer=exact, tolerance=0)

# %% [markdown]
# Three things differ. Llama's feed-forward block has **three** matrices, of inner size F. Its keys and values are **narrower** than H: 8 heads
# serve 32 query heads. And the vocabulary's table exists twice: as embedding and as head.
#
# $$P = L\,(\underbrace{2H^2 + 2HK}_{\text{attention}} + \underbrace{3HF}_{\text{feed-forward}} + \underbrace{2H}_{\text{norms}}) + 2VH + H$$
#
# with $F$ the inner size, $V$ the vocabulary, and $K$ the width of the keys, which is also that of the values.

# %%
L, H, F_inner, V = LLAMA_3_1_8B.n_layers, LLAMA_3_1_8B.hidden_size, LLAMA_3_1_8B.ffn_size, LLAMA_3_1_8B.vocab_size
K = LLAMA_3_1_8B.n_kv_heads * H // LLAMA_3_1_8B.n_heads

by_hand = L * (2 * H**2 + 2 * H * K + 3 * H * F_inner + 2 * H) + 2 * V * H + H
print(f"by hand {by_hand:,}\nexact   {exact:,}")

# %% [markdown]
# ### A formula belongs to a shape
#
# A public workshop on training OLMo prints this formula, with D for the hidden size, N layers, T positions:
#
# $$N(12D^2 + 10D) + D(V + T) + 2D + V(D + 1)$$
#
# For its 1B model it gives 941,346,148. **Predict** what the real OLMo 1B has.

# %%
workshop, real = load_model("olmo_1b_workshop"), load_model("olmo_1b")
formula = costs.workshop_parameters(workshop)
predict("parameters of the real OLMo 1B", guess=formula, answer=costs.model_parameters(real), tolerance=0)

# %%
counts = costs.parameters_by_part(workshop), costs.parameters_by_part(real)
print(f"{'':10} {'formula':>15} {'real OLMo 1B':>15}")
for part in costs.PARTS:
    if part in counts[0] or part in counts[1]:
        print(f"{part:10} {counts[0].get(part, 0):15,} {counts[1].get(part, 0):15,}")
print(f"{'together':10} {sum(counts[0].values()):15,} {sum(counts[1].values()):15,}")

# %% [markdown]
# The formula is exact, for another model: a GPT with learned positions, biases and a two-matrix feed-forward block. The real OLMo
# has three matrices, no biases, norms without weights, and one table for both ends. The formula misses 20 %<!-- =100 * (1 - costs.workshop_parameters(load_model("olmo_1b_workshop")) / model_parameters(load_model("olmo_1b"))) -->.
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
# fp16 has 5 bits<!-- =5 --> of exponent and ends at 65504: the sum overflows to infinity. bf16 has fp32's 8 bits<!-- =8 --> of exponent and does not
# overflow. But it pays in mantissa.
#
# **Predict**: a bf16 weight is 256. The optimizer adds 1. What is the weight now?

# %%
weight = torch.tensor(256.0, dtype=torch.bfloat16)
predict("256 + 1 in bf16", guess=257, answer=(weight + 1).item(), tolerance=0)

# %% [markdown]
# Nothing happened, and nothing warned. Updates in training are often a thousandth of the weight, so a bf16 weight would stand still. Therefore the
# optimizer keeps its own **fp32 copy** of each weight. Remember this copy: it costs memory.
#
# In JupyterLab, type other numbers: `0.1`, `1e-8`, `448 + 32`.

# %%
viz.float_bits_explorer()

# %% [markdown]
# ## 4 · Predict: what a parameter costs
#
# Llama's weights are in bf16, so a parameter takes 2 bytes<!-- =find_convention("zero").weights -->. **How many bytes does it take in mixed-precision training with Adam?**
# The guess is what newcomers say: the weight and its gradient.

# %%
zero = costs.find_convention("zero")
predict("bytes per parameter in training", guess=4, answer=zero.bytes_per_parameter, unit="bytes")

# %% [markdown]
# Weight 2, gradient 2, and 12 for the optimizer: the fp32 copy, and Adam's two **moments** in fp32, each 4.
#
# Other people count otherwise. Each line below can be found in a paper, a talk or a manual.

# %%
P = costs.model_parameters(load_model("llama3_1_70b"))
print(f"{'convention':14} weights gradients optimizer   sum   Llama 3.1 70B")
for c in costs.CONVENTIONS.values():
    total = c.bytes_per_parameter
    print(f"{c.name:14} {c.weights:7} {c.gradients:9} {c.optimizer:9} {total:5} {total * P / GB:12,.0f} GB")

# %% [markdown]
# The same model, and more than a factor of three between the lines. None is a slip of arithmetic. They hold other things in other formats, and one forgets the gradients. A
# number of bytes without its convention says little.
#
# ### ZeRO: why does everyone keep a copy?
#
# With data parallelism every rank holds all of it. **ZeRO** gives each rank a shard: stage 1 of the optimizer states, stage 2 of the gradients too, stage 3
# of the weights too.
#
# **Predict**: 7.5 billion parameters, 64 ranks, stage 1. The guess divides everything by 64.

# %%
stages = [costs.state_bytes(7_500_000_000, zero, zero_stage=stage, shards=64) for stage in range(4)]
predict("GB on each rank under ZeRO-1", guess=120 / 64, answer=stages[1].total / GB, unit="GB")

print(f"{'ZeRO stage':10} {'weights':>8} {'gradients':>10} {'optimizer':>10} {'sum in GB':>10}")
for stage, held in enumerate(stages):
    print(
        f"{stage:10} {held.weights / GB:8.2f} {held.gradients / GB:10.2f}"
        f" {held.optimizer / GB:10.2f} {held.total / GB:10.1f}"
    )

# %% [markdown]
# These are the numbers of the ZeRO paper. Stage 1 leaves weights and gradients whole: 30 GB<!-- =4 * 7.5 --> that no number of ranks makes smaller.
# Only stage 3 divides all.

# %% [markdown]
# ## 5 · From scratch: ZeRO-1 on real ranks
#
# What you need is in notebook 00, and two collectives that notebook 02 explains. **Reduce-scatter** gives each rank the sum of one
# chunk of the gradients. The rank updates its chunk. **All-gather** collects the new weights.

# %%
display(viz.who_holds_what("reduce_scatter", 3), viz.who_holds_what("all_gather", 3))

# %% [markdown]
# In code: each rank gives AdamW its own chunk, and nothing else. So only that chunk gets moments.

# %%
from course_lib import comm


def train_zero_1(weights, gradients):
    rank, p = dist.get_rank(), dist.get_world_size()
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].clone())
    optimizer = torch.optim.AdamW([mine], lr=0.1)
    for per_rank in gradients:
        mine.grad = comm.reduce_scatter(per_rank[rank]) / p
        optimizer.step()
    moments = [state for state in optimizer.state[mine].values() if state.dim()]
    return comm.all_gather(mine.detach(), length=len(weights)), sum(state.nbytes for state in moments)


# %% [markdown]
# ## 6 · Verify: is it still the same training?
#
# The reference is one device that takes the average gradient. Three steps, 13 weights, three ranks: 13 does not divide by 3.

# %%
torch.manual_seed(0)
weights, gradients = torch.randn(13), torch.randint(-4, 5, (3, 3, 13)).float()  # [step][rank][weight]

alone = torch.nn.Parameter(weights.clone())
optimizer = torch.optim.AdamW([alone], lr=0.1)
for per_rank in gradients:
    alone.grad = per_rank.sum(dim=0) / 3
    optimizer.step()

results = run_ranks(train_zero_1, 3, weights, gradients)
print("weights equal on every rank:", [torch.allclose(new, alone.detach(), atol=1e-7) for new, _ in results])
print("bytes of moments, per rank: ", [nbytes for _, nbytes in results], "instead of", 2 * weights.nbytes)

# %% [markdown]
# The same weights, a third of the moments. Rank 0 has one number more, because somebody must take the remainder.
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


def loss_of():
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


# %%
optimizer = torch.optim.AdamW(model.parameters())
loss_of().backward()
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
# Backward needs what forward computed. These **activations** grow with the tokens of a batch, not with the parameters alone. PyTorch
# lets us watch: a hook sees every tensor that autograd saves. Tensors may share memory, so we count storages, once each, without the weights.


# %%
def saved_bytes(forward):
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


# %%
shape = {"batch": 2, "sequence": 64, "itemsize": 4}
layer = sum(saved.nbytes for saved in costs.layer_activations(small, **shape))
head = sum(saved.nbytes for saved in costs.head_activations(small, **shape))
print(f"saved by autograd {saved_bytes(loss_of):,}\nformula           {small.n_layers * layer + head:,}")

# %% [markdown]
# The difference is one number of 4 bytes<!-- =4 -->, by which cross-entropy divides. The formula adds up these tensors; open it and find the
# largest.

# %%
viz.show_source(costs.layer_activations)

# %% [markdown]
# **Predict** for the large one. Llama 3.1 70B reads one sequence of 8192 tokens in bf16, on GPUs whose norms keep only their input. Its residual stream has 8192 numbers a
# token, over 80 layers. The guess: each layer keeps its input.

# %%
llama = load_model("llama3_1_70b")
one = costs.layer_activations(llama, batch=1, sequence=8192, itemsize=2, fused_norms=True)
layers_gb = llama.n_layers * sum(saved.nbytes for saved in one) / GB
predict("GB of activations, all layers", guess=80 * 8192 * 8192 * 2 / GB, answer=layers_gb, unit="GB")

# %% [markdown]
# A layer keeps some twenty times its input; four tensors of the feed-forward block are most of it. But the guess exists: with
# **recomputation** a layer keeps its input alone, and backward runs the layer's forward pass once more. Memory for time.
#
# ## 7b · Why 70B does not fit
#
# The dashed line is what the GPU has.

# %%
work = costs.Work(sequence=4096, microbatch=1)
again = costs.Work(sequence=4096, microbatch=1, recompute="full")
zero_3 = ParallelConfig(dp=64, zero_stage=3)
with_tp = ParallelConfig(dp=8, tp=8, zero_stage=3, sequence_parallel=True)
rows = {
    "64 GPUs, ZeRO-3": costs.gpu_memory(llama, zero_3, work, zero),
    "64 GPUs, ZeRO-3, recompute": costs.gpu_memory(llama, zero_3, again, zero),
    "64 GPUs, tp 8, ZeRO-3": costs.gpu_memory(llama, with_tp, work, zero),
}
print(f"one GPU alone: {costs.gpu_memory(llama, ParallelConfig(), work, zero).total / GiB:,.0f} GiB")
viz.plot_gpu_memory(rows, load_device("h100_sxm_80"), title="Llama 3.1 70B, one sequence of 4096 tokens")

# %% [markdown]
# Sharding the states is not enough: the activations of a GPU's own sequence stay. Recompute them, or split each layer over several GPUs (tensor
# parallelism, module 05).
#
# Now it is your turn. In JupyterLab, turn one control at a time. **What is the smallest number of GPUs on which 70B fits?** Say a number first, from the
# bytes of the states alone. The explorer counts 16 bytes<!-- =find_convention(costs.Exploration().convention).bytes_per_parameter --> per parameter too.

# %%
viz.memory_explorer()

# %% [markdown]
# ## 8 · PyTorch's own count
#
# Do we count the parameters right at full size? PyTorch can build a model without memory: on the device `meta` a tensor has a shape
# and no data. Here are 8 and 70 billion parameters on your laptop.

# %%
for name in ("llama3_1_8b", "llama3_1_70b"):
    with torch.device("meta"):
        large = Decoder(load_model(name))
    built = sum(p.numel() for p in large.parameters())
    print(f"{name:13} built {built:,}, formula {costs.model_parameters(load_model(name)):,}")

# %% [markdown]
# ## 9 · Bug museum: the printed numbers
#
# Memory decides whether you can start. Time decides when you finish. Each parameter takes part in one multiplication and one addition per token; backward does it
# twice more:
#
# $$\text{operations} = 6\,P\,T \qquad \text{time} = \frac{6\,P\,T}{N\,F\,U}$$
#
# with $T$ tokens, $N$ GPUs of peak $F$, and the **utilisation** $U$. With full recompute the hardware does 8PT, of which 6PT are the model's.
# So there are two utilisations.
#
# ### First exhibit
#
# LLaMA 65B: 1.4 trillion tokens, 2048 A100s, 21 days. A public talk prints its utilisation as 0.3. That is the guess.

# %%
run = costs.LLAMA_65B
predict("model utilisation of LLaMA 65B", guess=0.3, answer=run.model_utilisation())

for run in (costs.GPT3_PROJECTED, costs.LLAMA_65B):
    print(f"{run.name:32} model {run.model_utilisation():.3f}, hardware {run.hardware_utilisation():.3f}")

# %% [markdown]
# The 0.3 comes from neither formula. For GPT-3 the talk prints 0.44, the **hardware's** share, beside it: two kinds in one table would not compare, even if both
# were right. And these GPT-3 numbers are Megatron's projection on A100s; OpenAI used V100s.
#
# LLaMA's hardware column is true only if everything was recomputed. Its paper says that it recomputed less.
#
# ### Second exhibit
#
# A cluster of 384 H100s is said to do 759 PFLOP/s<!-- =int(load_cluster("kempner_h100").peak_flops_per_s(sparse=True) / 1e15) --> in bf16. **Predict** what dense training can use at most.

# %%
cluster = load_cluster("kempner_h100")
dense, sparse = (cluster.peak_flops_per_s(sparse=sparse) / 1e15 for sparse in (False, True))
predict("dense peak in PFLOP/s", guess=759, answer=dense, unit="PFLOP/s")
print(f"{cluster.n_gpus} GPUs: {dense:.1f} dense, {sparse:.1f} if two of four weights are zero")

# %% [markdown]
# The data sheet prints the larger peak, marked by a star. It counts products with zeros that are skipped. Training a dense model never reaches it.
#
# ### Third exhibit
#
# The workshop's 70B formula, times 14 bytes<!-- =find_convention("workshop").bytes_per_parameter -->, "needs 23 A100s". What is missing?

# %%
seventy = load_model("olmo_70b_workshop")
states = costs.find_convention("workshop").bytes_per_parameter * costs.workshop_parameters(seventy)
for name in ("a100_sxm_40", "h100_sxm_80"):
    device = load_device(name)
    needed = [costs.gpus_needed(states, device.memory_bytes(binary)) for binary in (False, True)]
    print(f"{device.name}: {states / GB:.2f} GB need {needed[0]} GPUs if it has GB, {needed[1]} if GiB")

numbers = costs.workshop_activations(seventy, batch=256, sequence=4096)
print(f"its own activations, batch 256: {2 * numbers / GB:,.0f} GB in bf16")

# %% [markdown]
# Gradients are missing, and activations: by the workshop's own formula over fifty times the states. GB or GiB moves the answer by one GPU; what was forgotten
# moves it by more.

# %% [markdown]
# ## 10 · In a Llama: how long on a real cluster?
#
# Llama 3 reached 400 TFLOP/s<!-- =costs.published_runs.LLAMA_3_FLOPS_PER_S / 1e12 --> on each H100: a utilisation of 0.404<!-- =costs.published_runs.LLAMA_3_FLOPS_PER_S / load_device("h100_sxm_80").peak_flops_per_s() -->. Take our 384 GPUs, 70B and its 15 trillion tokens. Change the numbers: this is your
# calculator.

# %%
peak = load_device("h100_sxm_80").peak_flops_per_s()
flops = costs.rule_of_thumb_flops(costs.model_parameters(llama), 15e12)
seconds = costs.training_seconds(flops=flops, gpus=384, peak_flops_per_s=peak, utilisation=0.404)
chinchilla = costs.chinchilla_tokens(costs.model_parameters(llama))
print(f"{seconds / 86400:,.0f} days, {costs.gpu_hours(gpus=384, seconds=seconds):,.0f} GPU-hours")
print(f"with Chinchilla's {chinchilla / 1e12:.2f} trillion tokens: {seconds / 86400 * chinchilla / 15e12:,.0f} days")

# %% [markdown]
# Chinchilla's rule, 20 tokens for each parameter, makes best use of compute **spent on training**. Llama trains ten times longer, because a small model is
# cheap to use afterwards.
#
# *On a GPU node:* states are the same bytes; activations are less where norms are fused; `torch.cuda.max_memory_allocated` also counts what the allocator
# rounds up. *Under Slurm:* nothing changes in the arithmetic. Neither was run for this page.

# %% [markdown]
# ## 11 · Takeaways
#
# - A parameter formula belongs to a shape. Count the tensors.
# - Mixed precision with Adam keeps eight times the weights' bytes; ask for the convention.
# - ZeRO shards states. Activations need recompute, or a split model.
# - Model utilisation from 6PT, hardware utilisation from what ran; always the dense peak.
#
# **Next:** notebook 02, how ranks sum gradients, and what that costs.
#
# References: Rajbhandari et al. 2020, *ZeRO*; Narayanan et al. 2021, *Efficient large-scale language model training*; Korthikanti et al. 2022, *Reducing activation
# recomputation*; Hoffmann et al. 2022 (Chinchilla); Touvron et al. 2023, *LLaMA*.

# %%
score()

# %% [markdown]
# ## Quiz
#
# <details><summary>1. Why does ZeRO-1 on a million ranks not fit a 70B model on one H100 each?</summary>
# Weights and gradients stay whole: four bytes per parameter, over three times the GPU.
# </details>
#
# <details><summary>2. On how few H100s does 70B fit, at sequence 4096?</summary>
# The states alone fill 15<!-- =gpus_needed(16 * model_parameters(load_model("llama3_1_70b")), load_device("h100_sxm_80").memory_bytes()) -->. With activations, 16: ZeRO-3, recompute, dp 4, tp 2, pp 2.
# </details>
#
# <details><summary>3. You halve the sequence. Which part of the memory halves?</summary>
# Activations. States do not know the sequence.
# </details>
#
# <details><summary>4. A report says 52 %<!-- =52 --> utilisation with full recompute, by 8PT. What is the model's?</summary>
# Three quarters of it: 39 %<!-- =52 * 6 / 8 -->.
# </details>
