"""Exercises whose answer is a function that a probe calls on every rank, and a verdict on what the probes report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from course_lib.checks.kit.alone import DO_NOT_FIT, who_calls_otherwise
from course_lib.checks.kit.endings import ended_badly
from course_lib.checks.kit.left_over import LeftOver, probed, why_not_clean
from course_lib.checks.kit.runner import Trial, drop_pool, run_call
from course_lib.checks.kit.said import besides
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import unmatched
from course_lib.ranks.pool import START_LIMIT_S
from course_lib.ranks.report import RankError
from course_lib.verify.equality import close

_SLIP_LIMIT_S = 10.0  # a slip ends by itself; on a busy machine it may take its time
Says = str | Callable[..., str]
Slips = Mapping[Says, Callable[..., Any]]  # a sentence, or one from case and trial, and what the wrong program is


class Run(Protocol):
    """One run: on how many ranks, the rest is the exercise's own; its text says which run it is."""

    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ProbeExercise:
    """An exercise that is judged by more, or by something else, than one tensor per rank.

    `probe` is defined in a module, since it travels to the ranks by name; `inputs` stay in the notebook's process.
    A slip is a wrong program with the sentence that is said of an answer which does the same. It is its own mutant:
    the tests hand each one in as an answer and wait for its sentence.
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
    left: Callable[[Any, Any, Trial], Any] = lambda case, given, trial: None  # by which a slip is known; None: nothing
    instead: Callable[[Any, int, RankError], Any] = lambda case, seed, error: None  # other inputs, after such an error


def why_probe_fails(exercise: ProbeExercise, function: Any, case: Run, *, seed: int, timeout: float) -> str | None:
    """None if the answer is right in this case, else why not."""
    given = exercise.inputs(case, seed)
    if exercise.warm_up is not None:
        run_call(exercise.warm_up, (), case.world_size, timeout=START_LIMIT_S)
    trial, left = _tried(exercise, function, given, case, timeout)
    if trial.error is not None and (other := exercise.instead(case, seed, trial.error)) is not None:
        given, (trial, left) = other, _tried(exercise, function, other, case, timeout)
    if trial.error is not None:
        return _why_it_ended(exercise, function, given, case, trial.error)
    reason, untidy = _refused(exercise, case, given, trial), why_not_clean(left) or unmatched(trial.events) or ""
    if reason:
        told = _slip_like(exercise, case, seed, given, trial) or reason
        return besides(told, untidy) if any(one.overwritten for one in left) else told
    return f"{case}: right, but {untidy}" if untidy else None


def _tried(
    exercise: ProbeExercise, answer: Any, given: Any, case: Run, timeout: float
) -> tuple[Trial, tuple[LeftOver, ...]]:
    """One run of the probe, and by rank what the answer left behind."""
    trial = run_call(probed, (answer, exercise.probe, given), case.world_size, timeout=timeout)
    left = tuple(one for _, one in trial.reports)
    if unmatched(trial.events) or any(one.unfinished for one in left):
        drop_pool(case.world_size)  # a message of this run must not reach the next one
    return replace(trial, reports=tuple(report for report, _ in trial.reports)), left


def _why_it_ended(exercise: ProbeExercise, answer: Any, given: Any, case: Run, error: RankError) -> str:
    """What is said of a hang, a crash or an exception."""
    text = ended_badly(error, exercise.key, answer, row=getattr(case, "row", ()))
    if DO_NOT_FIT in text and (who := who_calls_otherwise(answer, exercise.probe, given, case.world_size)):
        text = f"{text.split(': ValueError: ')[0]}: {who}. A collective is for all ranks of its group"
    if case.world_size == 1:
        text = re.sub(r"rank 0 died (.*?)\((its process ended.*?)\)", r"\2 \1", text).replace("rank 0 ", "it ")
    return text if "not written yet" in text else f"{case}: {text}"


def _refused(exercise: ProbeExercise, case: Run, given: Any, trial: Trial) -> str | None:
    return exercise.verdict(case, given, trial.reports, Ledger(trial.events, case.world_size))


def _slip_like(exercise: ProbeExercise, case: Run, seed: int, given: Any, trial: Trial) -> str:
    """What is said of the first slip that is refused too, and left what the answer left; empty if there is none.

    They run one after the other on the answer's own input, and only because the answer is refused.
    """
    mine = exercise.left(case, given, trial)
    for says, program in exercise.slips.items() if mine is not None else ():
        other = _of_slip(exercise, program, case, seed)
        if other.refused and _alike(other.left, mine) and _passes_before(exercise, program, case, seed):
            return f"{case}: {says if isinstance(says, str) else says(case, trial)}"
    return ""


def _passes_before(exercise: ProbeExercise, program: Callable[..., Any], case: Run, seed: int) -> bool:
    """Whether a slip is right where the answer was: in the cases before this one in its level."""
    asked = [(*level.cases, *level.drawn(seed)) for level in exercise.levels.values()]
    cases = next(cases for cases in asked if case in cases)
    return not any(_of_slip(exercise, program, before, seed).refused for before in cases[: cases.index(case)])


class _Left(NamedTuple):
    """What a slip left in one case, and whether it is refused there."""

    left: Any
    refused: bool


_of_slips: dict[tuple[Any, ...], _Left] = {}  # a slip does the same every time


def _of_slip(exercise: ProbeExercise, program: Callable[..., Any], case: Run, seed: int) -> _Left:
    place = (exercise.key, program, case, seed)
    if place not in _of_slips:
        given = exercise.inputs(case, seed)
        trial, _ = _tried(exercise, program, given, case, _SLIP_LIMIT_S)
        if trial.error is not None:
            return _Left(None, refused=True)
        _of_slips[place] = _Left(exercise.left(case, given, trial), bool(_refused(exercise, case, given, trial)))
    return _of_slips[place]


def _alike(one: Any, other: Any) -> bool:
    """Equal, tensors up to rounding."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return close(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return type(one) is type(other) and not isinstance(one, Tensor) and bool(one == other)
