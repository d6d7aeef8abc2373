"""How much a model is given: the rows of its largest forward, how many wait for their backward, all its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Forwards:
    """The most that was seen; forwards under no_grad do not count."""

    rows: int = 0
    held: int = 0
    waiting: int = 0
    inputs: set[bytes] = field(default_factory=set)  # each row once, however often it came

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """After a forward."""
        if torch.is_grad_enabled():
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
            self.rows = max(self.rows, *map(len, given), 0)
            self.inputs |= {row.detach().cpu().numpy().tobytes() for x in given[:1] for row in x}
            if output.requires_grad:
                self.waiting += 1
                self.held = max(self.held, self.waiting)
                output.register_hook(self.end)

    def __deepcopy__(self, memo: object) -> Forwards:
        """A copy of the model has copies of its hooks, and what these see counts as well."""
        return self

    def end(self, gradient: Tensor) -> None:
        """When its backward begins."""
        self.waiting -= 1


@contextmanager
def forwards_of(module: nn.Module) -> Iterator[Forwards]:
    """Watch a module's forwards, and those of its copies."""
    seen = Forwards()
    hook = module.register_forward_hook(seen.begin, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()
