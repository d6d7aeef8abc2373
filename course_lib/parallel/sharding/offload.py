"""Where sharded pieces and optimizer states lie between uses: beside the computing, in main memory, or on a disk.

Source: Rajbhandari et al. 2021, ZeRO-Infinity, section 5; `CPUOffloadPolicy` as in PyTorch's FSDP2.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.errors import four_parts
from course_lib.parallel.sharding.flat_row import FlatRow
from course_lib.units import format_bytes

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class CPUOffloadPolicy:
    """Pieces of weights and gradients lie in main memory, where the optimizer works; only whole units are on the GPU.

    On a machine without a GPU everything is in main memory anyway: then `tier_bytes` says where it would lie.
    """


@dataclass(frozen=True)
class DiskOffloadPolicy(CPUOffloadPolicy):
    """The same, and the optimizer's states lie in a file on the disk of `folder`."""

    folder: str | Path


class OffloadedRow(FlatRow):
    """A row whose pieces lie in main memory: it is on the device only while it is whole, and gradients leave it."""

    def _is_shard_in_row(self, dtype: torch.dtype) -> bool:
        return super()._is_shard_in_row(dtype) and self.whole.is_cpu

    def _empty_shard(self, length: int, dtype: torch.dtype) -> Tensor:
        # Pinned, since otherwise a copy to the device would wait for the processor.
        return torch.empty(length, dtype=dtype, device="cpu", pin_memory=not self.whole.is_cpu)


class StatesOnDisk(Optimizer):
    """An optimizer whose states are tensors in a file's memory; it works on one parameter after the other.

    The file gets its room on the disk here, before any training, and has no name: it is gone when the last of its
    tensors is, however the process ends. What the system keeps of it in main memory it can write out when it must.
    Only states with a number for each of a parameter's are moved, not counters. `step` gives the same bits as without.

    Raises: OSError, the same on all ranks, if a rank's disk has no room.
    """

    def __init__(self, inner: Optimizer, folder: str | Path, group: ProcessGroup) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self._see_through()
        wanted = [(p, k, dtype) for g in inner.param_groups for k, dtype in self._kinds(g) for p in g["params"]]
        lengths = [-(-p.numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for p, _, dtype in wanted]
        memory = _reserve(folder, sum(lengths), group)
        starts = accumulate(lengths, initial=0)
        self.places = {
            (p, kind): torch.frombuffer(memory, dtype=dtype, count=p.numel(), offset=start).view_as(p)
            for (p, kind, dtype), start in zip(wanted, starts, strict=False)
            if p.numel()
        }

    def _see_through(self) -> None:
        self.state, self.param_groups = self.inner.state, self.inner.param_groups

    def _kinds(self, group: dict[str, Any]) -> list[tuple[str, torch.dtype]]:
        """Which states the optimizer keeps for each number: a parameter of two numbers is tried."""
        if not group["params"]:
            return []
        first = group["params"][0]
        probe = nn.Parameter(torch.zeros(2, dtype=first.dtype, device=first.device))
        probe.grad = torch.zeros_like(probe)
        with self._only(group, probe):
            self.inner.step()
        found = self.inner.state.pop(probe, {})
        return [(kind, x.dtype) for kind, x in found.items() if isinstance(x, Tensor) and x.dim()]

    @contextmanager
    def _only(self, group: dict[str, Any], parameter: Tensor) -> Iterator[None]:
        """The optimizer has one parameter alone."""
        groups = self.inner.param_groups
        self.inner.param_groups = [{**group, "params": [parameter]}]
        try:
            yield
        finally:
            self.inner.param_groups = groups

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One parameter's states are new, or brought in, at a time."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                with self._only(group, parameter):
                    self.inner.step()
                self._move(parameter)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the states over into the file."""
        self.inner.load_state_dict(state_dict)
        self._see_through()
        for parameter in list(self.state):
            self._move(parameter)

    @torch.no_grad()
    def _move(self, parameter: Tensor) -> None:
        state = self.state.get(parameter, {})
        for kind, x in state.items():
            place = self.places.get((parameter, kind))
            if place is not None and x is not place:
                state[kind] = place.copy_(x)


class Tiers(NamedTuple):
    """Bytes by where they lie."""

    device: int
    host: int
    disk: int


def tier_bytes(pieces: Iterable[Tensor], optimizer: Optimizer, policy: CPUOffloadPolicy | None) -> Tiers:
    """Where this rank's pieces, their gradients and the optimizer's states lie between steps; counters are left out."""
    pieces = list(pieces)
    places = getattr(optimizer, "places", {}).values()
    on_disk = {x.data_ptr() for x in places}
    states = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor) and x.dim()]
    gradients = [p.grad for p in pieces if p.grad is not None]
    near = sum(x.nbytes for x in chain(pieces, gradients, states) if x.data_ptr() not in on_disk)
    disk = sum(x.nbytes for x in places)
    return Tiers(near, 0, disk) if policy is None else Tiers(0, near, disk)


def _reserve(folder: str | Path, nbytes: int, group: ProcessGroup) -> mmap.mmap:
    """Memory that is a file without a name. Its room is taken now: a disk that is full later would kill this process.

    Raises: OSError, the same on all ranks, if one of them cannot have it.
    """
    memory, problem = None, ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
            memory = mmap.mmap(file.fileno(), max(nbytes, 1))
    except OSError as error:
        problem = f"rank {dist.get_rank()} wants {format_bytes(nbytes)} in {folder}: {error.strerror}"
    problems = [problem] * group.size()
    dist.all_gather_object(problems, problem, group=group)
    if found := [each for each in problems if each]:
        rule = "the disk must have room for all optimizer states before training begins"
        raise OSError(four_parts("DiskOffloadPolicy", found[0], rule, "free some, or choose another folder"))
    assert memory is not None
    return memory
