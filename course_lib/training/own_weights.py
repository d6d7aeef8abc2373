"""What `local` and `gossip` share: each rank, or each cluster, trains weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Rule, Tensors
from course_lib.parallel.table.local import own_part
from course_lib.training.kept import Apart
from course_lib.training.setup import Setup


def begin_own_weights(setup: Setup, name: str, rules: Mapping[str, Rule]) -> ProcessGroup:
    """Choose the axis along which weights will differ, begin with equal ones, and return the ranks along it.

    `rules` are for what the technique keeps beside the count of its updates.

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
    setup.apart = Apart(axis=axis, own_weights=True, memory=Memories({ROUNDS: "apart", **rules}), group=group)
    return group


def near_copies(setup: Setup) -> ProcessGroup | None:
    """The ranks with the same weights as this one, beside those it meets; None where no other one has them whole.

    Under ZeRO they are whole only once pieces have been gathered, which comes after this.
    """
    sizes = setup.local.layout.sizes
    axes = [axis for axis in ("dp", "cp") if axis != setup.apart.axis and sizes.get(axis, 1) > 1]
    in_pieces = {"zero", "fully_shard"} & setup.applied.keys()
    return setup.group_along(axes) if axes and not in_pieces else None


def exchanged(rows: Tensors, near: ProcessGroup | None, exchange: Callable[[Tensor], Tensor]) -> Tensors:
    """What `exchange` makes of rows that lie behind one another, one message for each dtype.

    The near ranks, which have the same rows, share the work: each exchanges its stretch with the ranks of its place in
    the other clusters, then they put the stretches together. So one copy crosses the wire between two clusters, however
    many ranks they have.

    Cost: with q near ranks a q-th of what `exchange` sends, and to the near ones (q - 1)/q of all rows.
    """
    found: Tensors = {}
    for dtype in dict.fromkeys(row.dtype for row in rows.values()):
        some = {name: row for name, row in rows.items() if row.dtype == dtype}
        flat = torch.cat(list(some.values()))
        if near is None:
            flat = exchange(flat)
        else:
            mine = exchange(flat.tensor_split(near.size())[near.rank()])
            flat = comm.all_gather(mine, length=len(flat), group=near)
        found |= dict(zip(some, flat.split([len(row) for row in some.values()]), strict=True))
    return found


def row_of(parameter: nn.Parameter) -> Tensor:
    """This rank's part of a weight as a row of numbers, in the same memory where it lies in one piece."""
    return own_part(parameter.detach()).flatten()


def put(parameter: nn.Parameter, row: Tensor) -> None:
    """Let these be the weight's numbers."""
    part = own_part(parameter.detach())
    part.copy_(row.view(part.shape))
