"""`check`: run an answer, print a short verdict, return the points; `grade` is its like for graded cells."""

from __future__ import annotations

import contextlib
import sys
from functools import cache, partial
from typing import Any

from course_lib.checks.kit.again import answered_again
from course_lib.checks.kit.probe import ProbeExercise, why_probe_fails
from course_lib.checks.kit.registry import Exercise, find, record_of
from course_lib.checks.kit.result import CheckResult, LevelResult, NotYet
from course_lib.checks.kit.script import ScriptExercise, why_script_fails
from course_lib.checks.kit.sheet import NumberExercise, judge_numbers
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.untouched import is_graded, undisturbed
from course_lib.errors import four_parts
from course_lib.ranks.tasks import packed

_TIMEOUT_S = 10.0


@undisturbed()
def check(
    exercise: str, answer: Any, *, part: str | None = None, seed: int = 0, timeout: float = _TIMEOUT_S
) -> CheckResult:
    """Check an answer, a function, a dict of numbers or a script's text, against exercise `"02.3"`; print the verdict.

    A function runs on real ranks only, `timeout` seconds at most per run. `part` names one level; `seed` draws other
    inputs. While nbgrader grades, calls without `part` do nothing: the graded cells follow.
    """
    if part is None and is_graded():
        return CheckResult(exercise=exercise, title=find(exercise).title, levels=())
    result = _judged(exercise, answer, part, seed=seed, timeout=timeout)
    print(result)
    if part is None and not result.passed:
        print(f'For a hint: hint("{exercise}")')
    return result


@undisturbed()
def grade(exercise: str, answer: Any, part: str, *, seed: int = 0) -> None:
    """What a graded cell runs: print the verdict on one level of an exercise if it passes.

    Raises: NotYet, which a notebook shows as one line; nbgrader gives no points to a cell that raises.
    """
    result = _judged(exercise, answer, part, seed=seed, timeout=_TIMEOUT_S)
    if not result.passed:
        why = result.reason if is_graded() else "the check above says why"
        raise NotYet(f"{exercise} {part}, {result.points} of {result.possible} points: {why}")
    print(result)


def _judged(exercise: str, answer: Any, part: str | None, *, seed: int, timeout: float) -> CheckResult:
    spec = find(exercise)
    names = _levels(spec, part)
    # nbgrader takes any text on stderr for a failure
    with contextlib.redirect_stderr(sys.stdout):
        if isinstance(spec, NumberExercise):
            levels = _numbers(spec, answer, names, seed=seed)
        else:
            levels = _run_levels(spec, answer, names, seed=seed, timeout=timeout)
    return CheckResult(exercise=exercise, title=spec.title, levels=tuple(levels))


def _numbers(spec: NumberExercise, answer: Any, names: list[str], *, seed: int) -> list[LevelResult]:
    """A graded copy has other given numbers than the published ones: there nothing is told that gives them away."""
    if not seed:
        return judge_numbers(spec, answer, names, seed=seed, kind=not is_graded())
    again = cache(partial(answered_again, answer, spec.given, partial(record_of, spec), seed))
    return judge_numbers(spec, answer, names, seed=seed, kind=False, again=again)


def _levels(spec: Exercise, part: str | None) -> list[str]:
    if part is None:
        return list(spec.levels)
    if part not in spec.levels:
        raise ValueError(
            four_parts(
                f'check("{spec.key}")',
                f"part={part!r}",
                "a part is one of the exercise's levels",
                f"choose from {', '.join(spec.levels)}",
            )
        )
    return [part]


def _run_levels(
    spec: ProbeExercise | ScriptExercise, answer: Any, names: list[str], *, seed: int, timeout: float
) -> list[LevelResult]:
    """Run level after level; after a failure the rest is not run, since its cause is most likely the same."""
    results: list[LevelResult] = []
    stopped = False
    for name in names:
        level = spec.levels[name]
        if stopped:
            result = LevelResult(name=name, points=0, possible=level.points, detail="not run yet", ran=False)
        else:
            reason = _why_wrong(spec, answer, level, seed=seed, timeout=timeout)
            points, detail = (0, reason) if reason else (level.points, level.praise)
            result = LevelResult(name=name, points=points, possible=level.points, detail=detail)
            stopped = reason is not None and not level.alone
        results.append(result)
    return results


def _why_wrong(
    spec: ProbeExercise | ScriptExercise, function: Any, level: Level, *, seed: int, timeout: float
) -> str | None:
    if isinstance(spec, ScriptExercise):
        reasons = (why_script_fails(spec, function, case, seed=seed, timeout=timeout) for case in level.cases)
        return next(filter(None, reasons), None)
    if not callable(function):
        return f"the answer is of type {type(function).__name__}: pass the function or class itself, without brackets"
    try:
        packed(function)
    except Exception as error:
        return f"it cannot travel to the ranks ({error}): keep locks, files and handles out of what it uses"
    for case in (*level.cases, *level.drawn(seed)):
        if reason := why_probe_fails(spec, function, case, seed=seed, timeout=timeout):
            return reason
    return None
