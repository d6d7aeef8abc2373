"""Exercises whose answer is the text of a script that torchrun can start, without this course."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checks.kit.endings import NOT_YET
from course_lib.checks.kit.spec import Level
from course_lib.ranks.script import Ended, run_script

_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
_OURS = re.compile(r"^\s*(from|import)\s+course_lib\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ScriptExercise:
    """An exercise that is judged by what the processes of a script print."""

    key: str
    title: str
    verdict: Callable[[Any, Sequence[Ended]], str | None]  # (case, what became of each rank)
    levels: Mapping[str, Level]
    hints: tuple[str, ...]


def why_script_fails(exercise: ScriptExercise, text: object, case: Any, *, timeout: float) -> str | None:
    """None if the script is right in this case, else why not."""
    if not isinstance(text, str):
        return f"the answer is of type {type(text).__name__}: pass the text of the script"
    if _OURS.search(text):
        return "it imports course_lib: this script is to run where nothing of the course is"
    ended = run_script(text, case.world_size, timeout=timeout)
    if any(f"NotImplementedError: Exercise {exercise.key}" in one.problems for one in ended):
        return NOT_YET
    reason = _ended_badly(ended, timeout) or exercise.verdict(case, ended)
    return f"{case}: {reason}" if reason else None


def _ended_badly(ended: Sequence[Ended], timeout: float) -> str | None:
    """The first error, or else who hangs."""
    for rank, one in enumerate(ended):
        if one.status:
            raised = _RAISED.findall(one.problems)
            return f"an error on rank {rank}: {raised[-1] if raised else f'it ended with status {one.status}'}"
    hanging = [rank for rank, one in enumerate(ended) if one.status is None]
    if not hanging:
        return None
    who = f"rank{'s' * (len(hanging) > 1)} {', '.join(map(str, hanging))}"
    return f"a hang: {who} had not ended after {timeout:g} s; does every rank make every call that all must make?"
