"""Exercises whose answers are numbers, and what a wrong number suggests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks import ratios
from course_lib.checks.result import LevelResult

Given = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One number to give. `typical` maps a likely wrong answer to what lies behind it."""

    name: str
    level: str
    unit: str
    answer: Callable[..., float]  # of the given numbers
    typical: tuple[tuple[Callable[..., float], str], ...] = ()
    tolerance: float = 1e-6  # relative


@dataclass(frozen=True, kw_only=True)
class NumberExercise:
    """An exercise of several numbers; `levels` says how many points each group is worth."""

    key: str
    title: str
    given: Callable[[int], Given]  # seed -> the numbers that the learner starts from
    world_size: Callable[..., int]  # of the given numbers
    questions: tuple[Question, ...]
    levels: Mapping[str, int]
    hints: tuple[str, ...]
    praise: Mapping[str, str] = field(default_factory=dict)  # what a level teaches, said once it is right


def judge_numbers(exercise: NumberExercise, answers: Any, names: list[str], *, seed: int) -> list[LevelResult]:
    """Judge the questions of the named levels; a level's points need all of its numbers."""
    given = exercise.given(seed)
    results = []
    for name in names:
        questions = [question for question in exercise.questions if question.level == name]
        wrong = [text for question in questions if (text := _why_wrong(exercise, question, answers, given))]
        possible = exercise.levels[name]
        detail = "; ".join(wrong) or exercise.praise.get(name, "right")
        results.append(LevelResult(name=name, points=0 if wrong else possible, possible=possible, detail=detail))
    return results


def _why_wrong(exercise: NumberExercise, question: Question, answers: Any, given: Given) -> str | None:
    if not isinstance(answers, Mapping):
        return f"the answer is of type {type(answers).__name__}: pass the dict of numbers"
    guess = answers.get(question.name)
    if guess is None:
        return f"{question.name}: no number yet"
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        return f"{question.name}: {guess!r} is not a number"
    right = question.answer(*given)
    if math.isclose(guess, right, rel_tol=question.tolerance):
        return None
    return f"{question.name} = {_short(guess)} {question.unit}: {_suggestion(exercise, question, guess, right, given)}"


def _suggestion(exercise: NumberExercise, question: Question, guess: float, right: float, given: Given) -> str:
    for wrong, meaning in question.typical:
        if math.isclose(guess, wrong(*given), rel_tol=min(1e-6, question.tolerance)):
            return meaning
    if right == 0 or guess / right <= 0:
        return "not right"
    return ratios.in_billions(guess / right) or suggest(guess / right, exercise.world_size(*given))


def suggest(ratio: float, world_size: int) -> str:
    """What the ratio of a guess to the answer suggests, at least whether it is too large."""
    if 0.9 < ratio < 1.1:
        size = f"{100 * abs(ratio - 1):.2g} % too {'large' if ratio > 1 else 'small'}"
    else:
        size = f"{ratios.times(ratio)} the answer" if ratio >= 1 else f"1/{ratios.times(1 / ratio)} of the answer"
    meaning = ratios.explain(ratio, world_size, ratios.GUESSES, most=1)
    return f"{size.replace(' x of', ' of')}; {meaning}" if meaning else size.replace(" x of", " of")


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.6g}"
