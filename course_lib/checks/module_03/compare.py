"""From wrong gradients on ranks to what they reveal: a ratio, a share that was never averaged, a wrong parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from course_lib.checks import ratios
from course_lib.checks.module_03.models import Tensors

# Another order of adding rounds otherwise; a wrong scale is off by a hundredth or more.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
NO_MULTIPLE = "is no multiple of the reference"
Causes = Sequence[tuple[float, str]]  # a ratio, and what gives just that
Guess = tuple[Sequence[Tensors], str]  # by rank what a likely mistake leaves, and the mistake in words


def same(got: Tensor | None, want: Tensor | None, *, terms: float = 0.0) -> bool:
    """Equal up to rounding, relative to the largest number; or both are None.

    `terms` is the size of what was summed: where it cancels, the sum is small and its rounding is not.
    """
    if got is None or want is None or got.shape != want.shape:
        return got is want
    if not want.numel() or not want.is_floating_point():
        return torch.equal(got, want)
    scale = max(float(want.abs().max()), terms) or 1.0
    return float((got - want).abs().max()) <= TOLERANCES[want.dtype] * scale


def all_same(got: Sequence[Tensors], want: Sequence[Tensors]) -> bool:
    """Whether on every rank every tensor of `want` is there and right."""
    pairs = zip(got, want, strict=True)
    return all(same(mine.get(name), right) for mine, rights in pairs for name, right in rights.items())


def why_wrong(
    got: Sequence[Tensors],
    want: Tensors,
    *,
    own: Sequence[Tensors] = (),
    guesses: Sequence[Guess] = (),
    causes: Causes = (),
) -> str | None:
    """None if every rank has the gradients `want`, else one line: what all ranks did, or the first wrong tensor.

    `own` are the gradients of each rank's share alone.
    """
    if all_same(got, [want] * len(got)):
        return None
    formal = _wrong_form(got, want)
    if formal:
        return formal
    alone: list[Guess] = [(own, "every rank still has the gradient of its own share: nothing was averaged")]
    for expected, text in [*guesses, *(alone if own else [])]:
        if all_same(got, expected):
            return text
    return _overall_ratio(got, want, causes) or _first_wrong(got, want, own, causes)


def causes_of(world_size: int, micro_batches: int = 1) -> Causes:
    """What usually gives a ratio of gradients."""
    p, m = world_size, micro_batches
    return [
        *([(p, "was the sum divided by world_size?"), (1 / p, "was it divided by world_size twice?")] if p > 1 else []),
        *([(m, "was each loss divided by the number of micro-batches?")] if m > 1 else []),
        *([(1 / m, "does only one micro-batch count, or was the loss divided twice?")] if m > 1 else []),
        (-1, "a subtraction where an addition belongs?"),
        (0, "nothing wrote into it"),
    ]


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
    """A ratio as a learner reads it: `exactly 4.0 x`, `exactly 1/4 of`; one that is nearly 1 with more digits."""
    if 0 < ratio < 0.9 and abs(1 / ratio - round(1 / ratio)) < 1e-4:
        return f"exactly 1/{round(1 / ratio)} of"
    return f"exactly {ratio:.7g} x" if 0.99 < ratio < 1.01 else f"exactly {ratios.times(ratio)}"


def _wrong_form(got: Sequence[Tensors], want: Tensors) -> str | None:
    for rank, mine in enumerate(got):
        for name, right in want.items():
            found = mine.get(name)
            if found is None and right is not None:
                return f"{name} has no gradient on rank {rank}"
            if found is not None and right is None:
                return f"{name} is frozen, but has a gradient on rank {rank}"
            if found is not None and right is not None and found.shape != right.shape:
                return f"{name} on rank {rank} has shape {tuple(found.shape)}, expected {tuple(right.shape)}"
    return None


def _flat(tensors: Tensors, names: Mapping[str, object]) -> Tensor:
    return torch.cat([tensor.flatten() for name in names if (tensor := tensors.get(name)) is not None])


def _overall_ratio(got: Sequence[Tensors], want: Tensors, causes: Causes) -> str | None:
    found = {name: None for name, right in want.items() if right is not None}
    ratio = ratio_of(torch.cat([_flat(mine, found) for mine in got]), torch.cat([_flat(want, found)] * len(got)))
    if ratio is None:
        return None
    return f"your gradient is {exactly(ratio)} the reference{_because(ratio, causes)}"


def _first_wrong(got: Sequence[Tensors], want: Tensors, own: Sequence[Tensors], causes: Causes) -> str:
    for rank, mine in enumerate(got):
        for name, right in want.items():
            found = mine.get(name)
            if found is None or right is None or same(found, right):
                continue
            place = f"{name} on rank {rank}"
            if own and same(found, own[rank].get(name)):
                return f"{place} is still the gradient of its own share: it was not averaged"
            ratio = ratio_of(found, right)
            if ratio is not None:
                return f"{place} is {exactly(ratio)} the reference{_because(ratio, causes)}"
            alike = all(same(other.get(name), found) for other in got)
            agree = "all ranks hold the same" if alike else "the ranks hold different ones"
            return f"{place} {no_multiple(found, right)}, and {agree}"
    raise AssertionError("_first_wrong: called with right gradients")


def _because(ratio: float, causes: Causes) -> str:
    texts = [text for value, text in causes if abs(ratio - value) < 1e-4 * max(1.0, abs(value))]
    return f": {texts[0]}" if texts else ""
