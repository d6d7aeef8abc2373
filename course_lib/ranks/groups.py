"""The group of all ranks, in which PyTorch's collectives are compared before they run."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, set_debug_level
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts
from course_lib.ranks import at_home, watch


def join(backend: str, init_method: str, rank: int, world_size: int) -> None:
    """Join the default group, and let everything that PyTorch sends be compared first."""
    set_debug_level(DebugLevel.OFF)  # whatever the environment says: torch's DDP crashes on a group that DETAIL wraps
    try:
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size)
    except RuntimeError as error:
        raise RuntimeError(_no_way(error)) from None
    watch.install()
    at_home.stay()


def _no_way(error: RuntimeError) -> str:
    """gloo names the line of its own source; a learner needs the variable's name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if "address for" not in str(error) and "interface" not in str(error).lower():
        return str(error)
    values = f"no address on the network interface {interface!r}"
    rule = "gloo sends over the interface that GLOO_SOCKET_IFNAME names"
    return four_parts("ranks", values, rule, "unset that variable, or name one that `ip address` shows with an address")


def means_all_ranks(group: ProcessGroup) -> bool:
    """Whether it is the group that a call without a group means."""
    everyone = dist.group.WORLD
    return everyone is not None and group.group_name == everyone.group_name
