"""How many numbers the optimizers of a process remember, seen from outside after each step that one of them makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


def remember_into(path: Path) -> None:
    """Write into a file how much the optimizer that remembers most has remembered: numbers, single ones left out."""
    most = 0

    def look(optimizer: Optimizer, args: Any, options: Any) -> None:
        nonlocal most
        tensors = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]
        numbers = sum(one.numel() for one in tensors if one.numel() > 1)
        if numbers > most:
            most = numbers
            path.write_text(str(most), encoding="utf-8")

    register_optimizer_step_post_hook(look)
