"""Bugs of pipeline parallelism. Each is a few lines in place of the library's; its docstring says what is wrong.

The last weights' gradients can only be left out of a schedule that has them apart: ZB-H1. Three need a tied model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.parallel.data import replicate
from course_lib.parallel.table.layout import first_names
from course_lib.schedules import BackwardWeight, Schedule
from course_lib.training.pipeline_engine import PipelineEngine
from course_lib.training.setup import Setup
from course_lib.training.trainer import Trainer
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue
from course_lib.verify.museum.seams import own_means, own_norm

state = Trainer.state


def mean_of_means(setup: Setup) -> None:
    """Divided by the number of micro-batches, but by each one's own number of targets."""
    own_means(setup, divided_by=setup.engine.n_microbatches)


def _not_summed(setup: Setup) -> None:
    """Each copy keeps the gradient of its own use: nobody knows that it is a term of a sum."""
    for name in setup.local.layout.places:
        setup.local.layout.write(name, partial=frozenset())


def _broadcast_untied(model: nn.Module, group: ProcessGroup, src: int) -> None:
    """Of what is tied each rank keeps the copy that its seed gave it."""
    tied = {first for name, first in first_names(model).items() if name != first}
    once = [parameter for name, parameter in model.named_parameters() if name not in tied]
    replicate.broadcast_tensors([*once, *model.buffers()], group, src)


def _norm_by_stage(setup: Setup) -> None:
    """The norm is taken of what this rank holds: every stage has a norm, and a factor, of its own."""
    setup.local.global_norm = lambda: own_norm(setup)  # type: ignore[method-assign]


def _norm_of_all_copies(setup: Setup) -> None:
    """Each rank adds the squares of all that it holds, so a tied parameter counts once for each copy."""

    def over_all() -> Tensor:
        return comm.all_reduce(own_norm(setup).square().view(1), group=setup.local.group("pp")).sqrt()[0]

    setup.local.global_norm = over_all  # type: ignore[method-assign]


def last_weights_left_out(setup: Setup) -> None:
    """Each rank's list ends before its last weights' gradients; what they need is kept, and nobody comes for it."""
    assert isinstance(setup.engine, PipelineEngine)
    setup.engine.pipeline.schedule = _without_last_weights(setup.engine.schedule)


def _without_last_weights(schedule: Schedule) -> Schedule:
    """The lists without the last micro-batch's BackwardWeight."""
    last = schedule.n_microbatches - 1
    lists = [
        [one for one in rank if not (isinstance(one, BackwardWeight) and one.microbatch == last)]
        for rank in schedule.lists
    ]
    return replace(schedule, lists=tuple(map(tuple, lists)))


def _first_rank_s_optimizer(self: Trainer) -> dict[str, Any]:
    """The weights of all stages, but the first rank's optimizer: the others begin with empty states."""
    saved, layout = state(self), self.local.layout
    first = {number for number, name in enumerate(layout.trained) if layout.places[name].is_held({"pp": 0})}
    states = saved["optimizer"]["state"]
    saved["optimizer"]["state"] = {number: one for number, one in states.items() if number in first}
    return saved


_EXHIBITS = (
    Bug(
        name="not_divided_by_microbatches",
        title="The loss is not divided by the number of micro-batches",
        technique=own_means,
        where=Issue(
            title="[BUG] Gradients are summed instead of averaged when using gradient accumulation steps with pipeline "
            "parallelism",
            link=ISSUES.format("deepspeedai/DeepSpeed", 7773),
        ),
        first_rung="gradients",
        looks="gradients are exactly m times too large; AdamW hides the factor, and the logged loss is right",
    ),
    Bug(
        name="mean_of_means",
        title="The mean of the micro-batches' means, where they have unequal numbers of targets",
        technique=mean_of_means,
        where=Issue(
            title="Fix loss computation by handling valid token imbalance in train loop",
            link=PULLS.format("pytorch/torchtitan", 2206),
        ),
        first_rung="gradients",
        looks="a target in a short micro-batch counts more; on even batches nothing is wrong at all",
        ragged=True,
    ),
    Bug(
        name="tied_not_summed",
        title="The gradients of a tied embedding are not summed over the stages",
        technique=_not_summed,
        where=Issue(title="Tied embedding support", link=ISSUES.format("uw-syfi/piper", 13)),
        first_rung="gradients",
        looks="embedding and head drift apart and learn as two; a larger model than was asked for, and no worse",
    ),
    Bug(
        name="tied_not_equal",
        title="The copies of a tied embedding begin with different weights",
        patch=partial(patch.object, replicate, "broadcast_state", _broadcast_untied),
        where=Issue(
            title="Fix support for tied weights across pipeline stages", link=PULLS.format("uw-syfi/piper", 25)
        ),
        first_rung="output",
        looks="equal gradients keep the copies as far apart as they began; each learns",
    ),
    Bug(
        name="clipped_by_stage",
        title="Each stage clips by the norm of its own gradients",
        technique=_norm_by_stage,
        where=Issue(
            title="Gradient norm clipping with pipeline parallelism (PP)", link=ISSUES.format("pytorch/torchtitan", 596)
        ),
        first_rung="gradient norm",
        looks="the logged norm is one stage's; clipping bites less often, and AdamW hides most of that",
    ),
    Bug(
        name="tied_counted_twice",
        title="The gradient norm counts a tied embedding once for each copy",
        technique=_norm_of_all_copies,
        where=Issue(title="Fix MFSDP v2 shared gradient norms", link=PULLS.format("NVIDIA/Megatron-LM", 7227)),
        first_rung="gradient norm",
        looks="the norm is up to 1.41 times too large; clipping bites more often than it should",
    ),
    Bug(
        name="last_weights_left_out",
        title="Under ZB-H1 the last micro-batch's gradients of the weights are never computed",
        technique=last_weights_left_out,
        where=Issue(
            title="[BUG] `finish_embedding_wgrad_compute` appears after grad all-reduce",
            link=ISSUES.format("NVIDIA/Megatron-LM", 1012),
        ),
        first_rung="gradients",
        looks="a sound run on a part of the data: all micro-batches are in the loss, all but one in the weights",
    ),
    Bug(
        name="first_optimizer_saved",
        title="A checkpoint holds the optimizer's state of the first stage alone",
        patch=partial(patch.object, Trainer, "state", _first_rank_s_optimizer),
        where=Issue(
            title="fix(checkpoint): save all PEFT EP optimizer parts", link=PULLS.format("NVIDIA-NeMo/Automodel", 3250)
        ),
        first_rung="save and load",
        looks="the loss goes on where it was, with a ripple at most",
    ),
)
PIPELINE_BUGS = {bug.name: bug for bug in _EXHIBITS}
