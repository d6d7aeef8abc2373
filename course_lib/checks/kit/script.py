"""Exercises whose answer is the text of a script that torchrun can start, without this course: the learner's own file.

A script may be given a folder as its one argument. There it finds `task.pt`, the weights and batches that its seed
draws, perhaps with other files beside it, and there it saves what it is asked for. It is judged by that, by what its
processes print, and by what they hand to `torch.distributed`, counted below all of PyTorch's layers (`ranks.counted`).
"""

from __future__ import annotations

import logging
import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from course_lib.checks.kit.endings import NOT_YET
from course_lib.checks.kit.out_of_step import first_difference, last_calls, outside_of_a_group, why_they_wait
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level
from course_lib.ranks.script import Ended, run_script

TASK = "task.pt"
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception)\b.*", re.MULTILINE)
_LINE = re.compile(r'File "[^"]*script\.py", line (\d+)')
_OURS = re.compile(r"^\s*(from|import)\s+course_lib\b", re.MULTILINE)
_LOG_OF_MESHES = logging.getLogger("torch.distributed.device_mesh")
_LOST = "by peer"  # in gloo's error on a process whose connection to another one was closed or reset
_PATIENCE = 3  # times a function's limit: processes that import parts of PyTorch first, on a machine that does more


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a script is started: on so many processes, then perhaps on others in the same folder."""

    world_size: int
    then: int = 0
    look: str = ""  # at what, besides the values: the exercise's own word

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'process')}{f', then {self.then}' if self.then else ''}"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of a script: of each of its starts, and in its folder."""

    starts: tuple[tuple[Ended, ...], ...]
    task: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, str] = field(default_factory=dict)  # texts of other files that lay in the folder
    folder: Path = Path()
    left: tuple[frozenset[str], ...] = ()  # what lay in the folder after each start
    killed_in: int = 0  # the step in which the first start was killed

    @property
    def ended(self) -> tuple[Ended, ...]:
        """The ranks of the last start."""
        return self.starts[-1]

    def saved(self, name: str) -> Any:
        """What the script has saved under this name, read as data alone. Raises: Unreadable in a sentence."""
        path = self.folder / name
        if not path.exists():
            found = sorted({one.name for one in self.folder.iterdir()} - {TASK, *self.beside})
            saved = ", ".join(found) or "nothing"
            raise Unreadable(f"there is no {name} in the folder that it was given; what it saved there: {saved}")
        _LOG_OF_MESHES.disabled = True  # a DTensor that was saved makes it write a line for each
        try:
            return torch.load(path, weights_only=True)
        except Exception as error:
            reason = str(error).strip().splitlines()[0][:120]
            raise Unreadable(f"{name} cannot be read ({reason}): save tensors, numbers, lists and dicts") from None
        finally:
            _LOG_OF_MESHES.disabled = False


class Unreadable(Exception):
    """A file that a script should have saved, and why it says nothing."""


@dataclass(frozen=True, kw_only=True)
class ScriptExercise:
    """An exercise that is judged by what the processes of a script print, save and send."""

    key: str
    title: str
    verdict: Callable[[Any, Ran], str | None]  # (case, what became of it)
    levels: Mapping[str, Level]
    hints: tuple[str, ...]
    task: Callable[[Any, int], Mapping[str, Any]] | None = None  # of a case and a seed; none: it gets no folder
    beside: Callable[[Any, int], Mapping[str, str]] = lambda case, seed: {}  # texts of files that lie beside its task
    saved: bool = False  # whether it is judged by what autograd keeps for backward, too
    errors: Mapping[str, str] = field(default_factory=dict)  # by a piece of PyTorch's own: what it comes from here
    killed_in: Callable[[Any, int], int] = lambda case, seed: 0  # in this step all processes of the first start die
    between: Callable[[Any, Ran], str | None] = lambda case, ran: None  # a verdict on each start alone, before the next
    alone: bool = False  # whether it is started by python, without torchrun


def why_script_fails(exercise: ScriptExercise, text: object, case: Any, *, seed: int, timeout: float) -> str | None:
    """None if the script is right in this case, else why not."""
    if not isinstance(text, str):
        return f"the answer is of type {type(text).__name__}: pass the text of the script"
    if _OURS.search(text):
        return "it imports course_lib: this script is to run where nothing of the course is"
    torch.set_num_threads(1)  # for the verdict's small models, as on each rank; a check sets it back
    with tempfile.TemporaryDirectory(prefix="own-file-") as name:
        try:
            reason = _reason(exercise, text, case, Path(name), seed=seed, timeout=_PATIENCE * timeout)
        except Unreadable as error:
            reason = str(error)
    return reason if reason in (None, NOT_YET) else f"{case}: {reason}"


def _reason(exercise: ScriptExercise, text: str, case: Any, folder: Path, *, seed: int, timeout: float) -> str | None:
    task = exercise.task(case, seed) if exercise.task else None
    beside, killed_in = exercise.beside(case, seed), exercise.killed_in(case, seed)
    lay_down(beside, folder)
    starts, left = list[tuple[Ended, ...]](), list[frozenset[str]]()
    for world_size in filter(None, (case.world_size, getattr(case, "then", 0))):
        ran = start_once(
            text,
            world_size,
            folder,
            task,
            timeout=timeout,
            saved=exercise.saved,
            beside=bool(beside),
            killed_in=0 if starts else killed_in,
        )
        if isinstance(ran, str):
            if f"NotImplementedError: Exercise {exercise.key}" in ran:
                return NOT_YET
            ran += next((f"; {cause}" for error, cause in exercise.errors.items() if error in ran), "")
            return f"the start on {world_size}: {ran}" if starts else ran
        starts += ran.starts
        left.append(frozenset(path.name for path in folder.iterdir()))
        became = Ran(
            starts=tuple(starts), task=task or {}, beside=beside, folder=folder, left=tuple(left), killed_in=killed_in
        )
        if reason := exercise.between(case, became):
            return reason
    reason = exercise.verdict(case, became)
    return reason and reason + outside_of_a_group(starts[-1])


def lay_down(texts: Mapping[str, str], folder: Path) -> None:
    """Write files by their names."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def start_once(
    text: str,
    world_size: int,
    folder: Path,
    task: Mapping[str, Any] | None,
    *,
    timeout: float,
    saved: bool = False,
    beside: bool = False,
    killed_in: int = 0,
) -> Ran | str:
    """Start a script once, its task in the folder that it is given, if it has one; a text says why it ended badly.

    `beside`: it is given the folder in any case, for what else lies there. `killed_in`: to be killed is its good end.
    """
    if task is not None:
        torch.save(task, folder / TASK)
    argument = str(folder) if beside or task is not None else ""
    ended = run_script(text, world_size, timeout=timeout, argument=argument, saved=saved, killed_in=killed_in)
    if bad := _not_killed(ended, killed_in, timeout) if killed_in else _ended_badly(ended, timeout):
        return bad + outside_of_a_group(ended)
    return Ran(starts=(tuple(ended),), task=task or {}, folder=folder)


def _not_killed(ended: Sequence[Ended], step: int, timeout: float) -> str | None:
    """Why a start has not come to the step in which all of its processes were to be killed."""
    killed = [one.status == -signal.SIGKILL for one in ended]
    others = [one._replace(status=0) if dead else one for one, dead in zip(ended, killed, strict=True)]
    if all(killed) or (bad := _ended_badly(others, timeout)):
        return None if all(killed) else bad
    return (
        f"rank {killed.index(False)} had ended before step {step}, in which all processes were to be killed: does each "
        "of them call train in every step, and count the steps from 1?"
    )


def _ended_badly(ended: Sequence[Ended], timeout: float) -> str | None:
    """The first error, or else who hangs; and where the ranks' collectives part, which may be why."""
    apart = first_difference(ended)
    if failed := [rank for rank, one in enumerate(ended) if one.status]:
        rank = min(failed, key=lambda rank: _LOST in _error_of(ended[rank]))  # not one that only lost another
        return f"an error on rank {rank}: {_error_of(ended[rank])}{apart and f'; {apart}'}"
    hanging = [rank for rank, one in enumerate(ended) if one.status is None]
    if not hanging:
        return None
    who = f"rank{'s' * (len(hanging) > 1)} {', '.join(map(str, hanging))}"
    asked = apart or f"{last_calls(ended)}; {why_they_wait([ended[rank] for rank in hanging])}"
    return f"a hang: {who} had not ended after {timeout:g} s; {asked}"


def _error_of(one: Ended) -> str:
    """The last error that a process has written, and the line of the script that led to it."""
    raised, lines = _RAISED.findall(one.problems), _LINE.findall(one.problems)
    text = raised[-1] if raised else f"it ended with status {one.status}"
    return f"line {lines[-1]}: {text}" if lines else text
