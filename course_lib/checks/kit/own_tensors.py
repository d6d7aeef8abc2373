"""Tensors that a learner's own file has saved: whether they are right, and if not, what they are instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

Tensors = Mapping[str, Tensor]


def wrong_tensors(
    found: Any, want: Tensors, *, start: Tensors, instead: Mapping[str, Tensors], tolerance: float | None = None
) -> str | None:
    """None if all are right, else why not, in one sentence.

    `start` are the tensors before the first step; `instead` says of other results which mistake gives them.
    """
    if reason := malformed(found, want):
        return reason
    if agree(found, want, tolerance):
        return None
    if agree(found, start, tolerance):
        return "the weights are those of the start: did an optimizer step, and were its weights saved?"
    for sentence, tensors in instead.items():
        if agree(found, tensors, tolerance):
            return sentence
    name = next(name for name, right in want.items() if not close(found[name], right, tolerance=tolerance))
    moved, should = found[name] - start[name], want[name] - start[name]
    if (ratio := scale_of(moved, should)) is not None:
        return f"{name} has moved {exactly(ratio)} as far as on one device"
    if close(*(one[name].flatten().sort().values for one in (found, want)), tolerance=tolerance):
        return f"{name} has the right numbers in other places, at the end"
    return f"{name} {no_multiple(found[name], want[name])}, at the end"


def agree(found: Tensors, want: Tensors, tolerance: float | None = None) -> bool:
    """Whether each tensor of `want` is there and right."""
    return all(close(found.get(name), right, tolerance=tolerance) for name, right in want.items())


def malformed(found: Any, want: Tensors) -> str | None:
    """What cannot be compared: no dict, other names, another shape or dtype, no numbers."""
    if not isinstance(found, Mapping):
        return f"the weights are of type {type(found).__name__}: save a state dict, tensors by name"
    if missing := [name for name in want if not isinstance(found.get(name), Tensor)]:
        names = ", ".join(map(repr, list(found)[:3])) or "nothing"
        wrapped = any(f"module.{name}" in found for name in missing)
        way_out = "; those are the wrapper's names: save wrapped.module.state_dict()" if wrapped else ""
        return f"among the weights there is no tensor {missing[0]!r}; found {names}{way_out}"
    for name, right in want.items():
        tensor = found[name]
        if isinstance(tensor, DTensor):
            return (
                f"{name} is a DTensor, of which a rank saves its piece: save full_tensor(), or to_local() if so asked"
            )
        if tensor.shape != right.shape:
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(right.shape)}"
        if tensor.dtype != right.dtype:
            return f"{name} is {tensor.dtype}, expected {right.dtype} as in the task"
        if not torch.isfinite(tensor).all():
            return f"{name} holds nan or inf, not a number"
    return None
