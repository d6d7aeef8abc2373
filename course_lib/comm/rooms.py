"""Memory for what arrives, kept from call to call: a large tensor's pages cost more than its message.

A thread's calls run one after the other, so each thread keeps its own rooms: as many as one call needs at once, as
large as the largest so far. A room is lent, and given back only by a call that ended well: into that of a call that
was stopped, a message may still come.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_kept: dict[int, dict[torch.device, list[Room]]] = {}  # by thread
_VIEWS = 64  # of a room that are remembered: a training step asks for the same again and again


class Room:
    """Memory in which tensors of any dtype and shape may lie."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # a later call may be in training
            self.memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._views: dict[tuple[object, ...], list[Tensor]] = {}

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors like these, all of one dtype, one behind the other."""
        kind = (tensors[0].dtype, *(x.shape for x in tensors))
        if kind not in self._views:
            if len(self._views) == _VIEWS:
                self._views.clear()
            self._views[kind] = self._cut(tensors)
        return self._views[kind]

    def _cut(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        nbytes = sum(x.nbytes for x in tensors)
        with torch.inference_mode(False):
            parts = self.memory[:nbytes].view(tensors[0].dtype).split([x.numel() for x in tensors])
            return [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]


def take(tensors: Sequence[Tensor]) -> Room:
    """A room for tensors like these: the one that was given back last, if it is large enough."""
    rooms, nbytes = _mine(tensors[0].device), sum(x.nbytes for x in tensors)
    room = rooms.pop() if rooms else None
    return room if room is not None and room.memory.nbytes >= nbytes else Room(nbytes, tensors[0].device)


def give_back(rooms: list[Room]) -> None:
    """Keep rooms for the next call, which takes them in the same order."""
    while rooms:
        room = rooms.pop()
        _mine(room.memory.device).append(room)


def forget(thread: int | None = None) -> None:
    """Let go of what a thread keeps, or all threads."""
    if thread is None:
        _kept.clear()
    else:
        _kept.pop(thread, None)


def _mine(device: torch.device) -> list[Room]:
    return _kept.setdefault(threading.get_ident(), {}).setdefault(device, [])
