# %% [markdown]
# # Exercises 05: tensor parallelism
#
# [Lesson 05](../../notebooks/05_tensor_parallelism.ipynb) shared matrices among ranks. Here you cut them yourself, forward and backward, from
# a single linear map to the loss, and you hunt two bugs. For 05.6 to 05.8 and for 05.10 do the lesson's *Going deeper* as well. The forward of
# 05.5 stands there, so try that one before. The last two are scripts of your own, without this course. The twelve exercises take more than five
# hours. If you have one, do 05.2, 05.3 and 05.4.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("05.2", ...)`, runs your function on
# **real processes**, on 1 to 4 ranks, and compares each rank's part with what one device computes. Then it tells you what it has seen. A
# hang, a crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("05.1")` gives a small hint, and a further one each time you run it. A cell above each answer has that line, behind a `#`.
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
#
# Where something does not divide by the number of ranks, the parts are those of `torch.tensor_split`: the first ones have one more.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 05.1
#
# *Predict · easy · useful · 20 minutes.* **You learn** to read "column" and "row" without being fooled by how torch stores a weight.
#
# Three people write one linear map in three ways, and what Megatron calls a column is a row for the other two:
#
# ```text
# mathematics    y = W x           W is (out, in)
# Megatron       Y = X A           A is (in, out)    column-parallel cuts these columns
# torch          x @ weight.T      weight is (out, in)
# ```
#
# *Column-parallel* means that each rank computes some of the outputs. *Row-parallel* means that each rank takes some of the inputs.
# A Llama's feed-forward block takes `H` features to `F` hidden ones, column-parallel, and back again, row-parallel.

# %% nbgrader={"grade": false, "grade_id": "05-1-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
shapes = given("05.1", GRADE_SEED)
print(f"H = {shapes.H}, F = {shapes.F}")
print(f"{shapes.heads} query heads and {shapes.kv} kv heads of {shapes.head} numbers")
print(f"p = {shapes.p} ranks, of which you are rank {shapes.rank}; in the last two rows p = {shapes.many}")
print(f"a small MLP: {shapes.ins} inputs, {shapes.hidden} hidden, {shapes.outs} outputs")

# %% [markdown]
# The small MLP has four tensors: `layer1.weight` (hidden, inputs), `layer1.bias` (hidden), `layer2.weight` (outputs, hidden) and
# `layer2.bias` (outputs). `layer1` is column-parallel, `layer2` row-parallel. In attention the queries, keys and values are column-parallel by whole heads, and `o` after
# them is row-parallel.
#
# | name | number to give |
# | --- | --- |
# | `column_rows`, `column_columns` | rows and columns of `weight` that a rank has of `nn.Linear(H, F)`, column-parallel |
# | `column_first_row` | which row of the whole `weight` comes first on your rank, counted from 0 |
# | `row_rows`, `row_columns` | rows and columns that a rank has of `nn.Linear(F, H)`, row-parallel |
# | `mlp_per_rank` | parameters of the MLP on each of 2 ranks |
# | `mlp_on_four` | the same on each of 4 ranks |
# | `mlp_twice` | parameters that both of 2 ranks have |
# | `q_rows`, `k_rows` | rows of the queries' and of the keys' `weight` on a rank |
# | `o_columns` | columns of the `weight` of `o` on a rank |
# | `k_rows_on_many` | rows of the keys' `weight` with more ranks than kv heads: heads are copied, not cut |
# | `ranks_with_the_first_kv_head` | ranks that have kv head 0 then |

# %%
# hint("05.1")

# %% nbgrader={"grade": false, "grade_id": "05-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
H, F_width, heads, kv_heads, head_size, p, rank, many, ins, hidden, outs = shapes
### BEGIN SOLUTION
column_rows = F_width // p
column_columns = H
column_first_row = rank * (F_width // p)
row_rows = H
row_columns = F_width // p
mlp_per_rank = (ins + 1 + outs) * hidden // 2 + outs
mlp_on_four = (ins + 1 + outs) * hidden // 4 + outs
mlp_twice = outs
q_rows = heads // p * head_size
k_rows = kv_heads // p * head_size
o_columns = q_rows
k_rows_on_many = head_size
ranks_with_the_first_kv_head = many // kv_heads
### END SOLUTION
parts = ...
check("05.1", parts, seed=GRADE_SEED)

# %% [markdown]
# ## 05.2
#
# *Write · easy · core · 15 minutes.* **You learn** that cutting a matrix by its outputs costs nothing on the way forward, and what it costs on the way back.
#
# Every rank has all of `x`, some rows of `weight`, and the numbers of `bias` that belong to these rows. So it computes some of the
# outputs, and it need not ask anybody. Backward starts from the gradient of these outputs:
#
# ```text
#             has                  computes            backward starts from
# rank 0      x   W0   b0          y0 = x W0ᵀ + b0      gradient of y0
# rank 1      x   W1   b1          y1 = x W1ᵀ + b1      gradient of y1
# ```
#
# Now look at `x`. It went into both products, so the loss depends on it in two ways, and each rank knows only one of them.
#
# **Target:** this rank's outputs, the gradients of its weight and bias, and the gradient of `x`, which is whole on every rank. One
# all-reduce, and three matrix products, each of this rank's share alone. `comm.all_reduce(t)` returns the sum of all ranks' `t`.


# %%
# hint("05.2")


# %% nbgrader={"grade": false, "grade_id": "05-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def column_parallel(x, weight, bias, gradient):
    """Return four tensors: the output, and the gradients of weight, bias and x.

    x: (rows, in). weight: (out/p, in), bias: (out/p), this rank's.
    gradient: (rows, out/p), that of this rank's outputs.
    """
    ### BEGIN SOLUTION
    y = x @ weight.T + bias
    x_gradient = comm.all_reduce(gradient @ weight)
    return y, gradient.T @ x, gradient.sum(0), x_gradient
    ### END SOLUTION


check("05.2", column_parallel)

# %% [markdown]
# ## 05.3
#
# *Write · easy · core · 15 minutes.* **You learn** what a cut by inputs leaves on each rank, and where a bias belongs.
#
# Now every rank has some *features* of `x` and the columns of `weight` that go with them. A product sums over features, so each rank has
# a term of every output:
#
# ```text
#             has              computes
# rank 0      x0   W0          x0 W0ᵀ  ──┐
# rank 1      x1   W1          x1 W1ᵀ  ──┴─ sum ──► + b ──► y, on both ranks
# ```
#
# Whatever comes after `y` is the same on every rank. So backward starts on every rank from the same gradient, that of the whole `y`.
#
# **Target:** the whole output on every rank, and the gradients of this rank's columns, of the bias, and of this rank's features of `x`.
# One all-reduce in all, and three matrix products, each of this rank's share alone.


# %%
# hint("05.3")


# %% nbgrader={"grade": false, "grade_id": "05-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def row_parallel(x, weight, bias, gradient):
    """Return four tensors: the output, and the gradients of weight, bias and x.

    x: (rows, in/p), this rank's features. weight: (out, in/p), this rank's. bias: (out).
    gradient: (rows, out), the output's.
    """
    ### BEGIN SOLUTION
    y = comm.all_reduce(x @ weight.T) + bias
    return y, gradient.T @ x, gradient.sum(0), gradient @ weight
    ### END SOLUTION


check("05.3", row_parallel)

# %% [markdown]
# ## 05.4
#
# *Write · medium · core · 25 minutes.* **You learn** why two matrices need one sum and not two, and what a GELU between them has to do with it.
#
# A feed-forward block is `y = gelu(x w1ᵀ + b1) w2ᵀ + b2`. Here every rank is given the *whole* weights, and you decide how to cut them.
# There are two ways to cut `w1`, and only one of them lets a rank go on alone. Think of a single hidden number: what does GELU need?
#
# Nobody wants to differentiate a GELU by hand, and nobody has to. What a rank does alone, autograd can take back:
#
# ```text
# leaves = ...requires_grad_()               this rank's parts, and x
# term   = ...                               this rank's term of the output
# torch.autograd.grad(term, leaves, gradient)
# ```
#
# Autograd does not see through `comm.all_reduce`, so the sums are yours.

# %% [markdown]
# **Target:** the output of one device on every rank. One all-reduce forward and one backward, and each rank
# does only a p-th of the multiplications. The gradients of `w1`, `b1` and `w2` are those of this rank's part; those of `b2` and `x` are whole.


# %%
# hint("05.4")


# %% nbgrader={"grade": false, "grade_id": "05-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def feed_forward(x, w1, b1, w2, b2, gradient):
    """Return six tensors: the output, and the gradients of w1, b1, w2 (this rank's parts), b2 and x.

    x: (rows, in). w1: (hidden, in), b1: (hidden), w2: (in, hidden), b2: (in), all whole.
    gradient: (rows, in), the output's.
    """
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(), dist.get_world_size()
    parts = x, w1.tensor_split(p)[rank], b1.tensor_split(p)[rank], w2.tensor_split(p, 1)[rank]
    leaves = [part.clone().requires_grad_() for part in parts]
    mine, rows, bias, columns = leaves
    term = F.gelu(F.linear(mine, rows, bias)) @ columns.T
    y = comm.all_reduce(term) + b2
    x_term, w1_gradient, b1_gradient, w2_gradient = torch.autograd.grad(term, leaves, gradient)
    return y, w1_gradient, b1_gradient, w2_gradient, gradient.sum(0), comm.all_reduce(x_term)
    ### END SOLUTION


check("05.4", feed_forward)

# %% [markdown]
# ## 05.5
#
# *Write · medium · useful · 30 minutes.* **You learn** to compute a softmax of numbers that nobody has in one place.
#
# The head of a language model is cut by its outputs, so each rank has the logits of some words. Gathering them is the obvious thing to
# do, and it is expensive: a row of the whole vocabulary for each token. But look at what a loss really needs of all these logits:
#
# ```text
# loss of a position  =  log( sum over all words of exp(logit) )  −  logit of the target
# ```
#
# That is a sum over words, and one number. For two words on two ranks, with logits 2 and 3 and the second one as target, rank 0 gives
# exp(2) and 0, rank 1 gives exp(3) and 3. Two sums, and each rank knows the loss.

# %% [markdown]
# One thing is missing. Logits of 1000 are rare but they happen, and exp(1000) is `inf`. On one device you subtract the largest logit of a
# position from all of them, and the loss stays the same. Here no rank knows which one is the largest.
# `comm.all_reduce(t, op=dist.ReduceOp.MAX)` takes the maximum over the ranks, number by number.
#
# **Target:** the loss of each target, equal on all ranks, and the gradient of the *mean* loss for this rank's logits. Three numbers
# for each position travel, in at most three all-reduces, and nothing else.


# %%
# hint("05.5")


# %% nbgrader={"grade": false, "grade_id": "05-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def loss_of_parts(logits, targets, first):
    """Return two tensors: the losses (B, S), and the gradient of their mean with respect to `logits`
    (B, S, V/p).

    logits: (B, S, V/p), those of the words first, first + 1, ...
    targets: (B, S), words of the whole vocabulary.
    """
    ### BEGIN SOLUTION
    width = logits.shape[-1]
    largest = comm.all_reduce(logits.amax(-1), op=dist.ReduceOp.MAX)
    shifted = logits - largest.unsqueeze(-1)
    powers = shifted.exp()
    total = comm.all_reduce(powers.sum(-1))
    mine = (targets >= first) & (targets < first + width)
    place = (targets - first).where(mine, 0).unsqueeze(-1)
    target_logit = comm.all_reduce(shifted.gather(-1, place).squeeze(-1) * mine)
    hot = torch.zeros_like(logits).scatter_(-1, place, mine.to(logits.dtype).unsqueeze(-1))
    return total.log() - target_logit, (powers / total.unsqueeze(-1) - hot) / targets.numel()
    ### END SOLUTION


check("05.5", loss_of_parts)

# %% [markdown]
# ## 05.6
#
# *Write · medium · extra · 25 minutes.* **You learn** what happens to a head of keys when there are more ranks than heads.
#
# Query heads are cut evenly: rank 0 has the first ones, and so on. Several neighbouring query heads ask the same head of keys and values,
# so a rank needs the kv heads that its own queries ask. With 8 query heads and 2 kv heads on 4 ranks:
#
# ```text
#               rank 0      rank 1      rank 2      rank 3
# queries        0  1        2  3        4  5        6  7
# kv head         0           0           1           1
# ```
#
# Kv head 0 lies on two ranks now. It has to stay one head, or the ranks train two models. But each copy is asked by its own
# queries alone, so backward leaves a *term* of its gradient on each of the two ranks.

# %% [markdown]
# There is one more place where a copy can go wrong. Clipping needs the norm of all gradients as one long vector, and a head that lies
# on two ranks must not be counted twice there.
#
# `group` is the group of the ranks that have the same kv heads as this one: `comm.all_reduce(t, group=group)` adds up among them,
# `comm.all_reduce(t)` over all ranks.
#
# **Target:** the heads of this rank, the gradient of its kv heads, and the norm of the gradients of all kv heads. One all-reduce in the
# group, and one of a single number over all ranks.


# %%
# hint("05.6")


# %% nbgrader={"grade": false, "grade_id": "05-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def share_heads(n_heads, n_kv_heads, gradient, group):
    """Return four things: this rank's query heads and its kv heads (lists),
    the gradient of these kv heads, and the norm, as a number or a tensor.

    gradient: (kv heads of this rank, numbers of a head), from this rank's queries.
    p, the number of ranks, divides n_heads, and either p divides n_kv_heads or n_kv_heads divides p.
    """
    ### BEGIN SOLUTION
    rank, p = dist.get_rank(), dist.get_world_size()
    mine, each, copies = n_heads // p, max(1, n_kv_heads // p), max(1, p // n_kv_heads)
    queries = list(range(rank * mine, (rank + 1) * mine))
    first = rank // copies * each
    keys = list(range(first, first + each))
    whole = comm.all_reduce(gradient, group=group)
    squares = comm.all_reduce(whole.square().sum() / copies)
    return queries, keys, whole, squares.sqrt()
    ### END SOLUTION


check("05.6", share_heads)

# %% [markdown]
# ## 05.7
#
# *Write · hard · useful · 50 minutes.* **You learn** to save memory between the matrices and send hardly a byte more.
#
# Between two blocks every rank has the same activations, and every rank normalises all of them. That is wasted memory and wasted work.
# But an all-reduce is a reduce-scatter and then an all-gather. What if we stop after the first half? Each rank has some *positions*
# then, and normalises these. We gather only where a matrix needs all of them:
#
# ```text
#                positions  │      features      │  positions
# x ──► norm ──► all-gather │ w1 ── GELU ── w2   │ reduce-scatter ──► + x ──► y
# ```

# %% [markdown]
# The block is `y = x + gelu(norm(x) w1ᵀ) w2ᵀ`, and the norm is `F.rms_norm(x, gain.shape, gain, 1e-5)`. There are two pieces that a rank
# does alone, and autograd can take both back: from `x` to the norm's output, and from the gathered input to this rank's term of the
# output. Between the pieces backward goes the way that you came, and each collective turns into its partner. Then look at `gain`. Every
# rank has it whole, but which positions has it seen there?
#
# | call | does |
# | --- | --- |
# | `comm.all_gather(part, length=length)` | puts the ranks' rows together, `length` in all |
# | `comm.reduce_scatter(term)` | adds up over the ranks, and returns this rank's rows of the sum |
#
# **Target:** this rank's positions of the output and of the gradient of `x`, the gradients of its parts of `w1` and `w2`, and the whole
# gradient of `gain`. Two all-gathers and two reduce-scatters of activations, together the bytes of two all-reduces, and one all-reduce
# of `gain`'s gradient. A rank normalises its own S/p positions and no others.


# %%
# hint("05.7")


# %% nbgrader={"grade": false, "grade_id": "05-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def spread_block(x, gain, w1, w2, gradient, length):
    """Return five tensors: the output, and the gradients of gain, w1, w2 and x.

    x, gradient: (S/p, H), this rank's positions of the input and of the output's gradient; length: S.
    gain: (H). w1: (F/p, H), w2: (H, F/p), this rank's.
    """
    ### BEGIN SOLUTION
    x, gain, w1, w2 = (each.clone().requires_grad_() for each in (x, gain, w1, w2))
    normed = F.rms_norm(x, gain.shape, gain, 1e-5)
    whole = comm.all_gather(normed, length=length).requires_grad_()
    term = F.gelu(whole @ w1.T) @ w2.T
    y = x.detach() + comm.reduce_scatter(term)
    of_sum = comm.all_gather(gradient, length=length)
    whole_term, w1_gradient, w2_gradient = torch.autograd.grad(term, (whole, w1, w2), of_sum)
    x_gradient, gain_term = torch.autograd.grad(normed, (x, gain), comm.reduce_scatter(whole_term))
    return y, comm.all_reduce(gain_term), w1_gradient, w2_gradient, x_gradient + gradient
    ### END SOLUTION


check("05.7", spread_block)

# %% [markdown]
# ## 05.8
#
# *Predict · medium · core · 20 minutes.* **You learn** what a step costs before you run one, and which of its collectives is easily overlooked.
#
# A Llama of the 8B's shape trains on one sequence of `S` tokens with tensor parallelism on `p` ranks. Activations are bf16, two bytes
# each, and the loss is computed from fp32 logits, four bytes each. All collectives are rings.

# %% nbgrader={"grade": false, "grade_id": "05-8-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
stack = given("05.8", GRADE_SEED)
print(f"p = {stack.p} ranks, L = {stack.L} layers, S = {stack.S} tokens")
print(f"H = {stack.H} features, V = {stack.V} words")

# %% [markdown]
# With *sequence parallelism* each rank has some positions between the blocks, as in 05.7. It comes in two forms. One keeps a block's
# gathered input until backward, because the weights' gradients need it. The other keeps only this rank's positions, and gathers them
# once more in backward.
#
# | name | number to give, for forward and backward of one step |
# | --- | --- |
# | `calls` | all-reduces of all layers together, without embedding, head and loss |
# | `layer_sends` | bytes that each rank sends for one layer |
# | `loss_numbers` | how many numbers the loss adds up or compares over the ranks, for all S tokens |
# | `gather_sends` | bytes that each rank would send in forward if the fp32 logits were gathered on all ranks instead; backward would send none for it |
# | `spread_calls` | sequence parallelism, input kept: collectives of all layers together, without the norms' gradients |
# | `spread_sends` | the same: bytes that each rank sends for one layer |
# | `regather_sends` | sequence parallelism, input gathered again: bytes that each rank sends for one layer |
# | `norm_numbers` | numbers of the norms' gradients, which sequence parallelism adds up over the ranks |

# %%
# hint("05.8")

# %% nbgrader={"grade": false, "grade_id": "05-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
p, L, S, H, V = stack
### BEGIN SOLUTION
calls = 4 * L
layer_sends = 4 * 2 * (p - 1) / p * 2 * S * H
loss_numbers = 3 * S
gather_sends = (p - 1) / p * 4 * S * V
spread_calls = 2 * calls
spread_sends = layer_sends
regather_sends = spread_sends + 2 * (p - 1) / p * 2 * S * H
norm_numbers = (2 * L + 1) * H
### END SOLUTION
step = ...
check("05.8", step, seed=GRADE_SEED)

# %% [markdown]
# ## 05.9
#
# *Find the bug · medium · useful · 25 minutes.* **You learn** to go on climbing after the first repair.
#
# A block of a Llama begins with a norm, which every rank has whole. So here the 6-4-2 MLP has a norm in front of it. `Suspect` is its
# tensor-parallel version, written from memory. The course's `tensor()` has cut the weights of the two layers. It has also hung f and g on
# the layers themselves, so a call of `layer1(x)` or `layer2(x)` would talk to the other ranks. `forward` calls neither: it computes with
# their parts, by `F.linear`. Two operators do the talking, the lesson's f and g, and autograd knows both of them:
#
# | call | forward | backward |
# | --- | --- | --- |
# | `copy_to_region(x)`, which is f | nothing | all-reduce of the gradient |
# | `reduce_from_region(x)`, which is g | all-reduce | nothing |


# %% nbgrader={"grade": false, "grade_id": "suspect", "locked": true, "schema_version": 3, "solution": false, "task": false}
from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.tensors.conjugate import Operators
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.step import count_targets
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer


class Normed(MLP):
    def __init__(self):
        super().__init__(gelu=True)
        self.norm = torch.nn.RMSNorm(6)

    def forward(self, x):
        return super().forward(self.norm(x))


class Suspect(Trainer):
    def __init__(self, model, config):
        mesh = make_mesh(tp=dist.get_world_size())
        super().__init__(model, config, mesh=mesh, apply=(tensor(),))
        self.operators = Operators(group=mesh.get_group("tp"))
        self.model.forward = self.forward

    def forward(self, x):
        layer1, layer2 = self.model.layer1, self.model.layer2
        x = self.model.norm(self.operators.copy_to_region(x))
        hidden = F.gelu(F.linear(x, layer1.weight, layer1.bias))
        return self.operators.reduce_from_region(F.linear(hidden, layer2.weight, layer2.bias))


# %% [markdown]
# Its biases start at zero, as those of many models do. Train with AdamW on 4 ranks and on one device:


# %%
from course_lib.ranks import run_ranks
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals


def perceptron(biased=False):
    model = Normed()
    if not biased:
        torch.nn.init.zeros_(model.layer1.bias)
        torch.nn.init.zeros_(model.layer2.bias)
    return model


def task(number):
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def adamw_losses(trainer_class):
    torch.manual_seed(0)
    trainer = trainer_class(perceptron(), TrainConfig(optimizer="adamw", learning_rate=0.02))
    return [trainer.step(task(number)) for number in range(60)]


one_device, on_ranks = adamw_losses(Trainer), run_ranks(adamw_losses, 4, Suspect)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   suspect {on_ranks[at - 1]:.3f}")

# %% [markdown]
# In the first step the losses agree to every printed digit, and afterwards the suspect learns as well as one device. From the curve alone you
# would let it run. So climb the ladder with `climb(Suspect)`. What the ladder says first is what it *saw*, on which rung and in which
# step. What it says at the end is a guess: a place to look at, and sometimes the wrong one.
#
# Mend what you find in `Repaired` below. Then climb again with `climb(Repaired)`, and do not stop before every rung holds. These help you
# to look closer:
#
# | call | does |
# | --- | --- |
# | `climb(Repaired, rungs=RUNGS[:4], steps=1)` | climbs the first four rungs alone, and trains a single step |
# | `climb(Repaired, biased=True)` | lets the biases start from other numbers than zero |
# | `outputs(Repaired)` | prints these biases, and returns two outputs that have them: yours on 4 ranks first, then one device's |


# %%
def climb(trainer_class, biased=False, rungs=RUNGS, steps=3):
    def make(kind):
        return lambda config: kind(perceptron(biased), config)

    try:
        one, several = make(Trainer), make(trainer_class)
        print(assert_parallel_equals(one, several, task, world_size=4, rungs=rungs, steps=steps))
    except NotEqual as error:
        print(error)


def outputs(trainer_class):
    def output(kind):
        torch.manual_seed(0)
        return kind(perceptron(biased=True), TrainConfig()).output(task(0)[0])

    torch.manual_seed(0)
    model = perceptron(biased=True)
    print("layer1.bias:", model.layer1.bias.tolist())
    print("layer2.bias:", model.layer2.bias.tolist())
    return run_ranks(output, 4, trainer_class)[0], output(Trainer)


# %% [markdown]
# Write `forward` again without the bugs, with the parts and the two operators, and write down what you found on the way.
#
# **Target:** the gradients and the loss of one device in every step, for any number of ranks. The gradient of `x` counts as well: a layer
# before the norm would learn from it.


# %%
# hint("05.9")


# %% nbgrader={"grade": false, "grade_id": "05-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Suspect):
    def diagnosis(self):
        """Return two things: the name of the rung that fails with biases of zero once the first bug is
        mended, and how many extra times one parameter is added into the suspect's output on 4 ranks,
        with biases.
        """
        ### BEGIN SOLUTION
        return "parameters", 3.0
        ### END SOLUTION

    def forward(self, x):
        """Return the whole output on every rank."""
        ### BEGIN SOLUTION
        layer1, layer2 = self.model.layer1, self.model.layer2
        x = self.operators.copy_to_region(self.model.norm(x))
        hidden = F.gelu(F.linear(x, layer1.weight, layer1.bias))
        return self.operators.reduce_from_region(F.linear(hidden, layer2.weight)) + layer2.bias
        ### END SOLUTION


check("05.9", Repaired)

# %% [markdown]
# ## 05.10
#
# *Find the bug · hard · extra · 45 minutes.* **You learn** what becomes of a model whose ranks agree on the loss and not on the weights.
#
# `Spread` trains a small Llama with sequence parallelism, so between the blocks each rank has some positions. The course's
# `tensor(sequence_parallel="keep")` has cut the model. `self.engine.ends` computes the loss of the
# logits, which are cut. `ends.told(inputs)` tells the blocks how long the whole sequence is, because no rank can see that from its own
# positions. The training step is written anew:


# %% nbgrader={"grade": false, "grade_id": "suspect-spread", "locked": true, "schema_version": 3, "solution": false, "task": false}
class Spread(Trainer):
    def __init__(self, model, config):
        mesh = make_mesh(tp=dist.get_world_size())
        super().__init__(model, config, mesh=mesh, apply=(tensor(sequence_parallel="keep"),))

    def compute_gradients(self, batch):
        inputs, targets = batch
        ends = self.engine.ends
        ends.told(inputs)
        loss = ends.loss(self.model(inputs), targets) / count_targets(batch)
        loss.backward()
        return loss.item()


# %%
small_llama = ModelConfig(
    name="small",
    hidden_size=8,
    n_layers=2,
    n_heads=4,
    n_kv_heads=4,
    ffn_size=12,
    vocab_size=20,
    tied=False,
)


def sequences(number):
    tokens = torch.randint(20, (4, 1), generator=torch.Generator().manual_seed(number)) + 3 * torch.arange(
        9
    )
    return tokens[:, :-1] % 20, tokens[:, 1:] % 20


def train(trainer_class):
    torch.manual_seed(0)
    trainer = trainer_class(Decoder(small_llama), TrainConfig(optimizer="adamw", learning_rate=0.02))
    losses = [trainer.step(sequences(number)) for number in range(60)]
    return losses, trainer.local.parameters["norm.weight"].detach()


def compare(trainer_class):
    (alone, _), ranks = train(Trainer), run_ranks(train, 2, trainer_class)
    for at in (1, 20, 40, 60):
        print(f"step {at:2}   one device {alone[at - 1]:.3f}   two ranks {ranks[0][0][at - 1]:.3f}")
    print(
        "largest difference of the last norm on the two ranks: "
        f"{(ranks[0][1] - ranks[1][1]).abs().max():.2f}"
    )


compare(Spread)

# %% [markdown]
# Both loss curves look good. But look at the last line. Every rank has the whole of this norm, and the ranks' norms are no longer
# alike: a checkpoint would save rank 0's, and lose what rank 1 has learnt.
#
# `climb_llama(Spread)` says on which rung this begins, and names one gradient. It is not the only one. `gradients_of(Spread, 2)` returns
# all of them by name, whole, as rank 0 sees them, and `gradients_of(Trainer, 1)` those of one device.


# %%
def climb_llama(trainer_class, world_size=2):
    def make(kind):
        return lambda config: kind(Decoder(small_llama), config)

    try:
        print(assert_parallel_equals(make(Trainer), make(trainer_class), sequences, world_size=world_size))
    except NotEqual as error:
        print(error)


def gradients_of(trainer_class, world_size):
    def gradients():
        torch.manual_seed(0)
        trainer = trainer_class(Decoder(small_llama), TrainConfig())
        trainer.compute_gradients(sequences(0))
        return trainer.gradients()

    return run_ranks(gradients, world_size)[0] if trainer_class is not Trainer else gradients()


# %% [markdown]
# Write down what you found, and write `compute_gradients` again without the bug. These belong to a trainer:
#
# | name | what it is |
# | --- | --- |
# | `self.local.parameters` | this rank's parts of the parameters, by name |
# | `self.shapes()` | the shapes of the whole parameters, by name |
#
# The course's own `Trainer.compute_gradients` would do it, but here you write the sum yourself, with `comm`, after
# `super().compute_gradients(batch)`. Each message costs a latency, so one long vector is cheaper than many short ones. The check trains two
# Llamas on 2 and 3 ranks. One has six heads of keys and values, which are cut. The other has a single one, which every rank has then.
#
# **Target:** the gradients and the loss of one device on every rank, with one all-reduce more in a step than `Spread` makes, however many
# gradients are wrong. Afterwards `compare(Gathered)` shows whether the ranks' norms stay alike.


# %%
# hint("05.10")


# %% nbgrader={"grade": false, "grade_id": "05-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Gathered(Spread):
    def diagnosis(self):
        """Return two things: the name of the first rung that fails,
        and how many of the parameters have a wrong gradient.
        """
        ### BEGIN SOLUTION
        return "gradients", 5
        ### END SOLUTION

    def compute_gradients(self, batch):
        """Leave the gradients of this rank's parts in `.grad`, and return the loss, as a number."""
        ### BEGIN SOLUTION
        loss = super().compute_gradients(batch)
        whole = self.shapes()
        terms = [p.grad for name, p in self.local.parameters.items() if p.shape == whole[name]]
        total = comm.all_reduce(torch.cat([term.flatten() for term in terms]))
        for term, part in zip(terms, total.split([term.numel() for term in terms]), strict=True):
            term.copy_(part.view_as(term))
        return loss
        ### END SOLUTION


check("05.10", Gathered)

# %% [markdown]
# ## 05.11
#
# *Own file · hard · core · 45 minutes.* **You learn** to plan tensor parallelism for a whole model, and to see in its messages whether the plan is good.
#
# With `parallelize_module` you no longer write sums. You write a plan: which layer is cut how, and what it gets and gives. PyTorch adds
# whatever communication makes the plan right, so a poor plan works too. It is only slow. Write a script for `torchrun` that trains the
# small Llama below, with a plan that sends no message which it could spare.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which the training starts, whole |
# | `batches` | for each step a batch of tokens, (2, 9): the first eight are read, the last eight are to be guessed |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
#
# Every rank has the same batch. The loss is the mean of the cross-entropy over all 16 positions. At the end, rank 0 saves the model's state
# dict as `answer.pt` in the same folder, whole, with plain tensors and the names of `weights`.

# %% [markdown]
# **Target:** the weights of one device, with SGD and with AdamW. All weights but the norms are cut, the embedding and the head along the
# words (there are 42, which 4 does not divide; `DTensor` sees to that). And of messages:
#
# - Between two blocks every rank has all positions. Of all-reduces of this size, a step has one for the embedding, two for each
#   block in forward, two for each block in backward, and one for the head in backward.
# - The logits are never put together. `loss_parallel` needs three sums of one number for each position; four are allowed.
# - Nothing else travels in a step. Weights are gathered at the end, once.
#
# To start it yourself, run `save_script("05.11", planned_loop)`. [The script of lesson 05](../../notebooks/scripts/05_tensor_parallel.py) has
# a plan too, for sequence parallelism, so yours will be another one.

# %% nbgrader={"grade": false, "grade_id": "05-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
planned_loop = """
import sys

import torch
import torch.distributed as dist
import torch.distributed.tensor.parallel as tp
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

WORDS, WIDTH, INNER, HEADS, LAYERS = 42, 12, 20, 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        read = self.q(x), self.k(x), self.v(x)
        q, k, v = (one.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in read)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(seen.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.RMSNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = Model().double()
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    mesh = dist.init_device_mesh("cpu", (ranks,))
    once = tp.PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    plan = {"attention": once, "mlp": once}
    plan |= dict.fromkeys(("attention.[qkv]", "mlp.gate", "mlp.up"), tp.ColwiseParallel())
    plan |= dict.fromkeys(("attention.o", "mlp.down"), tp.RowwiseParallel())
    for block in model.blocks:
        tp.parallelize_module(block, mesh, plan)
    logits = tp.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    ends = {"embedding": tp.RowwiseParallel(input_layouts=Replicate()), "head": logits}
    tp.parallelize_module(model, mesh, ends)
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    for tokens in task["batches"]:
        with tp.loss_parallel():
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    whole = {}
    for name, one in model.state_dict().items():
        whole[name] = one.full_tensor() if hasattr(one, "full_tensor") else one
    if rank == 0:
        torch.save(whole, f"{folder}/answer.pt")
    dist.barrier()
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("05.11", planned_loop)
# hint("05.11")

# %% [markdown]
# ## 05.12
#
# *Own file · hard · useful · 45 minutes.* **You learn** to cut attention when there are fewer heads of keys than ranks.
#
# Most Llamas have many heads of queries and few of keys and values: head h of the queries reads head h // (heads / kv_heads) of the keys.
# Cut such a block over 4 ranks, and with 2 heads of keys each of them is needed on two ranks. Both have a copy, and both copies must stay
# the same. Write the block and its backward in plain PyTorch, without `DTensor`.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `x`, `gradient` | the input, and the gradient of the output: both whole, (2, 5, 10), alike on every rank |
# | `heads`, `kv_heads`, `dim` | heads of queries, heads of keys and of values, and the numbers of a head |
# | `weights` | whole: `norm` (10), `q` (heads · dim, 10), `k` and `v` (kv_heads · dim, 10), `o` (10, heads · dim) |
#
# On one device the block is this, with q, k and v cut into heads, and each position seeing itself and what stands before it:
#
# ```python
# read = F.rms_norm(x, (10,), norm)
# q, k, v = read @ q.T, read @ k.T, read @ v.T
# output = x + attention(q, k, v) @ o.T  # scores are divided by the root of dim
# ```

# %% [markdown]
# Rank r holds part r of the heads of queries, so of `q` the rows and of `o` the columns that belong to them. Of `k` and `v` it holds the
# rows of the heads that its queries read, and `norm` whole. Each rank saves a dict as `answer-0.pt`, `answer-1.pt` and so on: under `output` the whole output, and
# under `gradients` a dict with those of `x`, `norm`, `q`, `k`, `v` and `o`. Of a weight it is the gradient of the part that this rank holds,
# as one device has it, also if other ranks hold the same part.
#
# **Target:** one all-reduce as large as `x` in forward and one in backward. Where heads of keys are on several ranks, these ranks, and only these, add
# up their gradients after backward, each number once. Nothing else travels.
#
# To start it yourself, run `save_script("05.12", attention_block)`.

# %% nbgrader={"grade": false, "grade_id": "05-12", "locked": false, "schema_version": 3, "solution": true, "task": false}
attention_block = """
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    x, weights = task["x"].requires_grad_(), task["weights"]
    heads, kv_heads, dim = task["heads"], task["kv_heads"], task["dim"]
    ### BEGIN SOLUTION
    own, group = heads // ranks, heads // kv_heads
    mine = slice(rank * own * dim, (rank + 1) * own * dim)
    first, last = rank * own // group, ((rank + 1) * own - 1) // group
    read_by_mine = slice(first * dim, (last + 1) * dim)
    parts = {name: weights[name][read_by_mine] for name in "kv"}
    parts |= {"norm": weights["norm"], "q": weights["q"][mine], "o": weights["o"][:, mine]}
    parts = {name: one.clone().requires_grad_() for name, one in parts.items()}

    read = Enter.apply(F.rms_norm(x, x.shape[-1:], parts["norm"]))
    q, k, v = ((read @ parts[name].T).unflatten(-1, (-1, dim)).transpose(1, 2) for name in "qkv")
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    output = x + Leave.apply(seen.transpose(1, 2).flatten(2) @ parts["o"].T)
    output.backward(task["gradient"])

    gradients = {name: one.grad for name, one in parts.items()} | {"x": x.grad}
    if kv_heads < ranks:
        several = ranks // kv_heads
        groups = [dist.new_group(range(at, at + several)) for at in range(0, ranks, several)]
        both = torch.stack([gradients["k"], gradients["v"]])
        dist.all_reduce(both, group=groups[rank // several])
        gradients["k"], gradients["v"] = both
    torch.save({"output": output.detach(), "gradients": gradients}, f"{folder}/answer-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient
    ### END SOLUTION


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("05.12", attention_block)
# hint("05.12")

# %% [markdown]
# ## Where this leads
#
# You have written both linear maps, the block between them, the loss, and the care for what lies on several ranks: that is all of tensor
# parallelism. Its sums stand in the middle of every layer, so it wants the fastest links that there are. [Lesson 06](../../notebooks/06_zero_and_fsdp.ipynb) goes another way and
# leaves the layers whole: it cuts Adam's states first.
