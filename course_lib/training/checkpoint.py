"""A checkpoint on disk: one file with what one device would save, whatever the layout of those who write and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts

FILE = "trainer.pt"


def write(content: dict[str, Any], folder: str | Path) -> None:
    """Write a checkpoint in one go: what is unfinished has another name, and the file that was there stays."""
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        torch.save(content, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(folder: str | Path) -> dict[str, Any]:
    """What `write` wrote.

    Raises: ValueError if there is nothing.
    """
    path = Path(folder) / FILE
    if not path.exists():
        rule, way_out = f"a checkpoint is a file {FILE}", "give the folder that was given to save"
        raise ValueError(four_parts("Trainer.load", f"no {path}", rule, way_out))
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def check_names(weights: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise the four-part error unless these are just the tensors of the model, by name and shape."""
    there = {name: tuple(x.shape) for name, x in weights.items()}
    for name in (*shapes, *there):
        if there.get(name) != shapes.get(name):
            values = (
                f"{name} is {_shape(there.get(name))} in the checkpoint and {_shape(shapes.get(name))} in the model"
            )
            rule, way_out = "a checkpoint fits the model that wrote it", "build the model from the same configuration"
            raise ValueError(four_parts("Trainer.load", values, rule, way_out))


def on_first_rank(write: Callable[[], None], group: ProcessGroup | None) -> None:
    """Let the group's first rank write (None: this process is alone); if it cannot, all ranks raise its error."""
    if group is None:
        return write()
    problem = [""]
    if group.rank() == 0:
        try:
            write()
        except OSError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, group_src=0, group=group)  # nobody goes on before the file is there
    if problem[0]:
        raise OSError(f"{problem[0]} (on the rank that writes)")


def _shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else f"of shape {shape}"
