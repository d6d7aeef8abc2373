"""10.10: a slide of bytes and rates: which of its lines are wrong, and what is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.probe import Slips
from course_lib.checks.kit.said import plural, wrong_kind
from course_lib.checks.kit.spec import BF16, Level
from course_lib.units import GB
from course_lib.verify.numbers import number_of

_PLACE = 4  # bytes
_Kind = Literal["share", "ring", "gossip", "delta", "omega", "steps"]


class _Line(NamedTuple):
    """A line: what it is about, ranks, numbers of the gradient, numbers that are sent, and what is said."""

    name: str
    kind: str
    n: int
    d: int
    k: int
    said: float


_Formula = Callable[[_Line], float]
_RIGHT: Mapping[_Kind, _Formula] = {
    "share": lambda x: (x.n - 1) * x.k * (BF16 + _PLACE) / (2 * (x.n - 1) / x.n * x.d * BF16),
    "ring": lambda x: 2 * (x.n - 1) / x.n * x.d * BF16 / GB,
    "gossip": lambda x: 2 * x.d * BF16 / GB,
    "delta": lambda x: x.k / x.d,
    "omega": lambda x: x.d / x.k - 1,
    "steps": lambda x: 1 / x.n,
}
_SAID: Mapping[_Kind, _Formula] = {  # by somebody who is mistaken
    "share": lambda x: x.k / x.d,
    "ring": lambda x: (x.n - 1) * x.d * BF16 / GB,
    "gossip": lambda x: 2 / x.n * x.d * BF16 / GB,
    "delta": lambda x: 1 - x.k / x.d,
    "omega": lambda x: x.d / x.k,
    "steps": lambda x: 1 / x.n**0.5,
}
_OTHERS: Mapping[str, tuple[_Kind, _Formula]] = {
    "values": ("share", lambda x: x.n * x.k / (2 * x.d)),
    "gradient": ("share", lambda x: (x.n - 1) * x.k * (BF16 + _PLACE) / (x.d * BF16)),
    "half": ("ring", lambda x: (x.n - 1) / x.n * x.d * BF16 / GB),
    "bytes": ("ring", lambda x: 2 * (x.n - 1) / x.n * x.d * BF16),
    "one": ("gossip", lambda x: x.d * BF16 / GB),
    "upside down": ("omega", lambda x: 1 - x.k / x.d),
}
_PUBLISHED: tuple[_Kind, ...] = ("share", "ring", "delta", "steps")


@dataclass(frozen=True, kw_only=True)
class Slide:
    """A table in which lines of these kinds are wrong; the published one, or one with other sizes."""

    wrong: tuple[_Kind, ...] = ()
    published: bool = False
    world_size: int = 1

    def __str__(self) -> str:
        return "the table of the text" if self.published else f"another table, {plural(len(_RIGHT), 'line')}"


class _Lines(NamedTuple):
    """Lines."""

    lines: tuple[_Line, ...]

    def __str__(self) -> str:
        return ""


_Found = tuple[list[float], list[str]]


def _records(case: Slide, seed: int) -> Sequence[_Lines]:
    draw = random.Random(f"{case.wrong}{case.published}{seed}")
    lines = []
    for place, kind in enumerate(_RIGHT):
        n, d, k = 64, 7_000_000_000, 70_000_000
        if not case.published:
            n, k = draw.choice((8, 16, 32, 128)), draw.randint(10, 90) * 10**6
            d = draw.choice((20, 50, 200)) * k
        line = _Line("ABCDEF"[place], kind, n, d, k, 0.0)
        claimed = (_SAID if kind in case.wrong else _RIGHT)[kind](line)
        lines.append(line._replace(said=float(f"{claimed:.3g}")))
    if not case.published:
        draw.shuffle(lines)
    return [_Lines(tuple(lines))]


def _answer(lines: Sequence[Any], *, mistake: str = "") -> _Found:
    """The right answer, or one with a mistake: a kind that is taken as it is said, or one of the others."""
    formulas: dict[Any, _Formula] = dict(_RIGHT)
    formulas |= {kind: formula for kind, formula in _SAID.items() if kind == mistake}
    if mistake in _OTHERS:
        kind, formula = _OTHERS[mistake]
        formulas[kind] = formula
    right = [formulas[line.kind](line) for line in lines]
    return right, [line.name for line, number in zip(lines, right, strict=True) if float(f"{number:.3g}") != line.said]


def _use(answer: Callable[..., Any], table: _Lines) -> _Found | str:
    """Runs on a rank; a text says what came instead."""
    found = answer(list(table.lines))
    if not isinstance(found, tuple | list) or len(found) != 2:
        return wrong_kind(type(found).__name__, "two things: a list of numbers, and a list of names")
    numbers, names = found
    read = [number_of(one) for one in numbers] if isinstance(numbers, tuple | list) else []
    right = [float(one) for one in read if one is not None]
    if len(right) != len(table.lines):
        return f"the first thing is not a list with a number for each of {len(table.lines)} lines"
    if not isinstance(names, tuple | list | set):
        return "the second thing is to be a list of names"
    # Which lines are wrong follows from the numbers, and says nothing more where these are not right.
    return right, sorted(map(str, names)) if _alike(right, _answer(table.lines)[0]) else []


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(mine - right) <= 1e-9 * abs(right) for mine, right in zip(one, other, strict=True))


def _judge(table: _Lines, found: _Found | str) -> str | None:
    if isinstance(found, str):
        return found
    (numbers, names), (right, wrong) = found, _answer(table.lines)
    for line, mine, want in zip(table.lines, numbers, right, strict=True):
        if not _alike([mine], [want]):
            return f"{line.name}, {line.kind}: {mine:.6g} there, and {want:.6g} is right"
    if missing := [name for name in sorted(wrong) if name not in names]:
        return f"the numbers are right, and what the table says in line {missing[0]} does not agree with them"
    if extra := [name for name in names if name not in wrong]:
        if extra[0] not in {line.name for line in table.lines}:
            return f"the numbers are right, but {extra[0]!r} is no line's name"
        return f"the numbers are right, and what the table says in line {extra[0]} agrees with them"
    return None if len(names) == len(wrong) else "the numbers are right, but a line is named twice"


def _way(mistake: str) -> Callable[..., Any]:
    return partial(_answer, mistake=mistake)


_SLIPS: Slips = {
    "share: that is the share of the numbers. Messages go to all other ranks, with their places": _way("share"),
    "share: a place has four bytes, beside the two of a value": _way("values"),
    "share: of the gradient's bytes? An all-reduce sends them nearly twice": _way("gradient"),
    "ring: the whole gradient to each of the others? In a ring a rank sends an n-th at a time, 2 (n - 1) times": (
        _way("ring")
    ),
    "ring: a reduce-scatter alone, or an all-gather alone, is half of it": _way("half"),
    "ring: in bytes? GB are asked, of 10^9 bytes": _way("bytes"),
    "gossip: a message to a neighbour is all of the weights, not an n-th of them": _way("gossip"),
    "gossip: a ring has two neighbours": _way("one"),
    "delta: that is what is lost at most, 1 - delta. Delta is what is kept at least": _way("delta"),
    "omega: that is what rand-k multiplies by, d / k. Of its square only what is beyond 1 is noise": _way("omega"),
    "omega: that is the share that is lost without the factor d / k": _way("upside down"),
    "steps: by the root of n the error shrinks in as many steps. For the same error steps fall by n": _way("steps"),
}

_RATE_CLAIMS = asked_exercise(
    key="10.10",
    title="find the wrong number: bytes and rates",
    records=_records,
    use=_use,
    judge=_judge,
    slips=_SLIPS,
    levels={
        "text": Level(
            points=2,
            cases=(Slide(wrong=_PUBLISHED, published=True),),
            praise="one per cent of the numbers is nearly all of the bytes, and a ring sends no more on more ranks",
        ),
        "others": Level(
            points=2,
            again=True,
            cases=(*(Slide(wrong=(kind,)) for kind in _RIGHT), Slide()),
            praise="and what is wrong in other tables, also if it is nothing",
        ),
    },
    hints=(
        "share: an all-gather sends (n - 1) k (2 + 4) bytes, and a ring all-reduce 2 (n - 1) / n d 2. ring is the "
        "latter, and gossip sends the whole to two neighbours, both in 10^9 bytes.",
        "delta: all numbers are equally large in the worst case. Then k of d keep k / d of the sum of squares.",
        "omega: a number is sent with probability k / d, and then as d / k times itself. Its mean square is d / k "
        "times its own, and the noise is what that is beyond 1.",
        "steps: the error after T steps goes with 1 / root(n T), so with n ranks it takes an n-th of T. A line is "
        "wrong if float(f'{number:.3g}') is not what it says.",
    ),
)
