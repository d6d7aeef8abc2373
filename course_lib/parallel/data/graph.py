"""What autograd's graph tells before a gradient is there: whether the backward under way will write one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node


def first_leaves(node: Node, parameters: Collection[Tensor]) -> list[Node]:
    """Of the nodes below `node` that write gradients, the first one of `parameters`; where none is in reach, all.

    None of them knows who is above: whoever keeps them keeps no activations.

    Cost: a walk to the first of the parameters; they lie near the output.
    """
    wanted = {id(parameter) for parameter in parameters}
    found = []
    for leaf in _leaves(node):
        if id(leaf.variable) in wanted:
            return [leaf]
        found.append(leaf)
    return found


def accumulates(leaf: Node) -> bool:
    """Whether the backward under way comes to `leaf` and lets it write.

    `torch.autograd.grad` never does, and `backward(inputs=...)` only for its inputs.
    """
    try:
        return bool(torch._C._will_engine_execute_node(leaf))
    except RuntimeError:  # torch.autograd.grad takes its gradient away instead
        return False


def _leaves(node: Node) -> Iterator[Any]:
    """The nodes that write gradients, depth first."""
    seen, waiting = {node}, [node]
    while waiting:
        here = waiting.pop()
        if hasattr(here, "variable"):
            yield here
        for following, _ in here.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
