"""The project's ladder: what a trainer of several processes must have in common with that of one, rung by rung."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from course_lib.checks.kit.own_tensors import wrong_tensors
from course_lib.checks.kit.script import Ran, Unreadable, start_once
from course_lib.checks.project import one_device
from course_lib.checks.project.bytes_sent import TARGETS, gradient_bytes
from course_lib.checks.project.tasks import Task, task_of
from course_lib.verify.ratios import agrees, times

TRAINERS = ("replicas", "shards", "mesh")
_LIMIT_S = 30.0
_TOLERANCE = 1e-9  # of float64, over four steps
_STOP = 2  # batches before a run is stopped, to be gone on with


class Climbed(NamedTuple):
    """One rung of one trainer; no reason: it holds."""

    trainer: str
    rung: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rung:
    """What is started, on how many processes, and how much of a trainer's points it carries."""

    name: str
    share: float
    world_sizes: tuple[int, ...]
    run: Callable[[str, str, int, int], str | None]  # (trainer, its text, processes, seed)
    last: bool = False  # whether it says nothing of a trainer that is wrong elsewhere


def climb_up(trainer: str, text: str, seed: int) -> Iterator[Climbed]:
    """Each rung in turn, the later ones too where an earlier one fails: they may fail for another reason."""
    failed = False
    for rung in RUNGS:
        if rung.last and failed:
            yield Climbed(trainer, rung.name, "counts when the other rungs hold")
            continue
        reasons = ((p, rung.run(trainer, text, p, seed)) for p in rung.world_sizes)
        found = next((f"{p} processes: {reason}" for p, reason in reasons if reason), "")
        failed = failed or bool(found)
        yield Climbed(trainer, rung.name, found)


def _one_step(trainer: str, text: str, processes: int, seed: int) -> str | None:
    return _difference(text, processes, seed, "sgd", [slice(0, 1)])


def _all_steps(trainer: str, text: str, processes: int, seed: int) -> str | None:
    return _difference(text, processes, seed, "sgd", [slice(None)])


def _adamw(trainer: str, text: str, processes: int, seed: int) -> str | None:
    return _difference(text, processes, seed, "adamw", [slice(None)])


def _goes_on(trainer: str, text: str, processes: int, seed: int) -> str | None:
    return _difference(text, processes, seed, "adamw", [slice(0, _STOP), slice(_STOP, None)])


def _bytes(trainer: str, text: str, processes: int, seed: int) -> str | None:
    """What rank 0 hands over for gradients and weights, against the formula."""
    task = task_of(seed, "adamw")
    with tempfile.TemporaryDirectory(prefix="project-") as name:
        ran = _started(text, processes, Path(name), [task])
    if isinstance(ran, str):
        return ran
    got, target = gradient_bytes(ran.ended[0]), TARGETS[trainer](task, processes)
    if got == target:
        return None
    return f"rank 0 hands {got} B to collectives, {times(got / target)} the target of {target} B"


RUNGS = (
    Rung(name="one step of SGD", share=0.3, world_sizes=(2, 4), run=_one_step),
    Rung(name="all steps of SGD", share=0.2, world_sizes=(4,), run=_all_steps),
    Rung(name="AdamW, decay, clipping", share=0.2, world_sizes=(2, 4), run=_adamw),
    Rung(name="goes on where it stopped", share=0.2, world_sizes=(4,), run=_goes_on),
    Rung(name="bytes", share=0.1, world_sizes=(4,), run=_bytes, last=True),  # a wrong one may send as much
)


def _difference(text: str, processes: int, seed: int, kind: str, parts: Sequence[slice]) -> str | None:
    """None if a trainer ends as one device does, else where they differ, the earliest first: loss, norm, weights."""
    tasks = [task_of(seed, kind, part) for part in parts]
    with tempfile.TemporaryDirectory(prefix="project-") as name:
        ran = _started(text, processes, Path(name), tasks)
        if isinstance(ran, str):
            return ran
        try:
            found = ran.saved("answer.pt")
        except Unreadable as error:
            return str(error)
    if not gradient_bytes(ran.ended[0]):
        return "rank 0 has handed no gradient to a collective: whatever it has saved, it has trained alone"
    want = _alone(seed, kind, tuple((part.start, part.stop) for part in parts))
    if not isinstance(found, dict) or want.keys() - found.keys():
        return "answer.pt no longer holds a dict with weights, losses and norms"
    return _wrong_batch(found, want, " after the new start" * (len(parts) > 1)) or wrong_tensors(
        found["weights"], want["weights"], start=tasks[0]["weights"], instead={}, tolerance=_TOLERANCE
    )


def _started(text: str, processes: int, folder: Path, tasks: Sequence[Task]) -> Ran | str:
    """A trainer, once for each task in the same folder; a text says why it did not end well."""
    ran: Ran | str = ""
    for task in tasks:
        ran = start_once(text, processes, folder, task, timeout=_LIMIT_S)
        if isinstance(ran, str):
            return ran
    return ran


def _wrong_batch(found: dict[str, Any], want: dict[str, Any], when: str) -> str | None:
    """The first batch that differs: its loss, which is of the weights before its step, then its gradient norm."""
    rows = {"loss": "losses", "gradient norm": "norms"}
    for name in rows.values():
        if not isinstance(found[name], list) or len(found[name]) != len(want[name]):
            return f"answer.pt does not hold one of its {name} for each batch"
    for number in range(len(want["losses"])):
        for what, name in rows.items():
            got, right = found[name][number], want[name][number]
            if not agrees(got / right, 1.0):
                off = f"{100 * (got / right - 1):+.2g} %" if 0.9 < got / right < 1.1 else times(got / right)
                place = f"batch {number + 1}{when}"
                return f"the {what} of {place} is {got:.6g}, on one device {right:.6g} ({off})"
    return None


@cache
def _alone(seed: int, kind: str, parts: tuple[tuple[int | None, int | None], ...]) -> dict[str, Any]:
    """What the trainer of one process ends at, started as often: what its last run has saved."""
    with tempfile.TemporaryDirectory(prefix="project-") as name:
        for start, stop in parts:
            torch.save(task_of(seed, kind, slice(start, stop)), Path(name) / "task.pt")
            one_device.main(Path(name))
        found: dict[str, Any] = torch.load(Path(name) / "answer.pt", weights_only=True)
    return found
