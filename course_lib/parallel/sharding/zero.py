"""ZeRO-1 and ZeRO-2 as an optimizer: each rank changes its piece of the weights with its piece of the states.

Source: Rajbhandari et al. 2020, ZeRO, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.comm import call
from course_lib.errors import four_parts
from course_lib.parallel.data import replicate
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.sharded import ShardedModel
from course_lib.parallel.sharding.wrapping import Policy, by_block
from course_lib.parallel.table import agreement


class ZeroOptimizer:
    """An elementwise `optimizer_class`, such as AdamW, whose states the ranks of a group share.

    Use it in place of the optimizer, and no other wrapper: backward leaves each rank its piece of the averaged
    gradients. Stage 1 averages when backward is through, stage 2 as soon as a unit's gradients are complete, and keeps
    pieces of them alone. The model's weights stay whole, and equal on all ranks. `options` are the optimizer's.

    Cost: as data parallelism, 2 (p - 1)/p of the weights' bytes: a reduce-scatter, and an all-gather after the step.
    Memory: states / p; with stage 2 also gradients / p.
    Raises: ValueError for another stage, for an optimizer that looks at more than one number at a time, and, the same
        on all ranks, if their models differ.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: Callable[..., Optimizer],
        *,
        stage: int = 1,
        policy: Policy = by_block,
        process_group: ProcessGroup | None = None,
        algorithm: str = "ring",
        **options: Any,
    ) -> None:
        check_stage("ZeroOptimizer", stage)
        check_elementwise(optimizer_class, options)
        group = call.resolve(process_group, "ZeroOptimizer")
        agreement.same_model("ZeroOptimizer", model, {"stage": stage, **options}, group)
        replicate.broadcast_state(model, group, torch.distributed.get_process_group_ranks(group)[0])
        sharing = Sharing(group, group, resident=True, algorithm=algorithm)
        self.sharded = ShardedModel(model, sharing, policy, late=stage == 1)
        self.optimizer = optimizer_class(self.sharded.pieces.values(), **options)

    def step(self) -> None:
        """Change this rank's piece of the weights, then gather everybody's."""
        self.optimizer.step()
        self.sharded.updated()

    def zero_grad(self) -> None:
        """Drop the gradients, whole ones and pieces."""
        self.optimizer.zero_grad()
        self.sharded.model.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """All micro-batches but a step's last: stage 1 then averages once a step."""
        return self.sharded.no_sync()


def check_stage(operation: str, stage: int) -> None:
    """Raise the four-part error for what is neither ZeRO-1 nor ZeRO-2."""
    if stage not in (1, 2):
        rule, way_out = "ZeRO-1 and ZeRO-2 keep whole weights", "choose 1 or 2, or for 3 fully_shard"
        raise ValueError(four_parts(operation, f"stage={stage!r}", rule, way_out))


def check_elementwise(optimizer_class: Callable[..., Optimizer], options: dict[str, Any]) -> None:
    """Refuse an optimizer that does something else to a matrix than to its numbers in two pieces; it is tried.

    Muon turns a matrix into an orthogonal one, Adafactor keeps sums of its rows and columns, LBFGS looks at all
    parameters together: none of them can work on a piece.
    """
    name = getattr(optimizer_class, "__name__", str(optimizer_class))
    weights = torch.linspace(-1, 1, 12)
    try:
        whole = _two_steps(optimizer_class, options, weights.view(3, 4))
        parts = torch.cat([_two_steps(optimizer_class, options, part) for part in weights.split([7, 5])])
        found = "" if torch.allclose(whole.flatten(), parts) else "changes a 3x4 matrix otherwise than its two pieces"
    except (RuntimeError, ValueError) as error:
        found = f"takes no piece of a matrix ({error})"
    if found:
        rule = "ZeRO gives an optimizer pieces, so that what happens to a number may depend on that number alone"
        way_out = "choose one that works by elements, such as SGD, Adam or AdamW"
        raise ValueError(four_parts("ZeroOptimizer", f"{name} {found}", rule, way_out))


def _two_steps(optimizer_class: Callable[..., Optimizer], options: dict[str, Any], weights: Tensor) -> Tensor:
    """The weights after two steps down a slope that bends for each number by itself."""
    parameter = nn.Parameter(weights.clone())
    optimizer = optimizer_class([parameter], **options)

    def loss() -> Tensor:
        with torch.enable_grad():
            parameter.grad = None
            slope: Tensor = (parameter.sin() + parameter.square()).sum()
            slope.backward()
        return slope

    for _ in range(2):
        optimizer.step(loss)  # type: ignore[arg-type]
    return parameter.detach()
