"""What a training run says of numbers, in one word: what lasts in which format, and what is computed in which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from course_lib.cli.compose import refuse
from course_lib.savers.loss_scaler import LossScaler
from course_lib.training.autocast_technique import autocast
from course_lib.training.scaling_technique import scaled_loss
from course_lib.training.setup import Technique

COMMAND = "train"


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Names of PyTorch's dtypes."""

    lasting: str  # of weights, gradients and the optimizer's states
    gathered: str | None = None  # what stage 3 gathers whole weights in, and computes in
    products: str | None = None  # what layers multiply in; sums, norms and the loss stay exact
    scaled: bool = False  # whether the loss is multiplied, so that small gradients are not rounded to zero

    @property
    def computed(self) -> str:
        """What most operations are in."""
        return self.gathered or self.products or self.lasting

    @property
    def itemsize(self) -> int:
        """Bytes of a number that lasts."""
        return self.dtype.itemsize

    @property
    def dtype(self) -> torch.dtype:
        """Of what lasts."""
        found: torch.dtype = getattr(torch, self.lasting)
        return found


PRECISIONS = {
    "fp32": Precision(lasting="float32"),
    "fp64": Precision(lasting="float64"),
    "bf16": Precision(lasting="float32", gathered="bfloat16"),
    "autocast": Precision(lasting="float32", products="bfloat16"),
    "fp16": Precision(lasting="float32", products="float16", scaled=True),
    "pure_bf16": Precision(lasting="bfloat16"),
}


def check(values: Mapping[str, Any]) -> Precision:
    """What the word means.

    Raises: ValueError for degrees under which it has no meaning.
    """
    name = values["precision"]
    found = PRECISIONS[name]
    if found.gathered and values["zero_stage"] != 3:
        rule = "its weights are short while they are gathered, which is stage 3"
        refuse(
            COMMAND, f"precision={name} with zero_stage={values['zero_stage']}", rule, "give zero_stage=3, or autocast"
        )
    if found.products and values["tp"] > 1:
        rule = "layers that are cut multiply by themselves, in the dtype of their weights"
        way_out = "choose tp=1, or precision=bf16 with zero_stage=3"
        refuse(COMMAND, f"precision={name} with tp={values['tp']}", rule, way_out)
    return found


def autocasting(precision: Precision) -> list[Technique]:
    """What comes before layers are recomputed."""
    return [] if precision.products is None else [autocast(getattr(torch, precision.products))]


def scaling(precision: Precision) -> list[Technique]:
    """What comes after ranks share gradients."""
    return [scaled_loss(LossScaler())] if precision.scaled else []
