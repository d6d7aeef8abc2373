"""05.9 and 05.10: tensor-parallel trainers with a planted bug; the learner says what the ladder finds and mends it."""

from __future__ import annotations

from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_05.hunts import Hunt, hunt, step_by_step

_ONE_BEHIND_THE_OTHER = hunt(
    key="05.9",
    title="find the bug: one behind the other",
    answer=Diagnosis(
        rung="parameters",
        once="once the first bug is mended, ",
        number=3.0,
        name="the number of times on 4 ranks",
        way_out="subtract one device's output from the suspect's, and compare every row with the biases",
    ),
    wrong=step_by_step(
        (
            (lambda case: 1 / case.world_size, "divided by the number of ranks, in forward or as an average?"),
            (lambda case: case.world_size, "does it count once from every rank, before a sum or in a second one?"),
        )
    ),
    levels={
        "diagnosis": Level(
            points=2,
            cases=(Hunt(world_size=1, model="normed", diagnosis=True),),
            alone=True,
            praise="with biases of zero even a wrong multiple of them is right, until the first update",
        ),
        "steps": Level(
            points=2,
            cases=(
                Hunt(world_size=4, model="zero biases", steps=3),
                Hunt(world_size=2, model="normed"),
            ),
            praise="the gradients and the loss of one device in every step, and x's gradient too",
        ),
        "edges": Level(
            points=1,
            again=True,
            cases=(
                Hunt(world_size=3, model="normed", rows=5),
                Hunt(world_size=4, model="normed", rows=1),
                Hunt(world_size=1, model="normed"),
            ),
            praise="right on 3 ranks, whose parts differ, for one row, and on one rank",
        ),
    },
    hints=(
        "The ladder names norm.weight. Every rank has this norm whole and normalises the same rows, and still the "
        "ranks get different gradients. Go backward from layer1 to the norm: of whose hidden features does a rank's "
        "norm hear?",
        "copy_to_region does nothing in forward, and in backward it adds up the gradients of all ranks. The norm needs "
        "that sum. So on which side of the norm does copy_to_region belong?",
        "climb(Repaired) goes further now. Climb with rungs=RUNGS[:4], steps=1, then steps=2: the weights are right "
        "after the first step and wrong after the second. What was zero then, and is not now?",
        "wrong, right = outputs(Repaired) gives your output and one device's, both with biases. Look at the rows of "
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
    wrong=step_by_step(
        (
            (lambda case: 1 / case.world_size, "an average, where the ranks' terms add up"),
            (lambda case: case.world_size, "is it added up twice?"),
        ),
        own_sums=True,
    ),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(Hunt(world_size=1, model="llama", diagnosis=True),),
            alone=True,
            praise="what every rank has whole has seen this rank's positions alone",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(Hunt(world_size=2, model="llama", rows=2), Hunt(world_size=3, model="llama", rows=1, sequence=7)),
            praise="the gradients and the loss of one device, and copies that stay one model",
        ),
        "edges": Level(
            points=1,
            cases=(
                Hunt(world_size=2, model="one kv head", rows=2),
                Hunt(world_size=3, model="one kv head", rows=1, sequence=5),
                Hunt(world_size=1, model="llama", rows=2),
            ),
            praise="also where a kv head is copied: whatever is whole on every rank has terms of a sum there",
        ),
        "calls": Level(
            points=1,
            cases=(Hunt(world_size=2, model="llama", rows=1, look=True),),
            praise="one all-reduce of one vector, however many norms there are",
        ),
    },
    hints=(
        "climb_llama(Spread) names the first gradient that is wrong. What is special about its parameter: is it cut?",
        "gradients_of(Trainer, 1) and gradients_of(Spread, 2) return the gradients by name. Count the names whose "
        "gradients differ.",
        "A norm's weight is whole on every rank, and each rank has normalised its own positions with it.",
        "self.local.parameters holds this rank's parts by name and self.shapes() the whole shapes. The Llamas of the "
        "check have one kv head or six, on 2 or 3 ranks. There a parameter is cut among all ranks, or its shape is the "
        "whole one and every rank has it: comm.all_reduce_(p.grad) adds its terms up.",
        "One all-reduce for all: torch.cat puts the flattened gradients into one vector, and split with a list of "
        "their numel() takes the sum apart again.",
    ),
)
