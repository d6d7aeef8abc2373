"""Two tensors: equal up to rounding, a multiple, or neither; and how a learner reads that."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.checks.kit import ratios

# Another order of adding rounds otherwise; a wrong scale is off by a hundredth or more.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
NO_MULTIPLE = "is no multiple of the reference"
Causes = Sequence[tuple[float, str]]  # a ratio, and what gives just that


def same(got: Tensor | None, want: Tensor | None, *, terms: float = 0.0, tolerance: float | None = None) -> bool:
    """Equal up to rounding, relative to the largest number; or both are None.

    `terms` is the size of what was summed: where it cancels, the sum is small and its rounding is not.
    """
    if got is None or want is None or got.shape != want.shape:
        return got is want
    if not want.numel() or not want.is_floating_point():
        return torch.equal(got, want)
    scale = max(float(want.abs().max()), terms) or 1.0
    return float((got - want).abs().max()) <= (tolerance or TOLERANCES[want.dtype]) * scale


def ratio_of(got: Tensor, want: Tensor) -> float | None:
    """The number r with got = r x want; None if there is none, or if it is 1: a scale is not what is wrong then."""
    got, want = got.double().flatten(), want.double().flatten()
    if not bool(want.any()):
        return None
    ratio = float(got @ want / (want @ want))
    scale = float(want.abs().max())
    alike = float((got - ratio * want).abs().max()) <= 1e-5 * scale
    return ratio if alike and abs(ratio - 1) > 1e-4 else None


def no_multiple(got: Tensor, want: Tensor) -> str:
    """What is said of a wrong tensor that has no ratio: how far off it is, if that is little."""
    off = float((got - want).abs().max()) / (float(want.abs().max()) or 1.0) if got.shape == want.shape else 1.0
    return f"is off by {off:.1g} x its largest number, more than rounding" if off < 0.01 else NO_MULTIPLE


def exactly(ratio: float) -> str:
    """A ratio as a learner reads it: `exactly 4.0 x`, `exactly 1/4 of`, and `1.143 x`, which is not all of it."""
    if 0 < ratio < 0.9 and abs(1 / ratio - round(1 / ratio)) < 1e-4:
        return f"exactly 1/{round(1 / ratio)} of"
    if 0.99 < ratio < 1.01:
        return f"exactly {ratio:.7g} x"
    short = math.isclose(ratio, float(f"{ratio:.3g}"), rel_tol=1e-5)
    return f"exactly {ratios.times(ratio)}" if short else f"{ratio:.4g} x"


def because(ratio: float, causes: Causes) -> str:
    """What usually gives this ratio, behind a colon; empty if nothing is known to."""
    texts = [text for value, text in causes if abs(ratio - value) < 1e-4 * max(1.0, abs(value))]
    return f": {texts[0]}" if texts else ""
