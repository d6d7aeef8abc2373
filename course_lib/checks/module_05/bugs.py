"""05.9 and 05.10: tensor-parallel trainers with a planted bug; the learner says what the ladder finds and mends it."""

from __future__ import annotations

from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_05.hunts import Hunt, hunt

_CURVES_MEET = hunt(
    key="05.9",
    title="find the bug: a first step that is right",
    answer=Diagnosis(
        rung="parameters",
        number=3.0,
        name="the number of times on 4 ranks",
        way_out="subtract one device's output from the suspect's, and compare every row with the biases",
    ),
    causes=(
        (lambda case: 1 / case.world_size, "does it enter the output divided by the number of ranks?"),
        (lambda case: case.world_size, "does it enter the output once from every rank?"),
    ),
    levels={
        "diagnosis": Level(
            points=2,
            cases=(Hunt(world_size=1, model="mlp", diagnosis=True),),
            praise="with biases of zero even a wrong multiple of them is right, until the first update",
        ),
        "steps": Level(
            points=2,
            cases=(
                Hunt(world_size=4, model="zero biases", steps=3),
                Hunt(world_size=2, model="mlp"),
            ),
            praise="the gradients and the loss of one device, in every step",
        ),
        "edges": Level(
            points=1,
            again=True,
            cases=(
                Hunt(world_size=3, model="mlp", rows=5),
                Hunt(world_size=4, model="mlp", rows=1),
                Hunt(world_size=1, model="mlp"),
            ),
            praise="right on 3 ranks, whose parts differ, for one row, and on one rank",
        ),
    },
    hints=(
        "climb(Suspect) trains three steps. Climb with rungs=RUNGS[:4], steps=1, then steps=2: the weights are right "
        "after the first step and wrong after the second. What has changed in between that was harmless before?",
        "In the first step every bias is zero. climb(Suspect, biased=True) starts from others, and the output fails at "
        "once.",
        "wrong, right = outputs() gives the suspect's output and one device's, both with biases. Look at the rows of "
        "wrong - right: they are all the same. Which parameter has that length?",
        "layer2's terms are added up over the ranks. What is added to them before is added by every rank.",
    ),
)

_LEFT_IN_PARTS = hunt(
    key="05.10",
    title="find the bug: a model that comes apart slowly",
    answer=Diagnosis(
        rung="gradients",
        number=5,
        name="the number of parameters",
        way_out="compare the gradients of both trainers by name, and count those that differ",
    ),
    causes=(
        (lambda case: 1 / case.world_size, "an average, where the ranks' terms add up"),
        (lambda case: case.world_size, "is it added up twice?"),
    ),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(Hunt(world_size=1, model="llama", diagnosis=True),),
            praise="what every rank has whole has seen this rank's positions alone",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(Hunt(world_size=2, model="llama", rows=2), Hunt(world_size=3, model="llama", rows=1, sequence=7)),
            praise="the gradients and the loss of one device, and copies that stay one model",
        ),
        "edges": Level(
            points=2,
            cases=(
                Hunt(world_size=2, model="one kv head", rows=2),
                Hunt(world_size=3, model="one kv head", rows=1, sequence=5),
                Hunt(world_size=1, model="llama", rows=2),
            ),
            praise="also where a kv head is copied: whatever is whole on every rank has terms of a sum there",
        ),
    },
    hints=(
        "climb(Spread) names the first gradient that is wrong. What is special about its parameter: is it cut?",
        "gradients_of(Trainer, 1) and gradients_of(Spread, 2) return the gradients by name. Count the names whose "
        "gradients differ.",
        "A norm's weight is whole on every rank, and each rank has normalised its own positions with it.",
        "self.local.parameters holds this rank's parts by name and self.shapes() the whole shapes. The Llamas of the "
        "check have one kv head or six, on 2 or 3 ranks. There a parameter is cut among all ranks, or its shape is the "
        "whole one and every rank has it: comm.all_reduce_(p.grad) adds its terms up.",
    ),
    own_sums=True,
)
