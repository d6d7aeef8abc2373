"""Where in a model ranks begin to differ from one device: the output of every module, in the order of forward.

A wrong output says that something is wrong; the first wrong module says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.local import own_part
from course_lib.parallel.table.placement import At, Shard
from course_lib.ranks import run_ranks
from course_lib.sequence_cut import SequenceCut
from course_lib.training.batches import Batch
from course_lib.training.trainer import Trainer
from course_lib.verify.alike import SGD, born_with
from course_lib.verify.equality import deviation
from course_lib.verify.trainable import MakeTrainer

_TP, _CP = "tp", "cp"
_WITH_SEQUENCES = 3  # dims: (B, S, features)


class _Seen(NamedTuple):
    """One rank: its coordinates, what each module gave it, and the layout."""

    at: At
    outputs: dict[str, Tensor]
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class ModuleOutput:
    """One module: which part of its output a rank has, and how far the ranks are from one device.

    A deviation is the largest difference over the largest number of one device's output.
    """

    name: str
    part: str  # of its share of the batch: whole, or which dim is cut
    deviation: float


def compare_outputs(
    reference: MakeTrainer, parallel: MakeTrainer, batch: Batch, *, world_size: int, dtype: torch.dtype = torch.float64
) -> list[ModuleOutput]:
    """The output of every module on ranks beside one device's, in the order of forward.

    Both make a trainer of a whole model, not of a pipeline, as for the ladder. A rank's output is that of its share of
    the batch; what ranks along "cp" or "tp" have parts of is compared with the same part. Along "cp" that is told of
    outputs with a dim of positions alone.
    Raises: ValueError for an output of a shape that is no part of one device's.
    """
    with born_with(0, dtype):
        alone = _outputs(reference(SGD), batch)
    ranks: list[_Seen] = run_ranks(_seen, world_size, parallel, batch, dtype)
    found = []
    for name, whole in alone.items():
        if whole.dim() < _WITH_SEQUENCES and ranks[0].layout.sizes.get(_CP, 1) > 1:
            continue  # a router's tokens, a table's positions: which of them a rank has does not show
        beside = [_beside(name, whole, seen) for seen in ranks if name in seen.outputs]
        if beside:
            worst = max(deviation(got.double(), want.double()) for got, want, _ in beside)
            found.append(ModuleOutput(name=name, part=beside[0][2], deviation=worst))
    return found


def _seen(make: MakeTrainer, batch: Batch, dtype: torch.dtype) -> _Seen:
    with born_with(0, dtype):
        trainer = make(SGD)
        return _Seen(trainer.local.at, _outputs(trainer, batch), trainer.local.layout)


@torch.no_grad()
def _outputs(trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
    """By name what each module gives; the first time, if it is called more often."""
    found: dict[str, Tensor] = {}
    with _noting(getattr(trainer.model, "module", trainer.model), found):
        trainer.output(batch[0])
    return found


@contextmanager
def _noting(model: nn.Module, found: dict[str, Tensor]) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():

        def note(_: nn.Module, args: object, output: object, name: str = name) -> None:
            if isinstance(output, Tensor):
                found.setdefault(name, own_part(output).detach().clone())

        if name:
            handles.append(module.register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _beside(name: str, whole: Tensor, seen: _Seen) -> tuple[Tensor, Tensor, str]:
    """A rank's output, the same of one device's, and in words which part that is."""
    got, layout, at = seen.outputs[name], seen.layout, seen.at
    want, part = whole, "whole"
    for axis in layout.row_axes:
        want = want.tensor_split(layout.sizes.get(axis, 1))[at.get(axis, 0)]
    if (cp := layout.sizes.get(_CP, 1)) > 1:
        want, part = want[:, SequenceCut(want.shape[1], cp, layout.sequence_order).positions(at[_CP])], "positions"
    for dim, (length, mine) in enumerate(zip(want.shape, got.shape, strict=False)):
        if length != mine:
            last, size = dim == want.dim() - 1, layout.sizes.get(_TP, 1)
            cut = _cut_of(name, layout) if last else Shard(0)
            first, end = cut.span(length, at.get(_TP, 0), size)
            want, part = want.narrow(dim, first, end - first), "features" if last else "positions"
    if got.shape != want.shape:
        values = f"{name} gives {tuple(got.shape)}, on one device {tuple(whole.shape)}"
        rule, way_out = "a rank has a part of what one device gives", "build both models from one configuration"
        raise ValueError(four_parts("compare_outputs", values, rule, way_out))
    return got, want, part


def _cut_of(name: str, layout: Layout) -> Shard:
    """How the features of a module are cut: as the rows of its weight."""
    first = layout.first_name.get(f"{name}.weight")
    found = layout.places[first].shard.get(_TP) if first is not None else None
    return replace(found, dim=0) if found is not None else Shard(0)
