"""07.6 and 07.7: trainers on two axes with a planted bug; the learner says what the ladder finds and mends it."""

from __future__ import annotations

from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_07.hunts import MeshHunt, clipping, reading

_CLIPPED = clipping(
    key="07.6",
    title="find the bug: nearly the same curve",
    answer=Diagnosis(
        rung="gradient norm",
        number=20,
        name="the number of gradients that rank 0's sum holds",
        way_out="count what ranks 0 and 2 have together: counts(Suspect) prints it for every rank",
    ),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(MeshHunt(diagnosis=True),),
            alone=True,
            praise="20 of 38: each rank clips by the norm of a part of the model, and not by the same one",
        ),
        "steps": Level(
            points=3,
            again=True,
            cases=(MeshHunt(dp=2, tp=2), MeshHunt(dp=1, tp=2), MeshHunt(dp=2, tp=1)),
            praise="one device's norm on every rank: each number of the model counts once",
        ),
        "edges": Level(
            points=1,
            cases=(MeshHunt(dp=1, tp=3, rows=5), MeshHunt(dp=3, tp=1, rows=7), MeshHunt()),
            praise="also on three ranks, whose parts differ, and on one",
        ),
    },
    hints=(
        "climb(Suspect) names the rung. counts(Suspect) says how many gradients each rank has: 10 of 38.",
        "The sum goes along one axis. Which ranks does rank 0 hear of, and which has it never heard of?",
        "Add up along the other axis as well, and climb again: now the norm is too large. counts(Repaired) says by how "
        "many numbers: by two. Which parameter has two?",
        "self.whole_along_tp has the names of what every rank along tp has whole. Let only the first one along tp, "
        "self.local.rank('tp') == 0, count these.",
        "A rank that has nothing to count adds torch.zeros(1): all ranks of a group have to make the same calls.",
    ),
)

_OTHER_ROWS = reading(
    key="07.7",
    title="find the bug: the same rows, another loss",
    answer=Diagnosis(
        rung="gradients",
        number=12,
        name="the number of different rows that ranks 0 and 1 read",
        way_out="print rows_of(Dealt), and put ranks 0 and 1 together",
    ),
    levels={
        "diagnosis": Level(
            points=1,
            cases=(MeshHunt(diagnosis=True),),
            alone=True,
            praise="two ranks with halves of one matrix read all twelve rows, where both should read the same six",
        ),
        "rows": Level(
            points=2,
            again=True,
            cases=(MeshHunt(dp=2, tp=2), MeshHunt(dp=1, tp=2), MeshHunt(dp=2, tp=1)),
            praise="the ranks along tp read the same rows, those along dp share them, and the gradients are right",
        ),
        "edges": Level(
            points=1,
            cases=(
                MeshHunt(dp=2, tp=2, rows=7),
                MeshHunt(dp=3, tp=1, rows=5),
                MeshHunt(dp=1, tp=3, rows=5),
                MeshHunt(),
            ),
            praise="also where the rows do not divide, and on three ranks",
        ),
    },
    hints=(
        "climb(Dealt) names the rung. rows_of(Dealt) says which rows each rank reads.",
        "On two by two ranks 0 and 1 are in one row of the mesh: they have halves of the same matrices. Which rows "
        "of a batch does each of them read?",
        "rank % dp would be right if neighbouring ranks were neighbours along dp. They are neighbours along tp.",
        "self.local.rank('dp') is this rank's coordinate along dp; it is rank // tp.",
    ),
)
