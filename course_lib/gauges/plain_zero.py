"""AdamW with ZeRO's stages in their plainest form: what lasts on a rank can be counted on real tensors.

Not the ZeRO to train with, which is `training.sharding`, with units and hooks and PyTorch's optimizers. This one keeps
only what the table of memory counts (`costs.model.states`), in all of its formats, such as bf16 weights with a copy in
fp32. It stands behind the proof table's rows of memory: a second ZeRO, made without the first.
All weights are one flat tensor, cut as `torch.tensor_split` does: no shard needs padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.training.batches import Batch
from course_lib.training.step import compute_gradients, storage_bytes

_BETAS, _WEIGHT_DECAY = (0.9, 0.999), 0.01
ADAM_EPS = 1e-6  # so large that the last bit of a gradient near 0 does not turn a step round


class Formats(NamedTuple):
    """Of which numbers weights and gradients are."""

    weights: torch.dtype
    gradients: torch.dtype

    @classmethod
    def of_bytes(cls, weights: int, gradients: int) -> Formats:
        """Numbers of 2 bytes are bf16, of 4 bytes fp32."""
        known = {2: torch.bfloat16, 4: torch.float32}
        return cls(weights=known[weights], gradients=known[gradients])


class HeldBytes(NamedTuple):
    """Bytes that a rank holds from step to step, as they were found."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three."""
        return sum(self)


class ShardedAdamW:
    """Trains `model` on all ranks, with weights and gradients in these formats.

    Stage 1 shards the optimizer's states, stage 2 the gradients as well, stage 3 the weights as well. Optimizer states
    are in fp32, with an fp32 copy of the weights if those are not.
    Cost of a step: stage 0 an all-reduce of gradients; stages 1 and 2 a reduce-scatter of gradients and an
    all-gather of weights; stage 3 the same two, the all-gather before forward.
    Source: Rajbhandari et al. 2020, ZeRO, section 5.
    """

    def __init__(self, model: nn.Module, formats: Formats, stage: int, learning_rate: float) -> None:
        self.model, self.stage, self.formats = model.to(formats.weights), stage, formats
        parameters = list(model.parameters())
        self.shapes = [parameter.shape for parameter in parameters]
        whole = comm.broadcast(flat([parameter.detach() for parameter in parameters]))
        self.length = len(whole)
        self.weights = self.shard(whole).clone() if stage == 3 else whole
        mine = self.weights if stage in (0, 3) else self.shard(self.weights)
        self.mine = mine.float()  # in fp32 the weights themselves, no copy
        self.moments = torch.zeros_like(self.mine), torch.zeros_like(self.mine)
        self.learning_rate, self.steps = learning_rate, 0
        self.gradients = whole.new_empty(0)
        self.point(self.weights)

    def shard(self, whole: Tensor) -> Tensor:
        """This rank's part."""
        return whole.tensor_split(dist.get_world_size())[dist.get_rank()]

    def point(self, weights: Tensor) -> None:
        """Let the model read its parameters from the flat tensor; from nowhere if that is a shard."""
        whole = len(weights) == self.length
        sizes = [shape.numel() for shape in self.shapes]
        parts = weights.split(sizes) if whole else [weights.new_empty(0)] * len(sizes)
        for parameter, part, shape in zip(self.model.parameters(), parts, self.shapes, strict=True):
            parameter.data = part.view(shape) if whole else part

    def step(self, batch: Batch) -> float:
        """One training step on this rank's sequences; return their loss."""
        if self.stage == 3:
            self.point(comm.all_gather(self.weights, length=self.length))
        loss = compute_gradients(self.model, batch)
        whole = flat([taken(parameter) for parameter in self.model.parameters()]).to(self.formats.gradients)
        self.point(self.weights)
        self.update(self.reduce(whole))
        return loss

    def reduce(self, whole: Tensor) -> Tensor:
        """Average the gradients over the ranks, keep what the stage keeps, return what this rank updates with."""
        if self.stage == 0:
            self.gradients = comm.all_reduce_(whole, op=ReduceOp.AVG)
            return self.gradients
        mine = comm.reduce_scatter(whole, op=ReduceOp.AVG)
        self.gradients = mine if self.stage >= 2 else whole
        return mine

    def update(self, gradient: Tensor) -> None:
        """Adam on this rank's part, then the new weights to whoever keeps them."""
        self.adamw(gradient.float())
        new = self.mine.to(self.weights.dtype)
        if self.stage in (1, 2):
            new = comm.all_gather(new, length=self.length)
        self.weights.copy_(new)

    def adamw(self, gradient: Tensor) -> None:
        """What torch.optim.AdamW does with its default settings, without the seconds that its first import takes."""
        self.steps += 1
        first, second = self.moments
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        corrections = [1 - beta**self.steps for beta in _BETAS]
        root = (second.sqrt() / corrections[1] ** 0.5).add_(ADAM_EPS)
        self.mine.mul_(1 - self.learning_rate * _WEIGHT_DECAY)
        self.mine.addcdiv_(first, root, value=-self.learning_rate / corrections[0])

    def state_bytes(self) -> HeldBytes:
        """Bytes that exist now, of what lasts from step to step."""
        weights = storage_bytes([self.weights, *self.model.parameters()])
        gradients = storage_bytes([self.gradients])
        lasting = [self.weights, *self.model.parameters(), self.gradients, self.mine, *self.moments]
        return HeldBytes(weights=weights, gradients=gradients, optimizer=storage_bytes(lasting) - weights - gradients)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers in one row."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def taken(parameter: nn.Parameter) -> Tensor:
    """A parameter's gradient, which the parameter then forgets; zeros if its batch did not reach it."""
    gradient, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter) if gradient is None else gradient
