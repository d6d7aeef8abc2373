# %% [markdown]
# # Exercises 07: FSDP × TP
#
# [Lesson 07](../../notebooks/07_fsdp_tp_2d_llama.ipynb) sent two cuts through one Llama. Here you say for any rank whom it talks to and what
# it holds, choose both degrees, and hunt three bugs, one of which was released. At the end you write two scripts with PyTorch's own
# mesh and checkpoints. If you have one hour, do 07.1, 07.3 and 07.7.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("07.1", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with the layout that the course trains by. Then it tells you what it has seen.
# A hang, a crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("07.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
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
import torch

from course_lib import comm
from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 07.1
#
# *Write · easy · core · 15 minutes.* **You learn** with whom each rank of a mesh talks, and who of them is far away.
#
# Six ranks stand in a mesh of three by two. The ranks of a row read the same sequence, and tensor parallelism cuts the matrices between
# them. The ranks of a column share by FSDP what is left of the weights:
#
# ```text
#          tp 0   tp 1
# dp 0        0      1
# dp 1        2      3
# dp 2        4      5
# ```
#
# So rank 3 adds up activations with rank 2, and gathers weights with ranks 1 and 5. If four GPUs are in a node, rank 2 is next to it,
# and rank 5 sits elsewhere.

# %% [markdown]
# **Target:** both groups of a rank, itself among them, from the smallest number to the largest, and how many of either group sit in another
# node. So `groups(3, 3, 2, 4)` is `[2, 3], [1, 3, 5], [0, 1]`. Nodes are filled one after the other; the last one may have free places.


# %% nbgrader={"grade": false, "grade_id": "07-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def groups(rank, dp, tp, per_node):
    """Return three lists: the ranks of its tp group, those of its dp group,
    and for either group how many are in other nodes.

    rank: one of dp * tp. per_node: GPUs in a node, one for each rank.
    """
    ### BEGIN SOLUTION
    i, j = divmod(rank, tp)
    along_tp = [i * tp + other for other in range(tp)]
    along_dp = [other * tp + j for other in range(dp)]
    away = [
        sum(other // per_node != rank // per_node for other in group) for group in (along_tp, along_dp)
    ]
    return along_tp, along_dp, away
    ### END SOLUTION


check("07.1", groups)
# hint("07.1")

# %% [markdown]
# ## 07.2
#
# *Predict · medium · useful · 30 minutes.* **You learn** to say before you buy a GPU how long a sequence it will train on.
#
# You have dp × tp GPUs, and a Llama. Weights, gradients and Adam's numbers are the states, which we count as always there. They take sixteen bytes for each number
# of the model, and both axes cut them. Only the norms are whole on every rank along tp, since they are small. While a unit computes, it is
# gathered along dp in bf16. The largest one is the root, of which we count embedding and head. The rest of the memory is for activations.

# %% nbgrader={"grade": false, "grade_id": "07-2-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
gpu = given("07.2", GRADE_SEED)
print(f"numbers: {gpu.matrices:,} in matrices, {gpu.norms:,} in norms")
print(f"of the matrices, {gpu.root:,} are in embedding and head")
print(
    f"bytes of a token: {gpu.inside:,} inside the blocks, "
    f"{gpu.between:,} between them, {gpu.everywhere:,} on every rank"
)
print(f"dp = {gpu.dp}, tp = {gpu.tp}; a sequence of S = {gpu.S} tokens; GPUs of {gpu.budget} GB")

# %% [markdown]
# The activations of a token are of three kinds, and above stand the bytes of all layers together. What lies inside the blocks is cut among
# the ranks along tp. What lies between the blocks is whole on each of them, unless *sequence parallelism* cuts it too. And a little is
# whole on every rank in any case. Add up as if everything were there at the same instant. Like the
# bars of lesson 07 this counts the model's own numbers alone, so a real trainer needs some room beside them, which `plan` adds.
#
# | name | number to give, for one GPU; GB are of 10⁹ bytes |
# | --- | --- |
# | `states_gb` | GB of states |
# | `unit_gb` | GB of the root while it is gathered |
# | `plain_gb` | GB of activations of a sequence, without sequence parallelism |
# | `sequence_gb` | the same with sequence parallelism |
# | `longest_fsdp` | the most tokens of a sequence with FSDP alone on the same GPUs, that is dp · tp along dp and 1 along tp |
# | `longest_plain` | the most tokens on dp × tp without sequence parallelism |
# | `longest` | the most tokens with sequence parallelism, a multiple of tp |
#
# Let Python compute: answers are compared to 7 digits.

# %% nbgrader={"grade": false, "grade_id": "07-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
matrices, norms, root, inside, between, everywhere, dp, tp, S, budget = gpu
### BEGIN SOLUTION
states_gb = 16 * (matrices / tp + norms) / dp / 1e9
unit_gb = 2 * root / tp / 1e9
plain_gb = S * (inside / tp + between + everywhere) / 1e9
sequence_gb = S * ((inside + between) / tp + everywhere) / 1e9
longest_fsdp = int(
    (budget * 1e9 - 16 * (matrices + norms) / (dp * tp) - 2 * root) / (inside + between + everywhere)
)
longest_plain = int((budget - states_gb - unit_gb) * S / plain_gb)
longest = int((budget - states_gb - unit_gb) * S / sequence_gb) // tp * tp
### END SOLUTION
sizes = ...
check("07.2", sizes, seed=GRADE_SEED)
# hint("07.2")

# %% [markdown]
# ## 07.3
#
# *Write · medium · core · 20 minutes.* **You learn** to say of any number of a model which rank has it.
#
# Take the first layer of the perceptron, with its numbers written into it: 0 to 23 in the weight, 24 to 27 in the bias. On two by two,
# tensor parallelism leaves the ranks of tp 1 the two lower rows and half of the bias. FSDP writes these into one flat row, and cuts it:
#
# ```text
#            weight                                   bias
# tp 1       12 13 14 15 16 17 18 19 20 21 22 23    | 26 27
# dp 0       12 13 14 15 16 17 18
# dp 1                            19 20 21 22 23    | 26 27
# ```

# %% [markdown]
# **Target:** the numbers of one rank's piece of a unit, for any degrees. Both cuts are as `torch.tensor_split` makes them: parts may differ
# by one, and a piece may be empty.


# %% nbgrader={"grade": false, "grade_id": "07-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def place(weights, cuts, dp, tp, i, j):
    """Return the piece of the rank at dp i, tp j: flat.

    weights: by name, the whole weights of a unit.
    cuts: by name, the dim along which tp cuts a weight; None if it leaves it whole.
    """
    ### BEGIN SOLUTION
    parts = [w if cuts[name] is None else w.tensor_split(tp, cuts[name])[j] for name, w in weights.items()]
    row = torch.cat([part.flatten() for part in parts])
    return row.tensor_split(dp)[i]
    ### END SOLUTION


check("07.3", place)
# hint("07.3")

# %% [markdown]
# ## 07.4
#
# *Write · medium · extra · 20 minutes.* **You learn** to measure whether two models would say the same words.
#
# Four ranks in bf16 never have exactly the logits of one device. Is that bad? It depends on which logits are off. A model says one of its
# likeliest tokens, so look at these. Here `k` is 3, and the reference's three likeliest tokens at one position are *cat*, *dog* and *cow*:
#
# ```text
# reference    cat 4.1   dog 3.8   cow 2.0   pig 1.9   ...
# ranks        dog 3.9   cat 3.8   pig 2.1   cow 1.7   ...
# ```

# %% [markdown]
# Two of the three are among the ranks' own three, in whatever order, so they agree by two thirds. And the logits of these three tokens are
# off by 0.3, 0.1 and 0.3, which is 0.23 on average.
#
# **Target:** both numbers as averages over all positions, with all differences and averages in float64.


# %% nbgrader={"grade": false, "grade_id": "07-4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def same_words(found, reference, k):
    """Return two numbers: of the reference's k likeliest tokens the share that is among the other's k,
    and the mean absolute error of the logits of the reference's k tokens.

    found, reference: logits, (..., vocabulary), of the same tokens.
    """
    ### BEGIN SOLUTION
    theirs, ours = reference.topk(k).indices, found.topk(k).indices
    shared = (theirs.unsqueeze(-1) == ours.unsqueeze(-2)).any(-1)
    difference = (found.double() - reference.double()).abs()
    return shared.double().mean().item(), difference.gather(-1, theirs).mean().item()
    ### END SOLUTION


check("07.4", same_words)
# hint("07.4")

# %% [markdown]
# ## 07.5
#
# *Predict · medium · core · 25 minutes.* **You learn** to choose dp and tp for a cluster that you have never seen.
#
# Somebody has a few nodes of g GPUs, and wants to train a Llama of 70 billion parameters on them. First let tp fill a node, which is one
# NVLink domain, with as many ranks along dp as there are nodes. Along tp attention and feed-forward each gather their input and scatter
# their sum, in forward and in backward, and backward gathers the input once more. Each such message has S tokens of H numbers, of which
# a rank sends its share. Along dp there are two gathers and a reduce-scatter of what tp leaves a rank of the layer. All of it is bf16, in rings.

# %% nbgrader={"grade": false, "grade_id": "07-5-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
cluster = given("07.5", GRADE_SEED)
print(f"{cluster.nodes} nodes of g = {cluster.g} GPUs of {cluster.budget} GB; free = {cluster.free} GB")
print(f"a ring inside a node: {cluster.fast / 1e9:g} GB/s")
print(f"out of it lead {cluster.cards} cards of {cluster.card / 1e9:g} GB/s")
print(
    f"a sequence of S = {cluster.S} tokens, each of H = {cluster.H} numbers; "
    f"a layer of {cluster.layer:,} numbers, {cluster.parameters:,} in all"
)
print(
    f"bytes of a token: {cluster.inside:,} inside the blocks, "
    f"{cluster.between:,} between them, {cluster.everywhere:,} on every rank"
)
print(f"a batch of {cluster.batch} sequences")

# %% [markdown]
# A ring that stays in a node has the speed of its wires. All rings that leave a node share its cards equally, because NCCL sends through all
# of them. Leave the latencies out. Now swap the axes: ranks that are neighbours along dp, as many as there are nodes, get neighbouring GPUs, and
# each ring along tp has ranks in all nodes. How many of these rings leave a node? And which axis should have the neighbours? Ask whose
# messages can hide: those of tp are exposed, FSDP's hide behind computing.

# %% [markdown]
# Then choose a tp. With sequence parallelism, which is the smallest one whose activations of one sequence fit beside what lasts? Choose from 1,
# 2, 4 and 8, whatever g is. What lasts are sixteen bytes for each parameter, shared by all GPUs. Of each GPU `free` GB stay free, for what
# this count leaves out: gathered weights, buffers, and holes between them. Every group of tp ranks reads one sequence at a time.
#
# | name | number to give |
# | --- | --- |
# | `tp_bytes`, `dp_bytes` | bytes that one GPU sends for one layer in one step along each axis, if tp fills a node |
# | `tp_inside_ms`, `dp_between_ms` | milliseconds that these bytes take, if tp fills a node |
# | `tp_between_ms` | the same for `tp_bytes` with the axes swapped |
# | `tp` | the smallest one that fits |
# | `sequences` | sequences that all GPUs read at a time with that |
# | `rounds` | rounds of gradient accumulation that the batch takes |

# %% nbgrader={"grade": false, "grade_id": "07-5", "locked": false, "schema_version": 3, "solution": true, "task": false}
nodes, g, fast, cards, card, S, H, layer, inside, between, everywhere, parameters, *rest = cluster
budget, free, batch = rest
### BEGIN SOLUTION
tp_bytes = 10 * (g - 1) / g * 2 * S * H
dp_bytes = 3 * (nodes - 1) / nodes * 2 * layer / g
tp_inside_ms = 1e3 * tp_bytes / fast
dp_between_ms = 1e3 * dp_bytes / (cards * card / g)
tp_between_ms = 1e3 * tp_bytes / (cards * card / nodes)
tp = next(
    n
    for n in (1, 2, 4, 8)
    if S * ((inside + between) / n + everywhere) + 16 * parameters / (nodes * g) <= (budget - free) * 1e9
)
sequences = nodes * g / tp
rounds = batch / sequences
### END SOLUTION
layout = ...
check("07.5", layout, seed=GRADE_SEED)
# hint("07.5")

# %% [markdown]
# ## 07.6
#
# *Find the bug · hard · useful · 45 minutes.* **You learn** to count every number of a model once, wherever it lies.
#
# If the norm of all gradients is above `max_norm`, they are scaled down. On a mesh no rank has all of them, so ranks add up squares. Below,
# a trainer of the course is cut by tensor parallelism and then by FSDP, and `squares` says what is added up.
# `self.local.gradients()` are this rank's pieces by name, and `self.local.group("dp")` and `self.local.group("tp")` are its groups.


# %% nbgrader={"grade": false, "grade_id": "suspect-norm", "locked": true, "schema_version": 3, "solution": false, "task": false}
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.sharding.wrapping import size_based
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer


class OnAMesh(Trainer):
    def __init__(self, model, config, dp=2, tp=2):
        apply = (tensor(), fully_shard(size_based(1)))  # each layer is a unit
        super().__init__(model, config, mesh=make_mesh(dp=dp, tp=tp), apply=apply)


class Suspect(OnAMesh):
    def __init__(self, model, config, dp=2, tp=2):
        super().__init__(model, config, dp, tp)
        places = self.local.layout.places
        self.whole_along_tp = {name for name, place in places.items() if "tp" not in place.shard}
        self.local.global_norm = lambda: self.squares().sqrt()[0]

    def squares(self):
        mine = sum(gradient.square().sum() for gradient in self.local.gradients().values())
        return comm.all_reduce(mine.reshape(1), group=self.local.group("dp"))


# %% [markdown]
# Train with AdamW and clipping on a mesh of two by two, and on one device:


# %%
from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.ranks import run_ranks
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals


def task(number):
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(number))
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def losses(trainer_class, batches=task):
    torch.manual_seed(0)
    trainer = trainer_class(
        MLP(gelu=True), TrainConfig(optimizer="adamw", learning_rate=0.02, max_norm=0.1)
    )
    return [trainer.step(batches(number)) for number in range(60)]


one_device, on_ranks = losses(Trainer), run_ranks(losses, 4, Suspect)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   suspect {on_ranks[at - 1]:.3f}")

# %% [markdown]
# The losses hardly differ, and you would let it run. Climb the ladder nevertheless, with `climb(Suspect)`. And `counts(Suspect)` prints for
# every rank how many of the model's 38 gradients it has, parameter by parameter:


# %%
def climb(trainer_class, reference=Trainer, batches=task, world_size=4, rungs=RUNGS):
    def make(kind):
        return lambda config: kind(MLP(gelu=True), config)

    alone, on_ranks = make(reference), make(trainer_class)
    try:
        print(assert_parallel_equals(alone, on_ranks, batches, world_size=world_size, rungs=rungs))
    except NotEqual as error:
        print(error)


def counts(trainer_class):
    def count():
        trainer = trainer_class(MLP(gelu=True), TrainConfig())
        trainer.compute_gradients(task(0))
        return {name: gradient.numel() for name, gradient in trainer.local.gradients().items()}

    for rank, found in enumerate(run_ranks(count, 4)):
        print(f"rank {rank}: {sum(found.values())} gradients,", found)


# %% [markdown]
# Write down in `diagnosis` the first rung that fails, and how many squares are in the sum on rank 0. Then write `squares` again.
# `self.whole_along_tp` has the names of the parameters that tensor parallelism leaves whole. Try it with `climb(Repaired)`.
#
# **Target:** the norm of one device on every rank, for any dp and tp.


# %% nbgrader={"grade": false, "grade_id": "07-6", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Repaired(Suspect):
    def diagnosis(self):
        """Return two things for two by two: the first rung that fails,
        and how many squares are in the sum on rank 0.
        """
        ### BEGIN SOLUTION
        return "gradient norm", 20
        ### END SOLUTION

    def squares(self):
        """Return the sum of the squares of all gradients,
        the same on every rank: a tensor of one number.
        """
        ### BEGIN SOLUTION
        total = torch.zeros(1)
        for name, gradient in self.local.gradients().items():
            if name not in self.whole_along_tp or self.local.rank("tp") == 0:
                total += gradient.square().sum()
        for axis in ("dp", "tp"):
            total = comm.all_reduce(total, group=self.local.group(axis))
        return total
        ### END SOLUTION


check("07.6", Repaired)
# hint("07.6")

# %% [markdown]
# ## 07.7
#
# *Find the bug · medium · core · 20 minutes.* **You learn** what the loss of the very first step can tell.
#
# In this trainer each rank picks its rows of a batch by itself, as a loader would. There are dp shares, dealt out like cards:


# %% nbgrader={"grade": false, "grade_id": "suspect-rows", "locked": true, "schema_version": 3, "solution": false, "task": false}
import torch.distributed as dist


class Dealt(OnAMesh):
    def __init__(self, model, config, dp=2, tp=2):
        super().__init__(model, config, dp, tp)
        self.dp, self.tp = dp, tp

    def rows(self, number):
        first = dist.get_rank() % self.dp
        return list(range(first, number, self.dp))

    def compute_gradients(self, batch):
        inputs, targets = batch
        mine = self.rows(len(inputs))
        self.engine.cut = lambda share: [
            (inputs[mine], targets[mine])
        ]  # in place of the trainer's own share
        return super().compute_gradients(batch)


# %%
one_device, on_ranks = losses(Trainer), run_ranks(losses, 4, Dealt)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   suspect {on_ranks[at - 1]:.3f}")

# %% [markdown]
# Now the suspect is better, now worse, and it ends lower. Should you be glad? Look at step 1. Nothing has been trained
# yet, both have the same weights, and both are given the same twelve rows. So the two losses should be the same number, and they are
# not. Climb with `climb(Dealt)`. Then let `rows_of(Dealt)` print which rows of a batch of twelve each rank reads:


# %%
def rows_of(trainer_class):
    def read():
        return trainer_class(MLP(gelu=True), TrainConfig()).rows(12)

    for rank, rows in enumerate(run_ranks(read, 4)):
        print(f"rank {rank}: rows {list(rows)}")


# %% [markdown]
# Write down the first rung that fails, and how many *different* rows ranks 0 and 1 read together. Then write `rows` again.
#
# **Target:** the gradients of one device for any dp and tp, also where the rows do not divide. How you deal them out is up to you.


# %% nbgrader={"grade": false, "grade_id": "07-7", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Fair(Dealt):
    def diagnosis(self):
        """Return two things for two by two: the first rung that fails,
        and how many different rows ranks 0 and 1 read of 12.
        """
        ### BEGIN SOLUTION
        return "gradients", 12
        ### END SOLUTION

    def rows(self, number):
        """Return the rows, of so many, that this rank reads: a list of whole numbers."""
        ### BEGIN SOLUTION
        return list(range(self.local.rank("dp"), number, self.dp))
        ### END SOLUTION


check("07.7", Fair)
# hint("07.7")

# %% [markdown]
# ## 07.8
#
# *Write · hard · extra · 50 minutes.* **You learn** to load a checkpoint that no rank could hold.
#
# A weight of a large model lies in a file, and each rank needs its part of it. Reading the whole and then cutting takes the
# memory of the whole, on all ranks at once. But a file of safetensors can be read in boxes:
#
# ```python
# with safe_open("model.safetensors", "pt") as file:
#     stored = file.get_slice("weight")
#     stored.get_shape()    # [6, 8], nothing is read
#     stored[3:6, 0:4]      # three rows of half of the columns: twelve numbers are read
# ```

# %% [markdown]
# Here both cuts are PyTorch's own. tp cuts along `cut`, and FSDP2 cuts the *rows* of what tp leaves. Both do it as `torch.chunk`: 5 rows on 4
# ranks are 2, 2, 1 and none. Look at rank dp 1, tp 0 on two by two, with `cut` 1: its box is the one in the example.
#
# **Target:** the part of each rank. Read that part of the file once, and nothing else of it.


# %% nbgrader={"grade": false, "grade_id": "07-8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def load(stored, cut, dp, tp, i, j):
    """Return the part of the rank at dp i, tp j, of shape (0, ...) or (..., 0) where it has nothing.

    stored: what `get_slice` gives, of one or two dims.
    cut: the dim along which tp cuts; None if tp leaves the tensor whole.
    """
    ### BEGIN SOLUTION
    box = [(0, length) for length in stored.get_shape()]
    for dim, parts, number in ((cut, tp, j), (0, dp, i)):
        if dim is not None:
            first, end = box[dim]
            each = -(-(end - first) // parts)
            box[dim] = (min(first + number * each, end), min(first + (number + 1) * each, end))
    return stored[tuple(slice(*one) for one in box)]
    ### END SOLUTION


check("07.8", load)
# hint("07.8")

# %% [markdown]
# ## 07.9
#
# *Find the bug · hard · useful · 45 minutes.* **You learn** to climb with a trainer that somebody else has written and released.
#
# In October 2024 `transformers` was mended: a batch that is accumulated in parts divides each part's loss by the targets of *all* its
# parts. Soon somebody with several processes reported that something was still wrong. Below is how such a release trains, much
# shortened. With `parameters` and `step` it can climb. `step` gives this rank its rows of the batch, and `accumulate` gets them
# in two parts: it never sees another rank's rows.


# %% nbgrader={"grade": false, "grade_id": "released", "locked": true, "schema_version": 3, "solution": false, "task": false}
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.training.step import count_targets, micro_batches, summed_loss
from course_lib.training.trainer import make_optimizer, share
from course_lib.verify.adapters.loop import Loop


class Released:
    def __init__(self, model, config):
        self.model, self.wrapped = model, DistributedDataParallel(model)
        self.optimizer, self.max_norm = (
            make_optimizer([*model.parameters()], config),
            config.max_norm or torch.inf,
        )

    def parameters(self):
        return dict(self.model.named_parameters())

    def step(self, batch):
        mine = share(batch, dist.get_rank(), dist.get_world_size())
        self.optimizer.zero_grad()
        loss = self.accumulate(micro_batches(mine, 2))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss

    def accumulate(self, parts):
        targets, mean = sum(count_targets(part) for part in parts), torch.zeros(1)
        for part in parts:
            loss = summed_loss(self.wrapped, part) / targets
            loss.backward()  # DDP averages over the ranks
            mean += loss.detach()
        return comm.all_reduce(mean).item() / dist.get_world_size()


# %% [markdown]
# Two ranks share twelve rows, so each reads six. On rank 0 all six have a target that counts. On rank 1 only two have one: the other
# four are masked by -100, as a question is before its answer.


# %%
def answers(number):
    inputs, targets = task(number)
    return inputs, targets.index_fill(0, torch.tensor([6, 7, 9, 10]), -100)


one_device, on_ranks = losses(Trainer, answers), run_ranks(losses, 2, Released, answers)[0]
for at in (1, 20, 40, 60):
    print(f"step {at:2}   one device {one_device[at - 1]:.3f}   released {on_ranks[at - 1]:.3f}")

# %% [markdown]
# Both learn. Climb with `climb(Released, Loop, answers, 2)`. `Loop` is a plain loop of PyTorch on one device, which clips as `Released`
# does, by `clip_grad_norm_`. The trainer shows no gradients, so the ladder reads them from one step of plain SGD.
#
# Write down the first rung that fails, and how many times as much one target of rank 1 counts as one target of rank 0. Then write
# `accumulate` again. Leave DDP as it is: it will always average.
#
# **Target:** the gradients and the loss of one device, however targets are spread over parts and ranks.


# %% nbgrader={"grade": false, "grade_id": "07-9", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Mended(Released):
    def diagnosis(self):
        """Return two things for `answers`: the first rung that fails,
        and one target of rank 1 over one of rank 0.
        """
        ### BEGIN SOLUTION
        return "gradients", 3
        ### END SOLUTION

    def accumulate(self, parts):
        """Leave the whole batch's gradient on every rank, and return the whole batch's mean loss.

        parts: this rank's rows, as batches (inputs, targets); every rank has as many.
        A target of -100 does not count.
        """
        ### BEGIN SOLUTION
        mine, summed = sum(count_targets(part) for part in parts), torch.zeros(1)
        targets = comm.all_reduce(torch.tensor([mine])).item()
        for part in parts:
            loss = summed_loss(self.wrapped, part)
            (loss * dist.get_world_size() / targets).backward()
            summed += loss.detach()
        return comm.all_reduce(summed).item() / targets
        ### END SOLUTION


check("07.9", Mended)
# hint("07.9")

# %% [markdown]
# ## 07.10
#
# *Own file · hard · core · 45 minutes.* **You learn** to put PyTorch's two cuts on one mesh, and to clip by the norm of all gradients.
#
# Write a script for `torchrun` that trains the blocks below on a mesh of dp by tp, with `parallelize_module` and `fully_shard`. On
# each axis alone that takes a few lines. On both, one line of the usual loop stops working: `clip_grad_norm_` refuses gradients that
# live on different meshes, and here some do.
#
# The check starts your script on 2 and on 4 processes and gives it one argument, a folder. In it lies `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict from which every process starts |
# | `batches` | pairs `(x, y)` of all 8 rows of a batch, one for each step: `x` is (8, 8), `y` holds a class for each row |
# | `optimizer`, `rate` | the optimizer's name in `torch.optim`, and its learning rate |
# | `tp` | how many ranks share a block; neighbours do, and dp gets the rest |
# | `max_norm` | where gradients are clipped |
#
# Along tp, `up` is cut by columns and `down` by rows, as in lesson 05; the norms and the last layer stay whole on every rank there. Along
# dp, each block is a unit of FSDP, and the model has the rest. The ranks of a tp group read the same rows, and along dp the rows
# of a batch are cut evenly, in order. The loss is the mean cross-entropy of the batch.

# %% [markdown]
# Before each optimizer step the gradients are clipped as `clip_grad_norm_` does it on one device: let `norm` be that of all of them. If it is
# above `max_norm`, they are multiplied by `max_norm / (norm + 1e-6)`.
#
# At the end every rank saves a dict in the same folder, rank 0 as `rank0.pt`, rank 1 as `rank1.pt`, and so on. Under `pieces` it has
# what this rank holds of each parameter, `p.to_local()` by the parameter's name, and under `norms` a list of numbers, the norm of each
# step before clipping.
#
# **Target:** the norms and the weights of one device, with SGD and with AdamW. In each step a block's weights are gathered along dp for
# forward and again for backward, the rest once, and each gradient is reduced once. Along tp, a block adds up activations once forward
# and once backward. Tensors of up to sixteen numbers are not counted, so the norms may travel as they like.
#
# To start it yourself, run `save_script("07.10", mesh_of_two)`. [The script of lesson 07](../../notebooks/scripts/07_fsdp_tp.py) has both
# cuts, and puts its norms on the mesh in another way; look there when you are stuck.

# %% nbgrader={"grade": false, "grade_id": "07-10", "locked": false, "schema_version": 3, "solution": true, "task": false}
mesh_of_two = """
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_model():
    return nn.Sequential(Block(), Block(), nn.Linear(8, 4)).double()


def main(folder):
    dist.init_process_group("gloo")
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    ### BEGIN SOLUTION
    shape = (dist.get_world_size() // task["tp"], task["tp"])
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    for block in model[:-1]:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    place, norms = mesh["dp"].get_local_rank(), []
    for x, y in task["batches"]:
        rows, targets = (part.chunk(shape[0])[place] for part in (x, y))
        F.cross_entropy(model(rows), targets).backward()
        squares = [p.grad.norm().full_tensor() ** 2 for p in model.parameters()]
        norm = sum(squares).sqrt().item()
        for p in model.parameters():
            p.grad.mul_(min(1.0, task["max_norm"] / (norm + 1e-6)))
        norms.append(norm)
        optimizer.step()
        optimizer.zero_grad()
    pieces = {name: p.to_local().detach() for name, p in model.named_parameters()}
    torch.save({"pieces": pieces, "norms": norms}, f"{folder}/rank{dist.get_rank()}.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and one that freed a DTensor now would abort the process


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("07.10", mesh_of_two)
# hint("07.10")

# %% [markdown]
# ## 07.11
#
# *Own file · hard · core · 45 minutes.* **You learn** to stop a run with a checkpoint, and to go on with another number of GPUs.
#
# A run on four GPUs was stopped, and when it is its turn again only two are free. Each rank of FSDP has pieces of the weights and of AdamW's
# state, and on two ranks they are cut elsewhere. Write a script for `torchrun` that can be stopped and go on, with
# `torch.distributed.checkpoint`.
#
# The check starts your script **twice**, the second time on another number of processes. Both get the same folder as an argument. In it lies
# `task.pt`, a dict:
#
# | key | what it is |
# | --- | --- |
# | `weights` | the state dict at the beginning |
# | `batches` | pairs `(x, y)` of all 8 rows of a batch, one for each step; every rank takes its part, evenly and in order |
# | `rate` | AdamW's rate in the first step; each further step has 0.8 times that of the step before |
# | `stop` | after so many steps the first start ends |
#
# If the folder `checkpoint` in it has no file `.metadata`, your script starts from `weights`, makes `stop` steps, saves a checkpoint
# there, and ends. Otherwise it loads the checkpoint, and makes the steps that are left. Then each rank saves its pieces of the weights, rank
# 0 as `rank0.pt` and so on: a dict with `p.to_local()` by the parameter's name.

# %% [markdown]
# **Target:** the weights of one device that never stopped, from 4 to 2 processes and from 2 to 4. The loss is the mean cross-entropy of the
# batch, of which each rank computes its own rows alone. No rank gathers or writes a whole state: each one writes a file of its own pieces, and nothing is gathered besides what FSDP
# gathers to compute.
#
# To start it yourself, run `save_script("07.11", stopping)`. Start the line that it prints, and then once more with 2 in place of 4. Before
# you start a mended script, delete the folder `checkpoint`.
# [The script of lesson 08](../../notebooks/scripts/08_resume.py) has the calls that you need; look there when you are stuck.

# %% nbgrader={"grade": false, "grade_id": "07-11", "locked": false, "schema_version": 3, "solution": true, "task": false}
stopping = """
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


def make_model():
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).double()


def main(folder):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    task = torch.load(f"{folder}/task.pt")
    model = make_model()
    model.load_state_dict(task["weights"])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    ### BEGIN SOLUTION
    place = f"{folder}/checkpoint"

    def state(done):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "done": done}

    done, end = 0, task["stop"]
    if os.path.exists(f"{place}/.metadata"):
        dcp.load(loaded := state(0), checkpoint_id=place)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )
        done, end = loaded["done"], len(task["batches"])
    for step in range(done, end):
        x, y = (part.chunk(ranks)[rank] for part in task["batches"][step])
        optimizer.param_groups[0]["lr"] = task["rate"] * 0.8**step
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    if done == 0:
        dcp.save(state(end), checkpoint_id=place)
    else:
        pieces = {name: p.to_local().detach() for name, p in model.named_parameters()}
        torch.save(pieces, f"{folder}/rank{rank}.pt")
    ### END SOLUTION
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads still live, and one that freed a DTensor now would abort the process


if __name__ == "__main__":
    main(sys.argv[1])
"""

check("07.11", stopping)
# hint("07.11")

# %% [markdown]
# ## Where this leads
#
# Two axes, one order, and a table that says where every number is. With that you can place a model, feed it, clip it, save it and judge it
# on any mesh. Which mesh is the best one? There are thousands for a large cluster, and
# [lesson 08](../../notebooks/08_three_d_and_planner.ipynb) lets a program search.
