"""Every reducing algorithm under every operator, at lengths that do not divide: values as on one device and as
PyTorch's own call, and the same bits on every rank."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.comm.opening import ALGORITHMS
from course_lib.ranks import run_ranks

LENGTHS = [1, 13, 997]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]
ON_ONE_DEVICE = {
    ReduceOp.SUM: lambda xs: xs.sum(0),
    ReduceOp.AVG: lambda xs: xs.sum(0) / len(xs),
    ReduceOp.MAX: lambda xs: xs.amax(0),
    ReduceOp.MIN: lambda xs: xs.amin(0),
}


def cases(world_size):
    """(operation, algorithm, operator, dtype, length): all that is legal at this world size, native twins included."""
    for operation in ("all_reduce", "reduce", "reduce_scatter"):
        algorithms = (*ALGORITHMS[operation], "native")
        for case in itertools.product(algorithms, ON_ONE_DEVICE, DTYPES, LENGTHS):
            if case[1] != ReduceOp.AVG or case[2].is_floating_point:
                yield operation, *case


def inputs(world_size, dtype, length):
    """Multiples of 1/4 up to 4: their sums are exact in every one of the dtypes."""
    generator = torch.Generator().manual_seed(length)
    return (torch.randint(-16, 17, (world_size, length), generator=generator) / 4).to(dtype)


def expected(operation, op, xs, rank, dst):
    whole = ON_ONE_DEVICE[op](xs.double()).to(xs.dtype)
    if operation == "reduce_scatter":
        return whole.tensor_split(len(xs))[rank]
    return whole if operation == "all_reduce" or rank == dst else None


def is_right(result, truth, op):
    if result is None or truth is None:
        return result is truth
    if op == ReduceOp.AVG:  # one division, which may be rounded twice
        return torch.allclose(result, truth, rtol=torch.finfo(truth.dtype).eps, atol=0)
    return torch.equal(result, truth) and result.dtype == truth.dtype


def run_all():
    """Run all cases on this rank; return how many ran and those whose values are wrong."""
    rank, p = dist.get_rank(), dist.get_world_size()
    ran, wrong = 0, []
    for operation, algorithm, op, dtype, length in cases(p):
        more = {"node_size": p} if algorithm == "hierarchical" else {"dst": p - 1} if operation == "reduce" else {}
        xs = inputs(p, dtype, length)
        result = getattr(comm, operation)(xs[rank].clone(), op=op, algorithm=algorithm, **more)
        ran += 1
        truth = expected(operation, op, xs, rank, p - 1)
        if not is_right(result, truth, op):
            wrong.append((operation, algorithm, str(op), dtype, length, result, truth))
    return ran, wrong


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_operators_as_on_one_device(world_size):
    outcome = run_ranks(run_all, world_size, timeout=100)
    assert [ran for ran, _ in outcome] == [len(list(cases(world_size)))] * world_size
    assert [wrong for _, wrong in outcome] == [[]] * world_size


def sums_of_anything():
    """Sums of floats that do round, by every algorithm: where the order matters."""
    x = torch.randn(997, generator=torch.Generator().manual_seed(dist.get_rank()))
    p = dist.get_world_size()
    sizes = {"hierarchical": {"node_size": 2 if p % 2 == 0 else p}}
    return [
        comm.all_reduce(x, algorithm=algorithm, **sizes.get(algorithm, {})) for algorithm in ALGORITHMS["all_reduce"]
    ]


@pytest.mark.parametrize("world_size", [3, 4])
def test_every_rank_gets_the_same_bits(world_size):
    results = run_ranks(sums_of_anything, world_size)
    assert len(results) == world_size and len(results[0]) == len(ALGORITHMS["all_reduce"])
    for algorithm, *others in zip(*results, strict=True):
        assert all(torch.equal(algorithm, other) for other in others)
    truth = sum(torch.randn(997, generator=torch.Generator().manual_seed(r)).double() for r in range(world_size))
    for result in results[0]:
        assert torch.allclose(result.double(), truth, rtol=1e-5, atol=1e-5)
