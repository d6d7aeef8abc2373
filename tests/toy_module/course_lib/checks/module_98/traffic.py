"""98.1: a number goes once round p ranks."""

from __future__ import annotations

from typing import NamedTuple

from course_lib.costs.comm.toy import toy_bytes

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise


class Given(NamedTuple):
    """How many ranks."""

    p: int


TRAFFIC = NumberExercise(
    key="98.1",
    title="bytes once round",
    given=lambda seed: Given(4 + seed),
    levels={
        "bytes": Group(
            2,
            (Ask("sent", "bytes", lambda g: toy_bytes(g.p), {"that is one rank's message": toy_bytes(1)}),),
            "a message from every rank",
        )
    },
    hints=("How many ranks send?", "Each sends 8 bytes."),
)
