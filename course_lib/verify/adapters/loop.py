"""A plain loop of PyTorch, and what its engines share with it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import TrainConfig
from course_lib.training.batches import Batch
from course_lib.training.step import count_targets, loss_of
from course_lib.training.trainer import make_optimizer, share


class Loop:
    """Forward, backward, clip, update; `loss(output, targets)` is summed over the targets."""

    rank, n_shares = 0, 1  # of the batch; where there are several, gradients are averaged over them
    group: dist.ProcessGroup | None = None

    def __init__(
        self, model: nn.Module, config: TrainConfig, loss: Callable[[Tensor, Tensor], Tensor] = loss_of
    ) -> None:
        self.model, self.wrapped, self.loss = model, model, loss
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer, self.max_norm = make_optimizer(self.trained, config), config.max_norm or torch.inf

    def step(self, batch: Batch) -> float | None:
        self.optimizer.zero_grad()
        inputs, targets = share(batch, self.rank, self.n_shares)
        loss = self.loss(self.wrapped(inputs), targets) * self.n_shares / count_targets(batch)
        loss.backward()
        self.norm = whole(nn.utils.clip_grad_norm_(self.trained, self.max_norm)).item()
        self.optimizer.step()
        return self.from_shares(whole(loss.detach()).reshape(1)).sum().item() / self.n_shares

    def from_shares(self, mine: Tensor) -> Tensor:
        """Every share's rows, in their order."""
        found = [mine] * self.n_shares
        if self.n_shares > 1:
            dist.all_gather_object(found, mine, group=self.group)
        return torch.cat(found)

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        return self.from_shares(whole(self.model(inputs.tensor_split(self.n_shares)[self.rank])))

    def parameters(self) -> dict[str, Tensor]:
        return {name: whole(parameter.detach()) for name, parameter in self.model.named_parameters()}

    def buffers(self) -> dict[str, Tensor]:
        return dict(self.model.named_buffers())

    def gradients(self) -> dict[str, Tensor]:
        return {name: whole(p.grad) for name, p in self.model.named_parameters() if p.grad is not None}

    def save(self, folder: str) -> None:
        torch.save((self.model.state_dict(), self.optimizer.state_dict()), _own_file(folder))

    def load(self, folder: str) -> None:
        model, optimizer = torch.load(_own_file(folder), weights_only=False)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def whole(x: Tensor) -> Tensor:
    """All of a DTensor, on every rank of its mesh."""
    gather = getattr(x, "full_tensor", None)
    return gather() if gather else x


def _own_file(folder: str) -> str:
    """Where this rank writes what it has."""
    return f"{folder}/rank-{dist.get_rank() if dist.is_initialized() else 0}.pt"
