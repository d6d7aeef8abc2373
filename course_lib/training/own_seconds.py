"""Each rank's own seconds of a step, told to all now and then: of steps that end together, only they differ."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from course_lib.comm.call import device_of

_EVERY = 10  # steps: a message after each would be felt where a step takes milliseconds


class OwnSeconds:
    """Collects this rank's, and says all ranks' in every tenth step.

    Cost: an all-reduce of a number for each rank in every tenth step.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self._collected: list[float] = []

    def told(self, step: int, own_s: Sequence[float]) -> tuple[float, ...]:
        """Each rank's median since it was told last; nothing between, and nothing where they are not measured.

        A rank writes into its own place of a row of zeros, so that a sum gives everybody the whole row.
        """
        self._collected += own_s
        if step % _EVERY or not self._collected:
            return ()
        mine, self._collected = median(self._collected), []
        if self._group is None:
            return (mine,)
        row = torch.zeros(dist.get_world_size(self._group), dtype=torch.float64, device=device_of(self._group))
        row[dist.get_rank(self._group)] = mine
        dist.all_reduce(row, group=self._group)
        return tuple(row.tolist())
