"""Exercises whose answer is a function of numbers: what it must return, and what a wrong number reveals."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import by_the_library, wrong_kind
from course_lib.checks.kit.sheet import wrong_numbers
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.verify.causes import in_large_units
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import in_words, times

Amounts = Mapping[str, float]
_LIBRARY = (
    "course_lib.costs",
    "course_lib.planner",
    "course_lib.savers",
    "course_lib.schedules",
    "course_lib.sim",
    "course_lib.split",
    "course_lib.training.sampler",
    "torch.utils.checkpoint",
    "torch.utils.data",
)  # hold the answers
_WORDS = "course_lib.schedules.instructions"  # what an answer may be made of
_MOST_TIMES = 4  # an amount that is missing five times over is a chance hit


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the answer, on one rank: its time limit and its crashes are the rank's."""

    text: str
    arguments: Callable[[int], Any]  # of the seed; the exercise's own NamedTuple, whose fields the answer gets
    part: int = 0  # which formula's number is looked at, where an answer returns several
    world_size: int = 1

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Formula:
    """What the answer computes, all of it from one record of arguments. Slips as on a sheet, nan where there is none.

    `amounts` are what a result may count too often or not at all.
    """

    name: str
    answer: Callable[[Any], float | None]
    slips: Mapping[str, Any] = field(default_factory=dict)  # what is said, and a wrong formula or several
    show: Callable[[Any], str] = lambda asked: ""  # the arguments as a learner reads them
    amounts: Callable[[Any], Amounts] = lambda asked: {}
    tolerance: float = 1e-12  # relative; whole numbers must be equal


@dataclass(frozen=True, kw_only=True)
class FormulaExercise(ProbeExercise):
    """An exercise in which a function is called with numbers that its text does not show."""

    formulas: tuple[Formula, ...]


def formula_exercise(
    *,
    key: str,
    title: str,
    formulas: tuple[Formula, ...],
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    together: str = "",
) -> FormulaExercise:
    """`together` is what an answer should return, if that is the numbers of several formulas.

    Each level is asked again with other numbers, hidden: what was typed in for those of the check is no formula.
    """
    return FormulaExercise(
        key=key,
        title=title,
        inputs=lambda case, seed: Given(case.arguments(seed), case.part, len(formulas)),
        probe=call,
        verdict=partial(_verdict, formulas, together),
        levels={name: replace(level, again=True) for name, level in levels.items()},
        hints=hints,
        formulas=formulas,
    )


class Given(NamedTuple):
    """What the answer is called with, and which of so many numbers is looked at."""

    asked: Any
    part: int
    of: int


class Computed(NamedTuple):
    """What a call returned, its type's name if that is no number, and which formula of the library it called."""

    result: Any
    library: str
    together: bool = True  # whether all numbers came, where several are asked


def call(function: Callable[..., Any], given: Given) -> Computed:
    """Runs on a rank: call the answer, and watch whether it leaves the work to the library."""
    result, library = watched(function, given.asked)
    if given.of > 1:
        found = result.tolist() if hasattr(result, "tolist") else result
        if not isinstance(found, tuple | list) or len(found) != given.of:
            return Computed(type(found).__name__, library, together=False)
        result = found[given.part]
    number = number_of(result)
    return Computed(type(result).__name__ if number is None and result is not None else number, library)


def watched(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """What `function` returns, and the first of the library's answers that it called."""
    used: list[str] = []

    def watch(frame: FrameType, event: str, detail: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(_LIBRARY) and name != _WORDS:
            used.append(f"{'.'.join(name.split('.')[:2])}.{frame.f_code.co_qualname.split('.')[0]}")

    sys.setprofile(watch)
    try:
        result = function(*arguments)
    finally:
        sys.setprofile(None)
    return result, "".join(used[:1])


def _verdict(
    formulas: tuple[Formula, ...], together: str, case: Call, given: Given, reports: tuple[Any, ...], book: Ledger
) -> str | None:
    (got, library, whole), asked, formula = reports[0], given.asked, formulas[case.part]
    if not whole:
        return f"{case}: returned {got}, not {together}"
    want = formula.answer(asked)
    where = f"{case} ({shown})" if (shown := formula.show(asked)) else str(case)
    if _equal(got, want, formula.tolerance):
        return f"{where}: {copied}" if (copied := by_the_library(library)) else None
    if isinstance(got, str):
        return f"{where}: {wrong_kind(got, 'a number')}"
    slack = max(formula.tolerance, 1e-9)
    reason = next((says for says, wrong in wrong_numbers(formula.slips) if _equal(got, wrong(asked), slack)), "")
    if got is None or want is None:
        return f"{where}: returned {_short(got)}, the reference {_short(want)}{_because(reason)}"
    reason = reason or in_large_units(got / want if want else 0.0)
    compared = f"your {formula.name} is {_ratio(got, want)} the reference"
    return f"{where}: {compared}{_because(reason or miscounted(got - want, formula.amounts(asked)))}"


def _equal(got: Any, want: float | None, tolerance: float) -> bool:
    if got is None or want is None or isinstance(got, str):
        return got is want
    if isinstance(got, int) and isinstance(want, int):
        return got == want
    return math.isclose(got, want, rel_tol=tolerance)


def miscounted(difference: float, amounts: Amounts) -> str:
    """Which amount was counted too often or forgotten, if the difference is a few times just that."""
    for name, amount in amounts.items():
        count = difference / amount if amount else 0.0
        if 0.5 < abs(count) <= _MOST_TIMES and math.isclose(count, round(count), rel_tol=1e-9):
            often = f"{abs(round(count))} x " if abs(count) > 1.5 else ""
            return f"{abs(difference):,.0f} too {'many' if difference > 0 else 'few'}, exactly {often}{name}"
    return ""


def _ratio(got: float, want: float) -> str:
    """The numeric signature: `exactly 2.0 x`, `exactly 1/8 of`, `1.07 x`."""
    if got == 0 or want == 0 or got / want < 0 or not math.isfinite(got):
        return f"{_short(got)}, not"
    ratio = got / want
    if any(value > 1.5 and math.isclose(value, round(value), rel_tol=1e-9) for value in (ratio, 1 / ratio)):
        return f"exactly {in_words(ratio)}"
    return times(ratio) if f"{ratio:.3g}" != "1" else f"{ratio:.9g} x"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _short(number: float | None) -> str:
    if number is None:
        return "None"
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"
