"""Measure all-reduce over message sizes: the points to which alpha and beta are fitted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from course_lib.comm import call
from course_lib.comm.collectives import all_reduce_
from course_lib.comm.opening import NATIVE
from course_lib.comm.switches import settings
from course_lib.costs import SweepPoint, comm_time


def sweep_all_reduce(sizes: Sequence[int], algorithms: Sequence[str], rounds: int = 9) -> list[SweepPoint]:
    """Time float32 all-reduces of `sizes` bytes on this group; call it on every rank.

    Algorithms take turns within a round, so that all see the same machine. Guard and ledger are off. A native
    call is explained by gloo's ring, whose every step waits for the receiver: 4 (p - 1) latencies.
    """
    group = call.resolve(None, "sweep_all_reduce")
    points = []
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
            points += [_point(name, group.size(), x.nbytes, times[1:]) for name, times in seconds.items()]
    return points


def _point(algorithm: str, p: int, nbytes: int, seconds: list[float]) -> SweepPoint:
    explained = "ring" if algorithm == NATIVE else algorithm
    cost = comm_time("all_reduce", explained, world_size=p, length=nbytes // 4, itemsize=4)
    return SweepPoint(
        algorithm=algorithm,
        world_size=p,
        nbytes=nbytes,
        seconds=statistics.median(seconds),
        steps=2 * cost.steps if algorithm == NATIVE else cost.steps,
        critical_bytes=cost.critical_bytes,
    )
