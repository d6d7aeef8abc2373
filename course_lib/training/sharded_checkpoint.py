"""A checkpoint in pieces: each rank writes what it has and reads what it needs, so that nobody holds the whole.

The files are those of PyTorch's distributed checkpoint (DCP), which knows boxes of a tensor: where each begins, and its
size. The table says which boxes a rank's part is, also where that is a stretch of a flat row. So pieces of any layout
are read at any other one, and by every program that reads such checkpoints. Their names are those of PyTorch's
`get_state_dict`, under "model" and "optimizer".
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from course_lib.errors import four_parts
from course_lib.parallel.table.placement import Box
from course_lib.training import dcp_table
from course_lib.training.checkpoint import check_names, on_first_rank, what_stopped_it
from course_lib.training.checksums import SUMS, check_sums, write_sums
from course_lib.training.trainer import Trainer

_STATES, _GROUPS, _RECORD, _TABLE = "optimizer.state.", "optimizer.param_groups.", "record", dcp_table.FILE
_GROUP = f"{_GROUPS}0."


@dataclass(frozen=True)
class _Pieces:
    """What a rank has of one tensor: its numbers, and in which boxes of the whole they lie."""

    shape: tuple[int, ...]
    numbers: Tensor
    boxes: Sequence[tuple[Box, Tensor]]

    def chunks(self) -> dict[torch.Size, tuple[ChunkStorageMetadata, Tensor]]:
        """The boxes by where they begin, in DCP's words, each with its numbers."""
        return {
            torch.Size(offsets): (ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)), part)
            for (offsets, sizes), part in self.boxes
        }


@dataclass(frozen=True)
class Pieces:
    """What a rank writes: its part of the state, and what is the same on all."""

    mine: Mapping[str, _Pieces]
    shared: dict[str, Any]


def pieces_of(trainer: Trainer, record: Any = None, *, copy: bool = False) -> Pieces:
    """This rank's part, and a record, of which the first rank's counts; a `copy` stays while training goes on."""
    parts: Mapping[str, Mapping[str, Tensor]] = trainer.parts()
    if copy:
        parts = {name: {kind: x.to("cpu", copy=True) for kind, x in kinds.items()} for name, kinds in parts.items()}
    options = {**trainer.options, "params": trainer.local.layout.trained}
    shared = {f"{_GROUP}{name}": value for name, value in options.items()}
    mine, first_name = _pieces(trainer, parts), trainer.local.layout.first_name
    second = {_name(name, ""): mine[_name(first, "")] for name, first in first_name.items() if _name(first, "") in mine}
    return Pieces(mine | second, {**shared, _RECORD: record})


def save_pieces(trainer: Trainer, folder: str | Path) -> None:
    """Write weights, buffers and the optimizer's states, every number once, into a folder of their own.

    What is tied is written under each of its names, as PyTorch does, which reads it so.

    Cost: a file for each rank, one with the table, and one with the checksums; then the folder gets its name.
    Raises: ValueError for a folder that is there: what would be left of two checkpoints fits together nowhere.
        OSError, on all ranks, if one of them cannot write; then there is no folder.
    """
    if Path(folder).exists():
        rule, way_out = "a checkpoint in pieces is written over none", "name another folder"
        raise ValueError(four_parts("save_pieces", f"{folder} is there", rule, way_out))
    write_pieces(pieces_of(trainer), Path(folder), trainer.local.everyone)


def write_pieces(
    pieces: Pieces, folder: Path, group: ProcessGroup | None, mark: Callable[[Path], None] | None = None
) -> None:
    """The same on the ranks of a group, which may be one that only a thread of each uses; `mark` begins the folder.

    Raises: OSError as `save_pieces`.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    on_first_rank(partial(shutil.rmtree, unfinished, ignore_errors=True), group)
    if mark is not None:
        on_first_rank(partial(mark, unfinished), group)
    writer, planner = _Writer(unfinished), _Saver(pieces.mine)
    with _in_one_line(group) as problems:
        save(pieces.shared, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None)
    if problems:
        on_first_rank(partial(shutil.rmtree, unfinished, ignore_errors=True), group)
        raise OSError(f"{folder}: {problems[0]}")
    write_sums(unfinished, group)
    on_first_rank(lambda: os.rename(unfinished, folder), group)


def load_pieces(trainer: Trainer, folder: str | Path) -> Any:
    """Go on from what `save_pieces` wrote, or PyTorch itself, at this or any other layout; return the record, if any.

    PyTorch writes no checksums, so that a warning says that nothing proves its files whole. What the optimizer is told
    and the file does not say stays as it is.
    Raises: ValueError, on all ranks, if there is nothing, another model's, or a file that is truncated or altered.
    """
    folder, everyone = Path(folder), trainer.local.everyone
    reader, table = dcp_table.Reader(folder), _checked_table(folder, everyone)
    parts = _room_for(trainer, table)
    asked = {f"{_GROUP}{name}": value for name, value in trainer.options.items()} | {_RECORD: None}
    shared: dict[str, Any] = {name: value for name, value in asked.items() if name in table.state_dict_metadata}
    planner = _Loader(_pieces(trainer, parts))
    with _in_one_line(everyone) as problems:
        load(shared, storage_reader=reader, planner=planner, process_group=everyone, no_dist=everyone is None)
    if problems:
        rule, way_out = "a piece cannot be read", "take another checkpoint, or train anew"
        raise ValueError(four_parts("load_pieces", f"{folder}: {problems[0]}", rule, way_out))
    found = {name.removeprefix(_GROUP): value for name, value in shared.items() if name != _RECORD}
    trainer.take(parts, trainer.options | found)
    return shared.get(_RECORD)


def _checked_table(folder: Path, group: ProcessGroup | None) -> Metadata:
    """What is in a folder, once its files are found as they were written, as far as anything says how that was."""
    if not (folder / _TABLE).is_file():
        rule, way_out = f"a checkpoint in pieces has a file {_TABLE}", "give the folder that was given to save_pieces"
        raise ValueError(four_parts("load_pieces", f"no {folder / _TABLE}", rule, way_out))
    if (folder / SUMS).is_file():
        check_sums("load_pieces", folder, group)
    elif group is None or group.rank() == 0:
        warnings.warn(f"load_pieces: {folder} has no {SUMS}: nothing proves its files whole", stacklevel=3)
    try:
        return dcp_table.Reader(folder).read_metadata()
    except Exception as error:  # what is no pickle fails in as many ways as there are bytes
        asked = f": {error}" if isinstance(error, pickle.UnpicklingError) else ""
        values, rule = f"{folder / _TABLE}", f"it cannot be read ({type(error).__name__}{asked})"
        way_out = "take another checkpoint, or train anew"
        raise ValueError(four_parts("load_pieces", values, rule, way_out)) from None


@contextmanager
def _in_one_line(group: ProcessGroup | None) -> Iterator[list[str]]:
    """What went wrong, and where, the same on all ranks. That one device is a layout too, DCP need not warn of."""
    problems: list[str] = []
    with nullcontext() if group is not None else warnings.catch_warnings():
        if group is None:
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield problems
        except CheckpointException as error:
            problems += [
                f"{' '.join(str(cause).split())} on rank {rank}" for rank, (cause, _) in error.failures.items()
            ]


def _pieces(trainer: Trainer, parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, _Pieces]:
    """By the names of the file; what is laid otherwise than its weight, as a counter or scales, is everybody's."""
    layout, at = trainer.local.layout, trainer.local.at
    found = {}
    for name, kinds in parts.items():
        shape = layout.places[name].shape
        for kind, x in kinds.items():
            if kind or name in trainer.saved:
                is_apart = x.shape != kinds[""].shape
                whole: Box = ((0,) * x.dim(), tuple(x.shape))
                boxes = [(whole, x)] if is_apart else layout.in_boxes(name, x, at)
                found[_name(name, kind)] = _Pieces(tuple(x.shape) if is_apart else shape, x, boxes)
    return found


def _name(name: str, kind: str) -> str:
    return f"{_STATES}{name}.{kind}" if kind else f"model.{name}"


def _room_for(trainer: Trainer, table: Metadata) -> dict[str, dict[str, Tensor]]:
    """Empty tensors like `trainer.parts()` on this rank, for what the file has; PyTorch names what is tied twice."""
    stored = {name: x for name, x in table.state_dict_metadata.items() if isinstance(x, TensorStorageMetadata)}
    weights = {name.removeprefix("model."): x for name, x in stored.items() if name.startswith("model.")}
    layout, shapes = trainer.local.layout, trainer.shapes()
    names = [name for name in layout.places if name in trainer.saved]
    check_names(
        {n: torch.empty(x.size, device="meta") for n, x in weights.items() if layout.first_name.get(n, n) == n},
        {name: shapes[name] for name in names},
    )
    _check_optimizer(table, layout.trained)
    parts = {name: {"": torch.empty_like(kinds[""])} for name, kinds in trainer.parts().items()}
    for name in trainer.trained:
        prefix = f"{_STATES}{name}."
        kinds = {long.removeprefix(prefix): x for long, x in stored.items() if long.startswith(prefix)}
        for kind, x in kinds.items():
            if "." not in kind and trainer.apart.asks_for(kind, kinds):
                # A counter, which PyTorch leaves on the CPU, and scales of codes have a shape of their own.
                is_apart = tuple(x.size) != tuple(shapes[name])
                like = torch.empty(x.size, device="cpu") if is_apart else parts[name][""]
                parts[name][kind] = torch.empty_like(like, dtype=x.properties.dtype)
    return parts


def _check_optimizer(table: Metadata, trained: Sequence[str]) -> None:
    """Refuse an optimizer's states by other names than the parameters', and several groups of parameters."""
    names = [*table.state_dict_metadata]
    theirs = {name.rpartition(".")[0].removeprefix(_STATES) for name in names if name.startswith(_STATES)}
    if unknown := sorted(theirs - {*trained}):
        values, rule = f"{_STATES}{unknown[0]}", "an optimizer's states are named after the trained parameters"
        raise ValueError(four_parts("load_pieces", values, rule, "save what PyTorch's get_state_dict gives"))
    groups = {name.removeprefix(_GROUPS).split(".")[0] for name in names if name.startswith(_GROUPS)}
    if len(groups) > 1:
        values, rule = f"{len(groups)} groups of parameters", "here all have one learning rate and one weight decay"
        raise ValueError(four_parts("load_pieces", values, rule, "save one group, or the model alone"))


class _Writer(FileSystemWriter):
    """Says what the system said; an error loses what caused it on its way to the other ranks."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with what_stopped_it():
            return super().write_data(plan, planner)


class _Saver(DefaultSavePlanner):
    """Tells DCP of the boxes; what several ranks have, it lets one of them write."""

    def __init__(self, pieces: Mapping[str, _Pieces]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> SavePlan:
        items = list(super().create_local_plan().items) if self.is_coordinator else []
        for name, pieces in self.pieces.items():
            properties = TensorProperties.create_from_tensor(pieces.numbers)
            for offsets, (chunk, _) in pieces.chunks().items():
                data = TensorWriteData(chunk, properties, torch.Size(pieces.shape))
                items.append(WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn in self.pieces and index.offset is not None:
            return self.pieces[index.fqn].chunks()[index.offset][1]
        return super().lookup_object(index)


class _Loader(DefaultLoadPlanner):
    """Asks DCP for what of the file's boxes lies in this rank's."""

    def __init__(self, pieces: Mapping[str, _Pieces]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> LoadPlan:
        items = list(super().create_local_plan().items)
        assert self.metadata is not None
        for name, pieces in self.pieces.items():
            stored, mine = self.metadata.state_dict_metadata[name], [chunk for chunk, _ in pieces.chunks().values()]
            assert isinstance(stored, TensorStorageMetadata)  # `_room_for` has seen it
            items += create_read_items_for_chunk_list(name, stored, mine)
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """PyTorch's own would run what a pickle asks for."""
        self.state_dict[read_item.dest_index.fqn] = dcp_table.read_object(value)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.pieces[index.fqn].chunks()[index.offset][1]
