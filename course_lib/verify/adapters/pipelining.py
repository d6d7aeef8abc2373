"""PyTorch's torch.distributed.pipelining."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import TrainConfig
from course_lib.training.batches import Batch
from course_lib.verify.adapters.loop import Loop


class Pipelined(Loop):
    """A schedule of one stage per rank; a stage's parameters have the names that they have in the whole model."""

    output = property(doc="a schedule gives none")

    def __init__(self, stage: Any, schedule: Any, config: TrainConfig) -> None:
        super().__init__(stage.submod, config)
        self.stage, self.schedule, self.n_microbatches = stage, schedule, schedule._n_microbatches

    def step(self, batch: Batch) -> float | None:
        self.optimizer.zero_grad()
        losses: list[Tensor] = []
        last = {"target": batch[1], "losses": losses} if self.stage.is_last else {}
        self.schedule.step(*batch[:1] if self.stage.is_first else (), **last)
        squares = torch.stack([p.grad.square().sum() for p in self.trained if p.grad is not None]).sum()
        dist.all_reduce(squares)
        self.norm = squares.sqrt().item()
        nn.utils.clip_grads_with_norm_(self.trained, self.max_norm, squares.sqrt())
        self.optimizer.step()
        found: list[list[Tensor]] = [losses] * dist.get_world_size()
        dist.all_gather_object(found, [loss.detach() for loss in losses])
        return sum(loss.item() for losses in found for loss in losses) / self.n_microbatches

    def parameters(self) -> dict[str, Tensor]:
        return of_all_stages(super().parameters())

    def buffers(self) -> dict[str, Tensor]:
        return of_all_stages(super().buffers())

    def gradients(self) -> dict[str, Tensor]:
        return of_all_stages(super().gradients())


def of_all_stages(mine: dict[str, Tensor]) -> dict[str, Tensor]:
    """What every stage has, on all of them."""
    found: list[dict[str, Tensor]] = [mine] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return {name: tensor for one in found for name, tensor in one.items()}
