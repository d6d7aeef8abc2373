"""Weights in bf16, and why they stop: a step smaller than half the gap between two numbers is rounded away.

bf16 has 8 significant bits, so the gap beside a weight is 1/128 to 1/256 of it, while a late step of Adam is a
thousandth or less. Two things help. A master copy in fp32 takes the step, and the weight is rounded from it: 4 bytes
more. Or the weight is rounded up or down by chance, so that of a hundred steps of a hundredth of a gap one moves it.
Source: Micikevicius et al. 2018, Mixed precision training, section 3.1 (master copy); Gupta et al. 2015, Deep learning
with limited numerical precision, section 3 (by chance).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

Rounding = Literal["nearest", "stochastic", "master"]
_LOW = 16  # bits of fp32 that bf16 has not


def rounded_by_chance(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The bf16 number above or below each fp32 number, whichever is nearer more often: on average x itself.

    A number between two neighbours is the lower one and 16 more bits. Random bits added to these carry over into the
    upper ones with just the probability that is wanted; then the low ones are cut off.
    """
    bits = x.contiguous().view(torch.int32)
    chance = torch.randint(1 << _LOW, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    return ((bits + chance) & -(1 << _LOW)).view(torch.float32).to(torch.bfloat16)


class Bf16Weights:
    """Lets an optimizer train bf16 `weights`: its parameters are `trained`, fp32 numbers or the weights themselves.

    optimizer = torch.optim.AdamW(bf16.trained); bf16.before(); optimizer.step(); bf16.after()

    Between steps "nearest" keeps 2 bytes of each weight, "stochastic" as well, "master" 6.
    """

    def __init__(self, weights: Iterable[nn.Parameter], rounding: Rounding) -> None:
        self.weights, self.rounding = list(weights), rounding
        copies = [nn.Parameter(weight.detach().float()) for weight in self.weights]
        self.trained = self.weights if rounding == "nearest" else copies

    def before(self) -> None:
        """Gradients to where the optimizer looks for them; without a master copy it gets the weights themselves."""
        for weight, copy in zip(self.weights, self.trained, strict=True):
            if copy is not weight:
                if self.rounding == "stochastic":
                    copy.data = weight.detach().float()
                copy.grad = None if weight.grad is None else weight.grad.float()

    @torch.no_grad()
    def after(self) -> None:
        """Round what the optimizer made of them."""
        for weight, copy in zip(self.weights, self.trained, strict=True):
            if copy is not weight:
                weight.copy_(rounded_by_chance(copy) if self.rounding == "stochastic" else copy)
                copy.grad = None
                if self.rounding == "stochastic":
                    copy.data = torch.empty(0)  # the weight is all that lasts


def share_unmoved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """The share of numbers that are bit by bit what they were."""
    same = sum(int((before[name] == after[name]).sum()) for name in before)
    return same / sum(x.numel() for x in before.values())
