"""Right answers to exercises of module 07, written in other ways than the solutions; what they are held against."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib import comm
from course_lib.checks import check
from course_lib.checks.kit.registry import find
from course_lib.checks.module_07.groups import Rank
from course_lib.checks.module_07.places import LAYER1, LAYER2, Cut
from course_lib.checks.module_07.stored import StoredAsked
from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.parallel.sharding.wrapping import by_block
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import compare_logits


def groups_by_a_grid(rank, dp, tp, per_node):
    grid = np.arange(dp * tp).reshape(dp, tp)
    (i,), (j,) = np.where(grid == rank)
    rows = [[*map(int, grid[i])], tuple(map(int, grid[:, j]))]
    return rows[0], rows[1], torch.tensor([sum(o // per_node != rank // per_node for o in row) for row in rows])


def place_number_by_number(weights, cuts, dp, tp, i, j):
    row = []
    for name, weight in weights.items():
        of_tp = weight if cuts[name] is None else torch.tensor_split(weight, tp, dim=cuts[name])[j]
        row += of_tp.reshape(-1).tolist()
    each, more = divmod(len(row), dp)
    first = i * each + min(i, more)
    return row[first : first + each + (i < more)]


def words_one_by_one(found, reference, k):
    width = found.shape[-1]
    rows = zip(found.double().view(-1, width), reference.double().view(-1, width), strict=True)
    shared, off = [], []
    for ours, theirs in rows:
        mine, best = set(ours.topk(k)[1].tolist()), theirs.topk(k)[1].tolist()
        shared += [token in mine for token in best]
        off += [abs(ours[token] - theirs[token]) for token in best]
    return torch.tensor(shared).double().mean(), torch.stack(off).mean()


def load_by_ends(stored, cut, dp, tp, i, j):
    shape = stored.get_shape()
    ranges = [range(length) for length in shape]
    for dim, parts, number in ((cut, tp, j), (0, dp, i)):
        if dim is not None:
            each = (len(ranges[dim]) + parts - 1) // parts
            ranges[dim] = ranges[dim][number * each : (number + 1) * each]
    return stored[tuple(slice(one.start, one.stop) for one in ranges)]


ANSWERS = {
    "07.1": groups_by_a_grid,
    "07.3": place_number_by_number,
    "07.4": words_one_by_one,
    "07.8": load_by_ends,
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_a_right_answer_passes_however_it_is_written(exercise):
    assert check(exercise, ANSWERS[exercise]).passed


# what the exercises expect, on real ranks ----------------------------------------------------------------------------


def _numbered():
    """The perceptron, with its numbers counted on from one weight to the next in each layer."""
    model = MLP()
    for layer in (model.layer1, model.layer2):
        weight, bias = layer.weight.data, layer.bias.data
        weight.copy_(torch.arange(weight.numel()).view_as(weight))
        bias.copy_(torch.arange(weight.numel(), weight.numel() + bias.numel()))
    return model


def _on_two_axes():
    """Runs on a rank: its groups, its pieces of the perceptron by the course, and its parts of one by PyTorch."""
    mesh = make_mesh(dp=2, tp=2)
    groups = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in ("tp", "dp")]
    ours = Trainer(_numbered(), TrainConfig(), mesh=mesh, apply=(tensor(), fully_shard(by_block)))
    pieces = {name: p.detach().flatten().clone() for name, p in ours.local.parameters.items()}
    theirs = nn.Sequential(nn.Linear(5, 6, bias=False), nn.Linear(6, 5, bias=False))
    for layer in theirs:
        layer.weight.data.copy_(torch.arange(30).view_as(layer.weight))
    parallelize_module(theirs, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    torch_fully_shard(theirs, mesh=mesh["dp"])
    return groups, pieces, [layer.weight.to_local().detach().clone() for layer in theirs]


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(_on_two_axes, 4)


def test_the_groups_of_07_1_are_those_of_a_mesh(ranks):
    for rank, (groups, _, _) in enumerate(ranks):
        one = Rank(rank, 2, 2, 8)
        assert groups == [one.along_tp, one.along_dp]


@pytest.mark.parametrize(("layer", "unit"), [("layer1", LAYER1), ("layer2", LAYER2)])
def test_the_pieces_of_07_3_are_those_that_the_course_trains(ranks, layer, unit):
    spec = find("07.3")
    for asked, (_, pieces, _) in zip(Cut(dp=2, tp=2, unit=unit).asked(0), ranks, strict=True):
        trained = torch.cat([pieces[f"{layer}.{name}"] for name, _, _ in unit])
        wanted = place_number_by_number(*asked)
        assert trained.tolist() == wanted, (spec.title, str(asked))


def test_the_parts_of_07_8_are_those_of_fsdp2_over_tensor_parallelism(ranks):
    for rank, (_, _, parts) in enumerate(ranks):
        for cut, (shape, found) in enumerate(zip(((6, 5), (5, 6)), parts, strict=True)):
            asked = StoredAsked(torch.arange(30).view(shape), cut, 2, 2, *divmod(rank, 2))
            assert torch.equal(found.long(), asked.part()), (rank, cut)


def test_the_numbers_of_07_4_are_the_course_s():
    formulas = find("07.4").formulas
    for level in find("07.4").levels.values():
        for case in level.cases:
            asked = case.arguments(3)
            report = compare_logits(asked.found, asked.reference, top_k=(asked.k,))
            right = (report.agreement[asked.k], report.errors[asked.k])[case.part]
            assert formulas[case.part].answer(asked) == pytest.approx(right, rel=1e-12)


# hunts ---------------------------------------------------------------------------------------------------------------


def counts_by_shares(given):
    """What two ranks have each counts a half."""

    class Halved(given["Suspect"]):
        def diagnosis(self):
            return ["gradient norm", 20.0]

        def squares(self):
            size = self.local.size("tp")
            shares = {name: 1 / size if name in self.whole_along_tp else 1 for name in self.local.parameters}
            mine = sum(shares[name] * g.square().sum() for name, g in self.local.gradients().items()).reshape(1)
            dist.all_reduce(mine)
            return mine

    return Halved


def neighbours(given):
    """Stretches, as the course's own trainer cuts."""

    class Stretch(given["Dealt"]):
        def diagnosis(self):
            return "gradients", 12

        def rows(self, number):
            return torch.arange(number).tensor_split(self.dp)[dist.get_rank() // self.tp]

    return Stretch


def ranks_are_weighed(given):
    """Each rank's mean as before, by its part of the mean number of targets; the loss stays a tensor."""

    class Weighed(given["Released"]):
        def diagnosis(self):
            return ["gradients", 3.0]

        def accumulate(self, parts):
            mine = torch.tensor([float(sum((targets != -100).sum() for _, targets in parts))])
            mean = comm.all_reduce(mine, op=dist.ReduceOp.AVG)
            losses = [nn.functional.cross_entropy(self.wrapped(x), y, reduction="sum") / mean for x, y in parts]
            sum(losses).backward()
            return comm.all_reduce(sum(losses).detach(), op=dist.ReduceOp.AVG)

    return Weighed


@pytest.mark.parametrize(
    ("exercise", "make"), [("07.6", counts_by_shares), ("07.7", neighbours), ("07.9", ranks_are_weighed)]
)
def test_every_repair_that_is_right_is_accepted(exercise, make, answers):
    assert check(exercise, make(answers("solutions", "07_fsdp_tp_2d_llama"))).passed
