"""`run_ranks`: call a function on real processes from a notebook, a test or a script."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from course_lib.comm.ledger import Ledger
from course_lib.errors import four_parts
from course_lib.ranks import places, switch
from course_lib.ranks.pool import Listener, RankPool
from course_lib.ranks.tasks import Outcome, Task, packed, register_source, typed_sources
from course_lib.ranks.transcript import Transcript, write_out

_pool: RankPool | None = None
_ledger: Ledger | None = None
_turn = threading.RLock()  # one call at a time: another thread's call waits until this one has ended


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 30.0, device: str | None = None
) -> list[Any]:
    """Call `fn(*args)` on `world_size` processes and return their results in rank order.

    `dist` is initialised there: `dist.get_rank()` tells a rank who it is. What the ranks print is shown rank by rank.
    They compute on `device`, "cpu" or "cuda"; what `%device` or COURSE_LIB_DEVICE say, else the CPU. There the tensors
    among `args` arrive, and new ones lie; results come back on the CPU.
    Raises: ValueError for an illegal size or limit, RankError if a rank raises, dies or hangs for `timeout` seconds.
    """
    places.check_world_size(world_size)
    _check_timeout(timeout)
    transcript = Transcript(world_size)
    call = packed((fn, args))
    try:
        outcomes = run_task(
            world_size,
            list(range(world_size)),
            timeout=timeout,
            device=device,
            listen=transcript.add,
            call=call,
        )
    finally:
        write_out(transcript.text())
    return [cloudpickle.loads(outcomes[rank].value) for rank in range(world_size)]


def run_task(
    world_size: int, ranks: list[int], *, timeout: float, device: str | None, listen: Listener, **parts: Any
) -> dict[int, Outcome]:
    """Send one task to some ranks of the pool, keep its ledger, and return the outcomes."""
    global _ledger
    with _turn:
        pool = _get_pool(world_size, switch.device_kind(device), listen)
        pool.tasks += 1
        pool.has_variables |= "code" in parts
        pickled = parts.get("call") or parts.get("push")  # may hold functions whose lines only the notebook knows
        task = Task(number=pool.tasks, sources=typed_sources() if pickled else {}, **parts)
        if task.code is not None:
            register_source(task.file, task.code.splitlines(keepends=True))
        outcomes = pool.run(task, ranks=ranks, timeout=timeout, listen=listen)
        events = [event for outcome in outcomes.values() for event in outcome.events]
        _ledger = Ledger(events, world_size)
        return outcomes


def _get_pool(world_size: int, device: str, listen: Listener) -> RankPool:
    """The process's one pool; another number of ranks, another device or a lost rank replaces it."""
    global _pool
    places.check_world_size(world_size)
    if _pool is not None and is_ready(world_size, device):
        return _pool
    if _pool is not None and _pool.has_variables:
        listen(None, _why_replaced(_pool, world_size))
    shutdown()
    _pool = RankPool(world_size, device)
    listen(None, _pool.notice)
    return _pool


def is_ready(world_size: int, device: str | None) -> bool:
    """Whether so many processes stand by; if not, the next task begins by starting them, which takes seconds."""
    wanted = world_size, switch.device_kind(device)
    if _pool is None or _pool.place is not places.current():
        return False
    return _pool.alive and (_pool.world_size, _pool.device) == wanted


def _why_replaced(pool: RankPool, world_size: int) -> str:
    if pool.alive:
        new = "1 new rank replaces" if world_size == 1 else f"{world_size} new ranks replace"
        return f"{new} the {pool.world_size} from before, whose variables are gone\n"
    if pool.lost:
        return f"rank {pool.lost[0]} died after the last task; all ranks were restarted, their variables are gone\n"
    return ""  # the error of the last task has said so


def attach(per_node: int, *, nodes: int | None = None, job: int | None = None, srun: Sequence[str] = ()) -> None:
    """Take ranks from the nodes of a Slurm allocation from now on, `per_node` from each, until `detach()`.

    Inside a job (salloc, or a notebook that a job runs) its nodes are taken; `job` names another running one; else
    `nodes` are asked for, with further options of `srun`, as `srun=["--partition=train"]`, and given back by `detach`.
    `%%ranks n` then has the first n places, one node after the other; of more ranks than places each node takes more.
    Cost: a second or two for srun, and once for torch's import on each node; a cell takes about a millisecond.
    Raises: ValueError for no such job or too many ranks, OSError if srun or a node fails.
    """
    shutdown()
    places.attach(per_node, nodes=nodes, job=job, srun=srun)


def detach() -> None:
    """Take ranks from this machine again; on the allocation nothing is left running."""
    shutdown()
    places.detach()


def _check_timeout(timeout: object) -> None:
    if not isinstance(timeout, int | float) or not timeout > 0:
        rule = "a time limit is a number of seconds above 0"
        way_out = 'write timeout=30, or timeout=float("inf") to wait without one'
        raise ValueError(four_parts("run_ranks", f"timeout={timeout!r}", rule, way_out))


def shutdown() -> None:
    """End the pool's processes; the next task starts new ones."""
    global _pool
    pool = _pool
    if pool is not None:
        pool.end_processes()  # a call that another thread waits for ends with them
        with _turn:
            pool.kill()
            _pool = None if _pool is pool else _pool


def _forget_pool() -> None:
    """In a process that was forked: the pool is the other process's, and so are the calls that ran on its threads."""
    global _pool, _turn
    _turn = threading.RLock()
    if _pool is not None:
        _pool.forget()
        _pool = None


def ledger() -> Ledger:
    """The traffic that the last run recorded, of all ranks."""
    if _ledger is None:
        message = four_parts("ledger", "no run yet", "it holds the last run's events", "run a cell on ranks first")
        raise ValueError(message)
    return _ledger


atexit.register(shutdown)
os.register_at_fork(after_in_child=_forget_pool)
