"""Where an adapted model's numbers come from: its parameters by the names that the model had before.

`layers.0.attention.q_proj.weight` lies in `….q_proj.base.weight` once an adapter stands beside it, or in the codes of
`….q_proj.base`. The adapter's own parameters were not there before, and nobody has saved numbers for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from course_lib.savers.adapted import Adapted
from course_lib.savers.lora import begin_a
from course_lib.savers.quantised_linear import NF4Linear

CODES = ("codes", "scales", "of_scales", "mean")  # what lies in the place of a weight


@dataclass(frozen=True)
class Origin:
    """A tensor of the model as it was: its name, and where it lies in codes now, the module that has them."""

    name: str
    coded: NF4Linear | None = None


def origins_of(model: nn.Module) -> dict[str, Origin]:
    """Of every parameter and buffer, by all of its names, the tensor before; an adapter's own are not there."""
    modules = dict(model.named_modules())
    adapted = {name for name, module in modules.items() if isinstance(module, Adapted)}
    everything = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    found: dict[str, Origin] = {}
    for name, _ in everything:
        owner, _, kind = name.rpartition(".")
        if owner in adapted:
            continue
        module, before = modules[owner], owner.removesuffix(".base")
        path = before if before in adapted else owner
        if isinstance(module, NF4Linear) and kind in CODES:
            found[name] = Origin(f"{path}.weight", module)
        else:
            found[name] = Origin(f"{path}.{kind}".removeprefix("."))
    return found


def begin_adapter(name: str, x: Tensor) -> None:
    """Fill an adapter's own parameter, by its name: the model with it is the model without, to the bit."""
    kind = name.rpartition(".")[2]
    if kind == "A":
        begin_a(x)
    else:
        nn.init.constant_(x, 1.0 if kind == "factors" else 0.0)
