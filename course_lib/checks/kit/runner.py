"""Run a learner's function on real ranks, and nowhere else: what it breaks is that run and nothing more.

The checks keep their own pools, one per world size, beside the notebook's: a learner's variables in `%%ranks` cells
survive a check that crashes.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch.distributed as dist

from course_lib.comm.ledger import Event
from course_lib.ranks import places
from course_lib.ranks.pool import START_LIMIT_S, Listener, RankPool
from course_lib.ranks.report import RankError
from course_lib.ranks.tasks import Outcome, Task, packed, typed_sources
from course_lib.ranks.transcript import Transcript

MOST_RANKS = 10  # in all pools of the checks together, about 50 MB each; the longest unused pool gives way
POOLS: dict[int, RankPool] = {}  # by world size, the last used one last


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run on all ranks: what each rank's call returned and recorded events, or the error that ended it."""

    reports: tuple[Any, ...] = ()
    events: tuple[Event, ...] = ()
    error: RankError | None = None


def run_call(function: Callable[..., Any], arguments: tuple[Any, ...], world_size: int, *, timeout: float) -> Trial:
    """Call `function(*arguments)` on each rank; what the ranks print is shown."""
    pool = _pool(world_size)
    transcript = Transcript(world_size)
    try:
        outcomes = _run(pool, function, arguments, timeout, transcript.add)
    except RankError as error:
        return Trial(error=error)
    finally:
        sys.stdout.write(transcript.text())
    return Trial(
        reports=tuple(cloudpickle.loads(outcomes[rank].value) for rank in range(world_size)),
        events=tuple(event for outcome in outcomes.values() for event in outcome.events),
    )


def drop_pool(world_size: int) -> None:
    """End a pool in which messages are still under way; the next trial starts a new one."""
    pool = POOLS.pop(world_size, None)
    if pool is not None:
        pool.kill()


def shutdown() -> None:
    """End all pools of the checks."""
    for world_size in list(POOLS):
        drop_pool(world_size)


def _pool(world_size: int) -> RankPool:
    pool = POOLS.pop(world_size, None)
    if pool is not None and pool.place is not places.current():
        pool.kill()
        pool = None
    if pool is None or not pool.alive:
        while POOLS and sum(POOLS) + world_size > MOST_RANKS:
            drop_pool(next(iter(POOLS)))
        pool = RankPool(world_size, "cpu")
        _run(pool, _warm_up, (), START_LIMIT_S, lambda rank, text: None)
    POOLS[world_size] = pool
    return pool


def _run(
    pool: RankPool, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float, listen: Listener
) -> dict[int, Outcome]:
    pool.tasks += 1
    task = Task(number=pool.tasks, call=packed((function, arguments)), sources=typed_sources())
    return pool.run(task, ranks=list(range(pool.world_size)), timeout=timeout, listen=listen)


def _warm_up() -> None:
    """Runs on a rank: this module and the first message cost time that a learner's limit must not pay for."""
    dist.barrier()


atexit.register(shutdown)
