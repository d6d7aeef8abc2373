"""The checkpoints of a run: LATEST names the last whole one, which stays until the next one is whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts
from course_lib.training import checkpoint
from course_lib.training.trainer import Trainer

_POINTER = "LATEST"


def save_step(trainer: Trainer, folder: Path, step: int, record: Any) -> None:
    """Write everything that the run needs to go on after `step`: the trainer's state, random states and a record.

    All ranks call it; the first one writes `step-N/trainer.pt`, then the pointer, and then removes the one before.
    Killed at any moment, it leaves a pointer to a whole checkpoint, or none.
    Raises: OSError, on all ranks, if the system refuses; the last checkpoint is still there.
    """
    run = {"step": step, "random": _random_states(trainer.local.everyone), "record": record}
    content = {**trainer.state(), "run": run}
    checkpoint.on_first_rank(lambda: _put(content, folder, f"step-{step}"), trainer.local.everyone)


def _put(content: dict[str, Any], folder: Path, name: str) -> None:
    try:
        checkpoint.write(content, folder / name)
    except BaseException:
        shutil.rmtree(folder / name, ignore_errors=True)
        raise
    with checkpoint.replaced(folder / _POINTER) as file:
        file.write(name.encode())
    for other in folder.glob("step-*"):
        if other.name != name:
            shutil.rmtree(other)


def latest(folder: Path) -> Path | None:
    """The last whole checkpoint's folder, if there is one.

    Raises: ValueError if the pointer names none.
    """
    pointer = folder / _POINTER
    if not pointer.exists():
        return None
    found = folder / pointer.read_text().strip()
    if not (found / checkpoint.FILE).is_file():
        values, rule = f"{pointer} names {found.name!r}", "it names a folder with a checkpoint"
        raise ValueError(four_parts("train", values, rule, "write another folder's name into it, or train anew"))
    return found


def step_of(checkpoint_folder: Path) -> int:
    """After how many steps it was written."""
    return int(checkpoint_folder.name.removeprefix("step-"))


def resume(trainer: Trainer, folder: Path) -> Any:
    """Take the state of the last checkpoint, if there is one; return its record, else None.

    The random states are taken where as many ranks wrote them: another layout draws other numbers anyway.
    Raises: ValueError if it is truncated, altered, or another model's.
    """
    found = latest(folder)
    if found is None:
        return None
    saved = checkpoint.read(found)
    trainer.restore(saved)
    rank, ranks = _seat(trainer.local.everyone)
    if len(saved["run"]["random"]) == ranks:
        _set_random_state(saved["run"]["random"][rank])
    return saved["run"]["record"]


def drop(folder: Path) -> None:
    """Remove all checkpoints of a run that has its results: the pointer first."""
    (folder / _POINTER).unlink(missing_ok=True)
    for one in folder.glob("step-*"):
        shutil.rmtree(one)


def _seat(group: ProcessGroup | None) -> tuple[int, int]:
    """This rank's number among all that train, and how many they are."""
    return (0, 1) if group is None else (group.rank(), group.size())


def _random_states(group: ProcessGroup | None) -> list[dict[str, Tensor]]:
    """Of every rank."""
    mine = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        mine["cuda"] = torch.cuda.get_rng_state()
    states = [mine] * _seat(group)[1]
    if group is not None:
        dist.all_gather_object(states, mine, group=group)
    return states


def _set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
