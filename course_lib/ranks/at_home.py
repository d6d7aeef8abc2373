"""A script that was written for torchrun finds its world on the ranks of a notebook.

There every process joins a group of its own at the start and leaves it at the end. Here the ranks have joined already,
and stay together for the next cell. So the variables that torchrun sets say who a rank is, joining once more is taken
with a notice, and leaving does nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts
from course_lib.ranks import watch


def say_who(*, rank: int, world_size: int, local_rank: int, local_size: int, master: str) -> None:
    """Set torchrun's variables, whatever a job has left in the environment. `master` is `host:port`."""
    address, _, port = master.rpartition(":")
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=port)


def stay() -> None:
    """Replace the calls by which a process joins and leaves its world, and watch the one that makes groups."""
    for name, around in _AROUND.items():
        function = around(getattr(dist, name))
        setattr(dist, name, function)
        setattr(dist.distributed_c10d, name, function)


def _joined_already(join: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(join)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        if not dist.is_initialized():
            return join(backend, *args, **options)
        mine = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        for name, value in mine.items():
            wanted = options.get(name, -1)
            if wanted not in (-1, value):
                rule = f"this is rank {mine['rank']} of {mine['world_size']}, which have joined already"
                way_out = f"leave {name} out, or start so many ranks"
                raise ValueError(four_parts("init_process_group", f"{name}={wanted}", rule, way_out))
        if mine["rank"] == 0:
            print("init_process_group: the ranks have joined already, so nothing is done")

    return init_process_group


def _not_left(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def destroy_process_group(group: ProcessGroup | None = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            leave(group)

    return destroy_process_group


def _made_by_all(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def new_group(ranks: list[int] | None = None, *args: Any, **options: Any) -> Any:
        everyone = dist.group.WORLD
        if everyone is not None and everyone.size() > 1 and not options.get("use_local_synchronization"):
            wanted = str(sorted(ranks)) if ranks is not None else "all"
            words = watch.Words(operation="new_group", caller="new_group", ranks=wanted)
            watch.Comparison(words, everyone).compare()
        return make(ranks, *args, **options)

    return new_group


_AROUND = {"init_process_group": _joined_already, "destroy_process_group": _not_left, "new_group": _made_by_all}
