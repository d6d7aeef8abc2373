"""Training on several ranks, each with a share of every batch and all of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.comm.call import resolve
from course_lib.config import TrainConfig
from course_lib.parallel.ddp import DistributedDataParallel
from course_lib.training import step as steps
from course_lib.training.batches import Batch
from course_lib.training.trainer import Trainer, check_counts, check_losses


class DataParallelTrainer(Trainer):
    """Equal weights everywhere; gradients are averaged over the ranks of `group` during each backward.

    `options` are those of `DistributedDataParallel`.

    Cost: besides the gradients, two all-gathers of one row of numbers from each rank: samples and targets before the
    first forward, since they weigh the loss, and the losses before the last backward.
    """

    model: DistributedDataParallel

    def __init__(
        self, model: nn.Module, config: TrainConfig, *, group: ProcessGroup | None = None, **options: Any
    ) -> None:
        self.group = resolve(group, "DataParallelTrainer")
        self.options = options
        super().__init__(model, config)

    @property
    def rank(self) -> int:
        """This rank's place in the group."""
        return self.group.rank()

    @property
    def world_size(self) -> int:
        """Ranks in the group."""
        return self.group.size()

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        """Let every backward average the gradients."""
        return DistributedDataParallel(model, group=self.group, **self.options)

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        """The whole batch's output, put together from the ranks' shares of it."""
        mine = self.model(inputs.tensor_split(self.world_size)[self.rank])
        return comm.all_gather(mine.contiguous(), length=len(inputs), group=self.group)

    def compute_gradients(self, batch: Batch) -> float:
        """Leave the gradients of the whole batch's mean loss on every rank, and return that loss.

        Averaging gives that gradient only if each rank's loss is its sum over the *global* number of targets, times
        the number of ranks: the mean of the ranks' own means weighs a target on a short share more than others.

        Raises: ValueError on all ranks, naming the one that has no sample or a loss that is not finite.
        """
        parts = steps.micro_batches(share(batch, self.rank, self.world_size), self.config.accumulation)
        mine = [sum(len(inputs) for inputs, _ in parts), sum(map(steps.count_targets, parts))]
        rows, targets = gathered(mine, self.model, self.group)
        check_counts(rows, targets)
        summed = 0.0
        losses: Sequence[float] = ()
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            with nullcontext() if last else self.model.no_sync():
                loss = steps.summed_loss(self.model, part)
                summed += loss.item()
                if last:
                    (losses,) = gathered([summed], self.model, self.group)
                    check_losses(losses)
                (loss * loss_weight(steps.count_targets(part), sum(targets), self.world_size)).backward()
        return mean_loss(losses, targets, self.rank)

    def save(self, folder: str | Path) -> None:
        """The first rank writes; if it cannot, all ranks raise its error."""
        on_first_rank(lambda: super(DataParallelTrainer, self).save(folder), self.group)


def share(batch: Batch, rank: int, world_size: int) -> Batch:
    """One rank's rows of a batch, as `torch.tensor_split` cuts them."""
    inputs, targets = batch
    return inputs.tensor_split(world_size)[rank], targets.tensor_split(world_size)[rank]


def loss_weight(targets: int, total: float, world_size: int) -> float:
    """What a micro-batch's summed loss is multiplied by; its own number of targets plays no part."""
    return world_size / total


def mean_loss(losses: Sequence[float], targets: Sequence[float], rank: int) -> float:
    """The loss that each rank reports: of all ranks' targets, whichever rank it is."""
    return sum(losses) / sum(targets)


def gathered(numbers: Sequence[float], model: nn.Module, group: ProcessGroup) -> list[list[float]]:
    """For each of a few numbers the list of all ranks' values."""
    device = next(model.parameters()).device
    mine = torch.tensor([numbers], dtype=torch.float64, device=device)
    return comm.all_gather(mine, group=group).T.tolist()


def on_first_rank(write: Callable[[], None], group: ProcessGroup) -> None:
    """Let the group's first rank write; if it cannot, all ranks raise its error."""
    problem = [""]
    if group.rank() == 0:
        try:
            write()
        except OSError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, group_src=0, group=group)  # nobody goes on before the file is there
    if problem[0]:
        raise OSError(f"{problem[0]} (on the rank that writes)")
