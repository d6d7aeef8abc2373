"""Every collective, algorithm, dtype and length: values as on one device and as PyTorch, bytes as the formula says."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.comm.opening import ALGORITHMS
from course_lib.costs import comm_time
from course_lib.costs.comm.collectives import ALGORITHMS as COSTED
from course_lib.ranks import ledger, run_ranks

WORLD_SIZES = [1, 2, 3, 4, 5, 8]
LENGTHS = [1, 7, 12, 1000]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]
EVERY_PAIR = list(itertools.product(LENGTHS, DTYPES))
EACH_ONCE = list(zip(LENGTHS, [*DTYPES, torch.float32], strict=True))  # beyond 4 ranks the ranks are what is new
OPS = {ReduceOp.SUM: torch.sum, ReduceOp.MAX: torch.amax, ReduceOp.MIN: torch.amin}


def test_library_and_formulas_know_the_same_algorithms():
    assert ALGORITHMS == COSTED


def data(rank, length, dtype):
    """Small integers: sums are exact in every dtype, so that equality is exact too."""
    generator = torch.Generator().manual_seed(1000 * rank + length)
    return torch.randint(-4, 5, (length,), generator=generator).to(dtype)


def cases(world_size):
    """(operation, algorithm, root, node_size) that are legal at this world size, the native twin included."""
    for operation, algorithms in ALGORITHMS.items():
        roots = range(world_size) if operation in ("broadcast", "reduce", "scatter", "gather") else [None]
        for algorithm, root in itertools.product([*algorithms, "native"], roots):
            sizes = [None]
            if algorithm == "hierarchical":
                sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
            for node_size in sizes:
                yield operation, algorithm, root, node_size


def expected(operation, rank, xs, root, op=ReduceOp.SUM):
    """What one process computes from the tensors of all ranks."""
    p = len(xs)
    if operation in ("all_reduce", "reduce", "reduce_scatter"):
        result = OPS[op](torch.stack(xs), dim=0).to(xs[0].dtype)
        if operation == "reduce_scatter":
            return result.tensor_split(p)[rank]
        return result if operation == "all_reduce" or rank == root else None
    if operation in ("all_gather", "gather"):  # each rank puts in its shard of xs[0]
        return xs[0] if operation == "all_gather" or rank == root else None
    if operation == "broadcast":
        return xs[root]
    if operation == "scatter":
        return xs[root].tensor_split(p)[rank]
    return torch.cat([x.tensor_split(p)[rank] for x in xs])  # all_to_all


def call(operation, algorithm, root, node_size, x, shard, length, op=ReduceOp.SUM):
    more = {"algorithm": algorithm}
    if operation in ("all_reduce", "reduce", "reduce_scatter"):
        more["op"] = op
    if operation in ("broadcast", "scatter"):
        more["src"] = root
    if operation in ("reduce", "gather"):
        more["dst"] = root
    if operation == "all_reduce":
        more["node_size"] = node_size
    if operation == "barrier":
        return comm.barrier(**more)
    if operation in ("all_gather", "gather"):
        return getattr(comm, operation)(shard, length=length, **more)
    return getattr(comm, operation)(x, **more)


def run_all(length, dtype):
    """Run every case on this rank; return which ones gave a wrong value."""
    rank, p = dist.get_rank(), dist.get_world_size()
    xs = [data(other, length, dtype) for other in range(p)]
    shard = xs[0].tensor_split(p)[rank]
    wrong, ran = [], 0
    for case in cases(p):
        operation, _, root, _ = case
        result = call(*case, xs[rank].clone(), shard, length)
        truth = None if operation == "barrier" else expected(operation, rank, xs, root)
        same = result is None if truth is None else torch.equal(result, truth) and result.dtype == truth.dtype
        ran += 1
        if not same:
            wrong.append((case, result, truth))
    return ran, wrong


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_values_and_bytes(world_size):
    for length, dtype in EVERY_PAIR if world_size <= 4 else EACH_ONCE:
        outcome = run_ranks(run_all, world_size, length, dtype, timeout=100)
        assert [ran for ran, _ in outcome] == [len(list(cases(world_size)))] * world_size
        assert [wrong for _, wrong in outcome] == [[]] * world_size
        assert_bytes(world_size, length, dtype.itemsize)


def assert_bytes(world_size, length, itemsize):
    by_call = defaultdict(list)
    for event in ledger().events:
        by_call[event.call].append(event)
    for number, (operation, algorithm, root, node_size) in enumerate(cases(world_size), start=1):
        mine = by_call[number]
        if algorithm == "native":
            assert {event.kind for event in mine} == {"native"} and len(mine) == world_size
            continue
        length_, itemsize_ = (1, 1) if operation == "barrier" else (length, itemsize)
        cost = comm_time(
            operation,
            algorithm,
            world_size=world_size,
            length=length_,
            itemsize=itemsize_,
            root=root or 0,
            node_size=node_size,
        )
        for rank in range(world_size):
            sent = [event for event in mine if event.rank == rank and event.kind == "send"]
            received = [event.nbytes for event in mine if event.rank == rank and event.kind == "recv"]
            name = (operation, algorithm, root, node_size, length, itemsize, rank)
            assert (sum(event.nbytes for event in sent), len(sent)) == (cost.sent_bytes[rank], cost.messages[rank]), (
                name
            )
            assert sum(received) == cost.received_bytes[rank], name
