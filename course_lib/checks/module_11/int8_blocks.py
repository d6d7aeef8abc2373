"""11.7: weights as whole steps from -127 to 127, a scale for each block of them, and how far a number can be off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.ratios import exactly

_NAMES = ("the steps", "the scales", "the bounds")
_MOST = 127
_Kind = Literal["plain", "outlier", "zeros"]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A weight of this shape in blocks, and what is special about it."""

    shape: tuple[int, ...]
    block: int
    kind: _Kind = "plain"
    world_size: int = 1

    def __str__(self) -> str:
        extra = {"plain": "", "outlier": ", one of them large", "zeros": ", one block all zeros"}[self.kind]
        shape = " x ".join(map(str, self.shape))
        return f"{shape} weights in blocks of {self.block}{extra}"


class _Weight(NamedTuple):
    """What the answer gets."""

    w: Tensor
    block: int

    def __str__(self) -> str:
        return ""


def _records(case: Steps, seed: int) -> Sequence[_Weight]:
    w = torch.randn(*case.shape, generator=generator(seed, *case.shape, case.block), dtype=torch.float64)
    flat = w.view(-1)
    flat[1] = -flat.abs().max() - 1 - flat[1].abs()  # the largest of its block is negative
    if case.kind == "outlier":
        flat[-1] = 50.0
    if case.kind == "zeros":
        flat[case.block : 2 * case.block] = 0.0
    return [_Weight(w, case.block)]


def _use(answer: Callable[..., Any], given: _Weight) -> tuple[Tensor | str, ...]:
    """Runs on a rank; one text alone says what came instead of three things."""
    found = answer(*given)
    if not isinstance(found, tuple | list):
        return (type(found).__name__,)
    if len(found) != len(_NAMES):
        return (plural(len(found), "thing"),)
    return tuple(one.detach().clone() if isinstance(one, Tensor) else type(one).__name__ for one in found)


def _judge(given: _Weight, found: Sequence[Tensor | str]) -> str | None:
    if len(found) != len(_NAMES):
        return wrong_kind(str(found[0]), f"three things: {', '.join(_NAMES)}")
    for name, got, want in zip(_NAMES, found, _in_steps(*given), strict=True):
        if isinstance(got, Tensor) and got.shape != want.shape:
            return f"{name} have shape {tuple(got.shape)}, and {tuple(want.shape)} is right"
        if form := wrong_form(got, want, 1, "what is a block of zeros divided by?"):
            return f"{name}{form}".replace(f"{name} is ", f"{name} are ")
        if isinstance(got, Tensor) and not close(got, want):
            return f"{name} {_unlike(got, want)}"
    return None


def _unlike(got: Tensor, want: Tensor) -> str:
    if want.is_floating_point():
        ratio = scale_of(got, want)
        return (
            no_multiple(got, want).replace("is ", "are ", 1) if ratio is None else f"are {exactly(ratio)} the reference"
        )
    place = int((got != want).flatten().nonzero()[0])
    off = int((got != want).sum())
    return (
        f"are wrong at {plural(off, 'place')}, first at number {place}: {int(got.flatten()[place])} there, and "
        f"{int(want.flatten()[place])} right"
    )


def _in_steps(w: Tensor, block: int, *, mistake: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """The right answer, or one with a mistake."""
    flat = w.flatten()
    rows = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    if mistake == "by rows" and w.ndim > 1:
        rows = w
    largest = rows.abs().amax(1)
    if mistake == "tensor":
        largest = largest.max().expand(len(largest)).clone()
    if mistake == "signed":
        largest = rows.amax(1).abs()
    if mistake == "spread":
        largest = (rows.amax(1) - rows.amin(1)) / 2
    if mistake == "mean":
        largest = rows.abs().mean(1) * 3
    scales = largest / {"128": 128, "255": 255}.get(mistake, _MOST)
    shares = rows / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    steps = {"floor": torch.floor, "trunc": torch.trunc}.get(mistake, torch.round)(shares).clamp(-128, 127)
    steps = steps.flatten()[: len(flat)].view(w.shape).to(torch.int8)
    if mistake == "inverse":
        scales = torch.where(scales > 0, 1 / scales, 0.0)
    bounds = {"step": scales, "largest": largest / 2, "1/2": torch.full_like(scales, 0.5)}.get(mistake, scales / 2)
    if mistake == "seen":
        off = (rows - shares.round() * scales.unsqueeze(-1)).abs()
        bounds = off.amax(1)
    return steps, scales, bounds


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_in_steps, mistake=mistake)


_SLIPS: Slips = {
    "all blocks have one scale, that of the whole weight": _way("tensor"),
    "each row has a scale, and a block is `block` numbers in a row of them all": _way("by rows"),
    "the largest number is taken with its sign, and a negative one may be larger": _way("signed"),
    "the scale comes from the distance between the largest and the smallest number. Asked is the largest size": (
        _way("spread")
    ),
    "the largest size is divided by 128, and int8 ends at 127": _way("128"),
    "255 steps are for both signs together. From 0 to the largest there are 127": _way("255"),
    "steps are rounded down, and the nearest one is right": _way("floor"),
    "steps are cut off towards zero, and the nearest one is right": _way("trunc"),
    "the scales are upside down: a scale is what one step is worth": _way("inverse"),
    "steps and scales are right, and a bound of a whole step is twice too much: the nearest step is half a step away "
    "at most": _way("step"),
    "steps and scales are right, and the bounds are half of the largest number, not of a step": _way("largest"),
    "steps and scales are right, and the bounds are in steps, not in weights": _way("1/2"),
    "steps and scales are right, and the bounds are what happened. A bound holds for any numbers with this scale": (
        _way("seen")
    ),
}

_INT8 = asked_exercise(
    key="11.7",
    title="int8 in blocks, with a bound",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "steps": Level(
            points=2,
            cases=(Steps(shape=(24,), block=8), Steps(shape=(6, 8), block=16)),
            praise="each number is at the nearest of its block's steps, and half a step off at most",
        ),
        "outlier": Level(
            points=1,
            again=True,
            cases=(Steps(shape=(4, 16), block=16, kind="outlier"),),
            praise="one large number made the steps of its own block long, and of no other",
        ),
        "edges": Level(
            points=2,
            cases=(
                Steps(shape=(5, 7), block=8),
                Steps(shape=(3, 8), block=8, kind="zeros"),
                Steps(shape=(2, 3), block=64),
                Steps(shape=(2,), block=1),
            ),
            praise="also with a shorter last block, and with one of zeros only",
        ),
    },
    hints=(
        "F.pad(w.flatten(), (0, -w.numel() % block)).view(-1, block) has a block in each row, and zeros where the last "
        "one is too short. They change no largest size.",
        "A scale is what one step is worth: the largest size of the block, divided by 127. Steps are "
        "(rows / scale).round(), and then .to(torch.int8).",
        "A block of zeros has the scale 0, and 0 / 0 is nan. Divide by anything else there: torch.where(scales > 0, "
        "scales, 1.0).",
        "Back to the shape of w: .flatten()[: w.numel()].view(w.shape). A number is never further from the nearest "
        "step than half a step.",
    ),
)
