"""A proof row of three axes at once: two stages, of each two replicas, of which two ranks share every matrix."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.cli.proof import Row, Rows
from course_lib.cli.tensor_parallel_rows import tensor_row
from course_lib.config import ParallelConfig

_DEGREES = ParallelConfig(pp=2, dp=2, tp=2)


def _three_axes_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """On eight ranks, also where the other rows have four: with fewer one of the axes would be gone."""
    if world_size in (_DEGREES.world_size // 2, _DEGREES.world_size):
        yield tensor_row(_DEGREES, text)


ROWS = Rows(lesson=8, prove=_three_axes_rows)
