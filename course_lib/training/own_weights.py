"""What `local` and `gossip` share: each rank, or each cluster, trains weights of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.lossy.exchange import Memories, Rule
from course_lib.parallel.table.local import own_part
from course_lib.parallel.table.mesh import ACROSS
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


def near_copies(setup: Setup) -> ProcessGroup | None:
    """The ranks of this cluster that have the same weights as this one; None where no other one has them whole."""
    here = setup.local
    whole = setup.apart.axis == ACROSS and "fully_shard" not in setup.applied
    return here.group("dp") if whole and here.size("dp") > 1 else None


def mean_row(row: Tensor, group: ProcessGroup, near: ProcessGroup | None) -> Tensor:
    """The mean of a row over the ranks of a group; the near ones, which have the same row, share the work.

    Each averages its stretch with the ranks of its place in the other clusters, then they put the stretches together:
    so one copy of the row crosses the wire between two clusters, however many ranks they have.

    Cost: 2 (p - 1)/p of a stretch to other clusters, and with q ranks that are near (q - 1)/q of the row to these.
    """
    if near is None:
        return comm.all_reduce_(row, op=ReduceOp.AVG, algorithm="ring", group=group)
    stretch = row.tensor_split(near.size())[near.rank()].clone()
    comm.all_reduce_(stretch, op=ReduceOp.AVG, algorithm="ring", group=group)
    return comm.all_gather(stretch, length=len(row), group=near)


def row_of(parameter: nn.Parameter) -> Tensor:
    """This rank's part of a weight as a row of numbers, in the same memory where it lies in one piece."""
    return own_part(parameter.detach()).flatten()


def put(parameter: nn.Parameter, row: Tensor) -> None:
    """Let these be the weight's numbers."""
    part = own_part(parameter.detach())
    part.copy_(row.view(part.shape))
