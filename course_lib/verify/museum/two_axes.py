"""Bugs of two axes: ranks along "dp" share the weights of which ranks along "tp" have parts.

Each takes one axis of the mesh for the other, or for all of it.
"""

from __future__ import annotations

from torch import Tensor

from course_lib import comm
from course_lib.parallel.tensors.cutting import AXIS as TENSOR_AXIS
from course_lib.training.batches import Batch
from course_lib.training.setup import Setup
from course_lib.training.sharding import AXIS as DATA_AXIS
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue
from course_lib.verify.museum.seams import after_backward, own_norm


def divided_by_all_ranks(setup: Setup) -> None:
    """Gradients are averaged over all ranks, though only those along "dp" have read different samples."""

    def work() -> None:
        for gradient in setup.local.gradients().values():
            gradient.div_(setup.local.size(TENSOR_AXIS))

    after_backward(setup, work)


def norm_along_one_axis(setup: Setup) -> None:
    """Squares are added up over the ranks that share weights, and not over those that have other parts of them."""

    def over_shards() -> Tensor:
        return comm.all_reduce_(own_norm(setup).square().view(1), group=setup.local.group(DATA_AXIS)).sqrt()[0]

    setup.local.global_norm = over_shards  # type: ignore[method-assign]


def other_rows_along_tp(setup: Setup) -> None:
    """Every rank's loader takes the next samples, though ranks that have parts of one matrix must read the same."""
    cut, rank = setup.engine.cut, setup.local.rank(TENSOR_AXIS)

    def cut_other_rows(batch: Batch) -> list[Batch]:
        inputs, targets = batch
        return cut((inputs.roll(rank, 0), targets.roll(rank, 0)))

    setup.engine.cut = cut_other_rows  # type: ignore[method-assign]


_EXHIBITS = (
    Bug(
        name="divided_by_all_ranks",
        title="Gradients are averaged over all ranks of the mesh, not over those along dp",
        technique=divided_by_all_ranks,
        where=Issue(
            title="Tensor parallelism accuracy + grad norm scale issues",
            link=ISSUES.format("meta-pytorch/torchtune", 2641),
        ),
        first_rung="gradients",
        looks="every gradient is tp times too small, which AdamW divides away; clipping bites less often",
    ),
    Bug(
        name="norm_along_one_axis",
        title="The gradient norm is added up over one axis of the mesh only",
        technique=norm_along_one_axis,
        where=Issue(
            title="fix(fsdp): reduce the gradient norm over every shard", link=PULLS.format("RLinf/RLinf", 1558)
        ),
        first_rung="gradient norm",
        looks="the logged norm is too small, and shrinks as the job grows; clipping bites less than it should",
    ),
    Bug(
        name="other_rows_along_tp",
        title="Ranks that have parts of one matrix read different samples",
        technique=other_rows_along_tp,
        where=Issue(
            title="Data on the same dp rank is inconsistent after prepare",
            link=ISSUES.format("huggingface/accelerate", 3092),
        ),
        first_rung="gradients",
        looks="parts of different sequences are added up to one activation; the loss falls, but not as low",
    ),
)
TWO_AXES_BUGS = {bug.name: bug for bug in _EXHIBITS}
