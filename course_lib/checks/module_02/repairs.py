"""02.8: a function with a silent bug, to be found and mended."""

from __future__ import annotations

from dataclasses import replace

from course_lib.checks.kit.judge import write_exercise
from course_lib.checks.kit.signature import Puzzle
from course_lib.checks.kit.spec import FP32, Case, Level
from course_lib.checks.module_02 import inputs
from course_lib.checks.module_02.ring import COUNTED, EQUAL
from course_lib.verify.ratios import times

_UNEVEN = (Case(world_size=3, length=20), Case(world_size=4, length=26), Case(world_size=1, length=5))


def _largest(case: Case, seed: int) -> Puzzle:
    return replace(inputs.everything_everywhere(case, seed), largest=True)


def _one_loop_is_mended(case: Case, matrix: list[list[int]]) -> str | None:
    """Chunks in one loop, whole tensors in the other."""
    p, whole = case.world_size, case.length * FP32
    if [sum(row) for row in matrix] != [(p - 1) * (whole // p + whole)] * p:
        return None
    return f"bytes {times((p + 1) / 2)} the target: one of the two loops sends chunks, the other still whole tensors"


_RING_MAX = write_exercise(
    key="02.8",
    title="find the bug: right values, too many bytes",
    arguments=inputs.own_tensor,
    puzzle=_largest,
    shape=inputs.whole_shape,
    cost=lambda case: inputs.cost(case, "all_reduce", "ring"),
    extra=_one_loop_is_mended,
    levels={
        "values": Level(
            points=1, again=True, cases=(*EQUAL, *_UNEVEN), praise="still right, on 1 to 4 ranks and for every length"
        ),
        "bytes": Level(points=3, cases=COUNTED, praise="each rank sends 2(p-1)/p of the tensor: the bug is gone"),
    },
    hints=(
        "Values tell you nothing here, so measure. How many bytes does each rank send on 2, on 3 and on 4 ranks, "
        "and how many should it send? Divide one by the other.",
        "It is 2, 3 and 4 times too many, so it is p times. Which line sends a whole tensor, where a chunk would do?",
        "Look at one step from the receiver's side. The left neighbour's whole tensor comes into the inbox, but "
        "theirs[i] is all that is ever read of it. So the neighbour has to send only that chunk. Which number has "
        "it, counted from the *sender's* rank?",
        "In the first loop send mine[(rank - step - 1) % world_size] and receive into theirs[i]. In the second loop "
        "send mine[(rank - step) % world_size] and receive into mine[i].",
    ),
)
