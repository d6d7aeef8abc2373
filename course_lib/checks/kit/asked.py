"""Exercises whose answer is called on one record after the other, and may have more than one right result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.probe import ProbeExercise, Slips
from course_lib.checks.kit.said import by_the_library
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger

Use = Callable[[Callable[..., Any], Any], Any]  # of the answer and a record


class Answers(NamedTuple):
    """What each call came to, and which answer of the library was called."""

    results: list[Any]
    library: str


def asked_exercise(
    *,
    key: str,
    title: str,
    records: Callable[[Any, int], Sequence[Any]],
    use: Use,
    judge: Callable[[Any, Any], str | None],
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    slips: Slips,
    large: Callable[[Any], bool] = lambda case: False,
    quick: bool = False,
) -> ProbeExercise:
    """`records` are of case and seed, and each says as text what is asked.

    `use` calls the answer with a record, on a rank, and returns what can travel; `judge` says what is wrong with it.
    In a `large` case no slips run, for some of them would never end. A `quick` one is not watched for answers of the
    library, which takes five times as long.
    """

    def verdict(case: Any, given: Sequence[Any], reports: tuple[Answers, ...], book: Ledger) -> str | None:
        report = reports[0]
        for record, result in zip(given, report.results, strict=True):
            if reason := judge(record, result):
                return f"{case}: {shown}: {reason}" if (shown := str(record)) else f"{case}: {reason}"
        copied = by_the_library(report.library)
        return f"{case}: {copied}" if copied else None

    return ProbeExercise(
        key=key,
        title=title,
        inputs=records,
        probe=partial(_attempt, use, quick),
        verdict=verdict,
        levels=levels,
        hints=hints,
        slips=slips,
        left=lambda case, given, trial: None if large(case) else trial.reports[0].results,
    )


def _attempt(use: Use, quick: bool, function: Callable[..., Any], records: Sequence[Any]) -> Answers:
    """Runs on a rank."""

    def all_of_them() -> list[Any]:
        return [use(function, record) for record in records]

    return Answers(all_of_them(), "") if quick else Answers(*watched(all_of_them, ()))
