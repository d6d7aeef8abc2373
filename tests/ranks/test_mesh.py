"""Meshes, and what follows from a layout on real ranks: whole tensors, the norm, states, and what is refused."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import comm
from course_lib.config import TrainConfig
from course_lib.parallel.table.local import Local
from course_lib.parallel.table.mesh import AXES, make_mesh
from course_lib.parallel.table.placement import Flat, Shard
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.techniques import replicate, stages
from course_lib.training.trainer import Trainer


def text_of(work):
    try:
        work()
    except ValueError as error:
        return str(error)
    return "no error"


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)).double()


def described():
    mesh = make_mesh(pp=2, tp=2)
    started = time.perf_counter()
    again = make_mesh(pp=2, tp=2)
    same = all(mesh.get_group(axis) is again.get_group(axis) for axis in AXES)
    x = comm.all_reduce(torch.ones(1), group=mesh.get_group("pp"))
    total = torch.ones(1)
    dist.all_reduce(total)  # messages between two ranks have not disturbed the default group
    members = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in ("pp", "dp", "tp")]
    return mesh.mesh_dim_names, tuple(mesh.shape), members, same, time.perf_counter() - started, x.item(), total.item()


def test_a_mesh_has_every_axis_and_groups_that_are_made_once():
    results = run_ranks(described, 4)
    names, shape, members, same, _, x, total = results[1]
    assert (names, shape) == (AXES, (2, 1, 1, 1, 2)) and same
    assert members == [[1, 3], [1], [0, 1]]
    assert (x, total) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        (
            {"dp": 3},
            "make_mesh: dp=3; the degrees' product is the number of ranks, 2; change a degree, or start 3 ranks",
        ),
        ({"dp": 0}, "make_mesh: dp=0; the degrees' product is the number of ranks, 2; "),
        ({}, "make_mesh: one rank; the degrees' product is the number of ranks, 2; "),
        ({"fsdp": 2}, "make_mesh: fsdp=2; a mesh has no such axis; choose from across, pp, dp, ep, cp, tp"),
    ],
)
def test_degrees_that_do_not_fit(degrees, message):
    found = run_ranks(lambda: text_of(lambda: make_mesh(**degrees)), 2)
    assert len(found) == 2 and all(text.startswith(message) for text in found)


def one_f_one_b():
    return stages(make_schedule("1f1b", 2, 2))


@pytest.mark.parametrize(
    ("degrees", "apply", "message"),
    [
        ({"pp": 2}, [], "Trainer: pp=2 without a technique; every axis of several ranks has its technique; apply one"),
        ({"pp": 2}, [replicate], "Trainer: pp=2 without a technique; every axis"),
        ({"dp": 2}, [replicate, replicate], "replicate: applied after replicate; each technique takes what the one"),
        (
            {"pp": 2},
            [replicate, one_f_one_b],
            "stages: applied after replicate; .*; apply each once, in the order tensor, context, packed, experts,",
        ),
        (None, [replicate], "replicate: no axis 'dp' in the mesh; a technique runs along one axis of a mesh; give"),
    ],
)
def test_techniques_that_do_not_fit_the_mesh(degrees, apply, message):
    def work():
        mesh = make_mesh(**degrees) if degrees else None
        Trainer(chain(), TrainConfig(), mesh=mesh, apply=[make() for make in apply])

    for text in run_ranks(lambda: text_of(work), 2):
        with pytest.raises(ValueError, match=f"^{message}"):
            raise ValueError(text)


def other_tables():
    """One rank writes something else: what is gathered would be put together wrongly."""

    def odd(setup):
        if dist.get_rank() == 1:
            setup.local.layout.write("1.bias", owners=(0, 1))

    return text_of(lambda: Trainer(chain(), TrainConfig(), mesh=make_mesh(pp=2), apply=(one_f_one_b(), odd)))


def test_ranks_that_wrote_different_tables_are_named():
    message = "Trainer: the layout has '1.bias 4 pp: rank 0' on rank 0 and '1.bias 4 pp: ranks 0, 1' on rank 1; what is"
    assert [text[: len(message)] for text in run_ranks(other_tables, 2)] == [message] * 2


def cut_by_hand():
    """A model cut by rows over tp, by columns over dp, and flat over dp; gradients equal the weights."""
    mesh = make_mesh(dp=2, tp=2)
    local = Local(chain(), mesh)
    row = Flat(axis="dp", row="rest")
    local.layout.write("0.weight", shard={"tp": Shard(0)})
    local.layout.write("1.weight", shard={"tp": Shard(1)}, flat=Flat(axis="dp", row="1"))
    local.layout.write("0.bias", flat=row)
    local.layout.write("2.weight", flat=row)
    whole = {name: p.detach().clone() for name, p in local.parameters.items()}
    local.parameters = {name: nn.Parameter(local.part(name, x).clone()) for name, x in whole.items()}
    for parameter in local.parameters.values():
        parameter.grad = parameter.detach().clone()
    states = {name: {"": p.detach(), "step": torch.tensor(1.0)} for name, p in local.parameters.items() if p.numel()}
    once = local.whole_once(states)
    return local.global_norm(), local.whole(local.gradients()), once, sum(p.numel() for p in local.parameters.values())


def test_norm_gathering_and_states_follow_from_the_table():
    whole = {name: p.detach() for name, p in chain().named_parameters()}
    norm = torch.cat([x.flatten() for x in whole.values()]).norm()
    results = run_ranks(cut_by_hand, 4)
    assert [count for *_, count in results] != [sum(x.numel() for x in whole.values())] * 4
    for found, gradients, once, _ in results:
        assert found.item() == pytest.approx(norm.item(), rel=1e-14)
        assert gradients.keys() == once.keys() == whole.keys()
        for name, x in whole.items():
            assert torch.equal(gradients[name], x) and torch.equal(once[name][""], x)
            assert once[name]["step"] == 1.0


def drifted():
    """A replica that drifted away shows on its own rank."""
    local = Local(chain(), make_mesh(dp=2))
    local.parameters["0.bias"].data.add_(dist.get_rank())
    return local.whole({name: p.detach() for name, p in local.parameters.items()})["0.bias"]


def test_whole_shows_a_rank_its_own_copy():
    first, second = run_ranks(drifted, 2)
    assert torch.allclose(first + 1, second)


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path):
    Trainer(chain(), TrainConfig()).save(tmp_path)
    other = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).double()
    message = r"^Trainer.load: 1.weight is of shape \(4, 5\) in the checkpoint and of shape \(3, 5\) in the model; a ch"
    with pytest.raises(ValueError, match=message):
        Trainer(other, TrainConfig()).load(tmp_path)
    shorter = nn.Sequential(nn.Linear(6, 5)).double()
    with pytest.raises(ValueError, match="1.weight is of shape .* in the checkpoint and not there in the model"):
        Trainer(shorter, TrainConfig()).load(tmp_path)
