"""Which row a sharing asks for: the plain one, or one with additions before it.

An addition is a class that extends some of `FlatRow`'s steps and leaves the others to `super()`, which is the next
addition or the plain row. So each can be read alone, and any of them go together.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from course_lib.parallel.sharding.flat_row import FlatRow, Sharing
from course_lib.parallel.sharding.hybrid import CopiedRow
from course_lib.parallel.sharding.offload import OffloadedRow
from course_lib.parallel.sharding.quantised import QuantisedRow
from course_lib.parallel.sharding.secondary import SecondaryRow
from course_lib.parallel.sharding.zero import ResidentRow


def make_row(named: Mapping[str, nn.Parameter], sharing: Sharing) -> FlatRow:
    """A row of these parameters."""
    # What was kept near by comes before what is rounded, since that has been rounded already.
    wanted: list[tuple[type[FlatRow], bool]] = [
        (ResidentRow, sharing.resident),
        (SecondaryRow, sharing.secondary is not None),
        (QuantisedRow, sharing.quantised and next(iter(named.values())).is_floating_point()),
        (OffloadedRow, sharing.offload),
        (CopiedRow, sharing.copies is not None),
    ]
    kinds = [addition for addition, is_wanted in wanted if is_wanted] or [FlatRow]
    if len(kinds) == 1:
        return kinds[0](named, sharing)
    together: type[FlatRow] = type("And".join(kind.__name__ for kind in kinds), tuple(kinds), {})
    return together(named, sharing)
