"""A learner's own PyTorch on the ranks: what is sound works with default arguments, what is wrong is told its line."""

from __future__ import annotations

import inspect
import os
import warnings
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from course_lib.ranks import RankError, RankTimeout, run_ranks

SOON = 6.0  # seconds after which a hang is told


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def rows():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def gradient_alone():
    model = mlp()
    model(rows()).square().mean().backward()
    return model[0].weight.grad


def mine(x):
    return x.chunk(dist.get_world_size())[dist.get_rank()]


# sound ----------------------------------------------------------------------------------------------------------------


def ddp():
    model = DistributedDataParallel(mlp())
    model(mine(rows())).square().mean().backward()
    return model.module[0].weight.grad


def fsdp():
    model = mlp()
    fully_shard(model[0])
    fully_shard(model)
    model(mine(rows())).square().mean().backward()
    return model[0].weight.grad.full_tensor()


def tensor_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model(rows()).square().mean().backward()
    return model[0].weight.grad.full_tensor()


def two_axes():
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(mlp(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    x = rows().chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()]
    with warnings.catch_warnings(action="ignore"):  # torch's, of its own two wrappers: one gives the other a view
        model(x).square().mean().backward()
    return model[0].weight.grad.full_tensor()


def pipeline():
    """Two stages; the other ranks, if there are any, are a second pipeline over the same rows."""
    model, mesh = mlp(), init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
    place = mesh["pp"].get_local_rank()
    stage = PipelineStage([model[:2], model[2:]][place], place, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, _: y.square().mean())
    schedule.step(rows()) if place == 0 else schedule.step(target=rows())
    return model[0].weight.grad if place == 0 else None


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("way", [ddp, fsdp, tensor_parallel, two_axes, pipeline])
def test_pytorchs_own_parallelism_gives_the_gradient_of_one_process(way, world_size):
    found = run_ranks(way, world_size)
    assert len(found) == world_size
    for rank, gradient in enumerate(found):
        assert gradient is None if way is pipeline and rank % 2 else torch.allclose(gradient, gradient_alone())


def test_a_tensor_is_distributed_and_put_together_again():
    def there_and_back():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return distribute_tensor(torch.arange(10.0), mesh, [Shard(0)]).full_tensor()

    assert all(torch.equal(x, torch.arange(10.0)) for x in run_ranks(there_and_back, 3))


def test_a_checkpoint_of_two_ranks_is_loaded_by_four(tmp_path):
    def sharded(value):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return {"w": distribute_tensor(torch.full((8, 4), value), mesh, [Shard(0)])}

    def load(folder):
        state = sharded(0.0)
        dcp.load(state, checkpoint_id=folder)
        return state["w"].full_tensor()

    run_ranks(lambda folder: dcp.save(sharded(3.0), checkpoint_id=folder) and None, 2, str(tmp_path))
    assert all(torch.equal(x, torch.full((8, 4), 3.0)) for x in run_ranks(load, 4, str(tmp_path)))


# mistakes -------------------------------------------------------------------------------------------------------------


def uneven_batches():
    model = DistributedDataParallel(nn.Linear(4, 1))
    for x in torch.randn(4 - dist.get_rank(), 8, 4):
        model(x).sum().backward()  # the culprit
    metric = torch.ones(5)  # as many numbers as the gradients have
    dist.all_reduce(metric)
    return metric


def uneven_batches_and_nothing_after():
    model = DistributedDataParallel(nn.Linear(4, 1))
    for x in torch.randn(4 - dist.get_rank(), 8, 4):
        model(x).sum().backward()  # the culprit


class OneOfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return (self.a if dist.get_rank() == 0 else self.b)(x)


def unused_parameters():
    model = DistributedDataParallel(OneOfTwo())
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()  # the culprit


def rank_0_alone():
    if dist.get_rank() == 0:
        dist.barrier()  # the culprit


def a_collective_in_one_branch():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # the culprit
    else:
        dist.broadcast(x, src=0)


def wrong_group():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=first if dist.get_rank() == 0 else second)  # the culprit


def other_shapes():
    dist.all_reduce(torch.ones(100 * (1 + dist.get_rank())))  # the culprit


def other_dtypes():
    dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.float64][dist.get_rank()]))  # the culprit


def other_order():
    x, y = torch.ones(4), torch.ones(4)
    calls = [lambda: dist.all_reduce(x), lambda: dist.broadcast(y, src=0)]  # the culprit
    for call in calls if dist.get_rank() == 0 else reversed(calls):
        call()


def other_roots():
    dist.broadcast(torch.ones(2), src=dist.get_rank())  # the culprit


def other_sharded_models():
    """FSDP2 gathers by operators of its own, not by `dist`."""
    model = nn.Linear(4, 4 + 4 * dist.get_rank())
    fully_shard(model)
    model(torch.ones(2, 4))  # the culprit


def a_group_made_by_some():
    members = [0, 1] if dist.get_rank() < 2 else [2, 3]
    dist.new_group(members)  # the culprit


def a_group_made_by_one():
    if dist.get_rank() == 0:
        dist.new_group([0, 1])  # the culprit


MISTAKES = [
    (uneven_batches, 2, r"all_reduce in backward\(\) on rank 0 and all_reduce on rank 1; all ranks of a group"),
    (uneven_batches_and_nothing_after, 2, r"rank 0 waits in all_reduce in backward\(\).*; rank 1 has finished"),
    (
        unused_parameters,
        2,
        r"Expected to have finished reduction in the prior iteration.*parameters that were not used",
    ),
    (rank_0_alone, 2, "rank 0 waits in barrier, .*; rank 1 has finished"),
    (a_collective_in_one_branch, 2, "collective: all_reduce on rank 0 and broadcast on rank 1; all ranks of a group"),
    (wrong_group, 2, "these groups differ: all ranks of a group must call it with that group"),
    (
        other_shapes,
        2,
        r"all_reduce: shape is \(100,\) on rank 0 and \(200,\) on rank 1; all ranks call it with the same",
    ),
    (other_dtypes, 2, "all_reduce: dtype is float32 on rank 0 and float64 on rank 1; .* convert to one dtype first"),
    (other_order, 2, "collective: all_reduce on rank 0 and broadcast on rank 1; all ranks of a group"),
    (other_roots, 2, "broadcast: root is 0 on rank 0 and 1 on rank 1; all ranks call it with the same root"),
    (other_sharded_models, 2, r"all_gather_into_tensor.*: shape is .* on rank 0 and .* on rank 1"),
    (
        a_group_made_by_some,
        4,
        r"new_group: ranks is \[0, 1\] on ranks 0, 1 and \[2, 3\] on ranks 2, 3; .* on every rank",
    ),
    (a_group_made_by_one, 2, "rank 0 waits in new_group, .*; every rank calls new_group for every group"),
]


@pytest.mark.parametrize(("mistake", "world_size", "said"), MISTAKES, ids=[case[0].__name__ for case in MISTAKES])
def test_a_mistake_ends_in_one_report_with_the_learners_line(mistake, world_size, said):
    with pytest.raises(RankError, match=said) as caught:
        run_ranks(
            mistake, world_size, timeout=SOON if "finished" in said or "waits" in said or "differ" in said else 30
        )
    lines, first = inspect.getsourcelines(mistake)
    culprit = first + next(n for n, line in enumerate(lines) if line.rstrip().endswith("# the culprit"))
    assert f"line {culprit} of test_own_pytorch.py" in str(caught.value)
    assert run_ranks(dist.get_world_size, world_size) == [world_size] * world_size


# scripts written for torchrun -----------------------------------------------------------------------------------------


def script():
    """As it stands in a tutorial, from the first line to the last."""
    dist.init_process_group("gloo")
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    model = DistributedDataParallel(nn.Linear(4, 1))
    model(torch.randn(2, 4)).sum().backward()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    return total.item(), local, int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])


def test_a_pasted_script_runs_again_and_again_whatever_a_job_left(monkeypatch, capsys):
    left = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "MASTER_PORT": "1"}
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        assert run_ranks(script, 2) == [(1.0, rank, 2, 2) for rank in range(2)]
        said = "rank 0 │ init_process_group: the ranks have joined already, so nothing is done\n"
        assert capsys.readouterr().out == said


def test_the_address_is_one_that_a_store_can_be_opened_at():
    def meet():
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*place, dist.get_world_size(), dist.get_rank() == 0, wait_for_workers=False)
        store.set(f"rank {dist.get_rank()}", "here")
        store.wait([f"rank {rank}" for rank in range(dist.get_world_size())])
        dist.barrier()  # the first rank holds the store
        return True

    assert run_ranks(meet, 2) == [True, True]


def test_joining_as_somebody_else_is_refused():
    with pytest.raises(
        RankError, match="init_process_group: world_size=8; this is rank . of 2, which have joined alre"
    ):
        run_ranks(lambda: dist.init_process_group("gloo", rank=dist.get_rank(), world_size=8), 2)


def test_a_group_of_ones_own_can_be_left():
    def leave():
        group = dist.new_group([0, 1])
        dist.barrier()  # who leaves closes its connections, even under a rank that is still joining
        dist.destroy_process_group(group)
        with suppress(ValueError):
            return dist.get_rank(group) >= 0
        return False

    assert run_ranks(leave, 2) == [False, False]


# what a report says ---------------------------------------------------------------------------------------------------


def dies_of(number):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), number)
    dist.barrier()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (9, r"^rank 1 died \(its process ended by SIGKILL: the system sends it when memory is used up.*\)"),
        (
            11,
            r"^rank 1 died at line \d+ of test_own_pytorch.py `os.kill.*` \(its process ended by SIGSEGV: C code used",
        ),
        (6, r"^rank 1 died at line \d+ of .* \(its process ended by SIGABRT: C code gave up"),
        (15, r"^rank 1 died at line \d+ of .* \(its process ended by SIGTERM: somebody asked it to end"),
    ],
)
def test_a_rank_that_dies_names_its_signal_and_its_last_line(number, said):
    with pytest.raises(RankError, match=said):
        run_ranks(dies_of, 2, number)


def test_a_process_that_ends_by_itself_has_a_status():
    with pytest.raises(RankError, match=r"^rank 0 died \(its process ended with status 3\)"):
        run_ranks(lambda: os._exit(3), 1)


def test_honest_work_is_told_how_to_get_more_time():
    def long():
        while True:
            torch.randn(50, 50) @ torch.randn(50, 50)

    with pytest.raises(
        RankTimeout, match=r"if that is honest work, give it more time: --timeout 300 in a cell, timeout"
    ):
        run_ranks(long, 2, timeout=1)
    with pytest.raises(RankTimeout) as caught:
        run_ranks(rank_0_alone, 2, timeout=5)  # long enough for the rank to come to its call on a busy machine
    assert "honest" not in str(caught.value)  # a rank that waits for another one does not work
