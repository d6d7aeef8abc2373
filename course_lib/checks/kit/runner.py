"""Run a learner's function on real ranks, and nowhere else: what it breaks is that run and nothing more.

The checks keep their own pools, one per world size, beside the notebook's: a learner's variables in `%%ranks` cells
survive a check that crashes. Where an answer has left more than its result, new processes take the place of its ranks.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch.distributed as dist

from course_lib.checks.kit import untouched
from course_lib.comm import background
from course_lib.comm.ledger import Event
from course_lib.parallel.sharding.untouched import watch as look_at_optimizers
from course_lib.ranks import places, server, switch
from course_lib.ranks.pool import START_LIMIT_S, Listener, RankPool
from course_lib.ranks.report import RankError
from course_lib.ranks.tasks import Outcome, Task, packed, typed_sources
from course_lib.ranks.transcript import Transcript

MOST_RANKS = 10  # in all pools of the checks together, about 50 MB each; the longest unused pool gives way
_LOOK_LIMIT_S = 10.0  # for 2 ms of work on a busy machine


@dataclass(kw_only=True)
class _Kept:
    """A pool, and whose answer ran on it last."""

    pool: RankPool
    answer: Any = None

    def is_fit_for(self, answer: Any) -> bool:
        """Whether a call of this answer would find the ranks as they were at their start, where it computes now."""
        pool = self.pool
        if pool.place is not places.current() or pool.device != switch.device_kind() or not pool.alive:
            return False
        is_another = answer is not None and answer is not self.answer
        return not (is_another and _has_changed(pool))


server.preload(__name__)  # each new rank would import it by itself

POOLS: dict[int, _Kept] = {}  # by world size, the last used one last


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run on all ranks: what each rank's call returned and recorded events, or the error that ended it."""

    reports: tuple[Any, ...] = ()
    events: tuple[Event, ...] = ()
    error: RankError | None = None


def run_call(function: Callable[..., Any], arguments: tuple[Any, ...], world_size: int, *, timeout: float) -> Trial:
    """Call `function(*arguments)` on each rank; what the ranks print is shown. The first argument is the answer."""
    kept = _kept(world_size, arguments[0] if arguments else None)
    transcript = Transcript(world_size)
    try:
        outcomes = _run(kept.pool, function, arguments, timeout, transcript.add)
    except RankError as error:
        return Trial(error=error)
    finally:
        sys.stdout.write(transcript.text())
    return Trial(
        reports=tuple(cloudpickle.loads(outcomes[rank].value) for rank in range(world_size)),
        events=tuple(event for outcome in outcomes.values() for event in outcome.events),
    )


def drop_pool(world_size: int) -> None:
    """End a pool that the next call must not find as it is, such as one with messages under way."""
    kept = POOLS.pop(world_size, None)
    if kept is not None:
        kept.pool.kill()


def shutdown() -> None:
    """End all pools of the checks."""
    for world_size in list(POOLS):
        drop_pool(world_size)


def _kept(world_size: int, answer: Any) -> _Kept:
    kept = POOLS.get(world_size)
    if kept is None or not kept.is_fit_for(answer):
        drop_pool(world_size)
        while POOLS and sum(POOLS) + world_size > MOST_RANKS:
            drop_pool(next(iter(POOLS)))
        pool = RankPool(world_size, switch.device_kind())
        _run(pool, _warm_up, (), START_LIMIT_S, lambda rank, text: None)
        kept = _Kept(pool=pool)
    if answer is not None:
        kept.answer = answer
    POOLS.pop(world_size, None)
    POOLS[world_size] = kept
    return kept


def _has_changed(pool: RankPool) -> bool:
    try:
        outcomes = _run(pool, untouched.has_changed, (), _LOOK_LIMIT_S, lambda rank, text: None)
    except RankError:
        return True
    return any(cloudpickle.loads(outcome.value) for outcome in outcomes.values())


def _run(
    pool: RankPool, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float, listen: Listener
) -> dict[int, Outcome]:
    pool.tasks += 1
    task = Task(number=pool.tasks, call=packed((function, arguments)), sources=typed_sources())
    return pool.run(task, ranks=list(range(pool.world_size)), timeout=timeout, listen=listen)


def _warm_up() -> None:
    """Runs on a rank: this module and the first message cost time that a learner's limit must not pay for.

    What the library begins once in a process, its communication thread and its look at optimizers' steps, is there from
    the start: begun for an answer, it would be something that the answer has left.
    """
    dist.barrier()
    background.submit(lambda: None).wait()
    look_at_optimizers(())
    untouched.remember()


atexit.register(shutdown)
