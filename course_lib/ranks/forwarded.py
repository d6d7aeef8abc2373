"""How many rows the layers of a process are given, forward by forward, whoever calls them.

Looked at from a hook of all modules, at those with weights of their own: DDP, FSDP and checkpointing end there too.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


def count_rows_into(path: str) -> None:
    """Write a line for each forward that autograd follows: which layer, in the order of their first forwards, rows."""
    book = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (open as long as the process lives)
    known: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
    numbers = count()

    def look(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        if torch.is_grad_enabled() and given and isinstance(given[0], Tensor) and _has_weights(module):
            if module not in known:
                known[module] = next(numbers)
            book.write(f"{known[module]} {_rows(given[0])}\n")

    register_module_forward_hook(look)


def rows_in(path: Path) -> tuple[int, ...]:
    """The rows of each forward of the layer that was given most; a line that a kill cut short is left out."""
    rows: dict[str, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []:
        if line.endswith("\n"):
            layer, number = line.split()
            rows.setdefault(layer, []).append(int(number))
    return tuple(max(rows.values(), key=sum, default=()))


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1] if x.dim() and x.shape[-1] else 1


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None
