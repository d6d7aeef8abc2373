"""Exercises whose answer is a function that a probe calls on every rank, and a verdict on what the probes report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from course_lib.checks.kit.judge import ended_badly
from course_lib.checks.kit.runner import drop_pool, run_call
from course_lib.checks.kit.slips import Slips, like
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import unmatched
from course_lib.ranks.pool import START_LIMIT_S


class Run(Protocol):
    """One run: on how many ranks, the rest is the exercise's own; its text says which run it is."""

    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ProbeExercise:
    """An exercise that is judged by more, or by something else, than one tensor per rank.

    `probe` is defined in a module, since it travels to the ranks by name; `inputs` stay in the notebook's process.
    """

    key: str
    title: str
    inputs: Callable[[Any, int], Any]  # (case, seed) -> what the probe gets on every rank
    probe: Callable[[Any, Any], Any]  # (the learner's function, inputs) -> report, called on every rank
    verdict: Callable[[Any, Any, tuple[Any, ...], Ledger], str | None]  # (case, inputs, reports by rank, ledger)
    levels: Mapping[str, Level]
    hints: tuple[str, ...]
    warm_up: Callable[[], None] | None = None  # called on every rank first, outside the learner's time limit
    slips: Slips = field(default_factory=dict)
    left: Callable[[Any, tuple[Any, ...]], Any] = lambda given, reports: None  # by which a slip is known; None: right


def why_probe_fails(exercise: ProbeExercise, function: Any, case: Run, *, seed: int, timeout: float) -> str | None:
    """None if the answer is right in this case, else why not."""
    given = exercise.inputs(case, seed)
    if exercise.warm_up is not None:
        run_call(exercise.warm_up, (), case.world_size, timeout=START_LIMIT_S)
    trial = run_call(exercise.probe, (function, given), case.world_size, timeout=timeout)
    if trial.error is not None:
        text = ended_badly(trial.error, exercise.key)
        if case.world_size == 1:
            text = text.replace("rank 0 died (its process ended)", "its process ended").replace("rank 0 ", "it ")
        return text if "not written yet" in text else f"{case}: {text}"
    if unmatched(trial.events):
        drop_pool(case.world_size)  # a message of this run must not reach the next one
    reason = exercise.verdict(case, given, trial.reports, Ledger(trial.events, case.world_size))
    if reason is None:
        return None
    says = like(exercise.slips, exercise.probe, given, partial(exercise.left, given), trial, case.world_size)
    return f"{case}: {says if isinstance(says, str) else says(case, trial)}" if says else reason
