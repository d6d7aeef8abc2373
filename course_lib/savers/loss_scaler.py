"""A dynamic loss scaler: gradients that fp16 would round to zero are made large first, and small again before the step.

fp16 ends at 65,504, and below 0.00006 it loses digits. So the loss, and with it each gradient, is multiplied by a large
number. If one gradient overflows the step is skipped and the number halved; after many good steps it is doubled. When
ranks have different gradients, one may overflow alone: then *all* must skip, or their weights drift apart, and their
scales with them. PyTorch's GradScaler asks nobody but its own rank.
Source: Micikevicius et al. 2018, Mixed precision training, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.comm.call import device_of

LARGEST = torch.finfo(torch.float16).max


class LossScaler:
    """`scale` is what the next loss is multiplied by; `skips` whether the step of the last gradients must not be made.

    Cost: an all-reduce of one number in each step.
    """

    def __init__(self, scale: float = 2.0**16, *, growth_interval: int = 2000) -> None:
        self.scale, self.growth_interval = scale, growth_interval
        self.skips = False
        self.good = 0  # steps since the scale changed

    def unscale_(self, gradients: Iterable[Tensor], group: ProcessGroup | None = None) -> None:
        """Take the scale away from gradients, and decide with the ranks of a group whether to skip."""
        overflow = torch.zeros(1, device=None if group is None else device_of(group))
        for gradient in gradients:
            overflow += (~gradient.isfinite()).any()
            gradient.div_(self.scale)
        if group is not None:
            overflow = comm.all_reduce(overflow, op=ReduceOp.MAX, group=group)
        self._learn(bool(overflow))

    def _learn(self, overflow: bool) -> None:
        """Halve at once, double late: a skipped step is dearer than a few lost digits."""
        self.skips = overflow
        self.good = 0 if overflow else self.good + 1
        if overflow:
            self.scale /= 2
        elif self.good == self.growth_interval:
            self.scale, self.good = self.scale * 2, 0


def through_fp16(x: Tensor) -> Tensor:
    """What is left of numbers that pass fp16: large ones are infinite, small ones coarse or zero.

    To compute in fp16 takes a CPU 20 to 40 times as long as in fp32, and shows no more.
    """
    return x.to(torch.float16).to(x.dtype)
