"""Exercises whose answer is asked what several ranks have, one after the other and in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.form import wrong_form
from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.probe import ProbeExercise, Slips
from course_lib.checks.kit.said import by_the_library, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.verify.equality import close
from course_lib.verify.numbers import whole_numbers

Result = Tensor | str  # a type's name, of what is no tensor
Records = Sequence[Any]  # what the answer gets, call by call; each says as text which rank it asks about


class Returned(NamedTuple):
    """What each call returned, what was counted meanwhile, and which answer of the library was called."""

    results: list[tuple[Result, ...]]
    counts: list[int]
    library: str


Wanted = Callable[[Any], tuple[Tensor, ...]]  # of a record
Use = Callable[[Callable[..., Any], Any], tuple[Any, int]]  # of the answer and a record: a result, and what it counts


def _called(answer: Callable[..., Any], record: Any) -> tuple[Any, int]:
    return answer(*record), 0


def calls_exercise(
    *,
    key: str,
    title: str,
    names: tuple[str, ...],
    records: Callable[[Any, int], Records],
    wanted: Wanted,
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    slips: Slips,
    only: Callable[[Any], Sequence[int]] | None = None,
    use: Use = _called,
    counted: Callable[[Any, Any, int], str | None] = lambda case, record, count: None,
) -> ProbeExercise:
    """An answer that returns `names`, or what has the only one, for each of a case's `records`.

    `only` are the places of the names that a case looks at; `counted` says what is wrong with what `use` counts.
    """

    def places(case: Any) -> Sequence[int]:
        return range(len(names)) if only is None else only(case)

    def verdict(case: Any, given: Records, reports: tuple[Returned, ...], book: Ledger) -> str | None:
        report = reports[0]
        found = zip(given, report.results, report.counts, strict=True)
        reasons = (
            f"{record}: {reason}"
            for record, result, count in found
            if (reason := _wrong(names, places(case), result, wanted(record)) or counted(case, record, count))
        )
        reason = next(reasons, None) or by_the_library(report.library)
        return f"{case}: {reason}" if reason else None

    return ProbeExercise(
        key=key,
        title=title,
        inputs=records,
        probe=partial(_attempt, use, len(names)),
        verdict=verdict,
        levels=levels,
        hints=hints,
        slips=slips,
        left=lambda case, given, trial: _left(names, places(case), wanted, given, trial.reports[0]),
    )


def _left(
    names: tuple[str, ...], places: Sequence[int], wanted: Wanted, given: Records, report: Returned
) -> Sequence[Any] | None:
    """What was returned; where that is right, what was counted."""
    pairs = zip(given, report.results, strict=True)
    if any(_wrong(names, places, result, wanted(record)) for record, result in pairs):
        return [result[place] for result in report.results for place in places if place < len(result)]
    return report.counts if any(report.counts) else None


def _attempt(use: Use, number: int, function: Callable[..., Any], records: Records) -> Returned:
    """Runs on a rank, which stands for all that are asked about."""
    made, library = watched(lambda: [use(function, record) for record in records], ())
    return Returned([_several(result, number) for result, _ in made], [count for _, count in made], library)


def _several(found: Any, number: int) -> tuple[Result, ...]:
    """So many results; one alone is the type of what came instead."""
    if number == 1:
        return (_tensor(found),)
    if not isinstance(found, tuple | list) or len(found) != number:
        return (type(found).__name__,)
    return tuple(_tensor(one) for one in found)


def _tensor(x: Any) -> Result:
    """A tensor, or a list of whole numbers as one; else its type's name."""
    if isinstance(x, Tensor):
        return x.detach().clone()
    found = whole_numbers(x)
    return type(x).__name__ if isinstance(found, str) else torch.tensor(found, dtype=torch.int64)


def _wrong(
    names: tuple[str, ...], places: Sequence[int], found: tuple[Result, ...], want: tuple[Tensor, ...]
) -> str | None:
    if len(found) != len(names):
        return wrong_kind(str(found[0]), f"{len(names)} things: {', '.join(names)}")
    for place in places:
        got, right = found[place], want[place]
        if form := wrong_form(got, right, 1, "was memory used that nothing was written into?"):
            return f"{names[place]}{form}"
        if isinstance(got, Tensor) and not close(got, right):
            order = ": the order counts" * (sorted(got.flatten().tolist()) == sorted(right.flatten().tolist()))
            return f"{names[place]} are {got.tolist()}, expected {right.tolist()}{order}"
    return None
