"""`save_script`: a script and the files that it works on, in a folder where a learner starts it by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from course_lib.checks.kit.registry import find
from course_lib.checks.kit.script import TASK, ScriptExercise, lay_down
from course_lib.errors import four_parts


def save_script(exercise: str, script: str, *, seed: int = 0) -> None:
    """Write a script, and what its exercise gives it to work on, into the folder `own-03.11`; say how to start it.

    Raises: ValueError in four parts if the exercise asks for no script.
    """
    spec = find(exercise)
    if not isinstance(spec, ScriptExercise):
        rule, way_out = "only exercises that ask for a script have a file", "check the answer in its own cell"
        raise ValueError(four_parts("save_script", repr(exercise), rule, way_out))
    case = next(iter(spec.levels.values())).cases[0]
    folder = Path(f"own-{exercise}")
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script, encoding="utf-8")
    beside = spec.beside(case, seed)
    if spec.task is not None:
        torch.save(spec.task(case, seed), folder / TASK)
    lay_down(beside, folder)
    start = "python" if spec.alone else f"torchrun --standalone --nproc-per-node {case.world_size}"
    print(f"In a terminal: {start} {folder}/script.py" + f" {folder}" * bool(beside or spec.task))
