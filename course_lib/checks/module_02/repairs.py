"""02.8 and 02.9: two functions with a silent bug, to be found and mended."""

from __future__ import annotations

from course_lib.checks.kit.judge import write_exercise
from course_lib.checks.kit.signature import Puzzle
from course_lib.checks.kit.spec import FP32, Case, Level
from course_lib.checks.module_02 import inputs
from course_lib.checks.module_02.ring import COUNTED, EQUAL
from course_lib.verify.ratios import times

_UNEVEN = (Case(world_size=3, length=20), Case(world_size=4, length=26), Case(world_size=1, length=5))


def _largest(case: Case, seed: int) -> Puzzle:
    puzzle = inputs.everything_everywhere(case, seed)
    return Puzzle(blocks=puzzle.blocks, plan=puzzle.plan, largest=True)


def _average(case: Case, seed: int) -> Puzzle:
    puzzle = inputs.everything_everywhere(case, seed)
    return Puzzle(blocks=puzzle.blocks, plan=puzzle.plan, divisor=case.world_size)


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

_RING_AVERAGE = write_exercise(
    key="02.9",
    title="find the bug: right on 2 ranks only",
    arguments=inputs.own_tensor,
    puzzle=_average,
    shape=inputs.whole_shape,
    cost=lambda case: inputs.cost(case, "all_reduce", "ring"),
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(Case(world_size=3, length=24), Case(world_size=4, length=24), Case(world_size=2, length=12)),
            praise="right on 3, 4 and 2 ranks",
        ),
        "edges": Level(points=1, cases=_UNEVEN, praise="right for lengths that do not divide, and on 1 rank"),
        "bytes": Level(points=1, cases=COUNTED, praise="and no byte more than the ring needs"),
    },
    hints=(
        "Run it on 3 ranks with numbers that you can tell apart afterwards: let rank 0 have 3s, rank 1 have 30s and "
        "rank 2 have 300s. Divided by 3 they are the digits of the result, so you see whose part each chunk holds, "
        "and how often.",
        "In every step, what the left neighbour sends must be the chunk that you think you receive. Write both "
        "numbers down for p = 3, for ranks 0 and 1 and for steps 0 and 1, in both loops. Where do they differ?",
        "Modulo 2, plus one and minus one are the same, so two ranks never notice an index that runs the wrong way. "
        "After the first loop rank r has the sum of chunk r. So in the second one it sends chunk (rank - step) % "
        "world_size, and receives chunk (rank - step - 1) % world_size.",
    ),
)
