"""03.8 and 03.9: trainers with a planted bug: the learner names what the ladder finds, and mends it."""

from __future__ import annotations

from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_03.mean_of_means import MeanOfMeans, MeansHunt, hunt, not_ones_own

_LOOKS_RIGHT = hunt(
    key="03.8",
    title="find the bug: a loss curve that looks right",
    answer=Diagnosis(
        rung="gradients",
        number=4.0,
        name="the ratio on 4 ranks",
        way_out="the error says how many times one device's gradient it is",
    ),
    slips={
        "these are the gradients of the mean of the ranks' means: a target weighs more where there are fewer of them": (
            MeanOfMeans
        )
    },
    levels={
        "diagnosis": Level(
            points=1,
            cases=(MeansHunt(world_size=1, diagnosis=True),),
            alone=True,
            praise="the ladder's second rung says it in one number, which AdamW divides away",
        ),
        "gradients": Level(
            points=2,
            cases=(MeansHunt(world_size=4, rows=(8, 8)), MeansHunt(world_size=2, rows=(8, 8), model="tied")),
            praise="the gradient and the loss of one device, step for step",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(
                MeansHunt(world_size=2, rows=(7, 8)),
                MeansHunt(world_size=3, rows=(8, 7), ragged=True),
                MeansHunt(world_size=4, rows=(9,), ragged=True, model="frozen"),
                MeansHunt(world_size=1, rows=(5,), ragged=True),
            ),
            praise="also where shares have different numbers of rows and targets: there was a second bug",
        ),
    },
    hints=(
        "climb(Suspect) stops at the first rung that fails. Its error names the rung, the ratio and a likely cause.",
        "comm.all_reduce_(x) is a sum, unless you say op=dist.ReduceOp.AVG. So what does Suspect make of the four "
        "ranks' means?",
        "climb(Repaired) may reach the top now. Then try climb(Repaired, rows=7), where the 4 ranks have 2, 2, 2 "
        "and 1 rows. The last row counts too much, and you know from 03.3 why.",
        "The trainer gets the whole batch on every rank, so count_targets(batch) is the number of all targets, and "
        "nothing has to travel for it. Divide summed_loss(self.model, part) by it and go backward. Then the "
        "gradients of the ranks only have to be added up, and the losses too.",
    ),
)

_FIRST_STEP = hunt(
    key="03.9",
    title="find the bug: three micro-batches",
    answer=Diagnosis(
        rung="parameters",
        number=2,
        name="the step",
        way_out="climb with rungs=RUNGS[:4], steps=1, then steps=2, and so on; the first step is number 1",
    ),
    wrong=not_ones_own,
    levels={
        "diagnosis": Level(
            points=1,
            cases=(MeansHunt(world_size=1, diagnosis=True),),
            alone=True,
            praise="gradients are looked at in the first step; a bug of a later one shows in the weights",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(
                MeansHunt(world_size=2, rows=(8, 4, 8, 8), accumulation=3),
                MeansHunt(world_size=4, rows=(16, 8, 16), accumulation=4, model="tied"),
            ),
            praise="every step's gradient is one device's, after a short batch too",
        ),
        "calls": Level(
            points=1,
            cases=(
                MeansHunt(world_size=2, rows=(8, 4, 8), accumulation=3, look=True),
                MeansHunt(world_size=3, rows=(9, 9), accumulation=3, model="deep", look=True),
            ),
            praise="and each step averages once",
        ),
        "edges": Level(
            points=1,
            cases=(
                MeansHunt(world_size=3, rows=(8, 4, 7), accumulation=3, ragged=True, look=True),
                MeansHunt(world_size=2, rows=(6, 2, 6), accumulation=1, model="frozen", look=True),
                MeansHunt(world_size=1, rows=(5, 2), accumulation=3),
            ),
            praise="right if the ranks have different numbers of micro-batches, and without accumulation",
        ),
    },
    hints=(
        "climb(Counting, world_size=2, batches=short_second, accumulation=3) names the rung. With rungs=RUNGS[:4] "
        "and steps=1 it passes, so the first step is right. What does it say with steps=2?",
        "The second batch is short: 4 rows on 2 ranks are 2 rows each, and those make 2 micro-batches, not 3. Write "
        "down what self.seen is in every micro-batch of the first three steps. In which of them is it a multiple of "
        "3?",
        "A step has to average in *its own* last micro-batch, so nothing that is counted from step to step may "
        "decide that. Count within the step: for number, part in enumerate(parts, start=1), and average where "
        "number == len(parts).",
    ),
)
