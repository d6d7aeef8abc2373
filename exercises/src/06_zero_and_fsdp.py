# %% [markdown]
# # Exercises 06: ZeRO and FSDP
#
# [Lesson 06](../../notebooks/06_zero_and_fsdp.ipynb) stopped remembering the same thing on every rank. Here you lay a model in one row, cut it,
# train a piece without seeing the rest, and work out what that saves and what it sends. If you have
# only one hour, do 06.1 and 06.5.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("06.1", ...)`, runs what you wrote on
# **real processes**, on 1 to 4 ranks, and compares each rank's piece with what one device computes. Then it tells you what it has seen. A
# hang, a crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("06.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change. Ranks talk by `comm`, which records every message. A call of `torch.distributed` itself is not in that record, and
# does not count unless a text asks for it.
#
# The folded cells under each exercise carry the points if a course is graded. If you work on your own, skip them: they say the same as the
# check above them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
from itertools import accumulate

import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 06.1
#
# *Write · medium · core · 25 minutes.* **You learn** to share out numbers fairly, wherever one tensor ends and the next begins.
#
# The 6-4-2 MLP has four tensors of 24, 4, 8 and 2 numbers. Two ranks should keep half of them each, but how do you halve four tensors
# fairly? Do not halve them at all. Lay them side by side in one row, and cut the row:
#
# ```text
#           layer1.weight              layer1.bias   layer2.weight   layer2.bias
# row       0 ................... 23 | 24 .... 27  | 28 ....... 35 | 36 37
# rank 0    0 .............. 18
# rank 1                    19 .. 23 | 24 .... 27  | 28 ....... 35 | 36 37
# ```
#
# Each rank has 19 of the 38 numbers. Rank 0 has nothing but a part of the first weight, and rank 1 has a little of everything.

# %% [markdown]
# Write it as a class, which keeps this rank's piece from one use to the next. An optimizer will train the pieces, number by number and in
# place, and `gather()` has to bring back what it made of them.
#
# **Target:** pieces as `torch.tensor_split` cuts the row, and the whole tensors again. `gather()` makes one `comm.all_gather`, whose `length=` is the row's, because pieces may differ. Before
# and after `gather()` a rank keeps the memory of its own piece, and not that of the whole row.


# %% nbgrader={"grade": false, "grade_id": "06-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Row:
    def __init__(self, tensors):
        """Keep this rank's piece of the tensors, laid side by side in one row."""
        ### BEGIN SOLUTION
        rank, p = dist.get_rank(), dist.get_world_size()
        self.shapes, self.sizes = [x.shape for x in tensors], [x.numel() for x in tensors]
        parts = torch.cat([x.flatten() for x in tensors]).tensor_split(p)
        self.piece = parts[rank].clone()
        self.first = sum(len(part) for part in parts[:rank])
        ### END SOLUTION

    def pieces(self):
        """Return for each tensor what this rank's piece has of it: flat, a view of what is kept,
        and empty if it has nothing.
        """
        ### BEGIN SOLUTION
        ends = [end - self.first for end in accumulate(self.sizes, initial=0)]
        ends = [min(max(end, 0), len(self.piece)) for end in ends]
        return [self.piece[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
        ### END SOLUTION

    def gather(self):
        """Return the whole tensors, each in its shape."""
        ### BEGIN SOLUTION
        row = comm.all_gather(self.piece, length=sum(self.sizes))
        return [part.view(shape) for part, shape in zip(row.split(self.sizes), self.shapes, strict=True)]
        ### END SOLUTION


check("06.1", Row)
# hint("06.1")

# %% [markdown]
# ## 06.2
#
# *Write · medium · extra · 30 minutes.* **You learn** how PyTorch's FSDP2 cuts instead, and what that costs.
#
# One long row is fair, but a piece of it may begin in the middle of a matrix. FSDP2 cuts each tensor by itself, between its own rows, as `torch.chunk`
# does: of a matrix of 5 rows, 4 ranks get 2, 2, 1 and none. So ranks have different numbers of rows, and a fast all-gather wants the same length from
# everybody. FSDP2 fills up with zeros until all are as long as the longest:
#
# ```text
#           a, 5 rows       b, 1 row        what each rank sends
# rank 0    a0 a1           b0              a0 a1 | b0
# rank 1    a2 a3           -               a2 a3 | 0
# rank 2    a4              -               a4 0  | 0
# rank 3    -               -               0  0  | 0
# ```

# %% [markdown]
# After the all-gather every rank has all these lines, one after the other. Put the four buffers below each other, as in the picture.
# Then the part left of the bar, read line by line, is `a` with its zeros at the end.
#
# **Target:** this rank's rows of each tensor, without zeros; the buffer that it sends, with them; and the whole tensors again. `gather()`
# makes one `comm.all_gather`, to which every rank gives equally many numbers. As in 06.1 the pieces will be trained in place, so `buffer()` and
# `gather()` use them as they are by then, and besides them a rank keeps nothing of the tensors.


# %% nbgrader={"grade": false, "grade_id": "06-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Padded:
    def __init__(self, tensors):
        """Keep this rank's rows of each tensor. Every tensor has at least one dim."""
        ### BEGIN SOLUTION
        rank, p = dist.get_rank(), dist.get_world_size()
        self.shapes = [x.shape for x in tensors]
        parts = [x.chunk(p) for x in tensors]
        self.rows = [(part[rank] if rank < len(part) else part[0][:0]).clone() for part in parts]
        self.lengths = [part[0].numel() for part in parts]
        ### END SOLUTION

    def pieces(self):
        """Return this rank's rows of each tensor, without zeros behind them;
        shape (0, ...) where there are none.
        """
        ### BEGIN SOLUTION
        return self.rows
        ### END SOLUTION

    def buffer(self):
        """Return what this rank sends: flat, its rows of all tensors,
        each with zeros behind it up to the longest rank's.
        """
        ### BEGIN SOLUTION
        sizes = zip(self.rows, self.lengths, strict=True)
        return torch.cat(
            [torch.cat([x.flatten(), x.new_zeros(length - x.numel())]) for x, length in sizes]
        )
        ### END SOLUTION

    def gather(self):
        """Return the whole tensors, each in its shape."""
        ### BEGIN SOLUTION
        lines = comm.all_gather(self.buffer()).view(dist.get_world_size(), -1)
        columns = [column.flatten() for column in lines.split(self.lengths, 1)]
        return [x[: shape.numel()].view(shape) for x, shape in zip(columns, self.shapes, strict=True)]
        ### END SOLUTION


check("06.2", Padded)
# hint("06.2")

# %% [markdown]
# ## 06.3
#
# *Write · medium · core · 30 minutes.* **You learn** that a rank can train a piece of a model without ever seeing the rest of the averaged gradient.
#
# Under DDP all ranks make the same update of all weights, and each keeps Adam's two moments for every one of them. That is the same work
# and the same memory once for each rank. In **ZeRO-1** each rank updates its piece alone:
#
# ```text
# whole gradient ──► reduce-scatter ──► my piece of the average
#                ──► Adam ──► my piece ──► all-gather ──► whole weights
# ```
#
# One thing needs care. Gradients are clipped: if the norm of the whole average is above `max_norm`, all of it is multiplied by
# `max_norm / norm`. But no rank has the whole average.

# %% [markdown]
# In this exercise the weights are one flat row already, cut as in 06.1.
#
# **Target:** the weights of one device after all steps, on every rank. The optimizer gets this rank's piece and nothing else. Each step
# makes one reduce-scatter, one all-reduce of a single number, and one all-gather. In a real training a step's gradients come from the weights of
# the step before, so no step may borrow from a later one.


# %% nbgrader={"grade": false, "grade_id": "06-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def zero_1(weights, gradients, make_optimizer, max_norm):
    """Return two things: the whole weights after all steps, and the norm of the last step's average,
    before clipping.

    weights: (N), the same on all ranks. gradients: a list, for each step this rank's (N).
    make_optimizer([parameter]) makes an AdamW of parameters.
    """
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(), dist.get_world_size()
    piece = torch.nn.Parameter(weights.tensor_split(p)[rank].clone())
    optimizer = make_optimizer([piece])
    for gradient in gradients:
        piece.grad = comm.reduce_scatter(gradient) / p
        norm = comm.all_reduce(piece.grad.square().sum().reshape(1)).sqrt().item()
        if norm > max_norm:
            piece.grad *= max_norm / norm
        optimizer.step()
        whole = comm.all_gather(piece.detach(), length=len(weights))
    return whole, norm
    ### END SOLUTION


check("06.3", zero_1)
# hint("06.3")

# %% [markdown]
# ## 06.4
#
# *Predict · easy · core · 20 minutes.* **You learn** to compute the most famous table of this subject, and where each stage stops helping.
#
# Training with Adam in mixed precision keeps three things for each parameter: a bf16 weight of two bytes, a bf16 gradient of two
# bytes, and what only the optimizer reads: an fp32 weight and two fp32 moments, twelve bytes in all. Each stage of ZeRO shares out one
# more of them among the GPUs.

# %% nbgrader={"grade": false, "grade_id": "06-4-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
zero = given("06.4", GRADE_SEED)
print(f"the ZeRO paper's model: P = {zero.P:,} parameters on N = {zero.N} GPUs")
print(f"a Llama: Q = {zero.Q:,} parameters on n = {zero.n} GPUs of {zero.budget} GB")

# %% [markdown]
# | name | number to give, for one GPU, in GB of 10⁹ bytes |
# | --- | --- |
# | `ddp_gb` | what the paper's model has with DDP when backward is through, activations not counted |
# | `zero_1_gb`, `zero_2_gb`, `zero_3_gb` | the same with each stage |
# | `llama_1_gb`, `llama_2_gb`, `llama_3_gb` | what the Llama keeps with each stage, in this row with fp32 gradients, of four bytes |
# | `stage` | the first stage (0 is DDP) with which the Llama fits, gradients in bf16 like the weights, activations not counted |
# | `floor_gb` | what the Llama's GPU still keeps with ZeRO-2 if n grows without end |
#
# Let Python compute: answers are compared to 7 digits.

# %% nbgrader={"grade": false, "grade_id": "06-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
P, N, Q, n, budget = zero
### BEGIN SOLUTION
ddp_gb = 16 * P / 1e9
zero_1_gb = (4 + 12 / N) * P / 1e9
zero_2_gb = (2 + 14 / N) * P / 1e9
zero_3_gb = 16 / N * P / 1e9
llama_1_gb = (6 + 12 / n) * Q / 1e9
llama_2_gb = (2 + 16 / n) * Q / 1e9
llama_3_gb = 18 / n * Q / 1e9
stage = next(i for i, each in enumerate((16, 4 + 12 / n, 2 + 14 / n, 16 / n)) if each * Q / 1e9 <= budget)
floor_gb = 2 * Q / 1e9
### END SOLUTION
memory = ...
check("06.4", memory, seed=GRADE_SEED)
# hint("06.4")

# %% [markdown]
# ## 06.5
#
# *Write · medium · core · 30 minutes.* **You learn** how a layer computes with a weight that nobody keeps whole.
#
# ZeRO-3 shares out the weights as well, and a product needs all of its matrix. So the ranks gather it, multiply, and let it go again. In
# backward it is needed once more, and gathered once more:
#
# ```text
# forward    piece ──► gather ──► y = x Wᵀ ──► forget W
# backward   piece ──► gather ──► gradients of x and W ──► forget W, and
#            reduce-scatter W's gradient
# ```
#
# The place to write that is a `torch.autograd.Function`: what its `forward` does not save is gone when it returns. Each rank has rows of
# its own in `x`, as in data parallelism.

# %% [markdown]
# **Target:** each rank finds its output and the gradient of its `x`, which is not averaged. The piece gets its part of the weight's gradient,
# *averaged* over the ranks. All this takes two all-gathers and one reduce-scatter. Between forward and backward no rank keeps the whole weight.


# %% nbgrader={"grade": false, "grade_id": "06-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, piece, shape):
        """Return x @ weight.T. piece: flat, this rank's part of the flattened weight, cut as in 06.1.
        shape: the weight's, (out, in).
        """
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, piece)
        ctx.shape = shape
        return x @ comm.all_gather(piece, length=shape[0] * shape[1]).view(shape).T
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradients of x and of the piece, and None for shape.
        gradient: (rows, out), the output's.
        """
        ### BEGIN SOLUTION
        x, piece = ctx.saved_tensors
        weight = comm.all_gather(piece, length=ctx.shape[0] * ctx.shape[1]).view(ctx.shape)
        mine = comm.reduce_scatter((gradient.T @ x).flatten()) / dist.get_world_size()
        return gradient @ weight, mine, None
        ### END SOLUTION


check("06.5", Gathered)
# hint("06.5")

# %% [markdown]
# ## 06.6
#
# *Write · medium · useful · 25 minutes.* **You learn** when a gradient may go, and why ZeRO-2 cannot wait until backward is through.
#
# ZeRO-2 shares out the gradients. But backward makes them whole, one after the other, from the last layer to the first. If you wait until
# it is through, all of them lie side by side in memory, and nothing has been saved. So each of them has to go as soon as it comes:
#
# ```text
# backward     layer2.bias comes ──► reduce-scatter, keep a piece, drop the whole
#              layer2.weight comes ──► reduce-scatter, keep a piece, drop the whole
#              ...
# ```
#
# `p.register_post_accumulate_grad_hook(f)` calls `f(p)` in every backward, as soon as `p.grad` is complete.

# %% [markdown]
# A step has several micro-batches, each with a backward of its own. Each loss is divided by the number of micro-batches already, so gradients only
# add up. Between the ranks they are averaged.
#
# **Target:** in `.grad` of each piece, this rank's piece of the average, added up over the micro-batches. One `comm.reduce_scatter` for
# each parameter in each backward, and never two whole gradients at the same time.


# %% nbgrader={"grade": false, "grade_id": "06-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def reduce_when_it_comes(parameters, pieces):
    """Register what reduces each parameter's gradient into `.grad` of its piece.
    The check runs the backwards.

    parameters: a list, whole on every rank.
    pieces: for each of them this rank's piece of the flattened parameter, cut as in 06.1.
    """
    ### BEGIN SOLUTION
    piece_of = dict(zip(parameters, pieces, strict=True))

    def came(p):
        piece = piece_of[p]
        mine = comm.reduce_scatter(p.grad.flatten()) / dist.get_world_size()
        piece.grad = mine if piece.grad is None else piece.grad + mine
        p.grad = None

    for p in parameters:
        p.register_post_accumulate_grad_hook(came)
    ### END SOLUTION


check("06.6", reduce_when_it_comes)
# hint("06.6")

# %% [markdown]
# ## 06.7
#
# *Predict · medium · core · 25 minutes.* **You learn** what each strategy sends, and which of them pays for every micro-batch.
#
# A Llama is cut into units: each of its `L` blocks is one, and what is left over is the *root's*: embedding, last norm and head. Weights
# and gradients travel in bf16, two bytes each, in rings. The root is whole from the beginning of forward to the end of backward of
# each micro-batch, and is gathered anew for the next one.

# %% nbgrader={"grade": false, "grade_id": "06-7-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
units = given("06.7", GRADE_SEED)
print(f"L = {units.L} blocks of {units.block:,} numbers, and {units.root:,} in the root")
print(f"p = {units.p} GPUs, s = {units.s} in a node; m = {units.m} micro-batches in the last two rows")

# %% [markdown]
# `FULL_SHARD` shares each unit among all p GPUs, and gathers a block for forward and again for backward. `HYBRID_SHARD` does so among the s
# GPUs of a node. The nodes are copies of each other, so each GPU all-reduces its piece of the gradients across them.
#
# | name | number to give, for one step |
# | --- | --- |
# | `ddp_sends` | bytes that each GPU sends with DDP |
# | `zero_2_sends` | the same with ZeRO-2 |
# | `zero_2_calls` | reduce-scatters plus all-gathers of ZeRO-2, where each unit makes one of each kind |
# | `full_gathers`, `full_scatters` | all-gathers and reduce-scatters of FULL_SHARD |
# | `full_sends` | bytes that each GPU sends with FULL_SHARD |
# | `hybrid_inside` | bytes that each GPU sends inside its node with HYBRID_SHARD |
# | `hybrid_across` | bytes that it sends to other nodes |
# | `ddp_accumulated` | bytes that each GPU sends with DDP and m micro-batches, all but the last one under `no_sync()` |
# | `full_accumulated` | the same with FULL_SHARD, which reduces in every micro-batch |

# %% nbgrader={"grade": false, "grade_id": "06-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
L, block, root, p, s, m = units
### BEGIN SOLUTION
ddp_sends = 2 * (p - 1) / p * 2 * (L * block + root)
zero_2_sends = ddp_sends
zero_2_calls = 2 * (L + 1)
full_gathers = 2 * L + 1
full_scatters = L + 1
full_sends = (p - 1) / p * 2 * (3 * L * block + 2 * root)
hybrid_inside = (s - 1) / s * 2 * (3 * L * block + 2 * root)
hybrid_across = 2 * (p / s - 1) / (p / s) * 2 * (L * block + root) / s
ddp_accumulated = ddp_sends
full_accumulated = m * full_sends
### END SOLUTION
step = ...
check("06.7", step, seed=GRADE_SEED)
# hint("06.7")

# %% [markdown]
# ## 06.8
#
# *Predict · medium · useful · 25 minutes.* **You learn** to find the worst instant of a step, and to choose units that fit.
#
# The table of 06.4 tells the size of a rank's pieces. But during a step some units are whole besides, and they are why memory runs
# out. Here you count the weights of these units. The blocks of a small model have different sizes, and forward goes through them in this
# order. Its root is frozen, so it has no gradients, and it is whole from the beginning of forward to the end of backward.

# %% nbgrader={"grade": false, "grade_id": "06-8-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
wholes = given("06.8", GRADE_SEED)
print(f"small model: blocks of {', '.join(map(str, wholes.sizes))} numbers, root of {wholes.root}")
print(f"Llama: L = {wholes.L} blocks of {wholes.block:,} numbers, root of {wholes.outer:,}")
print(f"{wholes.budget} GB of 10⁹ bytes for whole weights in bf16, the root's too")

# %% [markdown]
# *Prefetch* means that while one block computes, the next one in order is gathered already. A block is freed as soon as it has computed,
# and a block's gradients are reduced, and gone, before the next block's backward begins.
#
# | name | number to give |
# | --- | --- |
# | `alone` | small model: most numbers of whole weights, the root's too, at one instant of forward, FULL_SHARD without prefetch |
# | `ahead` | the same with prefetch |
# | `kept` | the same with SHARD_GRAD_OP, which does not free a block after its forward |
# | `with_gradients` | backward, FULL_SHARD without prefetch: most numbers of whole weights, the root's too, and whole gradients together |
# | `group_ahead` | Llama: most blocks in a unit so that forward with prefetch fits. All units have equally many blocks |
# | `group_alone` | the same without prefetch |
# | `gathers` | Llama: all-gathers of a step of one micro-batch, with `group_ahead` blocks in a unit; the root is gathered once, and every other unit twice, even the last |

# %% nbgrader={"grade": false, "grade_id": "06-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
sizes, root, L, block, outer, budget = wholes
### BEGIN SOLUTION
alone = root + max(sizes)
ahead = root + max(one + other for one, other in zip(sizes, sizes[1:], strict=False))
kept = root + sum(sizes)
with_gradients = root + 2 * max(sizes)
group_ahead = max(k for k in range(1, L + 1) if L % k == 0 and outer + 2 * k * block <= budget * 1e9 / 2)
group_alone = max(k for k in range(1, L + 1) if L % k == 0 and outer + k * block <= budget * 1e9 / 2)
gathers = 2 * L // group_ahead + 1
### END SOLUTION
worst = ...
check("06.8", worst, seed=GRADE_SEED)
# hint("06.8")

# %% [markdown]
# ## 06.9
#
# *Find the bug · medium · useful · 25 minutes.* **You learn** to follow a number through two groups of ranks.
#
# You have written all parts of an FSDP by now. Here they are together, in one class. A `Unit` is a layer that keeps only a piece of its
# weights while nobody uses it. It is made for HYBRID_SHARD: the ranks in `inside` share the row, and those in `across` have the same piece of it.
# `resize_(0)` gives the row's memory back while everything that looks into it stays in place, so that the row can be filled again.


# %% nbgrader={"grade": false, "grade_id": "suspect", "locked": true, "schema_version": 3, "solution": false, "task": false}
class Unit:
    is_last = False  # of the model's layers

    def __init__(self, layer, inside, across):
        self.inside, self.across = inside, across
        self.whole = list(layer.parameters())
        self.row = torch.cat([p.detach().flatten() for p in self.whole])
        self.piece = torch.nn.Parameter(self.row.tensor_split(inside.size())[inside.rank()].clone())
        parts = self.row.split([p.numel() for p in self.whole])
        for p, part in zip(self.whole, parts, strict=True):
            p.data = part.view_as(p)
            p.register_post_accumulate_grad_hook(self.gradient_came)
        layer.register_forward_pre_hook(lambda *_: self.gather())
        layer.register_forward_hook(self.after_forward)
        self.free()

    def gather(self):
        self.row.untyped_storage().resize_(self.row.nbytes)
        self.row.copy_(comm.all_gather(self.piece.detach(), length=len(self.row), group=self.inside))

    def free(self):
        self.row.untyped_storage().resize_(0)

    def after_forward(self, layer, inputs, output):
        self.free()
        if output.requires_grad:
            output.register_hook(lambda gradient: self.gather())

    def gradient_came(self, p):
        if any(q.grad is None for q in self.whole):
            return
        row = torch.cat([q.grad.flatten() for q in self.whole])
        for q in self.whole:
            q.grad = None
        self.free()
        mine = self.average(row)
        self.piece.grad = mine if self.piece.grad is None else self.piece.grad + mine

    def average(self, row):
        mine = comm.reduce_scatter(row, op=dist.ReduceOp.AVG, group=self.inside)
        comm.all_reduce_(mine, group=self.across)
        return mine / dist.get_world_size()


# %% [markdown]
# `InUnits` makes each layer of a model a unit and trains it. Train with AdamW on 4 ranks, 2 of which share each row, and on one device:


# %%
from course_lib.checks.module_06.small import InUnits
from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.ranks import run_ranks
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals


def task(number):
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def losses(unit, shards, optimizer="adamw", learning_rate=0.02):
    torch.manual_seed(0)
    model, config = MLP(gelu=True), TrainConfig(optimizer=optimizer, learning_rate=learning_rate)
    trainer = Trainer(model, config) if unit is None else InUnits(unit, model, config, shards)
    return [trainer.step(task(number)) for number in range(60)]


one_device, on_ranks = losses(None, 1), run_ranks(losses, 4, Unit, 2)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   in units {on_ranks[at - 1]:.3f}")

# %% [markdown]
# To three digits the curves are the same. Climb the ladder nevertheless, with `climb(Unit)`. It also takes the number of ranks that share
# a row: `climb(Unit, shards=4)`, or 1.


# %%
def climb(unit, shards=2, rungs=RUNGS, steps=3):
    def one(config):
        return Trainer(MLP(gelu=True), config)

    def several(config):
        return InUnits(unit, MLP(gelu=True), config, shards)

    try:
        print(assert_parallel_equals(one, several, task, world_size=4, rungs=rungs, steps=steps))
    except NotEqual as error:
        print(error)


# %% [markdown]
# Write down in `diagnosis` the rung, as `climb` names it, and the ratio of the ranks to one device, as a number. Find the line that makes this ratio,
# and write its method again in `Repaired`, below `diagnosis`; the other methods are inherited. Try your repair with `climb(Repaired, shards=...)` for 1, 2 and 4.
#
# **Target:** the gradients of one device, on any number of ranks, however many of them share a row. A row is reduce-scattered once in
# `inside`, and only a piece is all-reduced in `across`: no rank sends more bytes than that.


# %% nbgrader={"grade": false, "grade_id": "06-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Unit):
    def diagnosis(self):
        """Return two things for 4 ranks, 2 of which share a row: the first rung that fails,
        and the ratio there.
        """
        ### BEGIN SOLUTION
        return "gradients", 0.5

    def average(self, row):
        mine = comm.reduce_scatter(row, group=self.inside)
        comm.all_reduce_(mine, group=self.across)
        return mine / dist.get_world_size()
        ### END SOLUTION


check("06.9", Repaired)
# hint("06.9")

# %% [markdown]
# ## 06.10
#
# *Find the bug · hard · extra · 45 minutes.* **You learn** to save a gather where it is safe, and to see where it is not.
#
# The last layer of a model is the first one that backward needs. To free it after forward, and to gather it again at once, is a waste.
# [torchtitan](https://github.com/pytorch/torchtitan), PyTorch's own training code, leaves its last norm and head whole for that reason. `Saving`
# wants to do the same. Here all ranks share every row, so there are no copies:


# %% nbgrader={"grade": false, "grade_id": "suspect-saving", "locked": true, "schema_version": 3, "solution": false, "task": false}
class Saving(Unit):
    def gather(self):
        if self.row.untyped_storage().size() == 0:
            super().gather()

    def free(self):
        if not self.is_last:
            super().free()

    def average(self, row):
        return comm.reduce_scatter(row, op=dist.ReduceOp.AVG, group=self.inside)


# %%
one_device, on_ranks = losses(None, 4), run_ranks(losses, 4, Saving, 4)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   saving {on_ranks[at - 1]:.3f}")

# %% [markdown]
# Both learn, and the ranks learn more slowly. Would a larger learning rate do? Ask the ladder first: `climb(Saving, 4)`. Then climb the
# first four rungs alone, with one step and with two: `climb(Saving, 4, rungs=RUNGS[:4], steps=1)`. And `gathers_of(Saving)` returns how
# many all-gathers of weights each of three steps makes:


# %%
from course_lib.comm import ledger

OF_THE_TRAINER = 2  # all-gathers of a step that carry no weights


def gathers_of(unit):
    def count():
        trainer, found = InUnits(unit, MLP(gelu=True), TrainConfig(learning_rate=0.1)), []
        for number in range(3):
            ledger.clear()
            trainer.step(task(number))
            calls = {event.call for event in ledger.current() if event.operation == "all_gather"}
            found.append(len(calls) - OF_THE_TRAINER)
        return found

    return run_ranks(count, 4)[0]


# %% [markdown]
# Write down what you found, and mend it. Rewrite `after_forward` and `free` below, or delete both and write others. What you delete is inherited from
# `Saving`; `Unit.free(self)` always frees.
#
# **Target:** the gradients of one device in every step, also if the model is evaluated before a step, or between a backward and its
# update. With U units a micro-batch makes 2 U − 1 all-gathers of weights, and after backward every unit is a piece again.


# %% nbgrader={"grade": false, "grade_id": "06-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Saved(Saving):
    def diagnosis(self):
        """Return two things: the first rung that fails,
        and how many updates the last layer is behind in the third forward.
        """
        ### BEGIN SOLUTION
        return "parameters", 2
        ### END SOLUTION

    def after_forward(self, layer, inputs, output):
        """Runs after the layer's forward. output: the layer's,
        whose gradient comes when its backward begins, if it has one.
        """
        ### BEGIN SOLUTION
        if not (self.is_last and output.requires_grad):
            self.free()
        if output.requires_grad:
            output.register_hook(lambda gradient: self.gather())
        ### END SOLUTION

    def free(self):
        """Make the unit a piece again."""
        ### BEGIN SOLUTION
        Unit.free(self)
        ### END SOLUTION


check("06.10", Saved)
# hint("06.10")

# %% [markdown]
# ## 06.11
#
# *Own file · hard · core · 45 minutes.* **You learn** to set up PyTorch's own FSDP, and to say what it gathers, when, and in which dtype.
#
# Your model no longer fits, so `fully_shard` is to cut it. Your network is slow, so weights shall travel in bfloat16. And a sum of many
# gradients needs more digits than bfloat16 has. Write a script for `torchrun` that trains this way, with `fully_shard` of
# `torch.distributed.fsdp`.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which the training starts, whole and in float32 |
# | `batches` | pairs `(x, y)` of all rows of a batch: `x` is (32, 6), `y` holds a class for each row |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
# | `keep` | `False`: memory is short. `True`: there is memory, and the network is slow |
#
# Of each batch, rank r takes part r of `x.chunk(world_size)`, and cuts it into two micro-batches, by `chunk` again. The loss is the mean
# of the cross-entropy over all rows of the batch.
#
# - **Units.** Each block is a unit. What is left, the first and the last layer, is the unit of the root.
# - **Numbers.** Weights are gathered in bfloat16, and forward and backward compute in it. The loss is computed from the scores in float32.
#   Gradients are added up in float32, over micro-batches and over ranks. The weights that the optimizer steps are in float32.
# - **When.** If `keep` is `False`, a block is whole only while it computes, so each micro-batch gathers it twice; the root's unit stays
#   whole from forward to backward. If `keep` is `True`, each unit is gathered **once in a step**, for both micro-batches. Either way
#   gradients travel once in a step.

# %% [markdown]
# At the end, rank 0 saves the model's whole state dict in float32 as `answer.pt` in the same folder. Its names are those of `weights`. The
# parts of a width of 10 are not equally long on 4 ranks, and of the last layer's 3 rows one rank has none; you need nothing for that.
#
# **Target:** the weights that one device gets if it rounds at the same places, with SGD and with AdamW. The check counts what your
# processes hand to `torch.distributed`: each unit's gathers and reduce-scatters, with dtype and bytes. In float32 only the weights of the end
# are gathered, once.
#
# To start it yourself, run `save_script("06.11", fsdp_loop)`. It writes your script and a `task.pt` into a folder, and tells you the line for
# a terminal. [The script of lesson 06](../../notebooks/scripts/06_fsdp.py) has most of the calls that you need; look there when you are stuck.

# %% nbgrader={"grade": false, "grade_id": "06-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
fsdp_loop = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

MICRO_BATCHES = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(10), nn.Linear(10, 26), nn.Linear(26, 10)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_model():
    return nn.Sequential(nn.Linear(6, 10), Block(), Block(), Block(), nn.Linear(10, 3))


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    mesh = dist.init_device_mesh("cpu", (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model[1:-1]:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not task["keep"])
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    for x, y in task["batches"]:
        mine = [part.chunk(ranks)[rank].chunk(MICRO_BATCHES) for part in (x, y)]
        for number, (rows, targets) in enumerate(zip(*mine), start=1):
            last = number == MICRO_BATCHES
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last or not task["keep"])
            loss = F.cross_entropy(model(rows).float(), targets) / MICRO_BATCHES
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(whole, f"{folder}/answer.pt")
    dist.barrier()
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("06.11", fsdp_loop)
# hint("06.11")

# %% [markdown]
# ## 06.12
#
# *Own file · hard · useful · 45 minutes.* **You learn** to put ZeRO-1 around an optimizer that somebody else has written.
#
# AdamW remembers two numbers for each weight, and momentum one. With data parallelism every rank remembers all of them. But an optimizer
# treats each number by itself, so it does not mind if it is given only a piece. Write `Sharded` in plain PyTorch. It takes any such class
# of `torch.optim`, and keeps an optimizer of this class inside, for this rank's piece alone:
#
# ```python
# optimizer = Sharded(model.parameters(), torch.optim.AdamW, lr=0.02, weight_decay=0.3)
# ```
#
# Lay all parameters that learn behind each other in **one row**, in the order in which they come. Fill it with zeros until the number of
# ranks divides it, and cut it into equally long pieces, one for each rank. What has `requires_grad=False` is not in the row.
#
# | name | what it does |
# | --- | --- |
# | `step()` | averages the ranks' gradients, steps this rank's piece, and gives every rank all new weights |
# | `zero_grad()` | forgets the gradients, as every optimizer's does |
# | `param_groups` | the list of the optimizer inside; the loop sets another learning rate there before each step |
# | `states()` | a dict of what the optimizer inside remembers of each number of this rank's piece, by the optimizer's names, such as `exp_avg` |

# %% [markdown]
# The loop in `main` is ready; you may change it. The check starts your script on 2 and on 4 processes and gives it a folder with `task.pt`,
# whose keys `main` uses: `weights` from which to start, `batches` of 16 rows, the name of the `optimizer` and its `options`, a list of
# `rates`, and the names of `frozen` weights. Each rank saves its weights and its states as `answer-0.pt`, `answer-1.pt` and so on.
#
# **Target:** on every rank the weights of one device, with SGD (and its momentum) and with AdamW. The optimizer inside remembers its
# piece and no more, and all pieces together are what one device remembers. In each step one reduce-scatter leaves a rank its piece, and
# one all-gather gives a piece to all. No other message has more than two numbers.
#
# To start it yourself, run `save_script("06.12", sharded_optimizer)`.

# %% nbgrader={"grade": false, "grade_id": "06-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
sharded_optimizer = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Sharded:
    def __init__(self, params, optimizer_class, **options):
        # params: of the model; options: what the optimizer's class is given, such as lr
        ### BEGIN SOLUTION
        self.ranks = dist.get_world_size()
        self.params = [one for one in params if one.requires_grad]
        piece = self.row(one.detach() for one in self.params).chunk(self.ranks)[dist.get_rank()]
        self.piece = nn.Parameter(piece.clone())
        self.inner = optimizer_class([self.piece], **options)
        self.param_groups = self.inner.param_groups
        ### END SOLUTION

    def step(self):
        ### BEGIN SOLUTION
        row = self.row(one.grad for one in self.params)
        self.piece.grad = torch.empty_like(self.piece)
        dist.reduce_scatter_single(self.piece.grad, row)
        self.piece.grad /= self.ranks
        self.inner.step()
        dist.all_gather_single(row, self.piece.detach())
        with torch.no_grad():
            begin = 0
            for one in self.params:
                one.copy_(row[begin : begin + one.numel()].view_as(one))
                begin += one.numel()
        ### END SOLUTION

    def zero_grad(self):
        ### BEGIN SOLUTION
        for one in self.params:
            one.grad = None
        ### END SOLUTION

    def states(self):
        ### BEGIN SOLUTION
        states = self.inner.state[self.piece]
        return {name: one for name, one in states.items() if one.shape == self.piece.shape}

    def row(self, tensors):
        row = torch.cat([one.flatten() for one in tensors])
        return F.pad(row, (0, -len(row) % self.ranks))
        ### END SOLUTION


def make_model():
    layers = nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 3)
    return nn.Sequential(*layers).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    for name in task["frozen"]:
        model.get_parameter(name).requires_grad_(False)
    optimizer = Sharded(model.parameters(), getattr(torch.optim, task["optimizer"]), **task["options"])
    for (x, y), rate in zip(task["batches"], task["rates"]):
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows, targets = x.chunk(ranks)[rank], y.chunk(ranks)[rank]
        F.cross_entropy(model(rows), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    answer = {"weights": model.state_dict(), "states": optimizer.states()}
    torch.save(answer, f"{folder}/answer-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("06.12", sharded_optimizer)
# hint("06.12")

# %% [markdown]
# ## Where this leads
#
# Row, piece, gather, reduce-scatter, and care for when each of them happens: that is all of FSDP, and `Unit` is one in fifty lines. It
# shares out what every rank had alike. It does not share activations, and every rank needs sequences of its own. [Lesson 07](../../notebooks/07_fsdp_tp_2d_llama.ipynb) joins it to tensor
# parallelism, which helps with both.
