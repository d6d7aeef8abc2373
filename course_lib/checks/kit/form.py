"""What is said of a result before its values: it stands in another one's place, or has another shape or type."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.verify.equality import close, name_of


def another(names: tuple[str, ...], place: int, got: Tensor | str, wanted: Sequence[Tensor]) -> str | None:
    """Whether a result is right, and stands in another one's place; whole numbers may agree by chance."""
    if isinstance(got, str) or not got.is_floating_point() or close(got, wanted[place]):
        return None
    others = [name for name, right in zip(names, wanted, strict=True) if close(got, right)]
    return f" is {others[0]}; return in this order: {', '.join(names)}" if others else None


def wrong_form(got: Tensor | str, want: Tensor, world_size: int, nan: str) -> str | None:
    """What cannot be compared with the right result, and what its shape reveals."""
    if isinstance(got, str):
        whole = want.ndim == 1 and not want.is_floating_point()
        wanted = plural(want.numel(), "whole number") if whole else f"a tensor of shape {tuple(want.shape)}"
        return f": {got}, not {wanted}"
    if got.shape != want.shape and not want.is_floating_point():
        found, right = got.flatten().tolist(), want.flatten().tolist()
        return f" are {found}, expected {right}{': each once' if {*found} == {*right} else ''}"
    if got.shape != want.shape:
        return f": shape {tuple(got.shape)}, expected {tuple(want.shape)}{_by_shape(got, want, world_size)}"
    if got.dtype != want.dtype:
        return f" is {name_of(got.dtype)}, expected {name_of(want.dtype)} as in what you were given"
    if got.is_floating_point() and not bool(got.isfinite().all()):
        strange = "nan" if bool(got.isnan().any()) else "inf" if bool((got == torch.inf).any()) else "-inf"
        return f" holds {strange}, not a number{f': {nan}' if nan else ''}"
    return None


def _by_shape(got: Tensor, want: Tensor, world_size: int) -> str:
    """How a part was cut wrongly, behind a colon; empty if that is not seen."""
    if got.ndim != want.ndim or world_size == 1 or not want.numel() or not want.is_floating_point():
        return ""
    ratios = sorted(one / other for one, other in zip(got.shape, want.shape, strict=True) if one != other)
    if ratios == [1 / world_size, world_size]:
        return ": is it cut along the other dimension?"
    if ratios == [world_size]:
        return ": is it that of all ranks together?"
    return ": is it one rank's part?" if ratios == [1 / world_size] else ""
