"""Bugs of sharded data parallelism. Each is a few lines in place of the library's; its docstring says what is wrong."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import torch

from course_lib.parallel.sharding.flat_row import FlatRow
from course_lib.training.setup import Setup
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue
from course_lib.verify.museum.seams import own_norm

_gather, _finish_reduce = FlatRow.gather, FlatRow.finish_reduce
_NOT_IN_BACKWARD = -1


def _divided_twice(setup: Setup) -> None:
    """The loss is a mean over all ranks already, and reducing gradients divides by their number again."""
    setup.local.layout.averaged.clear()


def _norm_of_own_pieces(setup: Setup) -> None:
    """Each rank takes the norm of what it holds for the norm of all, and clips by that."""
    setup.local.global_norm = partial(own_norm, setup)  # type: ignore[method-assign]


def _gather_from_an_old_copy(self: FlatRow, *, async_op: bool = False) -> None:
    """Backward takes weights from a copy near by, and nobody renews the copy after an update."""
    begun = self._gathering is not None
    _gather(self, async_op=async_op)
    if begun or self.sharing.resident:
        return
    self.wait()
    if torch._C._current_graph_task_id() == _NOT_IN_BACKWARD:
        vars(self).setdefault("copy_near_by", self.whole.clone())
    else:
        self.whole.copy_(vars(self)["copy_near_by"])


def _keep_last_gradients(self: FlatRow) -> None:
    """The piece of the last micro-batch takes the place of what the others had left, instead of being added."""
    if self._reducing is not None:
        for piece in self.pieces.values():
            piece.grad = None
    _finish_reduce(self)


_EXHIBITS = (
    Bug(
        name="divided_twice",
        title="The loss is a mean over all ranks, and reducing divides by their number again",
        technique=_divided_twice,
        where=Issue(
            title="fix(trainer): stop scaling drafter gradients down by world size",
            link=PULLS.format("verl-project/verl-SpeCo", 29),
        ),
        first_rung="gradients",
        looks="AdamW divides a gradient by its own size: the loss falls as it should",
    ),
    Bug(
        name="norm_of_own_pieces",
        title="The gradient norm is that of one rank's pieces",
        technique=_norm_of_own_pieces,
        where=Issue(
            title="[BUG] Gradient norm is not properly reduced across the world with the FSDP backend",
            link=ISSUES.format("areal-project/AReaL", 312),
        ),
        first_rung="gradient norm",
        looks="each rank clips its pieces by another factor; AdamW divides most of it away",
    ),
    Bug(
        name="old_copy_in_backward",
        title="Backward computes with weights from before the update",
        patch=partial(patch.object, FlatRow, "gather", _gather_from_an_old_copy),
        where=Issue(
            title="[BUG] convergence issues with `zero_hpz_partition_size`",
            link=ISSUES.format("deepspeedai/DeepSpeed", 4851),
        ),
        first_rung="parameters",
        looks="the first step is right; afterwards gradients point roughly downhill, and the loss falls",
    ),
    Bug(
        name="last_micro_batch_alone",
        title="Of several micro-batches only the last one's gradients are used",
        patch=partial(patch.object, FlatRow, "finish_reduce", _keep_last_gradients),
        where=Issue(
            title="Fix ZeRO-2 discarding gradients during manual accumulation",
            link=PULLS.format("allenai/open-instruct", 1498),
        ),
        first_rung="gradients",
        looks="a sound run on a part of the data",
        accumulation=2,
    ),
)
SHARDED_BUGS = {bug.name: bug for bug in _EXHIBITS}
WRONG_LINES = {  # of a step: gather, gather again, reduce-scatter, norm, update are G, H, R, N, U
    "divided_twice": "R",
    "norm_of_own_pieces": "N",
    "old_copy_in_backward": "H",
    "last_micro_batch_alone": "R",
}
