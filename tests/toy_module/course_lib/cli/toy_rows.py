"""Proof row of the toy: a number that went round is the number."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.costs.comm.toy import toy_bytes

from course_lib.cli.proof import Row, Rows
from course_lib.comm.traces import Traffic


def _toy_rows(world_size: int, text: bytes) -> Iterator[Row]:
    """One row."""
    each = (toy_bytes(1),) * world_size
    traffic = Traffic(sent_bytes=each, received_bytes=each, messages=(1,) * world_size)
    yield Row(
        technique="toy, once round",
        world_size=world_size,
        deviation=0.0,
        tolerance=0.0,
        traffic=traffic,
        predicted=traffic,
        step_s=1e-3,
    )


ROWS = Rows(lesson=98, prove=_toy_rows)
