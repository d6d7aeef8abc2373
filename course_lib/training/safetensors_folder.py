"""Weights in the files of Hugging Face: read by the boxes that a rank has, and written in place, each rank its own.

A file of safetensors begins with a table of names, dtypes, shapes and places, and is else the numbers themselves. So a
rank maps it into memory and touches nothing but its boxes: to read a model no rank ever holds it, and to write it none
has to collect it. In several files, an index says which tensor is in which.
Source: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.models.bridge import Link, config_of_theirs
from course_lib.models.expert_files import Piece
from course_lib.parallel.table import agreement
from course_lib.parallel.table.local import own_part
from course_lib.savers.origins import Origin, origins_of
from course_lib.training.checkpoint import on_first_rank
from course_lib.training.checksums import SUMS, check_sums, write_sums
from course_lib.training.folder_check import FILE, INDEX, FolderProblem, Wanted, Weights
from course_lib.training.initial import put_in_codes
from course_lib.training.trainer import Trainer

_LARGEST_BYTES = 5 * 10**9  # of a file, as theirs
_WORDS = {  # of the format
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def load_safetensors(trainer: Trainer, folder: str | Path) -> None:
    """Take the weights of a checkpoint in `transformers`' names: of a model of theirs, or one that our decoder can be.

    Memory: none but the parts, which are there; the system maps what is read.
    Raises: ValueError, the same on all ranks, if files or tensors are missing, truncated, too many, or of other shapes;
        where `save_safetensors` wrote them, also if a file was altered.
    """
    problem: Exception | None = None
    folder = Path(folder)
    if (folder / SUMS).exists():
        check_sums("load_safetensors", folder, trainer.local.everyone)
    try:
        with Weights(folder) as source, torch.no_grad():
            source.check(_wanted(trainer))
            known = origins_of(trainer.skeleton)
            for link, name, numbers in _own(trainer):
                _read(source, trainer, link, name, known[name], numbers)
    except (OSError, ValueError) as error:
        problem = error
    _agree(problem, trainer)
    trainer.engine.ends.updated()


def save_safetensors(
    trainer: Trainer,
    folder: str | Path,
    *,
    largest_bytes: int = _LARGEST_BYTES,
    mark: Callable[[Path], None] | None = None,
) -> None:
    """Write the weights, and the configuration if it is one of theirs, so that `from_pretrained(folder)` loads them.

    Each rank writes what it has to where it belongs; of what several have, the first one. All see one file system.
    `mark` begins the folder, for instance by saying whose it is.

    Raises: ValueError for a folder that is there; OSError, on all ranks, if one cannot write: then there is no folder.
    """
    folder, everyone = Path(folder), trainer.local.everyone
    if folder.exists():
        rule, way_out = "weights are written over none", "name another folder"
        raise ValueError(four_parts("save_safetensors", f"{folder} is there", rule, way_out))
    files = _files(_tensors(trainer), largest_bytes)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    on_first_rank(lambda: _begin(unfinished, files, mark), everyone)
    problem = ""
    try:
        _write_boxes(trainer, unfinished, files)
    except OSError as error:
        problem = str(error)
    if found := [text for text in agreement.gathered(problem, everyone) if text]:
        raise OSError(found[0])
    on_first_rank(lambda: _describe(trainer, unfinished, files), everyone)
    write_sums(unfinished, everyone)
    on_first_rank(lambda: os.rename(unfinished, folder), everyone)


def _wanted(trainer: Trainer) -> Wanted:
    """What they have of the model as it was before adapters stood beside its maps, by the names that it had then."""
    layout, known = trainer.local.layout, origins_of(trainer.skeleton)
    shapes: dict[str, Sequence[int]] = {}
    for name, place in layout.places.items():
        if name in trainer.persistent and name in known:
            coded = known[name].coded
            shapes[known[name].name] = place.shape if coded is None else coded.shape
    first = {known[name].name: known[one].name for name, one in layout.first_name.items() if name in known}
    return Wanted(trainer.skeleton, shapes, first)


def _own(trainer: Trainer) -> Iterator[tuple[Link | Piece, str, Tensor]]:
    """What this rank has, with the tensor of theirs that it is part of; of a weight in codes, the codes."""
    here = {**trainer.local.parameters, **trainer.local.buffers}
    names = {origin.name: name for name, origin in reversed(origins_of(trainer.skeleton).items())}
    for link in _wanted(trainer).links:
        for name in (names[ours] for ours in link.ours):
            if name in here:
                yield link, name, own_part(here[name].detach())


def _shared(
    trainer: Trainer, link: Link | Piece, name: str, before: str, numbers: Tensor
) -> Iterator[tuple[Any, Tensor]]:
    """What this rank's numbers have in common with a tensor of theirs: where in it, and a view of them as it lies."""
    layout = trainer.local.layout
    for box, part in layout.in_boxes(name, numbers, trainer.local.at):
        if (found := link.common(before, layout.places[name].shape, box, part)) is not None:
            place, numbers_there = found
            yield _slices(place), numbers_there


def _slices(box: tuple[Sequence[int], Sequence[int]]) -> Any:
    return tuple(slice(first, first + size) for first, size in zip(*box, strict=True)) or ...


# --- reading ---


def _agree(problem: Exception | None, trainer: Trainer) -> None:
    """Raise the same ValueError on all ranks if one of them has a problem."""
    parts = problem.parts if isinstance(problem, FolderProblem) else (str(problem), "it is read", "copy it once more")
    mine = None if problem is None else four_parts("load_safetensors", *parts)
    if found := [text for text in agreement.gathered(mine, trainer.local.everyone) if text]:
        raise ValueError(found[0])


def _read(source: Weights, trainer: Trainer, link: Link | Piece, name: str, before: Origin, numbers: Tensor) -> None:
    """Fill this rank's part of a tensor.

    Raises: FolderProblem for what is no number.
    """
    theirs = source.slice_of(link.theirs)
    if before.coded is None:
        for place, part in _shared(trainer, link, name, before.name, numbers):
            part.copy_(_finite(theirs[place], source, link))
        return
    # The scales of all codes are made together.
    weight = torch.empty(before.coded.shape, dtype=before.coded.dtype)
    found = link.common(before.name, weight.shape, ((0, 0), tuple(weight.shape)), weight)
    assert found is not None  # of a map of its own
    found[1].copy_(_finite(theirs[_slices(found[0])], source, link))
    put_in_codes(trainer, name, weight)


def _finite(read: Tensor, source: Weights, link: Link | Piece) -> Tensor:
    if not _is_finite(read):
        file = source.folder / source.file_of[link.theirs]
        rule = "a model that has them learns nothing, and its first loss is no number either"
        way_out = "take an earlier checkpoint of that training, or copy the file anew"
        raise FolderProblem(f"{link.theirs} in {file} has infinities or NaN", rule, way_out)
    return read


def _is_finite(x: Tensor) -> bool:
    """Without a copy of it: the smallest and the largest number are NaN if any is."""
    return not x.numel() or not x.is_floating_point() or all(end.isfinite() for end in x.aminmax())


# --- writing ---


@dataclass(frozen=True)
class _Stored:
    """One tensor of a file, and where its bytes begin behind the table."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


_Files = Mapping[str, Mapping[str, _Stored]]  # by the file's name and the tensor's


def _tensors(trainer: Trainer) -> dict[str, _Stored]:
    """All of theirs, on every rank; wider numbers come first, so that each begins at a multiple of its size."""
    local = trainer.local
    found = {
        link.theirs: _Stored(local.dtypes[link.ours[0]], link.shape_of_theirs(local.layout.places[link.ours[0]].shape))
        for link in _wanted(trainer).links
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].dtype.itemsize))


def _files(tensors: Mapping[str, _Stored], largest_bytes: int) -> dict[str, dict[str, _Stored]]:
    """Tensors one after the other, in as many files as it takes; a larger one has its own."""
    rows: list[dict[str, _Stored]] = [{}]
    end = 0
    for name, x in tensors.items():
        if rows[-1] and end + x.nbytes > largest_bytes:
            rows.append({})
            end = 0
        rows[-1][name] = _Stored(x.dtype, x.shape, end)
        end += x.nbytes
    if len(rows) == 1:
        return {FILE: rows[0]}
    return {f"model-{number:05}-of-{len(rows):05}.safetensors": row for number, row in enumerate(rows, 1)}


def _table(row: Mapping[str, _Stored]) -> bytes:
    """The beginning of a file: the table's length and the table, in all a multiple of eight bytes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, x in row.items():
        offsets = [x.start, x.start + x.nbytes]
        entries[name] = {"dtype": _WORDS[x.dtype], "shape": [*x.shape], "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _begin(folder: Path, files: _Files, mark: Callable[[Path], None] | None) -> None:
    """Files with their tables, and room for the numbers."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if mark is not None:
        mark(folder)
    for name, row in files.items():
        table = _table(row)
        with open(folder / name, "wb") as file:
            file.write(table)
            file.truncate(len(table) + sum(x.nbytes for x in row.values()))


def _write_boxes(trainer: Trainer, folder: Path, files: _Files) -> None:
    """Copy this rank's numbers into the files, as far as it speaks for them."""
    layout, at = trainer.local.layout, trainer.local.at
    for file, row in files.items():
        mapped, start = np.memmap(folder / file, mode="r+"), len(_table(row))
        for link, name, numbers in _own(trainer):
            if link.theirs in row and layout.places[name].counts(at):
                x = row[link.theirs]
                size = prod(x.shape)
                theirs = torch.frombuffer(mapped, dtype=x.dtype, count=size, offset=start + x.start).view(x.shape)
                for place, part in _shared(trainer, link, name, name, numbers):  # a model without adapters
                    theirs[place].copy_(part)
        mapped.flush()


def _describe(trainer: Trainer, folder: Path, files: _Files) -> None:
    """The index and the configuration."""
    if len(files) > 1:
        size = sum(x.nbytes for row in files.values() for x in row.values())
        where = {name: file for file, row in files.items() for name in row}
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    if (config := config_of_theirs(trainer.skeleton)) is not None:
        config.dtype = next(x.dtype for row in files.values() for x in row.values())
        config.save_pretrained(folder)
