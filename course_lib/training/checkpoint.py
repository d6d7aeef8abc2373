"""A checkpoint on disk: one file with what one device would save, whatever the layout of those who write and read."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts

FILE = "trainer.pt"


def write(content: dict[str, Any], folder: str | Path) -> None:
    """Write a checkpoint in one go: what is unfinished has another name, and the file that was there stays.

    Raises: OSError if the disk is full, or the system refuses.
    """
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as unfinished, what_stopped_it():
        torch.save(content, unfinished)


@contextmanager
def what_stopped_it() -> Iterator[None]:
    """Let the system's refusal through in place of PyTorch's own error, which does not say what stopped it."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is whole and on the disk; if it does not get there, it is gone.

    Raises: OSError, naming `path`, if the disk is full, or the system refuses.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk does not say whose file it was
    finally:
        unfinished.unlink(missing_ok=True)


def read(folder: str | Path) -> dict[str, Any]:
    """What `write` wrote.

    Raises: ValueError if there is nothing, or the file is truncated, altered, or something else.
    """
    path = Path(folder) / FILE
    if not path.exists():
        rule, way_out = f"a checkpoint is a file {FILE}", "give the folder that was given to save"
        raise ValueError(four_parts("Trainer.load", f"no {path}", rule, way_out))
    try:
        with zipfile.ZipFile(path) as archive:
            altered = archive.testzip()  # torch.load does not look at the checksums
        if altered:
            _refuse_file(path, f"{altered} in it was altered: its checksum is another")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        _refuse_file(path, f"it is truncated or altered ({error})")
    except (RuntimeError, EOFError, KeyError, NotImplementedError, pickle.UnpicklingError) as error:
        _refuse_file(path, f"it is altered ({type(error).__name__})")
    if not isinstance(content, dict) or not {"model", "optimizer"} <= content.keys():
        _refuse_file(path, "it holds something else than a model and its optimizer")
    return content


def _refuse_file(path: Path, wrong: str) -> NoReturn:
    values = f"{path}, {path.stat().st_size} bytes"
    raise ValueError(four_parts("Trainer.load", values, wrong, "take another checkpoint, or train anew"))


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
