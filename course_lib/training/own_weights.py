"""What `local` and `gossip` share: each rank, or each cluster, trains weights of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.lossy.exchange import Memories, Rule
from course_lib.parallel.table.local import own_part
from course_lib.training.kept import Apart
from course_lib.training.setup import Setup


def begin_own_weights(setup: Setup, name: str, rules: Mapping[str, Rule]) -> ProcessGroup:
    """Choose the axis along which weights will differ, begin with equal ones, and return the ranks along it.

    Raises: ValueError as `Setup.far_axis`, and for an optimizer whose states have no mean.
    """
    if setup.config.optimizer == "adamw8bit":
        values, rule = "optimizer=adamw8bit", "a checkpoint has the ranks' mean, and codes have none"
        raise ValueError(four_parts(name, values, rule, "choose adamw or sgd"))
    axis = setup.far_axis(name)
    here = setup.local
    here.give_memory()
    group = here.group(axis)
    broadcast.broadcast_state(setup.model, group, here.name_of(**{**here.at, axis: 0}))
    setup.apart = Apart(axis=axis, own_weights=True, memory=Memories(rules), group=group)
    return group


def row_of(parameter: nn.Parameter) -> Tensor:
    """This rank's part of a weight as a row of numbers, in the same memory where it lies in one piece."""
    return own_part(parameter.detach()).flatten()


def put(parameter: nn.Parameter, row: Tensor) -> None:
    """Let these be the weight's numbers."""
    part = own_part(parameter.detach())
    part.copy_(row.view(part.shape))
