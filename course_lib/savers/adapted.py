"""What all adapters have in common: the map inside, and one plain map that computes the same."""

from __future__ import annotations

from typing import cast

from torch import nn

from course_lib.savers.ia3 import IA3Linear
from course_lib.savers.lora import LoRALinear

Adapted = LoRALinear | IA3Linear


def map_inside(module: nn.Module) -> nn.Module:
    """The map that an adapter stands beside; any other module itself."""
    return cast(nn.Module, module.base) if isinstance(module, Adapted) else module


def merge_adapters(model: nn.Module) -> nn.Module:
    """Put in the place of each adapted map one plain map, which computes the same: nothing is paid after training.

    What lies in codes is merged onto the weight that the codes say. Merged onto the weight from before it was in codes,
    the update would meet another model than the one that it was learnt on.
    """
    for name, module in [*model.named_modules()]:
        if isinstance(module, Adapted):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, module.merged())
    return model
