"""The acceptance test of a cluster's wires: all-reduce over message sizes, in the columns that nccl-tests prints.

It runs on whatever group there is: in a cell of `%%ranks 4`, or in a script that torchrun started.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.comm.switches import settings
from course_lib.errors import four_parts

_WARM = 2  # rounds that pay for buffers and connections
_NUMBER = torch.float32.itemsize
_PATTERN = 251  # numbers that are all different, so that a piece which lands in another place is seen
_COLUMNS = "#{:>11} {:>12} {:>8} {:>7} {:>10} {:>8} {:>8} {:>7}"


class SweepRow(NamedTuple):
    """One size of a sweep. Units: bytes, seconds, bytes per second; `wrong` counts numbers of all ranks and rounds."""

    bytes: int
    seconds: float
    algbw: float
    busbw: float
    wrong: int


def busbw(algbw: float, ranks: int) -> float:
    """Bus bandwidth of an all-reduce: algbw x 2(p - 1)/p, which is what the wire of one rank carried.

    The algorithm's bandwidth is the tensor's size over the time. It falls with the number of ranks p, although the wire
    stays as fast as it was, because a ring sends 2(p - 1)/p of the tensor through each of its wires.
    Source: nccl-tests, doc/PERFORMANCE.md.

    >>> busbw(10.0, 4), busbw(10.0, 1)
    (15.0, 0.0)
    """
    return algbw * 2 * (ranks - 1) / ranks


def sweep_all_reduce(sizes: Sequence[int], repeats: int = 9) -> list[SweepRow]:
    """Time PyTorch's own all-reduce of float32 tensors of `sizes` bytes; all ranks call it and get the same rows.

    A round takes as long as its slowest rank, and a row is the median of its rounds. The numbers are whole, so that
    every sum is exact, and each one is looked at. The guard is off, for what it compares would take time as well.
    Raises: ValueError for a size below one number, or no round.
    """
    _check(sizes, repeats)
    with settings(guard=False, ledger=False):
        return list(_rows(sizes, repeats, dist.get_world_size()))


def _rows(sizes: Sequence[int], repeats: int, ranks: int) -> Iterator[SweepRow]:
    for size in sizes:
        rounds, wrong = time_rounds(size, repeats)
        seconds = torch.tensor(rounds, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        counted = torch.tensor(wrong)
        dist.all_reduce(counted)
        median, nbytes = statistics.median(seconds.tolist()), size // _NUMBER * _NUMBER
        yield SweepRow(nbytes, median, nbytes / median, busbw(nbytes / median, ranks), int(counted))


def time_rounds(nbytes: int, repeats: int, group: ProcessGroup | None = None) -> tuple[list[float], int]:
    """Seconds of this rank's all-reduces in its group, and how many numbers came out wrong.

    All ranks call it and begin each round together, whatever group they are in.
    """
    pattern = torch.arange(nbytes // _NUMBER, dtype=torch.float32) % _PATTERN
    ranks, rounds, wrong = dist.get_world_size(group), [], 0
    for _ in range(_WARM + repeats):
        x = pattern + dist.get_rank(group)
        rounds.append(_seconds(x, group))
        wrong += int((x != ranks * pattern + sum(range(ranks))).sum())
    return rounds[_WARM:], wrong


def _seconds(x: Tensor, group: ProcessGroup | None) -> float:
    """One all-reduce, which all ranks begin together."""
    dist.barrier()
    _settle(x)
    started = time.perf_counter()
    dist.all_reduce(x, group=group)
    _settle(x)
    return time.perf_counter() - started


def _settle(x: Tensor) -> None:
    """A GPU is told what to do and the call returns: wait until it is done."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def _check(sizes: Sequence[int], repeats: int) -> None:
    if small := [size for size in sizes if size < _NUMBER]:
        rule, way_out = f"a number has {_NUMBER} bytes", "give larger ones, as sizes=[2**k for k in range(10, 25, 2)]"
        raise ValueError(four_parts("sweep_all_reduce", f"a size of {small[0]} bytes", rule, way_out))
    if repeats < 1:
        rule, way_out = "a time is the median of its rounds", "give repeats >= 1"
        raise ValueError(four_parts("sweep_all_reduce", f"repeats={repeats}", rule, way_out))


def sweep_table(rows: Sequence[SweepRow]) -> str:
    """The rows as nccl-tests print them: microseconds, and GB/s of 10^9 bytes."""
    lines = [
        _COLUMNS.format("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"),
        _COLUMNS.format("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "").rstrip(),
    ]
    for row in rows:
        rates = f"{row.seconds * 1e6:.1f}", f"{row.algbw / 1e9:.3f}", f"{row.busbw / 1e9:.3f}"
        line = _COLUMNS.format(row.bytes, row.bytes // _NUMBER, "float", "sum", *rates, row.wrong)
        lines.append(line.replace("#", " ", 1))
    wrong = sum(row.wrong for row in rows)
    lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    average = statistics.mean(row.busbw for row in rows) / 1e9 if rows else 0.0
    return "\n".join([*lines, f"# Avg bus bandwidth    : {average:.4f}"])
