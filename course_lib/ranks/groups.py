"""The two groups of all ranks: a watched one for PyTorch's collectives, a plain one for messages between two ranks.

Under `TORCH_DISTRIBUTED_DEBUG=DETAIL` a group compares native collectives before they run, so a mismatch raises
instead of aborting a process. But it numbers point-to-point messages as if they were collectives of all ranks: after
one `dist.send` the next `dist.all_reduce` is refused. So point-to-point calls without a group go to a plain twin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, set_debug_level
from torch.distributed import ProcessGroup

from course_lib.comm import call

_POINT_TO_POINT = ("send", "recv", "isend", "irecv")
_of_all_ranks: set[str] = set()  # names of the watched group and its twin


def join(backend: str, store: str, rank: int, world_size: int) -> None:
    """Join the watched default group and its plain twin.

    Groups made later by `dist.new_group()` are plain too: torch's DDP crashes on a watched one, timings need none.
    """
    set_debug_level(DebugLevel.DETAIL)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
    set_debug_level(DebugLevel.OFF)
    twin = dist.new_group()
    call.set_default_group(twin)
    _of_all_ranks.update(group.group_name for group in (dist.distributed_c10d._get_default_group(), twin))
    for name in _POINT_TO_POINT:
        function = _on_twin(getattr(dist, name), twin)
        setattr(dist, name, function)
        setattr(dist.distributed_c10d, name, function)  # where dist.P2POp compares with what it knows


def means_all_ranks(group: ProcessGroup) -> bool:
    """Whether it is the group that a call without a group means."""
    return group.group_name in _of_all_ranks


@contextmanager
def plain_default() -> Iterator[None]:
    """Within the block the twin is PyTorch's default group as well: its DDP crashes on a watched one (torch 2.13)."""
    before, twin = dist.distributed_c10d._get_default_group(), call.resolve(None, "plain_default")
    dist.distributed_c10d._update_default_pg(twin)
    try:
        yield
    finally:
        dist.distributed_c10d._update_default_pg(before)


def _on_twin(function: Callable[..., Any], twin: ProcessGroup) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        if len(args) < 3:  # tensor, peer, group
            options["group"] = options.get("group") or twin
        return function(*args, **options)

    return wrapper
