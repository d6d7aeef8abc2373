"""How far gradients may be off in a low precision: as far as one device's are in the same precision, and not further.

In bf16 no gradient is equal to float32's, so a fixed tolerance either passes bugs or refuses rounding. What rounding
does to each parameter's gradient is measured instead, on one device; ranks that round at as many places are as far off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from course_lib.verify.equality import deviation

SOUND = 4.0  # times as far off as one device: the order of a sum, and a few roundings more or fewer


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """One parameter's gradient: how far one device and the ranks are from the exact one.

    A deviation is the largest difference over the largest number of the exact gradient.
    """

    name: str
    alone: float
    ranks: float

    @property
    def is_sound(self) -> bool:
        """Whether rounding explains what the ranks found."""
        return self.ranks <= SOUND * self.alone


def compare_rounding(
    exact: Mapping[str, Tensor], alone: Mapping[str, Tensor], ranks: Mapping[str, Tensor]
) -> list[Rounding]:
    """For each parameter how far `alone` and `ranks`, both of a low precision, are from `exact`; all by name.

    >>> from torch import tensor
    >>> one, = compare_rounding({"w": tensor(4.0)}, {"w": tensor(4.01)}, {"w": tensor(8.0)})
    >>> one.is_sound, round(one.ranks, 3)
    (False, 1.0)
    """
    return [
        Rounding(
            name=name,
            alone=deviation(alone[name].double(), gradient.double()),
            ranks=deviation(ranks[name].double(), gradient.double()),
        )
        for name, gradient in exact.items()
    ]
