"""AdamW that keeps its two moments in 8 bits: 2 bytes a parameter in place of 8, and a scale for every 256.

Between steps a moment is codes. A step spreads them out, computes as AdamW does in float32, and finds new codes; what
the weights move by is not rounded. The levels are dense near 0, where most moments are, and a block's largest number is
met exactly. Small tensors, as norms, stay in float32: they are few bytes.
Source: Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization, sections 2 and 3; blocks of 256 and 4,096
numbers as in bitsandbytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from course_lib.savers.codebook import decode, encode
from course_lib.savers.dynamic_levels import dynamic_levels

_BLOCK = 256
_SMALLEST = 4096  # numbers of a tensor whose moments are codes


class AdamW8bit(Optimizer):
    """`torch.optim.AdamW`, but for what it keeps. States by kind: first and second moment, and their scales."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        smallest: int = _SMALLEST,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.smallest = smallest

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["step"] = state.get("step", torch.zeros(())) + 1
        number, (beta1, beta2) = state["step"].item(), group["betas"]
        gradient, weight = parameter.grad.float(), parameter.float()  # type: ignore[union-attr]

        first, second = self._moment(parameter, "first"), self._moment(parameter, "second")
        first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

        # Both began as 0, which is made up for.
        size = (second.sqrt() / math.sqrt(1 - beta2**number)).add_(group["eps"])
        weight = weight * (1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(first, size, value=-group["lr"] / (1 - beta1**number))
        parameter.copy_(weight)

        self._keep(parameter, "first", first)
        self._keep(parameter, "second", second)

    def _moment(self, parameter: Tensor, kind: str) -> Tensor:
        """Spread out. Shapes: as the parameter."""
        state = self.state[parameter]
        if kind not in state:
            return torch.zeros_like(parameter, dtype=torch.float32)
        kept: Tensor = state[kind]
        if f"{kind} scales" not in state:
            return kept
        return decode(kept.flatten(), state[f"{kind} scales"], _levels(kind, parameter), _BLOCK).view(parameter.shape)

    def _keep(self, parameter: Tensor, kind: str, moment: Tensor) -> None:
        state = self.state[parameter]
        if parameter.numel() < self.smallest:
            state[kind] = moment
            return
        codes, state[f"{kind} scales"] = encode(moment, _levels(kind, parameter), _BLOCK)
        state[kind] = codes.view(parameter.shape)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's, which would turn codes and scales into the dtype of their parameter."""
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for place, kinds in state_dict["state"].items():
            parameter = parameters[place]
            self.state[parameter] = {kind: x.to(parameter.device, copy=True) for kind, x in kinds.items()}


def _levels(kind: str, parameter: Tensor) -> Tensor:
    """A second moment is never negative, so that its levels are twice as dense."""
    return dynamic_levels(signed=kind == "first").to(parameter.device)
