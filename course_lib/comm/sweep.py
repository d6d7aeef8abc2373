"""Measure all-reduce over message sizes: the times to which alpha and beta are fitted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from course_lib.comm import call
from course_lib.comm.collectives import all_reduce_
from course_lib.comm.switches import settings


class Timing(NamedTuple):
    """How long one algorithm took for a tensor of `nbytes`: the median over rounds."""

    algorithm: str
    world_size: int
    nbytes: int
    seconds: float


def sweep_all_reduce(sizes: Sequence[int], algorithms: Sequence[str], rounds: int = 9) -> list[Timing]:
    """Time float32 all-reduces of `sizes` bytes on this group; call it on every rank.

    Algorithms take turns within a round, so that all see the same machine. Guard and ledger are off.
    """
    group = call.resolve(None, "sweep_all_reduce")
    timings = []
    with settings(guard=False, ledger=False):
        for nbytes in sizes:
            x = torch.zeros(nbytes // 4)
            seconds: dict[str, list[float]] = {algorithm: [] for algorithm in algorithms}
            for algorithm in [*algorithms] * (rounds + 1):
                dist.barrier(group)
                started = time.perf_counter()
                all_reduce_(x, algorithm=algorithm)
                seconds[algorithm].append(time.perf_counter() - started)
            # The first round pays for buffers and connections.
            timings += [
                Timing(name, group.size(), x.nbytes, statistics.median(times[1:])) for name, times in seconds.items()
            ]
    return timings
