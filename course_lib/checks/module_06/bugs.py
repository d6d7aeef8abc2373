"""06.9 and 06.10: a small FSDP with a planted bug; the learner says what the ladder finds and mends it."""

from __future__ import annotations

from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import OF_SECOND_DIVISION, Cause
from course_lib.checks.module_06.hunts import Hunt, hunt, step_by_step


def _sharing(case: Hunt) -> int:
    return case.shards or case.world_size


def _copies(case: Hunt) -> float:
    """1 where nothing tells their number from that of the ranks that share."""
    copies = case.world_size / _sharing(case)
    return 1 if copies == _sharing(case) else copies


def _who(case: Hunt) -> str:
    several = case.world_size == _sharing(case) ** 2
    return f"the ranks that share a row{', or of their copies' * several}"


_CAUSES: tuple[Cause, ...] = (
    (
        lambda case: 1 / _sharing(case),
        lambda case: f"divided twice by the number of {_who(case)}? AVG divides by it too",
    ),
    (_sharing, lambda case: f"not divided by the number of {_who(case)}?"),
    (lambda case: 1 / _copies(case), "divided twice by the number of copies of a row?"),
    (_copies, "not divided by the number of copies of a row?"),
    OF_SECOND_DIVISION,
    (lambda case: case.world_size, "a sum over all ranks, where their average is asked for"),
)

_HYBRID = hunt(
    key="06.9",
    title="find the bug: the same to three digits",
    answer=Diagnosis(
        rung="gradients",
        number=0.5,
        name="the ratio on 4 ranks, 2 of which share a row",
        way_out="the error says how many times one device's gradient it is",
    ),
    wrong=step_by_step(_CAUSES, within=True),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(Hunt(world_size=1, diagnosis=True),),
            alone=True,
            praise="AdamW divides a factor away, so its loss curve knows nothing of it",
        ),
        "steps": Level(
            points=3,
            again=True,
            cases=(Hunt(world_size=4, shards=2), Hunt(world_size=4, model="deep"), Hunt(world_size=4, shards=1)),
            praise="one device's gradients, however many ranks share a row, and only pieces go from copy to copy",
        ),
        "edges": Level(
            points=1,
            cases=(
                Hunt(world_size=3, rows=7),
                Hunt(world_size=4, shards=2, rows=9, micro_batches=2),
                Hunt(world_size=1),
            ),
            praise="also on 3 ranks, in micro-batches, and on one rank",
        ),
    },
    hints=(
        "climb(Unit) names the rung and a ratio. Then climb(Unit, shards=4) and climb(Unit, shards=1): what has the "
        "ratio to do with the number of ranks that share a row?",
        "comm.reduce_scatter(row, op=dist.ReduceOp.AVG, group=...) adds up in its group and divides by the number of "
        "ranks in it.",
        "All in all the sum over 4 ranks must be divided by 4. Follow a number through `average`, and write down at "
        "each line by how much it has been divided.",
        "With op=dist.ReduceOp.AVG the first line has divided by self.inside.size(). So what is left to divide by is "
        "self.across.size().",
    ),
)

_STALE = hunt(
    key="06.10",
    title="find the bug: one gather saved",
    answer=Diagnosis(
        rung="parameters",
        number=2,
        name="the number of updates that the last layer's weights miss in the third step",
        way_out="print what the last layer computes with in each step, or count its all-gathers",
    ),
    wrong=step_by_step(
        causes=((lambda case: case.world_size, "that is the sum over the ranks"), OF_SECOND_DIVISION),
        gathers=lambda units: 2 * units - 1,
    ),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(Hunt(world_size=1, diagnosis=True),),
            alone=True,
            praise="what is never freed is never gathered again: the last layer keeps its first weights for ever",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(Hunt(world_size=4), Hunt(world_size=2, model="deep")),
            praise="every step computes with the weights of that step",
        ),
        "calls": Level(
            points=1,
            cases=(Hunt(world_size=2, look=True), Hunt(world_size=3, model="deep", rows=7, look=True)),
            praise="and the gather is still saved: 2 U - 1 for U units",
        ),
        "edges": Level(
            points=1,
            cases=(
                Hunt(world_size=2, micro_batches=2, look=True),
                Hunt(world_size=3, rows=6, evaluates="first"),
                Hunt(world_size=2, evaluates="before updates"),
                Hunt(world_size=1, model="deep"),
            ),
            praise="also in micro-batches, around evaluations, and on one rank",
        ),
    },
    hints=(
        "climb(Saving, 4, rungs=RUNGS[:4], steps=1) passes, with steps=2 it fails. So the first update is right, and "
        "the second step computes with something that is not of this step.",
        "gathers_of(Saving) returns [3, 2, 2]: two for layer1 and one for layer2, then none for layer2 any more.",
        "When is a unit freed, and how does `gather` know that the row it finds is of this step?",
        "The last unit may stay whole from its forward to its backward, and not a moment longer. `free` is called at "
        "both places, and an evaluation has no backward.",
        "Let `free` be Unit's: Unit.free(self), for super() is Saving. In `after_forward` the last unit is not freed "
        "if a backward will come: output.requires_grad.",
    ),
)
