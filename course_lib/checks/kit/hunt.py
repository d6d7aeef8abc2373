"""Exercises that hunt a bug: in a class with a planted one the learner names what the ladder finds, and mends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.models import rows_of
from course_lib.checks.kit.probe import ProbeExercise, Slips
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.scene import in_dtype
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.training.batches import Batch

RATE = 0.1  # of SGD, which every hunt trains by
Wrong = Callable[["Given", tuple[Any, ...], Ledger, Mapping[str, Level]], str | None]


class _Case(Protocol):
    """One run: so many steps on so many ranks; or the diagnosis."""

    @property
    def world_size(self) -> int: ...
    @property
    def diagnosis(self) -> bool: ...


class Given(NamedTuple):
    """The case, the seed of the model, and the whole batches."""

    case: Any
    seed: int
    batches: list[Batch]


def rows_of_steps(case: Any, source: torch.Generator) -> list[Batch]:
    """A batch of `case.rows` rows for each of its steps."""
    return [rows_of(case.rows, source) for _ in range(case.steps)]


def hunt_exercise(
    *,
    key: str,
    title: str,
    answer: Diagnosis,
    levels: Mapping[str, Level],
    hints: tuple[str, ...],
    probe: Callable[[Any, Given], Any],
    wrong: Wrong,
    warm_up: Callable[[], None],
    batches: Callable[[Any, torch.Generator], list[Batch]] = rows_of_steps,
    slips: Slips = MappingProxyType({}),
    left: Callable[[Any, Given, Trial], Any] = lambda case, given, trial: None,
) -> ProbeExercise:
    """A report of `probe` has the learner's `diagnosis`, or what `wrong` looks at.

    That gets the reports of all ranks. These have the same `batches`, in float64.
    """

    def inputs(case: _Case, seed: int) -> Given:
        generator = torch.Generator().manual_seed(seed * 1009 + case.world_size)
        with in_dtype(torch.float64):
            return Given(case, 1 + 10 * seed, batches(case, generator))

    def verdict(case: _Case, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
        found = answer.why_wrong(reports[0].diagnosis) if case.diagnosis else wrong(given, reports, book, levels)
        return f"{case}: {found}" if found else None

    return ProbeExercise(
        key=key,
        title=title,
        inputs=inputs,
        probe=probe,
        verdict=verdict,
        warm_up=warm_up,
        levels=levels,
        hints=hints,
        slips=slips,
        left=left,
    )
