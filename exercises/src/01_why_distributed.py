# %% [markdown]
# # Exercises 01: where the memory and the time go
#
# Do notebook `01_why_distributed` first. Only 01.6 needs several ranks.

# %% [markdown]
# ## How to work
#
# Replace `raise NotImplementedError(...)` by your code and run the cell. Its last line, `check("01.1", ...)`, calls your function
# in a **process of its own**, with numbers that you do not see here, and tells you what your result reveals: "exactly 2.0 x the
# reference", or which term is missing. An endless loop or a crash ends after some seconds and costs nothing but that check.
#
# Where there is a number to give, replace `None`. Stuck? `hint("01.1")` gives a small hint, and the next one when you run it
# again; a cell below has the line, behind a `#`.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change. Ranks talk by `comm`, which records every message. A call of `torch.distributed` itself is not in that record, and
# does not count unless a text asks for it.
#
# The folded cells under each exercise carry the points when a course is graded. Working on your own, skip them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import math

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.checks import check, given, hint

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %%
# hint("01.1")

# %% [markdown]
# ## 01.1
#
# *Write · medium · extra · 20 minutes.* **You learn** what a format can hold, by reading it as a processor does.
#
# From left to right: one sign bit, `exponent_bits`, `mantissa_bits`. This is 6.5 in fp16, which has 5 and 10:
#
# ```text
# 0 10001 1010000000      sign 0, exponent field 17, mantissa 640
# 6.5 = + (1 + 640/1024) * 2 ** (17 - 15)
# ```
#
# The 15 is the **bias** for an exponent of 5 bits <!-- =5 -->; for 8 it is 127. Two exponent fields are special:
#
# | exponent field | meaning |
# | --- | --- |
# | all 0 | the "1 +" is left out and the power of two stays that of field 1: zero, -0.0 too, and the smallest numbers |
# | all 1 | infinity if the mantissa is 0, else not a number (`math.nan`) |

# %% [markdown]
# **Target:** PyTorch's value for every pattern tried, in fp32, bf16, fp16 and fp8 e5m2. (fp8 e4m3 has no infinity and breaks the
# rule; it is not tried.)


# %% nbgrader={"grade": false, "grade_id": "01-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def value_of(bits, exponent_bits, mantissa_bits):
    """Return the number that the whole number `bits` stands for, as a float.

    value_of(0b0_10001_1010000000, 5, 10) is 6.5.
    """
    ### BEGIN SOLUTION
    mantissa = bits & (2**mantissa_bits - 1)
    exponent = (bits >> mantissa_bits) & (2**exponent_bits - 1)
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    bias = 2 ** (exponent_bits - 1) - 1
    part = mantissa / 2**mantissa_bits
    if exponent == 2**exponent_bits - 1:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * part * 2.0 ** (1 - bias)
    return sign * (1 + part) * 2.0 ** (exponent - bias)
    ### END SOLUTION


check("01.1", value_of)

# %% [markdown]
# ## 01.2
#
# *Find the bug · easy · useful · 10 minutes.* **You learn** to ask of a training whether it moves, not whether it runs.
#
# `suspect_train` trains by plain SGD. No step fails, and yet the model learns nothing.


# %% nbgrader={"grade": false, "grade_id": "suspect-train", "locked": true, "schema_version": 3, "solution": false, "task": false}
def suspect_train(weights, gradients, lr):
    weights = weights.clone()
    for gradient in gradients:
        weights -= lr * gradient
    return weights


# %%
weights = torch.tensor([1.0, 1.25, 1.5, 1.75], dtype=torch.bfloat16)
gradients = [torch.ones(4, dtype=torch.bfloat16)] * 512
print("512 steps in bf16:", suspect_train(weights, gradients, lr=2**-12).tolist())
print("what was expected:", [0.875, 1.125, 1.375, 1.625])

# %% [markdown]
# Write it again without the bug. It gets bf16 weights and a list of bf16 gradients, one for each step, and returns bf16 weights.
#
# **Target:** the weights of a training that does not round, rounded to bf16 once. The input stays as it is.


# %% nbgrader={"grade": false, "grade_id": "01-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train(weights, gradients, lr):
    """Return the bf16 weights after one SGD step for each of the gradients."""
    ### BEGIN SOLUTION
    copy = weights.float()
    for gradient in gradients:
        copy -= lr * gradient.float()
    return copy.bfloat16()
    ### END SOLUTION


check("01.2", train)

# %% [markdown]
# ## 01.3
#
# *Write · easy · core · 10 minutes.* **You learn** to read a model's configuration as a number of parameters.
#
# The models here have Llama's shape: norms of H weights, two in each layer and one before the head; attention in which
# several query heads share one head of keys and values, a feed-forward block of three matrices, rotations for positions (no parameters), no biases. Their configuration `c` has:
#
# | field | meaning |
# | --- | --- |
# | `c.hidden_size`, `c.n_layers`, `c.vocab_size` | H, L, V |
# | `c.n_heads`, `c.n_kv_heads` | query heads, each H / `n_heads` wide; heads of keys, and as many of values, each as wide as a query head |
# | `c.ffn_size` | inner size of a feed-forward block |
# | `c.tied` | True: the head is the embedding's table, not one of its own |
# | `c.n_experts` | feed-forward blocks in each layer; if there are several, a router, a matrix of `n_experts` × H, chooses |

# %% [markdown]
# **Target:** the exact number, difference 0. Llama 3.1 8B has 8,030,261,248; the check takes other models too, with other numbers
# of heads, with tied tables, and Mixtral.


# %% nbgrader={"grade": false, "grade_id": "01-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def count_parameters(c):
    """Return the number of parameters of the model with configuration `c`."""
    ### BEGIN SOLUTION
    H, kv = c.hidden_size, c.n_kv_heads * (c.hidden_size // c.n_heads)
    attention = 2 * H * H + 2 * H * kv
    blocks = c.n_experts * 3 * H * c.ffn_size
    router = c.n_experts * H if c.n_experts > 1 else 0
    tables = c.vocab_size * H * (1 if c.tied else 2)
    return c.n_layers * (attention + blocks + router + 2 * H) + tables + H
    ### END SOLUTION


check("01.3", count_parameters)

# %% [markdown]
# Your function reads every preset of the course:
#
# ```python
# from course_lib.config import load_model
# count_parameters(load_model("llama3_1_70b"))
# ```

# %% [markdown]
# ## 01.4
#
# *Compute · easy · core · 20 minutes.* **You learn** to say what a training needs before you ask for GPUs.
#
# This is the exercise of the Kempner Institute's workshop, for a GPT of L layers of width H, A heads, a vocabulary V and S
# positions. Its formulas, in our letters, for the parameters and for the *numbers* (not bytes) that a batch of B sequences keeps
# as activations:
#
# $$P = L(12H^2 + 10H) + H(V + S) + 2H + V(H + 1)$$
#
# $$\text{activations} = 5LBSH + L A B S^2 + 2BSV + 2BSH + 2BS$$
#
# Its S² are attention's scores. This formula keeps them, as older attention did; the lesson's keeps none.

# %% nbgrader={"grade": false, "grade_id": "01-4-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
gpt = given("01.4", GRADE_SEED)
print(f"L = {gpt.L} layers, H = {gpt.H}, A = {gpt.A} heads, V = {gpt.V}, S = {gpt.S}")

# %% [markdown]
# Weights are bf16, the optimizer is Adam with an fp32 copy of the weights and two fp32 moments, the averages of the lesson. GB is $10^9$ bytes. Counts are exact;
# GB are taken to 0.1 % <!-- =100 * 0.001 -->.
#
# | name | number to give |
# | --- | --- |
# | `parameters` | P |
# | `workshop_gb` | GB of states as the workshop counts: weights, copy and moments, no gradients |
# | `states_gb` | GB of states with bf16 gradients |
# | `fp32_gradients_gb` | GB of states with fp32 gradients in their place |
# | `a100_40` | GPUs that hold `states_gb` between them, if one has 40 GB <!-- =load_device("a100_sxm_40").memory_bytes() / GB --> |
# | `h100_80` | the same if one has 80 GB <!-- =load_device("h100_sxm_80").memory_bytes() / GB --> |
# | `sequence_gb` | GB of activations of **one** sequence in bf16 |
# | `sequences_per_gpu` | whole sequences that fit on each of 32 GPUs of 80 GB <!-- =load_device("h100_sxm_80").memory_bytes() / GB -->, with `states_gb` shared among them by ZeRO-3; leave gathered weights out |

# %% nbgrader={"grade": false, "grade_id": "01-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
L, H, A, V, S = gpt
### BEGIN SOLUTION
parameters = L * (12 * H**2 + 10 * H) + H * (V + S) + 2 * H + V * (H + 1)
workshop_gb = 14 * parameters / 1e9
states_gb = 16 * parameters / 1e9
fp32_gradients_gb = 18 * parameters / 1e9
a100_40 = math.ceil(states_gb / 40)
h100_80 = math.ceil(states_gb / 80)
sequence_gb = 2 * (5 * L * S * H + L * A * S**2 + 2 * S * V + 2 * S * H + 2 * S) / 1e9
sequences_per_gpu = math.floor((80 - states_gb / 32) / sequence_gb)
### END SOLUTION
needs = ...
check("01.4", needs, seed=GRADE_SEED)

# %% [markdown]
# ## 01.5
#
# *Write · easy · core · 10 minutes.* **You learn** what each stage saves, to the byte.
#
# | stage | each rank holds a shard of | and whole |
# | --- | --- | --- |
# | 0 | nothing | weights, gradients, optimizer states |
# | 1 | the optimizer states | weights, gradients |
# | 2 | the gradients too | weights |
# | 3 | the weights too | nothing |
#
# Shards are those of `torch.tensor_split`: 13 parameters on 3 ranks are 5, 4 and 4 numbers. The **fullest** rank decides whether it
# fits.
#
# **Target:** bytes on the fullest rank, exact: whole numbers, also where the parameters do not divide, and for any number format.


# %% nbgrader={"grade": false, "grade_id": "01-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def zero_bytes(parameters, ranks, stage, weights, gradients, optimizer):
    """Return the bytes that the fullest rank holds.

    weights, gradients, optimizer: bytes for each parameter.
    zero_bytes(13, 3, 1, 2, 2, 12) is 26 + 26 + 5 * 12 = 112.
    """
    ### BEGIN SOLUTION
    shard = -(-parameters // ranks)
    return (
        weights * (shard if stage >= 3 else parameters)
        + gradients * (shard if stage >= 2 else parameters)
        + optimizer * (shard if stage >= 1 else parameters)
    )
    ### END SOLUTION


check("01.5", zero_bytes)

# %% [markdown]
# ## 01.6
#
# *Write · medium · useful · 25 minutes.* **You learn** where the 12 bytes <!-- =find_convention("zero").optimizer --> per parameter
# live when nobody keeps them all. This one runs on real ranks: 1, 2, 3 and 4.
#
# Your function is called as the lesson's `train_zero_1` is, with a rank's own gradients. But the lesson trained in fp32. Now the
# weights and gradients are bf16, as on a GPU, and 01.2 showed what that needs. Each rank:
#
# ```text
# weights (bf16, whole)  ──► my part in fp32, with its moments      once
# my gradient (bf16)     ──► my part of the average over all ranks  in each step
# my part, stepped       ──► bf16 ──► all weights, on every rank    in each step
# ```
#
# `comm.reduce_scatter(x)` returns this rank's chunk of the sum of all `x`; `comm.all_gather(chunk, length=n)` puts the chunks of all
# ranks together, n numbers in all.

# %% [markdown]
# `make_optimizer(parameters)` makes a `torch.optim.AdamW` with the check's settings. Make no optimizer of your own, because the
# check counts the bytes that you give to this one, and its moments. If you give it a view of a larger tensor, the whole tensor
# counts. (Its eps is 1, so that a gradient of the wrong size shows; with Adam's usual 1e-8 it would not.)
#
# The gradients are chosen so that bf16 holds their sums exactly. Lesson 02 will show that in each of the two
# collectives every rank sends (p-1)/p of the tensor.
#
# **Target:** the weights that one device would get, on any number of ranks; 12 bytes <!-- =find_convention("zero").optimizer --> for
# each weight of a rank's own shard, and none for the other ranks' weights; in each step, and for that step alone, a rank sends 2(p-1)/p of the bf16 weights'
# bytes, which is tried where p divides the number of weights.


# %% nbgrader={"grade": false, "grade_id": "01-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train_zero_1(weights, gradients, make_optimizer):
    """Return the whole bf16 weights after all steps, on every rank.

    weights: bf16, one dimension, the same on all ranks.
    gradients: this rank's own, bf16, one for each step.
    """
    rank, p = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    mine = torch.nn.Parameter(weights.tensor_split(p)[rank].float())
    optimizer = make_optimizer([mine])
    for gradient in gradients:
        mine.grad = comm.reduce_scatter(gradient).float() / p
        optimizer.step()
        weights = comm.all_gather(mine.detach().bfloat16(), length=len(weights))
    return weights
    ### END SOLUTION


check("01.6", train_zero_1)

# %% [markdown]
# ## 01.7
#
# *Write · hard · useful · 45 minutes.* **You learn** to find in a layer's code what it costs in memory.
#
# What backward must read is kept. On a GPU, a layer of Llama in bf16 does this, with T = batch × sequence tokens:
#
# | operation | keeps |
# | --- | --- |
# | RMSNorm, twice | its input; one **fp32** number for each token |
# | query, key, value: three matrices | their common input, once |
# | attention | queries, keys, values, its output; one **fp32** number for each token and head |
# | rotations of positions, *rotations* in the lesson's picture | in each layer four tables of sequence × head size, cosines and sines for queries and for keys; one set for the whole batch |
# | output matrix | its input, which attention keeps already |
# | gate and up: two matrices | their common input, once |
# | silu(gate) × up | what silu reads; both factors of the product |
# | down: the last matrix | its input |

# %% [markdown]
# Additions keep nothing, and what is not marked fp32 is bf16. The sizes are those of 01.3, and each layer has one
# feed-forward block.
#
# With **recompute**, a layer keeps its input alone. Backward then runs one layer's forward pass again, and while it is in that layer,
# all that the layer keeps is there too, beside the inputs of all layers. Its first norm's input is the kept one: count it once.
#
# **Target:** bytes of all layers, exact; with recompute, the most that is there at once. (Embedding, head and loss are not asked.)


# %% nbgrader={"grade": false, "grade_id": "01-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def activation_bytes(c, batch, sequence, recompute):
    """Return the bytes that all layers of the model with configuration `c` keep in bf16;
    recompute: True or False.
    """
    ### BEGIN SOLUTION
    T, H, head_size = batch * sequence, c.hidden_size, c.hidden_size // c.n_heads
    kv = c.n_kv_heads * head_size
    norms = 2 * (2 * T * H + 4 * T)
    attention = 2 * (3 * T * H + 2 * T * kv + 4 * sequence * head_size) + 4 * T * c.n_heads
    ffn = 2 * (T * H + 4 * T * c.ffn_size)
    layer = norms + attention + ffn
    return (c.n_layers - 1) * 2 * T * H + layer if recompute else c.n_layers * layer
    ### END SOLUTION


check("01.7", activation_bytes)

# %% [markdown]
# ## 01.8
#
# *Write · medium · core · 20 minutes.* **You learn** to find the smallest job that runs, and to see when no job does.
#
# Each GPU has `memory` bytes, and keeps `activations` bytes of its own. The states are those of ZeRO's paper: each parameter has
# 2 bytes <!-- =find_convention("zero").weights --> of weights, 2 bytes <!-- =find_convention("zero").gradients --> of gradients
# and 12 bytes <!-- =find_convention("zero").optimizer --> of optimizer. On how few GPUs does the training fit, if ZeRO works in `stage` 0, 1,
# 2 or 3?
#
# Guess first for 70 billion parameters, 10 GB <!-- =10 --> of activations, 80 GB <!-- =load_device("h100_sxm_80").memory_bytes() / GB -->
# and stage 3. Without activations it would be 14 <!-- =gpus_needed(16 * 70 * 10**9, load_device("h100_sxm_80").memory_bytes()) -->.
#
# **Target:** the exact smallest number on which the fullest rank of 01.5 fits. A GPU may be full to the last byte. `None` where no number
# of GPUs is enough.


# %% nbgrader={"grade": false, "grade_id": "01-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpus_needed(parameters, activations, memory, stage):
    """Return the smallest number of GPUs on which it fits, or None."""
    ### BEGIN SOLUTION
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage] * parameters
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    room = memory - activations - whole
    if shared == 0:
        return 1 if room >= 0 else None
    longest = room // shared
    return -(-parameters // longest) if longest > 0 else None
    ### END SOLUTION


check("01.8", gpus_needed)

# %% [markdown]
# Ask your function for the number that you have guessed:
#
# ```python
# gpus_needed(70 * 10**9, 10 * 10**9, 80 * 10**9, stage=3)
# ```

# %% [markdown]
# ## 01.9
#
# *Write · easy · extra · 10 minutes.* **You learn** to ask of a utilisation: whose?
#
# A report says "42 % <!-- =100 * 0.42 --> utilisation" and means one of two things. **Model FLOPs utilisation**, MFU, counts what the model needs, 6PT operations, and nothing
# that was done twice. **Hardware FLOPs utilisation**, HFU, counts all that the GPUs did, so also the part of the forward pass (2PT) that ran again.
# The argument `recomputed` is that part's share, from 0 to 1.
#
# **Target:** the days, for both kinds, to six digits. Two published runs are tried too: LLaMA 65B took 21 days, and a talk gives
# GPT-3 175B 35 days on 1024 A100s, with all recomputed.


# %% nbgrader={"grade": false, "grade_id": "01-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def training_days(parameters, tokens, gpus, peak_flops_per_s, utilisation, kind, recomputed):
    """Return the days that a training takes.

    peak_flops_per_s: of one GPU. utilisation: a share of it, for instance 0.42.
    kind: "model" or "hardware".
    """
    ### BEGIN SOLUTION
    operations = 6 if kind == "model" else 6 + 2 * recomputed
    return operations * parameters * tokens / (gpus * peak_flops_per_s * utilisation) / 86_400
    ### END SOLUTION


check("01.9", training_days)

# %% [markdown]
# ## 01.10
#
# *Find the wrong number · medium · extra · 50 minutes.* **You learn** to compute a printed table again before you build on it.
#
# **A, the sizes of four models.** They are GPT-3's, in a table that is copied from its paper into talks. A graded copy has other models,
# with misprints like the paper's. In every row the width is heads × head size. The second row and the fourth cannot be built: in each, one
# number is a misprint. Numbers of heads are whole, and the parameters are right.

# %% [markdown]
# **B, two rows of a memory calculator,** for Llama 3.1 405B with Adam, per GPU. NO_OP shards nothing, and counts a whole number
# of bytes for each parameter. That only comes out if its printed number has another unit than the heading says. FULLY_SHARD looks
# as if it counted the same bytes, divided by the number of GPUs.
#
# The next cell prints both tables.

# %% nbgrader={"grade": false, "grade_id": "01-10-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
printed = given("01.10", GRADE_SEED)
print(f"{'model':14}{'parameters':>12}{'layers':>9}{'width':>8}{'heads':>8}{'head size':>12}")
for shape in printed.shapes:
    print(
        f"{shape.model:14}{shape.billions:10} B{shape.layers:9}"
        f"{shape.width:8}{shape.heads:8}{shape.head_size:12}"
    )
print()
print(f"{'data_parallel_sharding_strategy':34}{'ngpus':>6}{'model_and_optimizer_states_memory_gb':>40}")
for strategy, gb in (("NO_OP", printed.unsharded), ("FULLY_SHARD", printed.sharded)):
    print(f"{strategy:34}{printed.gpus:6}{gb:40}")

# %% [markdown]
# **C, the same calculator** has a file "Grok-1". Beside it is what xAI released under that name:
#
# ```text
#                          the file    released
# layers                         64          64
# hidden size                  6144        6144
# heads                          48          48
# heads of keys and values       48           8
# experts in each layer           8           8
# inner size of an expert     12288       32768
# matrices of an expert           2           3
# vocabulary (tied)           32000      131072
# ```
#
# **D, a talk:** "LLaMA follows the Chinchilla law", which is about 20 tokens for each parameter. What LLaMA was trained on:
#
# ```text
# parameters      6.7 B    13.0 B    32.5 B    65.2 B
# tokens          1.0 T     1.0 T     1.4 T     1.4 T
# ```

# %% [markdown]
# Give the numbers as they should be, all to 0.1 % <!-- =100 * 0.001 -->: let Python compute them, and do not round. For C, matrices are
# enough: norms and routers are smaller than that.
#
# | name | number to give |
# | --- | --- |
# | `second_heads` | A: heads in the second row |
# | `fourth_width` | A: width in the fourth row |
# | `unsharded_bytes` | B: bytes per parameter that NO_OP counts, in the right unit |
# | `sharded_bytes` | B: bytes per parameter that FULLY_SHARD divides among the GPUs |
# | `row_if_all_divided` | B: what the FULLY_SHARD row would say if *all* that NO_OP counts were divided; in the unit that the calculator really uses |
# | `row_in_gb` | B: the printed FULLY_SHARD row converted into true GB |
# | `file_parameters` | C: parameters of the file's model |
# | `released_parameters` | C: parameters of the released model |
# | `missing_in_blocks` | C: how many parameters are missing in the file's feed-forward blocks |
# | `ratio_smallest` | D: tokens per parameter of the smallest LLaMA |
# | `ratio_largest` | D: tokens per parameter of the largest |
# | `law_smallest` | D: tokens that the law gives the smallest |

# %% nbgrader={"grade": false, "grade_id": "01-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
shapes, gpus, unsharded, sharded = printed  # of a row: shapes[1].width, .heads, .head_size
P = 405_849_243_648  # parameters in the matrices of Llama 3.1 405B: the calculator leaves the norms out
### BEGIN SOLUTION
second_heads = shapes[1].width // shapes[1].head_size
fourth_width = shapes[3].heads * shapes[3].head_size
unsharded_bytes = unsharded * 2**30 / P
sharded_bytes = sharded * 2**30 * gpus / P
row_if_all_divided = unsharded / gpus
row_in_gb = sharded * 2**30 / 1e9
file_parameters = 64 * (4 * 6144**2 + 8 * 2 * 6144 * 12288) + 32000 * 6144
released_parameters = 64 * (2 * 6144**2 + 2 * 6144 * 1024 + 8 * 3 * 6144 * 32768) + 131072 * 6144
missing_in_blocks = 64 * 8 * 6144 * (3 * 32768 - 2 * 12288)
ratio_smallest = 1.0e12 / 6.7e9
ratio_largest = 1.4e12 / 65.2e9
law_smallest = 20 * 6.7e9
### END SOLUTION
slips = ...
check("01.10", slips, seed=GRADE_SEED)

# %% [markdown]
# ## Where this leads
#
# You can say what a training needs. The two collectives of 01.6 were given to you; lesson 02 builds them, and counts what they cost.
