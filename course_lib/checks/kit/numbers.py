"""Exercises whose answers are numbers, and what a wrong number suggests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks.kit.result import LevelResult
from course_lib.verify.causes import GUESSES, explain, in_large_units
from course_lib.verify.numbers import number_of
from course_lib.verify.ratios import of_a_guess

Given = tuple[float, ...]
EXACT = 1_000_000  # a whole number below this one is not given rounded
OWN = "that follows from your own numbers above: mend those"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One number to give. `typical` maps a likely wrong answer to what lies behind it.

    `follows` computes the answer from the other answers, for who makes no new mistake here; then from the given ones.
    """

    name: str
    level: str
    unit: str
    answer: Callable[..., float]  # of the given numbers
    typical: tuple[tuple[Callable[..., float], str], ...] = ()
    follows: Callable[..., float] | None = None
    collective: bool = True  # whether a wrong number's ratio may be read as a ring's, on the exercise's ranks
    tolerance: float = 1e-6  # relative


@dataclass(frozen=True, kw_only=True)
class NumberExercise:
    """An exercise of several numbers; `levels` says how many points each group is worth."""

    key: str
    title: str
    given: Callable[[int], Given]  # seed -> the numbers that the learner starts from
    world_size: Callable[..., int]  # of the collectives that are asked about; 0: none are, no remark speaks of a ring
    questions: tuple[Question, ...]
    levels: Mapping[str, int]
    hints: tuple[str, ...]
    praise: Mapping[str, str] = field(default_factory=dict)  # what a level teaches, said once it is right


def judge_numbers(exercise: NumberExercise, answers: Any, names: list[str], *, seed: int) -> list[LevelResult]:
    """Judge the questions of the named levels; a level's points need all of its numbers."""
    if not isinstance(answers, Mapping):
        return _no_numbers(exercise, answers, names)
    given = exercise.given(seed)
    results = []
    for name in names:
        questions = [question for question in exercise.questions if question.level == name]
        wrong = [text for question in questions if (text := _why_wrong(exercise, question, answers, given))]
        possible = exercise.levels[name]
        detail = "; ".join(wrong) or exercise.praise.get(name, "right")
        results.append(LevelResult(name=name, points=0 if wrong else possible, possible=possible, detail=detail))
    return results


def _no_numbers(exercise: NumberExercise, answers: Any, names: list[str]) -> list[LevelResult]:
    """Said once, at the first level."""
    reason = f"the answer is of type {type(answers).__name__}: pass the dict of numbers"
    details = [reason, *["not run yet"] * (len(names) - 1)]
    return [
        LevelResult(name=name, points=0, possible=exercise.levels[name], detail=detail, ran=detail == reason)
        for name, detail in zip(names, details, strict=True)
    ]


def _why_wrong(exercise: NumberExercise, question: Question, answers: Mapping[str, Any], given: Given) -> str | None:
    if answers.get(question.name) is None:
        return f"{question.name}: no number yet"
    guess = _number(answers[question.name])
    if guess is None:
        return f"{question.name}: {answers[question.name]!r} is not a number"
    right = question.answer(*given)
    if math.isclose(guess, right, rel_tol=question.tolerance):
        return None
    said = f"{question.name} = {_short(guess)} {question.unit}".rstrip()
    if _follows(question, guess, answers, given):
        return f"{said}: {OWN}"
    return f"{said}: {_suggestion(exercise, question, guess, right, given)}"


def _number(value: Any) -> float | None:
    """None if it is no number, or no finite one."""
    number = number_of(value)
    return float(number) if number is not None and math.isfinite(number) else None


def _follows(question: Question, guess: float, answers: Mapping[str, Any], given: Given) -> bool:
    """Whether the guess is right for the learner's other answers, of which one must be wrong then."""
    if question.follows is None:
        return False
    others = {name: number for name, value in answers.items() if (number := _number(value))}
    try:
        return math.isclose(guess, question.follows(others, *given), rel_tol=question.tolerance)
    except KeyError:  # one of them is missing, or zero
        return False


def _suggestion(exercise: NumberExercise, question: Question, guess: float, right: float, given: Given) -> str:
    slips = [(wrong(*given), meaning) for wrong, meaning in question.typical]
    exactly = [meaning for wrong, meaning in slips if math.isclose(guess, wrong, rel_tol=min(1e-6, question.tolerance))]
    if exactly:
        return exactly[0]
    if _rounded(guess, right):
        digits = math.ceil(1 - math.log10(2 * question.tolerance))
        return f"nearly, but rounded too far: give at least {digits} digits"
    for wrong, meaning in slips:
        if math.isclose(guess, wrong, rel_tol=question.tolerance) or _rounded(guess, wrong):
            return meaning
    if right == 0 or guess / right <= 0:
        return "not right"
    ranks = exercise.world_size(*given) if question.collective else 0
    return in_large_units(guess / right) or suggest(guess / right, ranks)


def _rounded(guess: float, number: float) -> bool:
    """Whether the guess is the number, rounded or cut off to so many digits as the guess has, two or more."""
    if guess * number <= 0 or (float(number).is_integer() and abs(number) < EXACT):
        return False
    digits = next((n for n in range(1, 7) if float(f"{guess:.{n}g}") == guess), 0)
    unit = 10.0 ** (math.floor(math.log10(abs(guess))) + 1 - digits)  # of the guess's last digit
    off = abs(number) - abs(guess)
    return digits > 1 and -0.5 * unit <= off < unit


def suggest(ratio: float, world_size: int) -> str:
    """What the ratio of a guess to the answer suggests, at least whether it is too large."""
    meaning = explain(ratio, world_size, GUESSES, most=1)
    return f"{of_a_guess(ratio)}; {meaning}" if meaning else of_a_guess(ratio)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number.is_integer() or abs(number) >= EXACT else f"{number:.6g}"
