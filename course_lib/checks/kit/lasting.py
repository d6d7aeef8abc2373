"""Tensors that live from one step of a training to the next: what a rank keeps, whatever it is kept in."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from course_lib.comm.rooms import Room


class Lasting:
    """Watches for tensors of `dtype` with at least `elements` numbers that are made after it.

    Call `step` in each step. `nbytes` then has the bytes of each piece of memory that was alive in the first step
    and still is in the last, by its address. What a step makes and frees again is not kept.
    """

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self._elements, self._dtype = elements, dtype
        self._old = [weakref.ref(tensor) for tensor in self._alive()]
        self._first: list[weakref.ref[Tensor]] | None = None
        self.nbytes: dict[int, int] = {}

    def step(self) -> None:
        """Remember what is alive in the first step, and of it what still is in this one."""
        if self._first is None:
            old = {id(tensor) for tensor in _still(self._old)}
            self._first = [weakref.ref(tensor) for tensor in self._alive() if id(tensor) not in old]
            return
        storages = [tensor.untyped_storage() for tensor in _still(self._first)]
        self.nbytes = {storage.data_ptr(): storage.nbytes() for storage in storages}

    def _alive(self) -> list[Tensor]:
        """All but the rooms of our own collectives, which are kept for the next call."""
        things = gc.get_objects()
        rooms = {thing.memory.data_ptr() for thing in things if type(thing) is Room}
        found = [thing for thing in things if type(thing) in (Tensor, torch.nn.Parameter)]
        large = [x for x in found if x.dtype == self._dtype and x.numel() >= self._elements]
        return [x for x in large if x.untyped_storage().data_ptr() not in rooms]


def _still(references: Iterable[weakref.ref[Tensor]]) -> Iterator[Tensor]:
    return (tensor for reference in references if (tensor := reference()) is not None)
