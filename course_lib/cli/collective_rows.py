"""Proof rows of the collectives: every one with every algorithm, on numbers that do not divide by the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm, ranks
from course_lib.cli.proof import Row, Rows
from course_lib.comm import ledger
from course_lib.comm.traces import Traffic
from course_lib.costs.comm.collectives import ALGORITHMS, comm_time
from course_lib.verify.equality import deviation

LENGTH = 100_003  # a prime
TOLERANCE = 1e-6  # float32, summed in another order
LATE_S = 0.05

Inputs = Sequence[Tensor]  # by rank


@dataclass(frozen=True, kw_only=True)
class Case:
    """How to call a collective on this rank, and what one process that holds all inputs would get."""

    call: Callable[[Inputs, str], Tensor | None]
    expect: Callable[[Inputs, int], Tensor | None]


def root() -> int:
    """The last rank: an algorithm that takes rank 0 for granted fails."""
    return dist.get_world_size() - 1


def mine(inputs: Inputs) -> Tensor:
    """What this rank holds."""
    return inputs[dist.get_rank()]


def shards(inputs: Inputs) -> list[Tensor]:
    """What the ranks hold where each has a part of one whole."""
    return [x.tensor_split(len(inputs))[rank].clone() for rank, x in enumerate(inputs)]


def total(inputs: Inputs) -> Tensor:
    """The sum over the ranks."""
    return torch.stack(list(inputs)).sum(0)


def _at_root(result: Tensor, rank: int) -> Tensor | None:
    """What an operation with a destination gives."""
    return result if rank == root() else None


CASES = {
    "broadcast": Case(
        call=lambda inputs, algorithm: comm.broadcast(mine(inputs), src=root(), algorithm=algorithm),
        expect=lambda inputs, rank: inputs[root()],
    ),
    "reduce": Case(
        call=lambda inputs, algorithm: comm.reduce(mine(inputs), dst=root(), algorithm=algorithm),
        expect=lambda inputs, rank: _at_root(total(inputs), rank),
    ),
    "scatter": Case(
        call=lambda inputs, algorithm: comm.scatter(mine(inputs), src=root(), algorithm=algorithm),
        expect=lambda inputs, rank: inputs[root()].tensor_split(len(inputs))[rank],
    ),
    "gather": Case(
        call=lambda inputs, algorithm: comm.gather(
            mine(shards(inputs)), dst=root(), length=LENGTH, algorithm=algorithm
        ),
        expect=lambda inputs, rank: _at_root(torch.cat(shards(inputs)), rank),
    ),
    "all_gather": Case(
        call=lambda inputs, algorithm: comm.all_gather(mine(shards(inputs)), length=LENGTH, algorithm=algorithm),
        expect=lambda inputs, rank: torch.cat(shards(inputs)),
    ),
    "reduce_scatter": Case(
        call=lambda inputs, algorithm: comm.reduce_scatter(mine(inputs), algorithm=algorithm),
        expect=lambda inputs, rank: total(inputs).tensor_split(len(inputs))[rank],
    ),
    "all_to_all": Case(
        call=lambda inputs, algorithm: comm.all_to_all(mine(inputs), algorithm=algorithm),
        expect=lambda inputs, rank: torch.cat([x.tensor_split(len(inputs))[rank] for x in inputs]),
    ),
    "all_reduce": Case(
        call=lambda inputs, algorithm: comm.all_reduce(
            mine(inputs), algorithm=algorithm, node_size=node_size(algorithm, len(inputs))
        ),
        expect=lambda inputs, rank: total(inputs),
    ),
}


def node_size(algorithm: str, world_size: int) -> int | None:
    """The smallest nodes of more than one rank, where an algorithm has nodes at all."""
    if algorithm != "hierarchical":
        return None
    return next((n for n in range(2, world_size + 1) if world_size % n == 0), 1)


def collective_rows(world_size: int) -> Iterator[Row]:
    """A row for each collective and algorithm."""
    for operation, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:
            prove = _barrier_row if operation == "barrier" else collective_row
            yield prove(operation, algorithm, world_size)


def collective_row(operation: str, algorithm: str, world_size: int) -> Row:
    """Run one collective on the ranks; its values, bytes and time."""
    results = ranks.run_ranks(run_collective, world_size, operation, algorithm)
    predicted = comm_time(
        operation,
        algorithm,
        world_size=world_size,
        length=LENGTH,
        itemsize=4,
        root=world_size - 1,
        node_size=node_size(algorithm, world_size),
    )
    return Row(
        technique=f"{operation}, {algorithm}",
        world_size=len(results),
        deviation=max(found for found, _ in results),
        tolerance=TOLERANCE,
        traffic=Traffic.measured(ranks.ledger()),
        predicted=Traffic.predicted([predicted]),
        step_s=max(seconds for _, seconds in results),
    )


def run_collective(operation: str, algorithm: str) -> tuple[float, float]:
    """On a rank: (deviation from one process, seconds) of a call that is not the first."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(LENGTH, generator=generator) for _ in range(dist.get_world_size())]
    case = CASES[operation]
    case.call(inputs, algorithm)  # opens the connections
    ledger.clear()
    dist.barrier()
    started = time.perf_counter()
    result = case.call(inputs, algorithm)
    seconds = time.perf_counter() - started
    expected = case.expect(inputs, dist.get_rank())
    if result is None or expected is None:
        return (0.0 if result is expected else float("inf")), seconds
    return deviation(result, expected), seconds


def _barrier_row(operation: str, algorithm: str, world_size: int) -> Row:
    """A barrier moves no values: its deviation is by how many seconds a rank left before the last one came."""
    results = ranks.run_ranks(run_barrier, world_size, algorithm)
    came, left, seconds = zip(*results, strict=True)
    predicted = comm_time(operation, algorithm, world_size=world_size, length=1, itemsize=1)
    return Row(
        technique=f"{operation}, {algorithm}",
        world_size=len(results),
        deviation=max(0.0, max(came) - min(left)),
        tolerance=0.0,
        traffic=Traffic.measured(ranks.ledger()),
        predicted=Traffic.predicted([predicted]),
        step_s=max(seconds),
    )


def run_barrier(algorithm: str) -> tuple[float, float, float]:
    """On a rank: when it came to a barrier to which the last rank comes late, when it left, seconds of another one."""
    comm.barrier(algorithm=algorithm)
    dist.barrier()
    started = time.perf_counter()
    comm.barrier(algorithm=algorithm)
    seconds = time.perf_counter() - started
    ledger.clear()
    time.sleep(LATE_S if dist.get_rank() == root() else 0)
    came = time.monotonic()
    comm.barrier(algorithm=algorithm)
    return came, time.monotonic(), seconds


ROWS = Rows(lesson=2, prove=lambda world_size, text: collective_rows(world_size))
