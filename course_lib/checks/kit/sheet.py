"""Exercises whose answers are numbers, as a sheet: name, unit, formula and slips of each number beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks.kit.again import Again
from course_lib.checks.kit.result import LevelResult
from course_lib.verify.causes import GUESSES, explain, in_large_units
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import of_a_guess

Given = Any  # an exercise's own NamedTuple: the numbers that the learner starts from, and what follows from them
Number = float | Callable[[Given], float]  # fixed, or a formula over what is given; nan: there is none this time
Slips = Mapping[str, Number | tuple[Number, ...]]  # what is said, and the wrong number or numbers that it is said of
PERCENT = "in percent? The share itself is asked, between 0 and 1"
_EXACT = 1_000_000  # a whole number below this one is not given rounded
_OWN = "that follows from your own numbers above: mend those"
_TYPED = "right here, and wrong with other given numbers: compute it from what is given, in the cell of the check"


@dataclass(frozen=True)
class Ask:
    """One number to give.

    `follows` computes it from the learner's other answers and what is given, for who makes no new mistake here.
    """

    name: str
    unit: str
    answer: Number
    slips: Slips = field(default_factory=dict)
    follows: Callable[[Mapping[str, float], Given], float] | None = None
    collective: bool = True  # whether a wrong number's ratio may be read as a ring's, on the exercise's ranks
    tolerance: float = 1e-6  # relative
    choice: bool = False  # one of a few, which a learner may find by looking: it need not be computed


@dataclass(frozen=True)
class Group:
    """Numbers that earn their points together; `praise` is what they teach, said once they are right."""

    points: int
    asks: tuple[Ask, ...]
    praise: str = "right"


@dataclass(frozen=True, kw_only=True)
class NumberExercise:
    """An exercise of several numbers, in groups."""

    key: str
    title: str
    given: Callable[[int], Given]  # of the seed
    ranks: Callable[[Given], int] = lambda given: 0  # of the collectives that are asked about; 0: no ring is named
    levels: Mapping[str, Group]
    hints: tuple[str, ...]


def value(number: Number, given: Given) -> float:
    """A number of the sheet, for what is given."""
    return number(given) if callable(number) else number


def wrong_numbers(slips: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What is said, once for each wrong number that it is said of."""
    rows = [(says, wrong if isinstance(wrong, tuple) else (wrong,)) for says, wrong in slips.items()]
    return [(says, one) for says, several in rows for one in several]


def judge_numbers(
    exercise: NumberExercise,
    answers: Any,
    names: list[str],
    *,
    seed: int,
    kind: bool = True,
    again: Callable[[], Again | None] = lambda: None,
) -> list[LevelResult]:
    """Judge the numbers of the named levels; a level's points need all of them.

    Where it is not `kind`, only a known cause is told, and no ratio, from which a program would compute the answer.
    `again` gives the answers of the same cell to other given numbers, which a typed number does not follow.
    """
    if not isinstance(answers, Mapping):
        return _no_numbers(exercise, answers, names)
    judged = _Judged(exercise, answers, exercise.given(seed), kind)
    results = []
    for name in names:
        group = exercise.levels[name]
        wrong = judged.wrong(group) or _why_typed(exercise, group, again())
        points, detail = (0, "; ".join(wrong)) if wrong else (group.points, group.praise)
        results.append(LevelResult(name=name, points=points, possible=group.points, detail=detail))
    return results


@dataclass(frozen=True)
class _Judged:
    """A learner's answers beside what was given, and whether ratios are told."""

    exercise: NumberExercise
    answers: Mapping[str, Any]
    given: Given
    kind: bool

    def wrong(self, group: Group) -> list[str]:
        """What is said of each number of a group that is not right."""
        return [text for ask in group.asks if (text := self.why_wrong(ask))]

    def why_wrong(self, ask: Ask) -> str | None:
        """None if the number is right."""
        if self.answers.get(ask.name) is None:
            return f"{ask.name}: no number yet"
        guess = _finite(self.answers[ask.name])
        if guess is None:
            return f"{ask.name}: {self.answers[ask.name]!r} is not a number"
        right = value(ask.answer, self.given)
        if math.isclose(guess, right, rel_tol=ask.tolerance):
            return None
        said = f"{ask.name} = {_short(guess)} {ask.unit}".rstrip()
        if _follows(ask, guess, self.answers, self.given):
            return f"{said}: {_OWN}"
        return f"{said}: {_known_cause(ask, guess, right, self.given) or self.by_ratio(ask, guess, right)}"

    def by_ratio(self, ask: Ask, guess: float, right: float) -> str:
        """What is said where no slip gives the guess."""
        if right == 0 or guess / right <= 0:
            return "not right"
        ratio, ranks = guess / right, self.exercise.ranks(self.given) if ask.collective else 0
        if text := in_large_units(ratio):
            return text
        return suggest(ratio, ranks) if self.kind else explain(ratio, ranks, GUESSES, most=len(GUESSES)) or "not right"


def _why_typed(exercise: NumberExercise, group: Group, again: Again | None) -> list[str]:
    """What is said of each number of a group that other given numbers change, while its cell leaves it."""
    if again is None:
        return []
    if again.trouble:
        return [again.trouble]
    typed = [_typed(exercise, given, answers) for given, answers in again.runs]
    return [f"{ask.name}: {_TYPED}" for ask in group.asks if any(ask.name in names for names in typed)]


def _typed(exercise: NumberExercise, given: Given, answers: Mapping[str, Any]) -> set[str]:
    """Names of the answers that are wrong, and do not follow from a choice either."""
    own: dict[str, Any] = {}
    typed = set()
    for ask in (ask for group in exercise.levels.values() for ask in group.asks):
        guess, right = _finite(answers.get(ask.name)), value(ask.answer, given)
        own[ask.name] = right
        if guess is None or not math.isclose(guess, right, rel_tol=ask.tolerance):
            if guess is not None and (ask.choice or _follows(ask, guess, own, given)):
                own[ask.name] = guess
            else:
                typed.add(ask.name)
    return typed


def _no_numbers(exercise: NumberExercise, answers: Any, names: list[str]) -> list[LevelResult]:
    """Said once, at the first level."""
    reason = f"the answer is of type {type(answers).__name__}: pass the dict of numbers"
    details = [reason, *["not run yet"] * (len(names) - 1)]
    return [
        LevelResult(name=name, points=0, possible=exercise.levels[name].points, detail=detail, ran=detail == reason)
        for name, detail in zip(names, details, strict=True)
    ]


def _finite(answer: Any) -> float | None:
    """None if it is no number, or no finite one."""
    number = number_of(answer)
    return float(number) if number is not None and math.isfinite(number) else None


def _follows(ask: Ask, guess: float, answers: Mapping[str, Any], given: Given) -> bool:
    """Whether the guess is right for the learner's other answers, of which one must be wrong then."""
    if ask.follows is None:
        return False
    others = {name: number for name, answer in answers.items() if (number := _finite(answer))}
    try:
        return math.isclose(guess, ask.follows(others, given), rel_tol=ask.tolerance)
    except KeyError:  # one of them is missing, or zero
        return False


def _known_cause(ask: Ask, guess: float, right: float, given: Given) -> str:
    """The sentence of the slip that gives the guess, of all of them where there are several; empty if none does."""
    slips = [(says, value(one, given)) for says, one in wrong_numbers(ask.slips)]
    exact = [says for says, wrong in slips if math.isclose(guess, wrong, rel_tol=min(1e-6, ask.tolerance))]
    if not exact and _rounded(guess, right):
        digits = math.ceil(1 - math.log10(2 * ask.tolerance))
        return f"nearly, but rounded too far: give at least {digits} digits"
    near = [
        says for says, wrong in slips if math.isclose(guess, wrong, rel_tol=ask.tolerance) or _rounded(guess, wrong)
    ]
    return "; or ".join(dict.fromkeys(exact or near))


def _rounded(guess: float, number: float) -> bool:
    """Whether the guess is the number, rounded or cut off to so many digits as the guess has, two or more."""
    if math.isnan(number) or guess * number <= 0 or (float(number).is_integer() and abs(number) < _EXACT):
        return False
    digits = next((n for n in range(1, 7) if float(f"{guess:.{n}g}") == guess), 0)
    unit = 10.0 ** (math.floor(math.log10(abs(guess))) + 1 - digits)  # of the guess's last digit
    off = abs(number) - abs(guess)
    return digits > 1 and -0.5 * unit <= off < unit


def suggest(ratio: float, world_size: int) -> str:
    """What the ratio of a guess to the answer suggests, at least whether it is too large."""
    meaning = explain(ratio, world_size, GUESSES, most=len(GUESSES))
    return f"{of_a_guess(ratio)}; {meaning}" if meaning else of_a_guess(ratio)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number.is_integer() or abs(number) >= _EXACT else f"{number:.6g}"
