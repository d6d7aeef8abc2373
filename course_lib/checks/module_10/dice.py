"""QSGD's quantiser, as the checks know it: right, or with one mistake in it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Quantiser:
    """Each number as a whole step of its bucket's norm, up or down by a die."""

    def __init__(self, levels: int, bucket: int, mistake: str = "") -> None:
        self.levels, self.bucket, self.mistake = levels, bucket, mistake

    def shares(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """How many steps each number is long, not rounded, in rows of a bucket; and the buckets' norms."""
        rows = F.pad(v, (0, -len(v) % self.bucket)).view(-1, self.bucket)
        norms = rows.norm(dim=1)
        if self.mistake == "one norm":
            norms = v.norm().expand(len(rows)).clone()
        if self.mistake == "largest":
            norms = rows.abs().amax(1)
        if self.mistake == "sum":
            norms = rows.abs().sum(1)
        steps = self.levels - (self.mistake == "one less")
        return rows.abs() / torch.where(norms > 0, norms, 1.0).unsqueeze(-1) * steps, norms

    def encode(self, v: Tensor, dice: Tensor) -> tuple[Tensor, Tensor]:
        """Steps with their signs, int8, and a norm for each bucket."""
        shares, norms = self.shares(v)
        shares = shares.flatten()[: len(v)]
        low = shares.floor()
        up = {
            "nearest": shares - low >= 0.5,
            "down": torch.zeros_like(low, dtype=torch.bool),
            "up": shares > low,
            "upside down": dice >= shares - low,
            "coin": (dice < 0.5) & (shares > low),
            "at": dice <= shares - low,
        }.get(self.mistake, dice < shares - low)
        steps = low + up
        if self.mistake != "no sign":
            steps = steps * v.sign()
        return steps.to(torch.int8), norms

    def decode(self, steps: Tensor, norms: Tensor) -> Tensor:
        """The numbers that the steps stand for."""
        n = len(steps)
        each = norms.repeat(self.bucket)[:n] if self.mistake == "repeat" else norms.repeat_interleave(self.bucket)[:n]
        return steps * each / (1 if self.mistake == "not divided" else self.levels)

    def variance(self, v: Tensor) -> float:
        """The squared error of all numbers together, as it is on average over all dice."""
        shares, norms = self.shares(v)
        fraction = shares - shares.floor()
        step = (norms / self.levels).unsqueeze(-1)
        if self.mistake == "bound":
            most = min(self.bucket / self.levels**2, self.bucket**0.5 / self.levels)
            return float((most * norms.square()).sum())
        each = {
            "in steps": fraction * (1 - fraction),
            "fraction": step.square() * fraction,
            "nearer": step.square() * torch.minimum(fraction, 1 - fraction).square(),
            "not squared": step * fraction * (1 - fraction),
            "norms": (step * self.levels).square() * fraction * (1 - fraction),
        }.get(self.mistake, step.square() * fraction * (1 - fraction))
        if self.mistake == "mean":
            return float(each.sum() / len(v))
        return float(each.sum() / (v.square().sum() if self.mistake == "relative" else 1))
