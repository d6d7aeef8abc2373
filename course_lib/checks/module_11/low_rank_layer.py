"""11.6: the layer that is asked for, and the mistakes that one makes in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Low(nn.Module):
    """The right answer, or one with a mistake."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, *, mistake: str = "") -> None:
        super().__init__()
        self.base, self.scale, self.mistake = base, scale, mistake
        for one in base.parameters():
            one.requires_grad_(mistake == "not frozen" or (mistake == "bias" and one.ndim == 1))
        dtype = base.weight.dtype
        narrow = torch.randn(rank, base.in_features, dtype=dtype)
        wide = torch.zeros(base.out_features, rank, dtype=dtype)
        self.A = nn.Parameter(narrow * (mistake not in ("both 0", "A is 0")))
        self.B = nn.Parameter(torch.randn_like(wide) if mistake in ("B random", "A is 0") else wide)

    def forward(self, x: Tensor) -> Tensor:
        scale = {"scale": 1.0, "by rank": self.scale / len(self.A)}.get(self.mistake, self.scale)
        low = x @ (self.A.detach() if self.mistake == "detached" else self.A).T
        beside = scale * low @ self.B.T
        return beside if self.mistake == "alone" else self.base(x) + beside

    def merged(self) -> Any:
        """Right."""
        update = self.B @ self.A * (1.0 if self.mistake == "merged scale" else self.scale)
        if self.mistake == "in place":
            self.base.weight.data += update
            return self.base
        has_bias = self.base.bias is not None and self.mistake != "no bias"
        found = nn.Linear(self.base.in_features, self.base.out_features, bias=has_bias, dtype=self.base.weight.dtype)
        with torch.no_grad():
            found.weight.copy_(update if self.mistake == "update alone" else self.base.weight + update)
            if has_bias:
                found.bias.copy_(self.base.bias)
        return found

    @torch.no_grad()
    def lost(self, dtype: torch.dtype) -> float:
        """Right."""
        update = self.scale * self.B @ self.A
        whole = self.base.weight + update
        off = whole.to(dtype).to(whole.dtype) - whole
        if self.mistake == "of the weight":
            return (off.norm() / whole.norm()).item()
        if self.mistake == "update rounded":
            return ((update.to(dtype).to(whole.dtype) - update).norm() / update.norm()).item()
        if self.mistake == "squares":
            return (off.square().sum() / update.square().sum()).item()
        if self.mistake == "unmoved":
            return (whole.to(dtype) == self.base.weight.to(dtype)).double().mean().item()
        return (off.norm() / update.norm()).item()
