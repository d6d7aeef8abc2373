"""What ranks tell each other after each step, in one message: who was asked to stop, and how long each worked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.comm.call import device_of


def told_by_all(asked: bool, own_s: Sequence[float], group: ProcessGroup | None) -> tuple[bool, tuple[float, ...]]:
    """Whether this rank or another was asked to stop, and each rank's own seconds, if they are measured.

    A signal reaches ranks at different steps, and all stop at one. Each rank writes into its own place of a row of
    zeros, so that a sum gives everybody the whole row.

    Cost: an all-reduce of a number for each rank and one more.
    """
    if group is None:
        return asked, tuple(own_s)
    ranks = dist.get_world_size(group)
    row = torch.zeros(ranks + 1, dtype=torch.float64, device=device_of(group))
    row[ranks] = asked
    if own_s:
        row[dist.get_rank(group)] = own_s[0]
    dist.all_reduce(row, group=group)
    *told, stops = row.tolist()
    return stops > 0, tuple(told) if own_s else ()
