"""One call of a collective: its group, its number there, and the port through which its messages go."""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.comm import background, rooms
from course_lib.errors import four_parts

_counts: dict[str, int] = {}
_cell = 0

_CALLS_PER_CELL = 2**16
_CELLS = 2**12


def start_cell(number: int) -> None:
    """Count calls from 1 again. All ranks start a cell together, so their counts agree even after a failure."""
    global _cell
    _cell = number % _CELLS
    _counts.clear()
    background.start_afresh()
    rooms.forget()


def resolve(group: ProcessGroup | int | None, operation: str) -> ProcessGroup:
    """The group meant by `group`: None is the default group, as in PyTorch.

    Raises: ValueError if this rank is not in it, or if there is no group yet.
    """
    if not dist.is_initialized():
        raise ValueError(
            four_parts(
                operation,
                "no process group",
                "ranks talk within an initialised group",
                "run it by %%ranks, run_ranks or torchrun",
            )
        )
    if isinstance(group, int):  # GroupMember.NON_GROUP_MEMBER, what new_group gives to the others
        raise ValueError(
            four_parts(
                operation,
                f"rank {dist.get_rank()} is not in the group",
                "only members call a group's collectives",
                "call it under `if rank in members`",
            )
        )
    return group if group is not None else dist.distributed_c10d._get_default_group()


def device_of(group: ProcessGroup) -> torch.device:
    """Where this rank's tensors for a group lie: on its GPU if it computes there or the group carries nothing else."""
    kinds = _kinds(group)
    if "cuda" in kinds and ("cpu" not in kinds or torch.get_default_device().type == "cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def words_device_of(group: ProcessGroup) -> torch.device:
    """Where what ranks say to each other about their tensors lies: in main memory, if the group carries that."""
    return torch.device("cpu") if "cpu" in _kinds(group) else torch.device("cuda", torch.cuda.current_device())


def backend_for(group: ProcessGroup, x: torch.Tensor) -> str:
    """Which back end carries this tensor: a group may have one for CPUs and another one for GPUs."""
    return str(group._get_backend(x.device).name())


def _kinds(group: ProcessGroup) -> set[str]:
    return {device.type for device in group._device_types}


def next_number(group: ProcessGroup) -> int:
    """How many collectives this group has called in this cell, this one included."""
    _counts[group.group_name] = count(group) + 1
    return count(group)


def count(group: ProcessGroup) -> int:
    """How many collectives this group has called in this cell so far."""
    return _counts.get(group.group_name, 0)


def tag(number: int) -> int:
    """A message tag that no call of another cell has: what an aborted call left behind is never received."""
    return _cell * _CALLS_PER_CELL + number % _CALLS_PER_CELL


def tag_of_label(text: str) -> int:
    """A tag of its own for each kind of message outside a collective, above those of all calls."""
    return 2**30 + zlib.crc32(f"{_cell} {text}".encode()) % 2**30
