"""Three trainers with three bugs in each, chosen by a seed, and the folder that a student is given."""

from __future__ import annotations

import random
import runpy
import shutil
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from course_lib.checks.project import one_device
from course_lib.checks.project.ladder import TRAINERS
from course_lib.checks.project.tasks import task_of
from tools.paths import ROOT

SOURCES = ROOT / "exercises/project"
BUGS_EACH = 3
DIAGNOSIS = "diagnosis.txt"
_TEMPLATE = """\
# One line for each bug that you found: the file, the function in which it stood, and what was wrong. For example:
# replicas.rows_of: the last rows of a batch that does not divide were left out
"""


class Planted(NamedTuple):
    """A trainer's text with bugs in it, and which they are."""

    text: str
    bugs: tuple[Any, ...]  # of exercises/project/bugs.py

    @property
    def functions(self) -> set[str]:
        """Where they stand."""
        return {bug.function for bug in self.bugs}


@cache
def bank() -> dict[str, tuple[Any, ...]]:
    """All bugs by trainer."""
    found: dict[str, tuple[Any, ...]] = runpy.run_path(str(SOURCES / "bugs.py"))["BUGS"]
    return found


def right(trainer: str) -> str:
    """The trainer without a bug."""
    return (SOURCES / f"{trainer}.py").read_text(encoding="utf-8")


def plant(trainer: str, seed: int) -> Planted:
    """Bugs in different functions, so that each can be found and mended by itself."""
    draw = random.Random(f"{seed} {trainer}")
    functions = draw.sample(sorted({bug.function for bug in bank()[trainer]}), BUGS_EACH)
    bugs = tuple(draw.choice([bug for bug in bank()[trainer] if bug.function == name]) for name in functions)
    text = right(trainer)
    for bug in bugs:
        text = with_bug(text, bug)
    return Planted(text, bugs)


def with_bug(text: str, bug: Any) -> str:
    """The text with one bug more. Raises: ValueError if its place is not there exactly once."""
    if text.count(bug.old) != 1:
        raise ValueError(f"bug in {bug.function}: its text stands {text.count(bug.old)} times in the trainer, not once")
    return text.replace(bug.old, bug.new)


def hand_out(folder: Path, seed: int) -> None:
    """Write a student's folder. Raises: FileExistsError if something is there already."""
    folder.mkdir(parents=True)
    shutil.copy(SOURCES / "ASSIGNMENT.md", folder / "README.md")
    shutil.copy(one_device.__file__, folder)
    for trainer in TRAINERS:
        (folder / f"{trainer}.py").write_text(plant(trainer, seed).text, encoding="utf-8")
    (folder / DIAGNOSIS).write_text(_TEMPLATE, encoding="utf-8")
    torch.save(task_of(0, "adamw"), folder / "task.pt")  # to start one of them by hand
