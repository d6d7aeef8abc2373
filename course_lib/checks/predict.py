"""Scored predictions: commit to a number, then see the answer and what the difference suggests."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from course_lib.checks import withhold
from course_lib.checks.kit.sheet import suggest
from course_lib.units import amount_of, format_bytes, format_seconds
from course_lib.verify.causes import in_large_units
from course_lib.verify.numbers import number_of

_PUBLISHED = "COURSE_LIB_PUBLISHED"  # an environment variable; set while the course's own copies are built and compared
_FULL, _CLOSE, _ROUGH = 10, 5, 2  # points: right; within a factor of 2; within a factor of 10


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """One answered question."""

    question: str
    points: int


_answered: dict[str, _Prediction] = {}  # by question, so that running a cell again does not count twice


def predict(
    question: str,
    *,
    guess: object,  # a number or "3 MiB"; letters where the answer is letters; None, as every lesson has it, asks
    answer: float | str | Callable[[], float],
    unit: str = "",
    tolerance: float = 0.01,
    world_size: int = 0,
    think: str = "",
) -> None:
    """Print guess, answer, points (10 right, 5 within a factor of 2, 2 within 10) and what the ratio suggests.

    Letters, as of runs that are named, are right in any order; "none" and "" name nothing.
    Without a guess, ask for one, say what to `think` about, and hold back whatever else the cell would show; the cells
    after it run as they are. `tolerance` is relative. `world_size` lets the ratio be read in terms of p. The published
    copies are built without guesses; there the answer is folded away, with what else the cell shows. Nothing is written
    to disk.
    """
    print(f"Predict: {question}")
    if guess is None and think:
        print(f"  think about {think}")
    if isinstance(answer, str):
        _name(question, guess, answer)
        return
    number = _number_in(guess, unit)
    if number is None and not (guess is None and _PUBLISHED in os.environ):
        _ask(guess, f"number of {unit}" if unit else "number")
        return
    right = float(answer() if callable(answer) else answer)
    if number is None:
        withhold.fold_rest_of_cell()
        print(f"  the answer  {_with_unit(right, unit)}")
        return
    points = _score_of(number, right, tolerance)
    _answered[question] = _Prediction(question=question, points=points)
    print(f"  your guess  {_with_unit(number, unit)}")
    print(f"  the answer  {_with_unit(right, unit)}")
    remark = "right" if points == _FULL else _remark(number, right, world_size)
    print(f"  {points} of {_FULL} points: {remark}")


def _name(question: str, guess: object, answer: str) -> None:
    """The same for letters that name things: those of the answer in any order, or no points."""
    if not isinstance(guess, str) and not (guess is None and _PUBLISHED in os.environ):
        _ask(guess, "text")
        return
    if isinstance(guess, str):
        points = _FULL * (_letters(guess) == _letters(answer))
        _answered[question] = _Prediction(question=question, points=points)
        print(f"  your guess  {guess}")
    else:
        withhold.fold_rest_of_cell()
    print(f"  the answer  {answer or 'none'}")
    if isinstance(guess, str):
        print(f"  {points} of {_FULL} points: {'right' if points else 'not these'}")


def _number_in(guess: object, unit: str) -> float | None:
    """The guess in the answer's unit; NaN is none."""
    number = amount_of(guess, unit) if isinstance(guess, str) else number_of(guess)
    return None if number is None or math.isnan(number) else number


def _letters(text: str) -> set[str]:
    """What a text names.

    >>> sorted(_letters("b, A")), _letters("none")
    (['A', 'B'], set())
    """
    return set() if text.strip().lower() == "none" else {letter for letter in text.upper() if letter.isalpha()}


def _ask(guess: object, kind: str) -> None:
    """Wait for a guess without stopping "Run all"."""
    bare = kind.split()[0]
    what = f"put your {bare} in place of None" if guess is None else f"{guess!r} is not a {kind}: put one in its place"
    print(f"  {what} and run this cell again; the answer waits for it, and so does what else the cell shows")
    withhold.rest_of_cell()


def score() -> None:
    """Print the points of all predictions of this session."""
    if not _answered:
        print("Predictions so far: none; put your numbers in place of None above")
        return
    points = sum(prediction.points for prediction in _answered.values())
    print(f"Predictions so far: {points} of {_FULL * len(_answered)} points in {len(_answered)} questions")


def _score_of(guess: float, right: float, tolerance: float) -> int:
    """Points for a guess.

    >>> [_score_of(guess, 100, 0.01) for guess in (100, 180, 900, 5000)]
    [10, 5, 2, 0]
    """
    if math.isclose(guess, right, rel_tol=tolerance, abs_tol=1e-12):
        return _FULL
    if guess * right <= 0:
        return 0
    factor = max(guess / right, right / guess)
    return _CLOSE if factor <= 2 * (1 + 1e-9) else _ROUGH if factor <= 10 * (1 + 1e-9) else 0


def _remark(guess: float, right: float, world_size: int) -> str:
    if 0 in (guess, right):
        return "zero has no ratio to it"
    if not 0 < guess / right < math.inf:
        return "not of the same sign, or not a number"
    ratio = guess / right
    return in_large_units(ratio) or f"the guess is {suggest(ratio, world_size)}"


def _with_unit(number: float, unit: str) -> str:
    """Bytes and seconds also in a readable unit.

    >>> _with_unit(1572864, "bytes"), _with_unit(3.0, "steps")
    ('1,572,864 bytes (1.5 MiB)', '3 steps')
    """
    whole = f"{number:,.0f}" if float(number).is_integer() else f"{number:.4g}"
    if unit == "bytes" and abs(number) >= 1024:
        return f"{whole} bytes ({format_bytes(number)})"
    if unit == "s":
        return format_seconds(number)
    return f"{whole} {unit}".rstrip()
