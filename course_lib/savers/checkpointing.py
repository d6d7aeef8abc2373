"""Activation checkpointing: layers keep their input alone, and compute the rest a second time in backward.

While a stretch of layers goes forward, autograd gets an empty slot in place of every tensor that it wants to keep. The
first slot that backward opens lets the stretch compute once more, from its input: now autograd wants the same tensors
in the same order, and each fills its slot. The layers stay where they are and keep their names, so that whatever cuts
or hooks them works as before. `torch.utils.checkpoint` does the same for one function.
Source: Chen et al. 2016, Training deep nets with sublinear memory cost, section 3.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.errors import four_parts
from course_lib.savers.kept_results import OPERATORS, Keep
from course_lib.savers.one_call import Kept, LayerCall, anew

_AS_IT_IS: AbstractContextManager[object] = nullcontext()


def checkpoint_layers(
    layers: Iterable[nn.Module],
    *,
    group: int = 1,
    keep: Keep = "nothing",
    stored: AbstractContextManager[object] = _AS_IT_IS,
) -> None:
    """Let every `group` of layers keep the input of its first one, and of all else what `keep` names.

    `stored` is entered while autograd keeps the input, and may keep it in pieces or elsewhere (`savers.stored`).
    Cost: in bytes `costs.model.checkpointing`; in time a second forward, without what is kept.
    Raises: ValueError for a group without layers, or an unknown `keep`.
    """
    if group < 1 or keep not in OPERATORS:
        rule, way_out = "a group has layers", f"give group >= 1, and as keep one of {', '.join(OPERATORS)}"
        raise ValueError(four_parts("checkpoint_layers", f"group={group}, keep={keep!r}", rule, way_out))
    layers = list(layers)
    for first in range(0, len(layers), group):
        _Stretch(layers[first : first + group], keep, stored)


class _Stretch:
    """Layers that run one after the other, in one forward pass at a time."""

    def __init__(self, layers: Sequence[nn.Module], keep: Keep, stored: AbstractContextManager[object]) -> None:
        self.layers, self.keep, self.stored = layers, keep, stored
        self.now = _Pass(self)
        self.is_again = False
        for layer in layers:
            layer.forward = partial(self._forward, layer, layer.forward)

    def _forward(self, layer: nn.Module, plain: Any, x: Tensor, *others: Tensor | None, **named: Any) -> Any:
        if self.is_again or not torch.is_grad_enabled():
            return plain(x, *others, **named)
        if layer is self.layers[0]:
            self.now = _Pass(self)
        result = self.now.forward(layer, plain, x, others, named)
        if layer is self.layers[-1]:
            self.now = _Pass(self)  # what was kept is backward's alone from here on
        return result


class _Slot:
    """What autograd holds in place of a tensor."""

    tensor: Tensor | None = None


class _Pass:
    """A stretch's forward pass: what it keeps, and how backward gets the rest."""

    def __init__(self, stretch: _Stretch) -> None:
        self.stretch = stretch
        self.calls: list[LayerCall] = []
        self.slots: list[weakref.ref[_Slot]] = []  # in the order in which autograd asked for them

    def forward(self, layer: nn.Module, plain: Any, x: Tensor, others: tuple[Tensor | None, ...], named: Any) -> Any:
        call = LayerCall(layer, others, named, OPERATORS[self.stretch.keep])
        if not self.calls:  # later layers' inputs come from the ones before them
            with self.stretch.stored:
                self.input = Kept([x])
        self.calls.append(call)
        with saved_tensors_hooks(self._empty, self._open), call.first_time(x.device):
            return plain(x, *others, **named)

    def _empty(self, _: Tensor) -> _Slot:
        slot = _Slot()
        self.slots.append(weakref.ref(slot))
        return slot

    def _open(self, slot: _Slot) -> Tensor:
        if slot.tensor is None:
            self._compute_again()
        assert slot.tensor is not None  # `_compute_again` has counted
        return slot.tensor

    def _compute_again(self) -> None:
        found = 0

        def fill(tensor: Tensor) -> None:
            nonlocal found
            slot = self.slots[found]() if found < len(self.slots) else None
            if slot is not None:  # else backward has done without it, or there never was one
                slot.tensor = tensor.detach()
            found += 1

        self.stretch.is_again = True
        try:
            with torch.enable_grad(), saved_tensors_hooks(fill, _nobody_asks):
                (x,) = anew(self.input.saved_tensors)
                for call in self.calls:
                    x = call.second_time(x)
        finally:
            self.stretch.is_again = False
        if found != len(self.slots):
            values, rule = f"{len(self.slots)} tensors, then {found}", "a layer computes the same both times"
            raise RuntimeError(four_parts("checkpoint_layers", values, rule, "let nothing it does depend on the time"))
        self.calls = []


def _nobody_asks(_: Any) -> Tensor:
    raise AssertionError("the second graph has no backward")
