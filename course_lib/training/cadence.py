"""When a checkpoint is due: after so many steps, after so many seconds by the first rank's clock, or before the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.comm.call import device_of


@dataclass(frozen=True, kw_only=True)
class Every:
    """A number of steps, or of seconds."""

    steps: int | None = None
    seconds: float | None = None


class Cadence:
    """Says after each step whether a checkpoint is due, the same on all ranks.

    Clocks differ, so ranks that count seconds ask the first one. They do not ask in each step: at the pace so far, the
    next question comes after half of the steps that fit into the time left, so a few questions serve thousands of
    steps.

    Cost: for seconds one broadcast of a number for each question; about log2 of the steps between two checkpoints.
    """

    def __init__(self, every: Every, group: ProcessGroup | None, step: int) -> None:
        self._every, self._group = every, group
        self._saved_at, self._saved_after = time.monotonic(), step
        self._ask_after = step + 1

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""
        if self._every.steps is not None:
            return step % self._every.steps == 0
        if self._every.seconds is None or step < self._ask_after:
            return False
        spent = self._spent_s()
        left = self._every.seconds - spent
        if left <= 0:
            self._saved_at, self._saved_after, self._ask_after = time.monotonic(), step, step + 1
            return True
        steps_left = left / spent * (step - self._saved_after)
        self._ask_after = step + max(1, int(steps_left / 2))
        return False

    def _spent_s(self) -> float:
        """Since the last checkpoint, by the first rank's clock."""
        spent = [time.monotonic() - self._saved_at]
        if self._group is not None:
            dist.broadcast_object_list(spent, group_src=0, group=self._group)
        return spent[0]


def any_asks(asked: Callable[[], bool], group: ProcessGroup | None) -> bool:
    """Whether this rank or another was asked to stop: a signal reaches ranks at different steps, and all stop at one.

    Cost: an all-reduce of one number.
    """
    if group is None:
        return asked()
    found = torch.tensor([int(asked())], dtype=torch.int32, device=device_of(group))
    dist.all_reduce(found, ReduceOp.MAX, group=group)
    return bool(found.item())
