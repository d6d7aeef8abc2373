"""Bugs of data parallelism. Each is a few lines in place of the library's; its docstring says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.parallel.data import replicate
from course_lib.parallel.data.buckets import Bucket, average_gradients
from course_lib.parallel.data.ddp import DistributedDataParallel
from course_lib.parallel.data.options import Plan
from course_lib.training import sampler, trainer
from course_lib.training.batches import Batch
from course_lib.training.setup import Setup
from course_lib.training.trainer import Trainer, make_optimizer
from course_lib.verify.data_order import DATA_ORDER
from course_lib.verify.museum.bug import ISSUES, PULLS, Bug, Issue
from course_lib.verify.museum.seams import after_backward, hook, own_means

_broadcast_tensors = replicate.broadcast_tensors
load = Trainer.load
share = trainer.share
_take, _give = Bucket.take, Bucket.give


def _sum_of(plan: Plan, bucket: Bucket) -> None:
    """The sum over the ranks: nobody divides."""
    comm.all_reduce_(bucket.flat, op=ReduceOp.SUM, algorithm=plan.algorithm, group=plan.group)


def _average_in_bf16(plan: Plan, bucket: Bucket) -> None:
    """Half of the bytes, a 65,536th of the precision: bf16 has 8 bits of it, fp32 has 24."""
    small = comm.all_reduce_(bucket.flat.bfloat16(), op=ReduceOp.AVG, algorithm=plan.algorithm, group=plan.group)
    bucket.flat.copy_(small)


def nothing(*args: object) -> None:
    """What should happen here does not."""


def _average_parameters(setup: Setup) -> None:
    """The hook's argument is the parameter, not its gradient."""
    hook(setup, nothing)

    def average() -> None:
        for parameter in setup.model.parameters():
            comm.all_reduce_(parameter.data, op=ReduceOp.AVG, group=setup.local.group("dp"))

    after_backward(setup, average)


def _broadcast_buffers_alone(model: nn.Module, group: ProcessGroup, src: int) -> None:
    """Parameters keep the values that each rank's seed gave them."""
    _broadcast_tensors([*model.buffers()], group, src)


def _broadcast_parameters_alone(model: nn.Module, group: ProcessGroup, src: int) -> None:
    """Buffers keep the values that each rank's seed gave them."""
    _broadcast_tensors([*model.parameters()], group, src)


@contextmanager
def no_sync_for_good(self: DistributedDataParallel) -> Iterator[None]:
    """Switched off before the first micro-batch, never on again."""
    self._syncing = False
    yield


def _average_of_means(setup: Setup) -> None:
    """The mean over all ranks' targets, as on one device; but averaging divides by the number of ranks again."""
    setup.local.layout.averaged.clear()


def _first_share(batch: Batch, rank: int, world_size: int) -> Batch:
    """Every rank takes the first rank's share."""
    return share(batch, 0, world_size)


def _clip_then_average(setup: Setup) -> None:
    """Each rank clips its own gradients by their own norm, and what is averaged has no common scale."""
    hook(setup, nothing)

    def clip_and_average() -> None:
        nn.utils.clip_grad_norm_(setup.model.parameters(), setup.config.max_norm or math.inf)
        average_gradients(setup.model, setup.local.group("dp"))

    after_backward(setup, clip_and_average)


def norm_over_ranks(setup: Setup) -> None:
    """Squares are summed over the ranks, as sharded gradients need it; but here each rank has all of them."""
    local, norm = setup.local, setup.local.global_norm

    def over_all() -> Tensor:
        return comm.all_reduce(norm().square().view(1), group=local.group("dp")).sqrt()[0]

    local.global_norm = over_all  # type: ignore[method-assign]


def own_loss(self: Trainer, summed: float, targets: float) -> float:
    """What this rank saw; its share has as many targets as the others'."""
    return summed * self.local.size("dp") / targets


def _take_once(self: Bucket, place: int) -> None:
    """Gradients are made views of the bucket in the first step alone; `zero_grad` forgets them, and so do we."""
    self.as_view = True
    gradient, known = self.parameters[place].grad, vars(self).setdefault("known", set())
    _take(self, place)
    if place in known:
        self.parameters[place].grad = gradient
    known.add(place)


def _give_where_none(self: Bucket, place: int) -> None:
    """Whoever has a gradient is thought to have the bucket's."""
    if self.parameters[place].grad is None:
        _give(self, place)


def _load_weights_alone(self: Trainer, folder: str | Path) -> None:
    """An optimizer that is made after loading begins with empty states."""
    load(self, folder)
    self.optimizer = make_optimizer([*self.model.parameters()], self.config)


Patch = Callable[[], AbstractContextManager[object]]


def together(first: Patch, second: Patch) -> Patch:
    """Two patches as one."""

    @contextmanager
    def context() -> Iterator[None]:
        with first(), second():
            yield

    return context


PICOTRON = (
    "https://github.com/huggingface/picotron/blob/5809434fb5df9a647e9b035a01d1381346035b6c/"
    "picotron/data_parallel/data_parallel.py"
)

_EXHIBITS = (
    Bug(
        name="summed",
        title="Gradients are summed, not averaged",
        technique=partial(hook, function=_sum_of),
        where=Issue(title="Incorrect AVG reduction for GLOO", link=ISSUES.format("pytorch/pytorch", 162338)),
        first_rung="gradients",
        looks="AdamW divides a gradient by its own size: the loss falls as it should",
    ),
    Bug(
        name="parameters_averaged",
        title="Parameters are averaged in place of gradients",
        technique=_average_parameters,
        where=Issue(title="DataParallelNaive of picotron, as of commit 5809434", link=PICOTRON),
        first_rung="gradients",
        looks="ranks step apart and are pulled together again: local SGD by accident, and the loss falls",
    ),
    Bug(
        name="parameters_not_broadcast",
        title="Ranks begin with different weights",
        patch=partial(patch.object, replicate, "broadcast_state", _broadcast_buffers_alone),
        where=Issue(
            title="Starting off with different models across ranks and FSDP doesn't synchronise",
            link=ISSUES.format("pytorch/torchtitan", 166),
        ),
        first_rung="output",
        looks="several models train on averaged gradients that are none of theirs: slower at first, near at the end",
    ),
    Bug(
        name="buffers_not_broadcast",
        title="Ranks keep buffers of their own",
        patch=together(
            partial(patch.object, replicate, "broadcast_state", _broadcast_parameters_alone),
            partial(patch.object, replicate, "broadcast_tensors", nothing),
        ),
        where=Issue(
            title="Module states cannot be fully synchronized due to the DDP broadcast_buffers breaking change",
            link=ISSUES.format("pytorch/pytorch", 111138),
        ),
        first_rung="output",
        looks="weights stay equal on all ranks, so that a comparison of weights over the ranks finds nothing",
    ),
    Bug(
        name="no_sync_for_good",
        title="no_sync is never left",
        patch=partial(patch.object, DistributedDataParallel, "no_sync", no_sync_for_good),
        where=Issue(
            title="fix sync issue that results in incorrect gradient accumulation and incorrect loss",
            link=PULLS.format("karpathy/build-nanogpt", 30),
        ),
        first_rung="gradients",
        looks="every rank trains alone on its share; each of them learns",
        accumulation=2,
    ),
    Bug(
        name="not_divided_by_accumulation",
        title="The loss is not divided by the number of micro-batches",
        technique=own_means,
        where=Issue(
            title="[Trainer] As gradient_accumulation_steps increases, the loss also increases",
            link=ISSUES.format("huggingface/transformers", 37766),
        ),
        first_rung="gradients",
        looks="AdamW hides the factor; the logged loss is right",
        accumulation=2,
    ),
    Bug(
        name="mean_of_means",
        title="The mean of the ranks' means, where shares have unequal numbers of targets",
        technique=own_means,
        where=Issue(title="enable average tokens across devices", link=PULLS.format("huggingface/transformers", 34373)),
        first_rung="gradients",
        looks="a target in a short share counts more; on even batches nothing is wrong at all",
        ragged=True,
    ),
    Bug(
        name="averaged_twice",
        title="The loss is divided by the targets of all ranks, and averaging divides by the ranks again",
        technique=_average_of_means,
        where=Issue(
            title="Fix gradient scaling to account for world_size normalization",
            link=PULLS.format("meta-pytorch/torchtune", 2172),
        ),
        first_rung="gradients",
        looks="AdamW hides the factor",
    ),
    Bug(
        name="bf16_reduction",
        title="Gradients are reduced in bf16 where fp32 was meant",
        technique=partial(hook, function=_average_in_bf16),
        where=Issue(title="FP32 accumulation of bf16 gradients in FSDP", link=ISSUES.format("pytorch/pytorch", 106395)),
        first_rung="gradients",
        looks="nothing shows on few ranks; the error grows with their number",
    ),
    Bug(
        name="same_share",
        title="Every rank trains on the same share",
        patch=partial(patch.object, trainer, "share", _first_share),
        where=Issue(title="Identical Batches Across Multiple GPUs", link=ISSUES.format("k2-fsa/icefall", 1616)),
        first_rung="gradients",
        looks="a sound run on a part of the data, at the price of the whole",
    ),
    Bug(
        name="norm_over_ranks",
        title="The gradient norm counts every rank's copy",
        technique=norm_over_ranks,
        where=Issue(
            title="fix: avoid duplicate gradient norm reduction in pure DDP",
            link=PULLS.format("modelscope/twinkle", 290),
        ),
        first_rung="gradient norm",
        looks="clipping bites more often than it should, and AdamW hides most of that",
    ),
    Bug(
        name="views_lost",
        title="After zero_grad the gradients are no longer views of the buckets that are averaged",
        patch=together(
            partial(patch.object, Bucket, "take", _take_once), partial(patch.object, Bucket, "give", _give_where_none)
        ),
        where=Issue(title="[ShardedDDP] Intercept zero_grad()", link=ISSUES.format("facebookresearch/fairscale", 354)),
        first_rung="parameters",
        looks="the first step is right, and the traffic always; from the second on every rank trains alone",
    ),
    Bug(
        name="own_loss",
        title="The logged loss is one rank's own",
        patch=partial(patch.object, Trainer, "mean_loss", own_loss),
        where=Issue(
            title="[Trainer] Make sure shown loss in distributed training is correctly averaged over all workers",
            link=PULLS.format("huggingface/transformers", 13681),
        ),
        first_rung="loss curve",
        looks="training is right, the curve is noisier than it should be",
    ),
    Bug(
        name="clipped_before_averaging",
        title="Each rank clips its own gradients before they are averaged",
        technique=_clip_then_average,
        where=Issue(
            title="Support gradient clipping before & after allreduce", link=ISSUES.format("horovod/horovod", 1346)
        ),
        first_rung="AdamW",
        looks="without clipping nothing is wrong, and with it the norm stays below its limit",
    ),
    Bug(
        name="optimizer_not_loaded",
        title="A resumed run begins with an empty optimizer",
        patch=partial(patch.object, Trainer, "load", _load_weights_alone),
        where=Issue(
            title="Bug in loading optimizer from earlier checkpoint: optimizer constructor erases state",
            link=ISSUES.format("OpenNMT/OpenNMT-py", 617),
        ),
        first_rung="save and load",
        looks="the loss goes on where it was, with a ripple at most",
    ),
    Bug(
        name="not_reshuffled",
        title="set_epoch is forgotten: every epoch has the order of the first",
        patch=partial(patch.object, sampler.DistributedSampler, "set_epoch", nothing),
        where=Issue(title="DistributedSampler can't shuffle the dataset", link=ISSUES.format("pytorch/pytorch", 31771)),
        first_rung=DATA_ORDER,
        looks="each epoch has all sequences; only their order is no longer random",
    ),
)
BUGS = {bug.name: bug for bug in _EXHIBITS}
