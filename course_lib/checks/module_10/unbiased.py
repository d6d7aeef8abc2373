"""10.5: a quantiser with dice: right on average over both outcomes of each die, and how far off it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.parts import generator
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.work import Watch
from course_lib.checks.module_10.dice import Quantiser
from course_lib.verify.equality import close, no_multiple, scale_of
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import exactly, of_a_guess

_NEAR = 1e-6  # from the place where a die changes its mind
_VARIANCE = 1e-6  # relative, as of any number that is asked for: it may have been computed in float32
Look = Literal["thrown", "both", "variance"]


@dataclass(frozen=True, kw_only=True)
class Dice:
    """So many numbers in buckets, and what is looked at: one throw, both outcomes, or the variance."""

    look: Look
    length: int = 24
    bucket: int = 8
    levels: int = 4
    zeros: bool = False
    on_a_step: bool = False  # the first bucket has one number, which is its norm, and all dice are 0
    world_size: int = 1

    def __str__(self) -> str:
        zeros = ", one bucket all zeros" * self.zeros + ", a number exactly on a step" * self.on_a_step
        return f"{plural(self.length, 'number')} in buckets of {self.bucket}, {plural(self.levels, 'level')}{zeros}"


class _Throws(NamedTuple):
    """Numbers and the dice of several throws."""

    levels: int
    bucket: int
    v: Tensor
    dice: tuple[Tensor, ...]
    look: Look

    def __str__(self) -> str:
        return ""

    @property
    def right(self) -> Quantiser:
        """The right one."""
        return Quantiser(self.levels, self.bucket)


def _records(case: Dice, seed: int) -> Sequence[_Throws]:
    source = generator(seed, case.length, case.bucket, case.levels, len(case.look))
    v = torch.randn(case.length, generator=source, dtype=torch.float64)
    v *= 1 + torch.arange(case.length) // case.bucket  # buckets have norms of their own
    v[0] = -v[0].abs()
    if case.zeros:
        v[case.bucket : 2 * case.bucket] = 0.0
    dice = torch.rand(case.length, generator=source).double()
    if case.on_a_step:
        v[1 : case.bucket], dice = 0.0, torch.zeros_like(dice)
    asked = _Throws(case.levels, case.bucket, v, (dice,), case.look)
    return [asked._replace(dice=_around(asked)) if case.look == "both" else asked]


def _around(asked: _Throws) -> tuple[Tensor, ...]:
    """The smallest and the largest die, and those just before and just behind the number's fraction."""
    shares = asked.right.shares(asked.v)[0].flatten()[: len(asked.v)]
    fraction = shares - shares.floor()
    before, behind = ((fraction + off).clamp(0, 1 - _NEAR) for off in (-_NEAR, _NEAR))
    return torch.zeros_like(fraction), torch.full_like(fraction, 1 - _NEAR), before, behind


class _NanBecomesWhole(Watch):
    """Notes whether a NaN is made a whole number, which may be 0 here and something else on another machine."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dtype == torch.int8:
            self.seen |= any(isinstance(x, Tensor) and bool(x.isnan().any()) for x in args)
        return made


def _use(answer: Callable[..., Any], asked: _Throws) -> dict[str, Any] | str:
    """Runs on a rank: what is looked at, by name; a text is a verdict."""
    coder = answer(asked.levels, asked.bucket)
    if asked.look == "variance":
        return _variance(coder, asked.v)
    throws, watch = [], _NanBecomesWhole()
    for dice in asked.dice:
        v, thrown = asked.v.clone(), dice.clone()
        with watch:
            pair = coder.encode(v, thrown)
        if not torch.equal(v, asked.v) or not torch.equal(thrown, dice):
            return "encode() has written into what it was given"
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(one, Tensor) for one in pair):
            return f"encode() {wrong_kind(type(pair).__name__, 'two tensors: steps and norms')}"
        throws.append(tuple(one.detach().clone() for one in pair))
    back = coder.decode(*asked.right.encode(asked.v, asked.dice[0]))
    return {
        "throws": throws,
        "nan": watch.seen,
        "back": back.detach().clone() if isinstance(back, Tensor) else type(back).__name__,
    }


def _variance(coder: Any, v: Tensor) -> dict[str, Any] | str:
    """Asked twice, since dice would not fall alike."""
    twice = [coder.variance(v.clone()) for _ in range(2)]
    first, second = map(number_of, twice)
    if first is None or second is None:
        return f"variance() {wrong_kind(type(twice[0]).__name__, 'a number')}"
    if not math.isfinite(first):
        return f"variance() is {first}: what is a bucket of zeros divided by?"
    if first != second:
        return (
            f"variance() is {first:.6g}, and {second:.6g} when it is asked again. It is computed and not thrown: sum "
            "both outcomes of each die by their probabilities"
        )
    return {"variance": torch.tensor(float(first), dtype=torch.float64)}


def _judge(asked: _Throws, found: Mapping[str, Any] | str) -> str | None:
    if isinstance(found, str):
        return found
    if asked.look == "variance":
        return _wrong_variance(asked, float(found["variance"]))
    if found["nan"]:
        return (
            "encode() makes a whole number of NaN. A bucket of zeros is divided by its norm, and 0 / 0 comes out as a "
            "step of 0 by luck alone: divide by 1 there"
        )
    throws = [asked.right.encode(asked.v, dice) for dice in asked.dice]
    for (steps, norms), (right, of_buckets) in zip(found["throws"], throws, strict=True):
        if reason := _unlike("the norms", norms, of_buckets) or _wrong_steps(steps, right):
            return reason
    right_back = asked.right.decode(*throws[0])
    return _unlike("decode(), of the right steps and norms,", found["back"], right_back) or (
        _wrong_mean(asked, found["throws"]) if asked.look == "both" else None
    )


def _unlike(what: str, got: Tensor | str, want: Tensor) -> str | None:
    told = wrong_form(got, want, 1, "what is a bucket of zeros divided by?")
    if not told and isinstance(got, Tensor) and not close(got, want):
        ratio = scale_of(got, want)
        told = f" {no_multiple(got, want) if ratio is None else f'is {exactly(ratio)} the reference'}"
    return f"{what}{told}".replace("norms is", "norms are") if told else None


def _wrong_steps(got: Tensor, want: Tensor) -> str | None:
    if got.dtype != want.dtype:
        return f"the steps are {got.dtype}, and {want.dtype} is asked"
    if form := wrong_form(got, want, 1, ""):
        return f"the steps{form}"
    if torch.equal(got, want):
        return None
    places = (got != want).nonzero().flatten()
    first = int(places[0])
    return (
        f"the steps are wrong at {plural(len(places), 'place')}, first at number {first}: {int(got[first])} there, and "
        f"{int(want[first])} right"
    )


def _wrong_mean(asked: _Throws, throws: Sequence[tuple[Tensor, Tensor]]) -> str | None:
    """Both outcomes of each die, by their probabilities, are the number itself."""
    shares = asked.right.shares(asked.v)[0].flatten()[: len(asked.v)]
    fraction = shares - shares.floor()
    up, down = (asked.right.decode(*one) for one in throws[:2])
    mean = fraction * up + (1 - fraction) * down
    return None if close(mean, asked.v) else f"the mean over both outcomes {no_multiple(mean, asked.v)}"


def _wrong_variance(asked: _Throws, got: float) -> str | None:
    want = asked.right.variance(asked.v)
    if math.isclose(got, want, rel_tol=_VARIANCE):
        return None
    if math.isclose(got, want, rel_tol=0.1):
        return (
            f"variance() is {got:.6g}, and {want:.6g} is right: it is {of_a_guess(got / want)}. Is it a mean over "
            "throws? It is computed, by both outcomes of each die"
        )
    return f"variance() is {got:.6g}, and {want:.6g} is right, {exactly(got / want)} it"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(Quantiser, mistake=mistake)


_SLIPS: Slips = {
    "all buckets have one norm, that of all numbers": _way("one norm"),
    "the largest size of a bucket is taken for its norm. The norm is the root of the sum of squares": _way("largest"),
    "the sizes are added up for the norm. The norm is the root of the sum of squares": _way("sum"),
    "the norm is divided into one step too few: `levels` steps lie between 0 and the norm": _way("one less"),
    "steps are rounded to the nearest, and no die decides. Then a small number is 0 in every step of training": (
        _way("nearest")
    ),
    "steps are always rounded down": _way("down"),
    "steps are always rounded up": _way("up"),
    "the dice are upside down: a number goes up if its die is below its fraction": _way("upside down"),
    "a number that stands exactly on a step goes up with a die of 0. It goes up if its die is below its fraction, and "
    "0 is not below 0": _way("at"),
    "up and down are equally likely there. A number that lies nearer to the upper step has to go up more often": (
        _way("coin")
    ),
    "the signs are lost": _way("no sign"),
    "decode() gives steps times norms: a step is the norm divided by `levels`": _way("not divided"),
    "decode() gives neighbours other buckets' norms: repeat_interleave, not repeat": _way("repeat"),
    "that is in steps. A step is worth norm / levels, and its square belongs to the variance": _way("in steps"),
    "a step belongs to the variance with its square": _way("not squared"),
    "the square of the norm is there, but not that of `levels`": _way("norms"),
    "that is as if a number that goes up were off by a whole step, and one that goes down by nothing": (
        _way("fraction")
    ),
    "that is the error of rounding to the nearest. A die is sometimes wrong": _way("nearer"),
    "that is the bound, which holds for the worst numbers. These ones are not the worst": _way("bound"),
    "that is relative to the square of v's norm": _way("relative"),
    "that is the mean of a number's squared error. All numbers together are asked": _way("mean"),
}

_UNBIASED = asked_exercise(
    key="10.5",
    title="a quantiser that is right on average",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "thrown": Level(
            points=1,
            cases=(Dice(look="thrown"), Dice(look="thrown", length=40, bucket=20, levels=2)),
            praise="steps of a bucket's own norm, with their signs, and a die for each number",
        ),
        "unbiased": Level(
            points=2,
            again=True,
            cases=(Dice(look="both"), Dice(look="both", length=12, bucket=6, levels=9)),
            praise="over both outcomes of each die the mean is the number itself, exactly",
        ),
        "edges": Level(
            points=1,
            cases=(
                Dice(look="thrown", length=21),
                Dice(look="thrown", zeros=True),
                Dice(look="thrown", length=3, bucket=64),
                Dice(look="thrown", on_a_step=True),
            ),
            praise="also with a shorter last bucket, with one of zeros only, and with a number exactly on a step",
        ),
        "variance": Level(
            points=1,
            alone=True,
            cases=(Dice(look="variance"), Dice(look="variance", length=21, zeros=True)),
            praise="what the dice cost: a variance, larger where buckets are larger and levels are fewer",
        ),
    },
    hints=(
        "F.pad(v, (0, -len(v) % bucket)).view(-1, bucket) has a bucket in each row, and .norm(dim=1) its norm. For a "
        "norm of 0 divide by 1.",
        "share = |x| / norm * levels says how many steps long a number is. share.floor() is the lower step, and share "
        "minus that is the fraction.",
        "A die is below the fraction as often as the fraction says: low + (dice < fraction), times the sign of v, as "
        "int8. decode: steps * norms.repeat_interleave(bucket)[:n] / levels.",
        "A number with fraction f is off by 1 - f steps with probability f, and by f steps with probability 1 - f. The "
        "mean of the squares is f (1 - f), in steps. A step is norm / levels long.",
    ),
)
