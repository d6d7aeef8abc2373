"""Gossip: a rank hears from some of the others, and takes a weighted mean of what they have and of its own."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.less.topologies import neighbours


def mixed(mine: Tensor, weights: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's row of W X, where X has one row from each rank.

    A rank sends to those in whose row of W it has a weight, and receives from those in its own row. All are started
    before any is waited for: two ranks that first sent to each other would both wait.

    Shapes: mine (d,), weights (p, p).
    Cost: a message of d numbers to each neighbour.
    """
    here, names = neighbours(weights, group.rank()), dist.get_process_group_ranks(group)
    mine = mine.contiguous()
    came = {rank: torch.empty_like(mine) for rank in here.receive_from}
    under_way = [comm.irecv(room, names[rank], group) for rank, room in came.items()]
    under_way += [comm.isend(mine, names[rank], group) for rank in here.send_to]
    for work in under_way:
        work.wait()
    # In the order of ranks, this one's own among them: where all hear of all, all compute the same bits.
    rows, shares = came | {group.rank(): mine}, here.receive_from | {group.rank(): here.own}
    total = torch.zeros_like(mine)
    for rank in sorted(rows):
        total += shares[rank] * rows[rank]
    return total
