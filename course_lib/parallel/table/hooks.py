"""Hooks on a parameter's gradient that keep nobody alive.

A parameter keeps its hooks, and one that is a method keeps its object. If that object has the parameter, as a wrapper
does, neither is ever let go of: Python's search for such circles does not see through a tensor (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import nn


def when_gradient_came(parameter: nn.Parameter, method: Callable[..., object], *args: Any) -> None:
    """Let `method(*args, parameter)` hear when the parameter's gradient is complete, as long as its object exists.

    `args` must not lead to the parameter.
    """
    alive = WeakMethod(method)

    def hook(complete: Any) -> None:
        if (there := alive()) is not None:
            there(*args, complete)

    parameter.register_post_accumulate_grad_hook(hook)
