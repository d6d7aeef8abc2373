"""Where ranks come from: this machine, or the nodes of a Slurm allocation once `attach` has been called."""

from __future__ import annotations

import atexit
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from course_lib.errors import four_parts
from course_lib.ranks import server
from course_lib.ranks.allocation import Allocation
from course_lib.ranks.member import Member, start_here

_MAX_RANKS = 32
_allocation: Allocation | None = None


def current() -> Allocation | None:
    """The allocation that is attached; None: this machine."""
    return _allocation


def prepare() -> None:
    """Let what starts ranks on this machine import torch, if they are to come from here.

    Raises: OSError in four parts if the system refuses.
    """
    if _allocation is None:
        server.start_fork_server()


def refusals_told() -> AbstractContextManager[None]:
    """Say what this machine refused at a start; an allocation says itself what went wrong."""
    return server.refusals_told() if _allocation is None else nullcontext()


def start_members(world_size: int, folder: str, device: str) -> Iterator[Member]:
    """Start the processes of a pool."""
    if _allocation is None:
        return start_here(world_size, folder, device)
    return _allocation.start_members(world_size, folder, device)


def check_world_size(world_size: int) -> None:
    """Raise the four-part error unless 1 <= world_size <= _MAX_RANKS."""
    if not isinstance(world_size, int) or not 1 <= world_size <= _MAX_RANKS:
        rule = f"a pool has 1 to {_MAX_RANKS} ranks"
        raise ValueError(four_parts("ranks", f"world_size={world_size!r}", rule, "choose a number in that range"))


def notice(world_size: int) -> str:
    """What a learner should know about where so many ranks are."""
    return "" if _allocation is None else _allocation.notice(world_size)


def attach(per_node: int, *, nodes: int | None, job: int | None, srun: Sequence[str]) -> Allocation:
    """Take the nodes of an allocation; see `ranks.attach`."""
    global _allocation
    if _allocation is not None:
        values, rule = f"{_allocation.size} places are attached already", "a notebook has one allocation at a time"
        raise ValueError(four_parts("attach", values, rule, "ranks.detach() first"))
    if nodes is None:
        nodes = _nodes_of(job)
    if per_node < 1 or nodes < 1 or per_node * nodes > _MAX_RANKS:
        values = f"per_node={per_node} on {nodes} nodes"
        raise ValueError(four_parts("attach", values, f"a pool has 1 to {_MAX_RANKS} ranks", "choose fewer per node"))
    _allocation = Allocation(per_node, nodes, [*([f"--jobid={job}"] if job is not None else []), *srun])
    return _allocation


def _nodes_of(job: int | None) -> int:
    """How many nodes the job has: this notebook's own, or one that runs beside it."""
    if job is None:
        found = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or ""
        values = "this notebook runs in no Slurm job"
    else:
        words = ["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%D"]
        try:
            found = subprocess.run(words, capture_output=True, text=True, timeout=30).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            found = ""
        values = f"squeue knows no running job {job}"
    if not found.isdecimal():
        rule = "ranks come from a job's nodes"
        way_out = "start it inside salloc, name a job with job=…, or let srun ask for nodes=…"
        raise ValueError(four_parts("attach", values, rule, way_out))
    return int(found)


def detach() -> None:
    """Let the allocation's nodes go; ranks come from this machine again. Nothing is done if there are none."""
    global _allocation
    allocation, _allocation = _allocation, None
    if allocation is not None:
        allocation.end()


def _forget() -> None:
    global _allocation
    if _allocation is not None:
        _allocation.forget()
        _allocation = None


atexit.register(detach)
os.register_at_fork(after_in_child=_forget)
