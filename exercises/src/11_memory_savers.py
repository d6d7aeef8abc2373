# %% [markdown]
# # Exercises 11: memory savers and fine-tuning
#
# [Lesson 11](../../notebooks/11_memory_savers.ipynb) asked what can be left out, written smaller, or computed a second time, until a model fits
# into one GPU. Here you write the savers yourself, and see what each of them costs. Two exercises are files of your own, without this course.
# If you have two hours, do 11.1, 11.4 and 11.6.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("11.1", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with what the course computes. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("11.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change.
#
# The folded cells under each exercise carry the points if a course is graded. If you work on your own, skip them: they say the same as the
# check above them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 11.1
#
# *Predict · medium · core · 35 minutes.* **You learn** what each saver takes away, so that you can say before a run whether it fits.
#
# A model is to be fine-tuned on one GPU. Five people propose a recipe each. All of them compute in bf16, and train by AdamW:
#
# | | recipe | what is trained |
# | --- | --- | --- |
# | 1 | full | everything |
# | 2 | LoRA, all | A and B beside each of the seven matrices of a layer |
# | 3 | LoRA, q and v | A and B beside the matrices of queries and values alone |
# | 4 | QLoRA | as 2, and the seven matrices of each layer lie in codes of four bits |
# | 5 | QLoRA and recompute | as 4, and each layer keeps nothing but its input |

# %% nbgrader={"grade": false, "grade_id": "11-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
bill = given("11.1", GRADE_SEED)
print(
    f"width H = {bill.H:,}, of all keys together KV = {bill.KV:,}, "
    f"inner width F = {bill.F:,}, layers L = {bill.L}"
)
print(
    f"P = {bill.P:,} parameters in all; adapters have r = {bill.r}; one sequence of T = {bill.T:,} tokens"
)
print(
    f"layer = {bill.layer:,} bytes are kept for backward of each layer and token, "
    "the layer's input among them"
)
print(
    f"codes: block = {bill.block} numbers share a scale, "
    f"outer = {bill.outer} scales share a scale of their own"
)
print(f"the GPU has gpu_gb = {bill.gpu_gb} GB of 10^9 bytes")

# %% [markdown]
# A layer has seven matrices. Those of queries and of the output are H x H, those of keys and of values KV x H. Three more, gate, up and down,
# have H on one side and F on the other. Embedding, head and norms are the rest of P.
#
# What is trained takes sixteen bytes a number: a bf16 weight, its gradient, and twelve bytes of AdamW. A frozen weight takes two bytes. In codes a
# number has four bits, the scale of its block is a code of eight bits, and `outer` of these scales share one number of fp32. Sizes divide evenly.
#
# Adapters save a few activations too, but let us leave that aside: recipes 1 to 4 keep what `layer` says. With recomputing, the inputs of
# all layers are kept, T x H numbers each. In backward one layer at a time is recomputed, and then `layer` is there on top: count that
# layer's input twice, as kept and as recomputed. What head
# and loss keep is left out.
#
# | name | number to give |
# | --- | --- |
# | `map_numbers` | numbers in the seven matrices of all layers together |
# | `full_bytes` | bytes of weights, gradients and optimizer in recipe 1 |
# | `lora_numbers`, `lora_bytes` | numbers that recipe 2 trains, and bytes of its weights, gradients and optimizer |
# | `qv_bytes` | the same bytes in recipe 3 |
# | `code_bits` | bits of a number in codes, with its share of the scales |
# | `qlora_bytes` | bytes of weights, gradients and optimizer in recipe 4 |
# | `kept_bytes` | bytes that the layers keep in recipes 1 to 4 |
# | `recomputed_bytes` | the largest number of bytes that there are of activations in recipe 5 |
# | `one_group_bytes` | the same, if all layers together are one group, which keeps its input and is recomputed as a whole |
# | `qlora_recomputed` | all bytes of recipe 5, activations included |
# | `first_that_fits` | the number of the first recipe whose bytes, activations included, fit into the GPU |

# %% nbgrader={"grade": false, "grade_id": "11-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
H, KV, inner, L, P, r, T, layer, block, outer, gpu_gb = bill
### BEGIN SOLUTION
map_numbers = L * (2 * H * H + 2 * H * KV + 3 * H * inner)
full_bytes = 16 * P
lora_numbers = r * L * (2 * (H + H) + 2 * (H + KV) + 3 * (H + inner))
lora_bytes = 2 * P + 16 * lora_numbers
qv_bytes = 2 * P + 16 * r * L * ((H + H) + (H + KV))
code_bits = 4 + 8 / block + 32 / (block * outer)
qlora_bytes = 2 * (P - map_numbers) + map_numbers * code_bits / 8 + 16 * lora_numbers
kept_bytes = L * layer * T
recomputed_bytes = 2 * H * T * L + layer * T
one_group_bytes = 2 * H * T + kept_bytes
qlora_recomputed = qlora_bytes + recomputed_bytes
bills = [state + kept_bytes for state in (full_bytes, lora_bytes, qv_bytes, qlora_bytes)] + [
    qlora_recomputed
]
first_that_fits = next(number for number, one in enumerate(bills, start=1) if one <= gpu_gb * 1e9)
### END SOLUTION
needed = ...
check("11.1", needed, seed=GRADE_SEED)
# hint("11.1")

# %% [markdown]
# ## 11.2
#
# *Own file · medium · useful · 40 minutes.* **You learn** to train in fp16, whose largest number is small, on ranks that have to agree when something does not fit.
#
# fp16 ends at 65,504, and its smallest numbers are not very small either. So a training in fp16 multiplies the loss by a **scale**, by which all
# gradients become larger, and divides them by it before the step. If a gradient overflows, the step is skipped and the scale is halved.
# After `patience` good steps in a row the scale is doubled; the count begins anew then, and after a skipped step.
#
# With DDP every rank sees an overflow, because an average with an inf in it is inf on all ranks. But where the weights themselves are cut, as with FSDP or tensor
# parallelism, only the rank whose part it is can see it. If that one skips and the others do not, the parts of one matrix are of different
# steps from then on.

# %% [markdown]
# Write a script for `torchrun`. The check starts it on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weight` | the whole weight, float64, of which rank r has part r of `tensor_split(world_size)` |
# | `gradients` | a row for each step: the gradient of the whole weight, without a scale |
# | `rate`, `momentum` | those of `torch.optim.SGD` |
# | `scale`, `patience` | the scale at the beginning, and how many good steps in a row double it |
#
# In each step a rank takes its own part of the gradient, multiplies it by the scale, and turns it into fp16 with `.half()`. That emulates a
# backward pass in fp16. What came out goes back to float64, is divided by the scale, and is the gradient of the step. If any rank has an inf
# in it, nobody steps, and momentum stays as it is.
#
# Each rank saves a dict as `answer-0.pt`, `answer-1.pt` and so on: `weight`, its part after all steps; `scales`, a list with the scale after each
# step; and `skipped`, a list with the numbers of the skipped steps, counted from 0.
#
# **Target:** the same scales and the same skipped steps on all ranks, and the weight of one device. In each step the ranks exchange one number, in
# one call, and nothing else.
#
# To start it yourself, run `save_script("11.2", loss_scaler)`.

# %% nbgrader={"grade": false, "grade_id": "11-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
loss_scaler = """
import sys

import torch
import torch.distributed as dist


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    weight = torch.nn.Parameter(task["weight"].tensor_split(ranks)[rank].clone())
    optimizer = torch.optim.SGD([weight], lr=task["rate"], momentum=task["momentum"])
    scale, patience = task["scale"], task["patience"]
    scales, skipped = [], []
    ### BEGIN SOLUTION
    good = 0
    for step, whole in enumerate(task["gradients"]):
        half = (whole.tensor_split(ranks)[rank] * scale).half()
        bad = (~half.isfinite()).any().double().view(1)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            scale, good = scale / 2, 0
            skipped.append(step)
        else:
            weight.grad = half.double() / scale
            optimizer.step()
            good += 1
            if good == patience:
                scale, good = scale * 2, 0
        scales.append(scale)
    answer = {"weight": weight.detach(), "scales": scales, "skipped": skipped}
    torch.save(answer, f"{folder}/answer-{rank}.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("11.2", loss_scaler)
# hint("11.2")

# %% [markdown]
# ## 11.3
#
# *Write · medium · useful · 30 minutes.* **You learn** to keep the input of a layer alone, and why a layer with dropout needs its dice as well.
#
# For backward a layer keeps what it has computed inside. **Activation checkpointing** keeps its input alone, lets the rest go, and computes it a
# second time when backward comes:
#
# ```text
# forward     x ──► run, without history ──► y            kept: x
# backward    x ──► run once more, with history ──► y ◄── gradient
# ```
#
# If there is dropout inside, the second run has to drop the same numbers as the first. Else the gradient belongs to a model that nobody has
# run. And when it is done, the random numbers that come next must be those that would have come without it.

# %% [markdown]
# `recomputed` is given. Autograd asks the inputs of a function whether a backward has to come. The weights inside `run` are no inputs, so `needs`, an
# empty tensor, speaks for them. Write the two halves. `torch.get_rng_state()` and `torch.set_rng_state(state)` read and set where the random
# numbers stand. No `torch.utils.checkpoint`, please.
#
# The check cuts a model into several parts, and each of them becomes a `run` of its own. So what one part returns is the x of the next. The
# first part's x is the model's input. It may need no gradient, and then it gets none, while the weights inside still get theirs.
#
# **Target:** the gradients of `run(x)` itself, for x and for the weights inside, and the same random numbers afterwards. Each `run` is called
# twice. Between forward and backward nothing is kept but x and a random state.


# %% nbgrader={"grade": false, "grade_id": "11-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, needs, x):
        """Return run(x), and note in ctx what backward will need."""
        ### BEGIN SOLUTION
        ctx.run, ctx.state = run, torch.get_rng_state()
        ctx.save_for_backward(x)
        return run(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Return a gradient for each argument of forward; weights inside get theirs on the way."""
        ### BEGIN SOLUTION
        x = ctx.saved_tensors[0].detach().requires_grad_(ctx.needs_input_grad[2])
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.run(x)
        torch.set_rng_state(now)
        torch.autograd.backward(y, gradient)
        return None, None, x.grad
        ### END SOLUTION


def recomputed(run, x):
    return Recomputed.apply(run, torch.empty(0, requires_grad=True), x)


check("11.3", recomputed)
# hint("11.3")

# %% [markdown]
# ## 11.4
#
# *Write · hard · core · 40 minutes.* **You learn** why attention to a long sequence needs little memory, and that this takes no GPU.
#
# Attention has a score for each pair of positions. With 32 heads and 8,192 positions these are 2.1 billion numbers a layer, and in a
# longer sequence they are soon larger than the model. But nobody needs them all at once. Take a **tile** of T keys, let every query look at these,
# and then let their scores go. What a query keeps from tile to tile are three things:
#
# ```text
#                 tile 0                tile 1                 tile 2
# query 9         scores of keys 0..3   scores of keys 4..7    scores of keys 8, 9
#                     │                     │                      │
# keeps  max  ────────┴─────────────────────┴──────────────────────┴──► out / sum
#        sum      exp(score - max), added up          lse = max + log(sum)
#        out      exp(score - max) · value, added up
# ```
#
# The max may grow when a tile comes. Then everything that was added up before is relative to an older max, and has to be corrected. This
# is the **online softmax**, and FlashAttention is it, tile by tile, in the fast memory of a GPU.

# %% [markdown]
# Write the forward pass. Attention is causal: a query sees the keys at its own position and before it. Scores are divided by the root of D,
# the numbers of a head. The last tile may be shorter than the others, and scores may be in the thousands.
#
# **Target:** two things: the output, as one softmax over all keys gives it, and `lse`, one number for each head and query: the logarithm of
# the sum of exp(score) over the keys that it sees. From `lse` backward can make each tile's weights once more. At no moment may more than a
# quarter of the bytes of all scores exist, beyond what you were given. The check measures it with 1,000 positions and tiles of 32 keys. No
# kernel of PyTorch's that is attention already, please.


# %% nbgrader={"grade": false, "grade_id": "11-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attention_in_tiles(q, k, v, tile):
    """Return two tensors: the output (heads, S, D), and lse (heads, S).

    q, k, v: (heads, S, D). tile: so many keys at a time.
    """
    ### BEGIN SOLUTION
    S, D = q.shape[1:]
    rows = torch.arange(S).unsqueeze(-1)
    top, total, out = (
        torch.full_like(q[..., 0], -torch.inf),
        torch.zeros_like(q[..., 0]),
        torch.zeros_like(q),
    )
    for start in range(0, S, tile):
        columns = torch.arange(start, min(start + tile, S))
        scores = q @ k[:, columns].mT / D**0.5
        scores = scores.masked_fill(rows < columns, -torch.inf)
        new = torch.maximum(top, scores.amax(-1))
        old, powers = (top - new).exp(), (scores - new.unsqueeze(-1)).exp()
        total = total * old + powers.sum(-1)
        out = out * old.unsqueeze(-1) + powers @ v[:, columns]
        top = new
    return out / total.unsqueeze(-1), top + total.log()
    ### END SOLUTION


check("11.4", attention_in_tiles)
# hint("11.4")

# %% [markdown]
# ## 11.5
#
# *Write · medium · useful · 25 minutes.* **You learn** to get rid of the largest tensor that is left once the layers are recomputed.
#
# At its end a model turns each token's H numbers into V logits, one for each word. For 32,768 tokens and 128,256 words these are 4.2 billion
# numbers, and their gradients are as many. But the loss is a sum over tokens. So make the logits of some tokens, their loss, and their
# gradient, and let them go before you make the next ones:
#
# ```text
# hidden   piece 0     piece 1     piece 2
#             │           │           │
# logits   forward     forward     forward
#          backward ─► backward ─► backward ─►  gradients of hidden and head
# ```
#
# Some targets are -100 and do not count. The loss is the mean over all others, so a token weighs the same in whichever piece it is. That is
# the mean of means of 03.3 once more.

# %% [markdown]
# **Target:** three things: the mean loss, and its gradients with respect to `hidden` and `head`, as one piece gives them. The number of tokens need not
# divide by `pieces`, and in a piece perhaps no target counts. At no moment may more than a quarter of the bytes of all logits exist, beyond what you were given;
# the check measures it with 36 pieces.


# %% nbgrader={"grade": false, "grade_id": "11-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def loss_in_pieces(hidden, head, targets, pieces):
    """Return three tensors: the loss, and the gradients of hidden and head.

    hidden: (T, H). head: (V, H), so that logits are hidden @ head.T. targets: (T), -100 where none counts.
    """
    ### BEGIN SOLUTION
    h, W = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    count, size = (targets != -100).sum(), math.ceil(len(targets) / pieces)
    total = torch.zeros((), dtype=hidden.dtype)
    for some, theirs in zip(h.split(size), targets.split(size), strict=True):
        loss = F.cross_entropy(some @ W.T, theirs, reduction="sum") / count
        loss.backward()
        total += loss.detach()
    return total, h.grad, W.grad
    ### END SOLUTION


check("11.5", loss_in_pieces)
# hint("11.5")

# %% [markdown]
# ## 11.6
#
# *Write · medium · core · 35 minutes.* **You learn** to put something small beside a frozen layer, train it, and take it into the layer at the end.
#
# A trained matrix W has millions of numbers, and fine-tuning changes it only a little. So leave W as it is and learn the change. And let
# the change be a product of two narrow matrices, which have few numbers:
#
# ```text
#                 ┌──────── W, frozen ────────┐
# x, in numbers ──┤                           ├──►  y = W x + s B A x
#                 └──► A, r x in ──► B, out x r ┘
#                         r numbers a row
# ```
#
# A begins random and B begins with zeros. So B A is 0, and a new layer does exactly what W does. The gradient of W would be dW. Then that
# of B is s dW A.T, and that of A is s B.T dW, which is 0 in the first step. If both began with zeros, neither would ever move.

# %% [markdown]
# **Target:** a module with parameters `A` and `B` of the dtype of W, which alone are trained. A new one gives what the map gives, to the bit. Its
# forward may not build B A. `merged()` gives a new `nn.Linear` that does the same without anything beside it, and leaves the layer and the
# frozen map as they are.
#
# A merged weight is often stored in bf16, which has 8 significant bits. Where the change is a thousandth of the weight, most of it falls
# below the last bit. `lost(dtype)` says how much: round W + s B A to `dtype`, take the difference from W + s B A, and divide its norm by the
# norm of s B A. It may exceed 1, because the rounding of W itself is in it.


# %% nbgrader={"grade": false, "grade_id": "11-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
class LoRA(nn.Module):
    def __init__(self, base, r, scale):
        """base: an nn.Linear. scale: the s of the formula, as it is to be used."""
        super().__init__()
        ### BEGIN SOLUTION
        self.base, self.scale = base.requires_grad_(False), scale
        self.A = nn.Parameter(
            torch.randn(r, base.in_features, dtype=base.weight.dtype) / math.sqrt(base.in_features)
        )
        self.B = nn.Parameter(torch.zeros(base.out_features, r, dtype=base.weight.dtype))
        ### END SOLUTION

    def forward(self, x):
        """Return y, (..., out), of x, (..., in)."""
        ### BEGIN SOLUTION
        return self.base(x) + self.scale * (x @ self.A.T) @ self.B.T
        ### END SOLUTION

    @torch.no_grad()
    def merged(self):
        """Return a new nn.Linear that gives the same."""
        ### BEGIN SOLUTION
        W, bias = self.base.weight, self.base.bias
        linear = nn.Linear(W.shape[1], W.shape[0], bias=bias is not None, dtype=W.dtype)
        linear.weight.copy_(W + self.scale * self.B @ self.A)
        if bias is not None:
            linear.bias.copy_(bias)
        return linear
        ### END SOLUTION

    @torch.no_grad()
    def lost(self, dtype):
        """Return which share of the update is lost if the merged weight is rounded to dtype."""
        ### BEGIN SOLUTION
        update = self.scale * self.B @ self.A
        whole = self.base.weight + update
        return ((whole.to(dtype).to(whole.dtype) - whole).norm() / update.norm()).item()
        ### END SOLUTION


check("11.6", LoRA)
# hint("11.6")

# %% [markdown]
# ## 11.7
#
# *Write · easy · core · 20 minutes.* **You learn** to write a weight with one byte, and to say how wrong it can become before you look.
#
# A weight is to be kept as int8. The largest number becomes 127 or -127, and what one step is worth is the **scale**: the largest size,
# divided by 127. Each number is rounded to the nearest step, and to come back you multiply it by the scale. If all numbers share one
# scale, a single large number makes everybody's steps long. So `block` neighbours share one:
#
# ```text
# weights   0.4  -1.0   0.1   0.3 │  0.2   0.1  -0.3  50.0
# scale     1.0 / 127             │  50.0 / 127
# steps      51  -127    13    38 │    1     0    -1   127
# ```
#
# In the second block a step is worth 0.39: of 0.2, 0.1 and -0.3 one comes back as 0, and one nearly doubled. The first block has not noticed.

# %% [markdown]
# Blocks are counted in the order of `w.flatten()`, whatever the rows, and the last block may be shorter. A block of zeros has the scale 0.
#
# **Target:** three tensors: the steps, int8 and shaped as `w`; the scale of each block; and the **bound** of each block, which says how far
# any number of a block with this scale can be off, in units of the weight. The bound has to be as small as it can be.


# %% nbgrader={"grade": false, "grade_id": "11-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def in_steps(w, block):
    """Return three tensors: the steps, int8, as w; the scales and the bounds, one for each block.

    w: a weight of any shape. block: so many neighbours share a scale.
    """
    ### BEGIN SOLUTION
    rows = F.pad(w.flatten(), (0, -w.numel() % block)).view(-1, block)
    scales = rows.abs().amax(1) / 127
    shares = rows / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    steps = shares.round().to(torch.int8).flatten()[: w.numel()].view(w.shape)
    return steps, scales, scales / 2
    ### END SOLUTION


check("11.7", in_steps)
# hint("11.7")

# %% [markdown]
# ## 11.8
#
# *Write · medium · useful · 30 minutes.* **You learn** to keep a weight in four bits, and to count the bits that the scales add.
#
# Four bits name 16 levels. Those of **NF4** lie where a normal distribution has its numbers: close together near 0, and far apart at the
# ends. Divide the numbers of a block by its scale, the largest size in it, and each of them lies between -1 and 1. Then a number's code is the place of the
# nearest level in the table. There is no number type of four bits, so two codes share a byte:
#
# ```text
# weights        0.4   -1.0    0.1    0.3         scale 1.0
# nearest code   12      0      8     11
# bytes          12 · 16 + 0  =  192     8 · 16 + 11  =  139
# ```
#
# An fp32 scale for 64 weights adds half a bit to each of them. QLoRA turns the scales into codes as well, of one byte, and `outer` of them
# share one number of fp32. That is its **double quantisation**. Here you write the codes with plain scales, and count the bytes of the
# doubled ones.

# %% [markdown]
# The levels are given, and they need not be NF4's. `w` is a flat tensor, whose neighbours make a block and share a byte: the first of two
# stands in the high half. Its number of weights may be odd; then the last byte's low half is 0. The last block may be shorter. A block of
# zeros has the scale 0, and its codes name the level nearest to 0.
#
# **Target:** `encode` gives the bytes, uint8, and one scale for each block, in the dtype of `w`. `decode` gives the n numbers back. `nbytes` says how many
# bytes n numbers take with double quantisation, everything rounded up: codes, scales of one byte, and a number of fp32 for each `outer`
# scales. For many weights that comes to 4.127 bits <!-- =f"{4 + 8 / 64 + 32 / (64 * 256):.3f} bits" --> each.


# %% nbgrader={"grade": false, "grade_id": "11-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
class FourBits:
    def __init__(self, levels, block, outer):
        """levels: 16 numbers from -1 to 1, in rising order."""
        self.levels, self.block, self.outer = levels, block, outer

    def encode(self, w):
        """Return two tensors: the bytes, uint8, and the scales."""
        ### BEGIN SOLUTION
        rows = F.pad(w, (0, -len(w) % self.block)).view(-1, self.block)
        scales = rows.abs().amax(1)
        shares = (rows / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)).flatten()[: len(w)]
        codes = (shares.unsqueeze(-1) - self.levels).abs().argmin(-1).to(torch.uint8)
        codes = F.pad(codes, (0, len(w) % 2))
        return codes[::2] << 4 | codes[1::2], scales
        ### END SOLUTION

    def decode(self, packed, scales, n):
        """Return the n numbers, in the dtype of the levels."""
        ### BEGIN SOLUTION
        codes = torch.stack([packed >> 4, packed & 15], 1).flatten()[:n]
        return self.levels[codes.long()] * scales.repeat_interleave(self.block)[:n]
        ### END SOLUTION

    def nbytes(self, n):
        """Return the bytes of n numbers, with double quantisation."""
        ### BEGIN SOLUTION
        blocks = math.ceil(n / self.block)
        return math.ceil(n / 2) + blocks + 4 * math.ceil(blocks / self.outer)
        ### END SOLUTION


check("11.8", FourBits)
# hint("11.8")

# %% [markdown]
# ## 11.9
#
# *Find the bug · medium · core · 30 minutes.* **You learn** to see that ranks train different adapters, which neither the loss nor what is saved will tell you.
#
# A trainer for data parallelism was written before anybody spoke of adapters. `prepare` makes the ranks alike and notes what has to be averaged,
# and `average` does it after each backward. Then somebody put LoRA into the model. The ranks have read the same frozen weights from a file, but
# nobody has set a common seed, so each has drawn an A of its own. B is 0.


# %% nbgrader={"grade": false, "grade_id": "suspect-adapters", "locked": true, "schema_version": 3, "solution": false, "task": false}
from course_lib.models.mlp import MLP
from course_lib.parallel.data.replicate import broadcast_tensors
from course_lib.parallel.table.mesh import make_mesh
from course_lib.savers.lora import add_lora
from course_lib.training.trainer import Trainer


class Suspect(Trainer):
    def __init__(self, model, config):
        mesh = make_mesh(dp=dist.get_world_size())
        super().__init__(model, config, mesh=mesh, apply=(self.replicated,))

    def replicated(self, setup):
        """A technique: ranks read different rows, and begin alike."""
        setup.begin("replicate", "dp")
        self.group = setup.take_over(experts=False)
        self.prepare(setup.model)

    def prepare(self, model):
        names = ("weight", "bias")
        self.covered = [p for name, p in model.named_parameters() if name.endswith(names)]
        broadcast_tensors([p.data for p in self.covered], self.group, src=0)

    def compute_gradients(self, batch):
        loss = super().compute_gradients(batch)
        self.average()
        return loss

    def average(self):
        for p in self.covered:
            if p.grad is not None:
                p.grad.copy_(comm.all_reduce(p.grad, group=self.group) / self.group.size())


# %% [markdown]
# Train it by AdamW beside one device:


# %%
from course_lib.config import TrainConfig
from course_lib.ranks import run_ranks
from course_lib.verify import NotEqual, assert_parallel_equals


def adapted():
    torch.manual_seed(0)
    model = MLP(gelu=True)
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)  # as if nobody had set a seed
    return add_lora(model, rank=2, targets=("layer1", "layer2"))


def rows(number):
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def losses(trainer_class):
    trainer = trainer_class(adapted(), TrainConfig(optimizer="adamw", learning_rate=0.02))
    return [trainer.step(rows(number)) for number in range(61)]


one_device, on_ranks = losses(Trainer), run_ranks(losses, 4, Suspect)[0]
for at in (0, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at]:.3f}   suspect {on_ranks[at]:.3f}")

# %% [markdown]
# Each of these losses is a mean over all ranks, and each rank's own adapter fits its own rows. What is saved at the end is rank 0's, which
# has seen a quarter of them. Climb, with `climb(Suspect)`:


# %%
def climb(trainer_class):
    def make(kind):
        return lambda config: kind(adapted(), config)

    try:
        print(assert_parallel_equals(make(Trainer), make(trainer_class), rows, world_size=4))
    except NotEqual as error:
        print(error)


# %% [markdown]
# Write down the name of the first rung that fails, and how many different sets of adapters the four ranks train. Then write `prepare` again.
#
# **Target:** the gradients of one device on any number of ranks, for everything that is trained, which may be more than A and B. What is frozen is the
# same on all ranks already, and does not travel. Try it with `climb(Repaired)`.


# %% nbgrader={"grade": false, "grade_id": "11-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Suspect):
    def diagnosis(self):
        """Return two things: the name of the first rung that fails,
        and how many different sets of adapters four ranks train.
        """
        ### BEGIN SOLUTION
        return "gradients", 4
        ### END SOLUTION

    def prepare(self, model):
        """Make the ranks alike, and note in `self.covered` what `average` has to average."""
        ### BEGIN SOLUTION
        self.covered = [p for p in model.parameters() if p.requires_grad]
        broadcast_tensors([p.data for p in self.covered], self.group, src=0)
        ### END SOLUTION


check("11.9", Repaired)
# hint("11.9")

# %% [markdown]
# ## 11.10
#
# *Find the wrong number · medium · useful · 20 minutes.* **You learn** to check a sentence by what it makes of the bytes.
#
# A guide to fine-tuning explains the stages of ZeRO like this: "ZeRO-2 also partitions the gradients and the model weights. ZeRO-3 partitions
# the parameters of the optimizer." Somebody has taken it at its word and filled in a table. The model has 7.5 billion parameters, and there are 64 GPUs.
# Weights and gradients are in bf16, two bytes each, and AdamW has twelve bytes for each parameter. In GB on one GPU:
#
# | name | weights | gradients | optimizer |
# | --- | ---: | ---: | ---: |
# | DDP | 15.0 | 15.0 | 90.0 |
# | ZeRO-1 | 15.0 | 15.0 | 1.406 |
# | ZeRO-2 | 0.234 | 0.234 | 1.406 |
# | ZeRO-3 | 15.0 | 15.0 | 1.406 |
#
# By this table nobody would ever use stage 3, which needs more than stage 2. What is right?

# %% [markdown]
# Write a function that goes through this table and any other. Each line is a record:
#
# | field | meaning |
# | --- | --- |
# | `name`, `stage` | name, and the stage of ZeRO, 0 for DDP |
# | `P`, `N` | parameters, and GPUs |
# | `weights_gb`, `gradients_gb`, `optimizer_gb` | what the table says, in GB, billions of bytes, rounded to three decimals: an entry agrees if the right one is rounded to it |
#
# Other tables have other models, each line its own, and their lines may stand in any order. The bytes for each parameter are the same.
#
# **Target:** for each line, in the order in which the lines come, the right bytes on one GPU, as a triple: weights, gradients, optimizer. And
# all entries that do not agree with these, each once, as pairs of a line's name and one of `"weights"`, `"gradients"`, `"optimizer"`. Perhaps
# there is none.


# %% nbgrader={"grade": false, "grade_id": "11-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def find_wrong_entries(lines):
    """Return two things: a list of triples of bytes, and a list of pairs of names.

    lines: records, as the table above describes them.
    """
    ### BEGIN SOLUTION
    right, wrong = [], []
    for line in lines:
        bytes_of = {
            "weights": 2 * line.P / (line.N if line.stage >= 3 else 1),
            "gradients": 2 * line.P / (line.N if line.stage >= 2 else 1),
            "optimizer": 12 * line.P / (line.N if line.stage >= 1 else 1),
        }
        right.append(tuple(bytes_of.values()))
        for column, number in bytes_of.items():
            if round(number / 1e9, 3) != getattr(line, f"{column}_gb"):
                wrong.append((line.name, column))
    return right, wrong
    ### END SOLUTION


check("11.10", find_wrong_entries)
# hint("11.10")

# %% [markdown]
# ## 11.11
#
# *Own file · hard · useful · 40 minutes.* **You learn** to fine-tune a model that fits on no GPU, with nothing but PyTorch: frozen weights in parts, and adapters in parts beside them.
#
# LoRA leaves only two bytes of sixteen, but these two are there for every weight. If they are too many for one GPU, cut them as in lesson 06: each
# rank has a part, and a layer is whole only while it computes. Write a script for `torchrun` with PyTorch's own `fully_shard`. The check
# starts it on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict of `make_model(rank)`, frozen weights and adapters |
# | `batches` | pairs `(x, y)` of all rows of a batch; rank r takes part r of `tensor_split(world_size)` |
# | `rank` | the r of the adapters |
# | `rate` | the learning rate of AdamW, which is otherwise as PyTorch has it |

# %% [markdown]
# What is trained are A and B. All that belongs to `base` is frozen, its bias too. There is a step for each batch, on the mean of the
# cross-entropy over all its rows, and ranks may have different numbers of rows. At the end rank 0 saves
# `adapters.pt` in the same folder: a dict with every A and B under its name in the state dict, whole, as plain tensors, and nothing else.
#
# **Target:** the adapters of one device. Frozen weights lie in parts and are gathered for each step. From reduce-scatter a rank gets its part of
# the adapters' gradients, once a step, and no number for what is frozen. Nothing is all-reduced but a loss, if you like.
#
# To start it yourself, run `save_script("11.11", sharded_lora)`.

# %% nbgrader={"grade": false, "grade_id": "11-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
sharded_lora = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Adapted(nn.Module):
    def __init__(self, inputs, outputs, r):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.A = nn.Parameter(torch.randn(r, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.zeros(outputs, r))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.A.T) @ self.B.T


def make_model(r):
    return nn.Sequential(Adapted(6, 16, r), nn.GELU(), Adapted(16, 4, r)).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model(task["rank"])
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    for name, one in model.named_parameters():
        one.requires_grad_(name.endswith((".A", ".B")))
    for layer in model:
        if isinstance(layer, Adapted):
            fully_shard(layer)
    fully_shard(model)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=task["rate"])
    for x, y in task["batches"]:
        rows, targets = x.tensor_split(ranks)[rank], y.tensor_split(ranks)[rank]
        loss = F.cross_entropy(model(rows), targets, reduction="sum") * ranks / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    adapters = {name: one.full_tensor().detach() for name, one in trained.items()}
    if rank == 0:
        torch.save(adapters, f"{folder}/adapters.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("11.11", sharded_lora)
# hint("11.11")
