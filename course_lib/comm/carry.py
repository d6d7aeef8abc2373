"""One message on its way: from where its numbers lie, or through main memory.

Only gloo tells messages apart by their tags, and lets two ranks send to each other at the same time; NCCL would let
both wait for ever. And gloo sends bytes of main memory. So a tensor on a GPU is copied on both sides, wherever the
group carries main memory too. PyTorch's own collectives go from GPU to GPU.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.comm.call import words_device_of


class Copied:
    """A message through main memory: `copy` stays alive until it has passed, and then fills `into`, if there is one."""

    def __init__(self, work: dist.Work, copy: Tensor, into: Tensor | None = None) -> None:
        self._work, self._copy, self._into = work, copy, into

    def wait(self, limit: timedelta | None = None) -> None:
        """Block until the message has passed."""
        self._work.wait() if limit is None else self._work.wait(limit)
        if self._into is not None:
            self._into.copy_(self._copy)


def send(group: ProcessGroup, x: Tensor, place: int, tag: int) -> dist.Work | Copied:
    """Start sending `x` to the rank at `place` of the group."""
    if not _through_main_memory(group, x):
        return group.send([x], place, tag)
    copy = x.cpu()
    return Copied(group.send([copy], place, tag), copy)


def recv(group: ProcessGroup, into: Tensor, place: int, tag: int) -> dist.Work | Copied:
    """Start receiving from the rank at `place` of the group into `into`."""
    if not _through_main_memory(group, into):
        return group.recv([into], place, tag)
    copy = torch.empty_like(into, device="cpu")
    return Copied(group.recv([copy], place, tag), copy, into)


def _through_main_memory(group: ProcessGroup, x: Tensor) -> bool:
    return not x.is_cpu and words_device_of(group).type == "cpu"
