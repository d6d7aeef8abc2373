"""Bugs of pipeline parallelism. Each is a few lines in place of the library's; its docstring says what is wrong.

The last weights' gradients can only be left out of a schedule that has them apart: ZB-H1. Three need a tied model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.parallel import replicate
from course_lib.parallel.ties import Ties, canonical_names
from course_lib.schedules import BackwardWeight, Schedule
from course_lib.training import pipeline_parallel, step
from course_lib.training.batches import Batch
from course_lib.training.pipeline_parallel import PipelineTrainer
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue

compute_gradients = PipelineTrainer.compute_gradients
state = PipelineTrainer.state


def own_mean(targets: int, total: int) -> float:
    """Each micro-batch's loss is the mean over its own targets, and their gradients add up."""
    return 1 / targets


def mean_of_means(self: PipelineTrainer, batch: Batch) -> float:
    """Divided by the number of micro-batches, but by each one's own number of targets."""
    parts = self.schedule.n_microbatches
    with patch.object(pipeline_parallel, "loss_weight", lambda targets, total: own_mean(targets, total) / parts):
        return compute_gradients(self, batch)


@contextmanager
def not_summed(self: Ties) -> Iterator[None]:
    """Each copy keeps the gradient of its own use."""
    yield


def broadcast_untied(model: nn.Module, group: ProcessGroup, src: int) -> None:
    """Of what is tied each rank keeps the copy that its seed gave it."""
    tied = {first for name, first in canonical_names(model).items() if name != first}
    once = [parameter for name, parameter in model.named_parameters() if name not in tied]
    replicate.broadcast_tensors([*once, *model.buffers()], group, src)


def clip_by_stage(self: PipelineTrainer) -> float:
    """PyTorch's clipping of what this rank holds: every stage has a norm, and a factor, of its own."""
    return nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm or math.inf).item()


def clip_by_all_copies(self: PipelineTrainer) -> float:
    """Each rank adds the squares of all that it holds, so a tied parameter counts once for each copy."""
    parameters = [*self.model.parameters()]
    squares = step.gradient_norm(parameters).square().view(1)
    norm = comm.all_reduce(squares, group=self.group).sqrt().squeeze()
    nn.utils.clip_grads_with_norm_(parameters, self.config.max_norm or math.inf, norm)
    return norm.item()


def last_weights_left_out(self: PipelineTrainer, batch: Batch) -> float:
    """Each rank's list ends before its last weights' gradients; what they need is kept, and nobody comes for it."""
    with patch.object(self.pipeline, "schedule", without_last_weights(self.schedule)):
        return compute_gradients(self, batch)


def without_last_weights(schedule: Schedule) -> Schedule:
    """The lists without the last micro-batch's BackwardWeight."""
    last = schedule.n_microbatches - 1
    lists = [
        [one for one in rank if not (isinstance(one, BackwardWeight) and one.microbatch == last)]
        for rank in schedule.lists
    ]
    return replace(schedule, lists=tuple(map(tuple, lists)))


def first_rank_s_optimizer(self: PipelineTrainer) -> dict[str, Any]:
    """The weights of all stages, but the first rank's optimizer: the others begin with empty states."""
    saved = state(self)
    trained = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
    first = {name for name, _ in self.skeletons[0].named_parameters()}
    states = saved["optimizer"]["state"]
    saved["optimizer"]["state"] = {number: one for number, one in states.items() if trained[number] in first}
    return saved


EXHIBITS = (
    Bug(
        name="not_divided_by_microbatches",
        title="The loss is not divided by the number of micro-batches",
        patch=partial(patch.object, pipeline_parallel, "loss_weight", own_mean),
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
        patch=partial(patch.object, PipelineTrainer, "compute_gradients", mean_of_means),
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
        patch=partial(patch.object, Ties, "summed", not_summed),
        where=Issue(title="Tied embedding support", link=ISSUES.format("uw-syfi/piper", 13)),
        first_rung="gradients",
        looks="embedding and head drift apart and learn as two; a larger model than was asked for, and no worse",
    ),
    Bug(
        name="tied_not_equal",
        title="The copies of a tied embedding begin with different weights",
        patch=partial(patch.object, replicate, "broadcast_state", broadcast_untied),
        where=Issue(
            title="Fix support for tied weights across pipeline stages", link=PULLS.format("uw-syfi/piper", 25)
        ),
        first_rung="output",
        looks="equal gradients keep the copies as far apart as they began; each learns",
    ),
    Bug(
        name="clipped_by_stage",
        title="Each stage clips by the norm of its own gradients",
        patch=partial(patch.object, PipelineTrainer, "clip", clip_by_stage),
        where=Issue(
            title="Gradient norm clipping with pipeline parallelism (PP)", link=ISSUES.format("pytorch/torchtitan", 596)
        ),
        first_rung="gradient norm",
        looks="the logged norm is one stage's; clipping bites less often, and AdamW hides most of that",
    ),
    Bug(
        name="tied_counted_twice",
        title="The gradient norm counts a tied embedding once for each copy",
        patch=partial(patch.object, PipelineTrainer, "clip", clip_by_all_copies),
        where=Issue(title="Fix MFSDP v2 shared gradient norms", link=PULLS.format("NVIDIA/Megatron-LM", 7227)),
        first_rung="gradient norm",
        looks="the norm is up to 1.41 times too large; clipping bites more often than it should",
    ),
    Bug(
        name="last_weights_left_out",
        title="Under ZB-H1 the last micro-batch's gradients of the weights are never computed",
        patch=partial(patch.object, PipelineTrainer, "compute_gradients", last_weights_left_out),
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
        patch=partial(patch.object, PipelineTrainer, "state", first_rank_s_optimizer),
        where=Issue(
            title="fix(checkpoint): save all PEFT EP optimizer parts", link=PULLS.format("NVIDIA-NeMo/Automodel", 3250)
        ),
        first_rung="save and load",
        looks="the loss goes on where it was, with a ripple at most",
    ),
)
PIPELINE_BUGS = {bug.name: bug for bug in EXHIBITS}
