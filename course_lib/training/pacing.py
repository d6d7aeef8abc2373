"""Layers that take as long as we say: what makes a small model's timeline on the emulated clock that of a large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from course_lib import comm
from course_lib.errors import four_parts


@contextmanager
def pace(layers: Sequence[nn.Module], forward_s: float, backward_s: float) -> Iterator[None]:
    """Within the block, each layer's forward takes `forward_s` and its backward `backward_s`.

    A layer is a module that returns one tensor; its gradients come at the end of its time.
    Units: emulated seconds.
    Raises: ValueError for a negative time.
    """
    if forward_s < 0 or backward_s < 0:
        values = f"forward_s={forward_s}, backward_s={backward_s}"
        raise ValueError(four_parts("pace", values, "time does not run backwards", "give seconds from 0 on"))

    def backward(_: Tensor) -> None:
        comm.compute(backward_s, "backward")

    def forward(_: nn.Module, __: Any, output: Tensor) -> None:
        comm.compute(forward_s, "forward")
        if output.requires_grad:
            output.register_hook(backward)  # runs before any gradient of the layer exists

    hooks = [layer.register_forward_hook(forward) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
