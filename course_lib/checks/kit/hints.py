"""`hint`: help in small portions."""

from __future__ import annotations

from course_lib.checks.kit.registry import find
from course_lib.errors import four_parts

_shown: dict[str, int] = {}


def hint(exercise: str, number: int | None = None) -> None:
    """Print the next hint of an exercise, or hint `number` (from 1) again."""
    hints = find(exercise).hints
    if number is None:
        number = min(_shown.get(exercise, 0) + 1, len(hints))
    if not 1 <= number <= len(hints):
        raise ValueError(
            four_parts(
                f'hint("{exercise}")',
                f"number={number}",
                f"exercise {exercise} has {len(hints)} hints",
                f"choose 1 to {len(hints)}",
            )
        )
    _shown[exercise] = max(number, _shown.get(exercise, 0))
    last = " (the last one)" if number == len(hints) else ""
    print(f"{exercise}, hint {number} of {len(hints)}{last}: {hints[number - 1]}")
