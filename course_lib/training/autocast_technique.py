"""The technique of autocast: layers compute their products in 16 bits, while weights and what flows between stay in 32.

trainer = Trainer(model, config, mesh=make_mesh(dp=2), apply=(autocast(), recompute(), replicate()))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.training.parts_here import head_here, runs_of_layers
from course_lib.training.setup import Setup, Technique


def autocast(dtype: torch.dtype = torch.bfloat16) -> Technique:
    """Let layers and head compute in `dtype` what `torch.autocast` lets: products; norms, sums and the loss do not.

    Weights, gradients and the optimizer's states stay as they are, and not a byte of them is saved. Of what backward
    reads, what products read is half as large; with it lie copies of the weights.
    Raises: ValueError after `tensor`, whose layers write their own backward, in the dtype of the weights.
    """

    def apply(setup: Setup) -> None:
        setup.begin("autocast")
        if "tensor" in setup.applied:
            values, rule = "applied after tensor", "its layers multiply by themselves, in the dtype of their weights"
            raise ValueError(four_parts("autocast", values, rule, "choose tp=1, or fully_shard(param_dtype=…)"))
        for layers in runs_of_layers(setup):
            for layer in layers:
                layer.forward = partial(_computed, layer.forward, dtype)
        head = head_here(setup)
        if head is not None:
            head.forward = partial(_computed, head.forward, dtype)

    return apply


def _computed(forward: Callable[..., Tensor], dtype: torch.dtype, x: Tensor, *others: Any, **named: Any) -> Any:
    """What comes out is in the dtype of what came in: the stream between layers, and logits, stay exact."""
    with torch.autocast(x.device.type, dtype):
        return forward(x, *others, **named).to(x.dtype)
