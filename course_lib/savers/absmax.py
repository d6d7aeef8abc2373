"""Weights in whole numbers from -127 to 127: the largest of a group becomes 127, and the rest whole steps of its scale.

A group is the tensor, a row, or a block of neighbours. One weight far above the others makes the steps of its whole
group long: the smaller the groups, the less it spoils, and the more scales there are to keep.
Source: Dettmers et al. 2022, LLM.int8(), section 2 (absmax quantisation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.savers.codebook import in_blocks

Group = Literal["tensor", "row"] | int  # what shares a scale; a number is a block's length
_MOST = 127  # steps; -128 is not used, so that both signs have as many


@dataclass(frozen=True)
class Int8:
    """A weight in steps. Shapes: steps int8 (groups, of a group), scales float32 (groups, 1)."""

    steps: Tensor
    scales: Tensor
    shape: torch.Size

    def decode(self) -> Tensor:
        """The weights that the steps say, in float32."""
        return self._as_weight(self.steps * self.scales)

    def bound(self) -> Tensor:
        """How far each weight can be off: half a step of its group. Shapes: as the weight."""
        return self._as_weight((self.scales / 2).expand_as(self.steps))

    @property
    def nbytes(self) -> int:
        """What has to be kept: a byte for each weight, and the scales."""
        return self.shape.numel() + self.scales.nbytes

    @property
    def bits(self) -> float:
        """For each weight, its share of the scales included."""
        return 8 * self.nbytes / self.shape.numel()

    def _as_weight(self, groups: Tensor) -> Tensor:
        return groups.flatten()[: self.shape.numel()].view(self.shape)


def absmax_int8(weight: Tensor, group: Group = "tensor") -> Int8:
    """Round a weight to steps; `group` says which of its numbers share a scale.

    Raises: ValueError for another group.
    """
    rows = _groups(weight.detach().float(), group)
    largest = rows.abs().amax(1, keepdim=True)
    scales = (largest / _MOST).clamp(min=torch.finfo(torch.float32).tiny)  # of a group of zeros, too
    steps = (rows / scales).round().to(torch.int8)
    return Int8(steps, scales, weight.shape)


def _groups(weight: Tensor, group: Group) -> Tensor:
    if group == "tensor":
        return weight.reshape(1, -1)
    if group == "row":
        return weight.reshape(len(weight), -1)
    if isinstance(group, int) and group > 0:
        return in_blocks(weight, group)
    way_out = "choose 'tensor', 'row' or a block's length"
    raise ValueError(four_parts("absmax_int8", f"group={group!r}", "each number belongs to a group", way_out))
