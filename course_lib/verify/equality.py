"""Whether two tensors are equal, and if not, how the wrong one was made from the right one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.verify.ratios import agrees, in_words

# Ranks add the same numbers in another order, which rounds differently at each addition. Over the sums of a small
# model and a few steps that stays below some hundred roundings in float32 (eps 1.2e-7), and below 5e4 of the far
# smaller ones of float64 (eps 2.2e-16); a real bug is off by a thousandth or more.
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5}
_FEW = 8  # differences are too few to say what they look like
_SPREAD = 30  # of roundings: nine in ten are within so many times the median
_ROUNDINGS = {  # the median of what rounding once, or a few terms of a sum, does to a number
    torch.bfloat16: (5e-4, 1e-2),
    torch.float16: (1e-5, 5e-4),
    torch.float32: (5e-10, 5e-7),
}
_SAME = 1e-3  # deviation below which a guess of how the wrong tensor was made is taken


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How a wrong tensor relates to the right one: `got` = `ratio` x `want`, or a rearrangement, or neither."""

    words: str
    kind: str  # zero, ratio, rounded, transposed, permuted, other
    ratio: float | None = None


def deviation(got: Tensor, want: Tensor, scale: float = 0.0) -> float:
    """Largest difference, relative to the largest number in `want`, or `scale` if that is larger; else absolute."""
    if not want.numel():
        return 0.0
    if not want.is_floating_point():
        got, want = got.double(), want.double()  # a mask cannot be subtracted
    return (got - want).abs().max().item() / (max(largest(want), scale) or 1.0)


def close(got: Tensor | None, want: Tensor | None, *, tolerance: float | None = None) -> bool:
    """Equal up to rounding, relative to the largest number; or both are None. Whole numbers must be equal."""
    if got is None or want is None or got.shape != want.shape:
        return got is want
    if not want.is_floating_point():
        return torch.equal(got, want)
    return deviation(got, want) <= (tolerance or TOLERANCES[want.dtype])


def largest(x: Tensor) -> float:
    """The largest number, signs aside."""
    return x.abs().max().item() if x.numel() else 0.0


def ratio_of(got: Tensor, want: Tensor, *, within: float = _SAME) -> float | None:
    """The number r with got = r want, None if there is none."""
    got, want = got.double().flatten(), want.double().flatten()
    if not want.any():
        return None
    ratio = (got @ want / (want @ want)).item()
    return ratio if deviation(got, ratio * want) < within * min(1.0, abs(ratio)) or not got.any() else None


def noise(got: Tensor, want: Tensor) -> torch.dtype | None:
    """The dtype whose rounding a difference looks like: of its size relative to each number, and of both signs.

    Shapes: (N,) each.
    """
    error, size = got - want, want.abs()
    off = (error != 0) & (size > _SAME * largest(want))  # what cancels in a small number is not its own
    relative = (error[off] / size[off]).abs()
    if relative.numel() < _FEW or not relative.isfinite().all():
        return None
    up = ((error * want)[off] > 0).double().mean().item()
    middle, most = relative.median().item(), relative.sort().values[int(0.9 * relative.numel())].item()
    if not 0.2 < up < 0.8 or most > _SPREAD * middle:
        return None
    for dtype, (low, high) in _ROUNDINGS.items():
        if low < middle <= high:
            return dtype
    return None


def scale_of(got: Tensor, want: Tensor) -> float | None:
    """The ratio of what may be called exact, but None also if it is 1: a scale is not what is wrong then."""
    ratio = ratio_of(got, want, within=TOLERANCES[torch.float32])
    return None if ratio is None or agrees(ratio, 1.0) else ratio


def no_multiple(got: Tensor, want: Tensor) -> str:
    """What is said of a wrong tensor that has no ratio: how far off it is, if that is little."""
    off = deviation(got, want) if got.shape == want.shape else 1.0
    if off < 0.01:
        return f"is off by {off:.1g} x its largest number, more than rounding"
    return "is no multiple of the reference"


def signature(got: Tensor, want: Tensor, world_size: int) -> Signature:
    """Recognise zeros, a multiple, a rounding to 16 bits, and transposed or permuted shards of `world_size`."""
    if not got.any() and want.any():
        return Signature(words="zero", kind="zero", ratio=0.0)
    for dtype in (torch.bfloat16, torch.float16):
        if got.dtype != dtype and deviation(got, want) < 2 * torch.finfo(dtype).eps and fits(got, dtype):
            return Signature(words=f"one device's rounded to {name_of(dtype)}", kind="rounded", ratio=1.0)
    ratio = ratio_of(got, want)
    if ratio is not None and abs(ratio - 1) < _SAME:
        return Signature(words="near one device's, not equal", kind="other", ratio=ratio)
    if ratio is not None:
        return Signature(words=f"{in_words(ratio)} one device's", kind="ratio", ratio=ratio)
    return _rearranged(got, want, world_size) or Signature(words="wrong, and not by a constant factor", kind="other")


def _rearranged(got: Tensor, want: Tensor, world_size: int) -> Signature | None:
    if got.dim() == 2 and same(got.flatten(), want.T.flatten()):
        return Signature(words="one device's transposed", kind="transposed")
    for dim in range(got.dim()):
        mine, theirs = got.tensor_split(world_size, dim), want.tensor_split(world_size, dim)
        pairs = zip(mine, theirs, strict=True)
        if got.dim() == 2 and all(same(a, b) or same(a.flatten(), b.T.flatten()) for a, b in pairs):
            return Signature(words=f"one device's with a transposed shard (dim {dim})", kind="transposed")
        order = _order(mine, theirs)
        if order:
            words = f"one device's with its shards of dim {dim} in the order {', '.join(map(str, order))}"
            return Signature(words=words, kind="permuted")
    return None


def _order(mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> list[int]:
    """For each of my shards the number of theirs that it equals; empty unless all of them are found."""
    found = [[number for number, other in enumerate(theirs) if same(shard, other)] for shard in mine]
    order = [numbers[0] for numbers in found if numbers]
    return order if sorted(order) == list(range(len(theirs))) else []


def same(got: Tensor, want: Tensor) -> bool:
    """Whether a guess explains a tensor."""
    return got.shape == want.shape and deviation(got, want) < _SAME


def fits(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether every number survives rounding to `dtype`."""
    return torch.equal(x.to(dtype).to(x.dtype), x)


def name_of(dtype: torch.dtype) -> str:
    """float32, not torch.float32."""
    return str(dtype).removeprefix("torch.")
