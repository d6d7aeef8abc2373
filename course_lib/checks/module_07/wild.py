"""07.9: a trainer as it was released; the learner says what the ladder finds and mends it."""

from __future__ import annotations

import torch

from course_lib import comm
from course_lib.checks.kit.diagnosis import Diagnosis
from course_lib.checks.kit.hunt import hunt_exercise
from course_lib.checks.kit.said import import_optimizers
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_07.released import Counts, Hunt, Slip, batches, left_behind, train, wrong
from course_lib.training.batches import Batch
from course_lib.training.step import count_targets


class _MeanOfMeans(Slip):
    def weight(self, counts: Counts, part: Batch) -> float:
        return 1 / max(counts.mine, 1)


class _OnlyTheLoss(_MeanOfMeans):
    right_loss = True


class _ByRows(Slip):
    def weight(self, counts: Counts, part: Batch) -> float:
        return counts.my_rows * counts.ranks / counts.all_rows / max(counts.mine, 1)


class _AllRows(Slip):
    def weight(self, counts: Counts, part: Batch) -> float:
        return counts.ranks / counts.all_rows


class _OnceMore(Slip):
    def weight(self, counts: Counts, part: Batch) -> float:
        return 1 / counts.all


class _Summed(Slip):
    def weight(self, counts: Counts, part: Batch) -> float:
        return counts.ranks


class _PartByPart(Slip):
    def weight(self, counts: Counts, part: Batch) -> float:
        return counts.ranks / max(comm.all_reduce(torch.tensor([count_targets(part)])).item(), 1)


_RELEASED = hunt_exercise(
    key="07.9",
    title="find the bug: somebody else's trainer",
    answer=Diagnosis(
        rung="gradients",
        number=3,
        name="how many times as much a target of rank 1 counts",
        way_out="before DDP averages, one target of a rank counts 1 over that rank's targets; write both down",
    ),
    probe=train,
    wrong=wrong,
    left=left_behind,
    batches=batches,
    warm_up=import_optimizers,
    slips={
        "each rank still divides by its own targets, so a target counts for more where there are fewer of them": (
            _MeanOfMeans
        ),
        "the loss is right now, but the gradients are what they were: backward() still ran on each rank's own mean": (
            _OnlyTheLoss
        ),
        "each rank's mean was weighed by its rows, and rows whose target is masked are among them: count targets": (
            _ByRows
        ),
        "the sum was divided by all rows, and those whose target is masked are among them: count targets": _AllRows,
        "each rank divides by all ranks' targets, and then DDP divides by the number of ranks as well": _OnceMore,
        "nothing divides by the number of targets, so a batch with more of them would take a longer step": _Summed,
        "each part was divided by the targets of this part alone, on all ranks: count those of all parts first": (
            _PartByPart
        ),
    },
    levels={
        "diagnosis": Level(
            points=1,
            cases=(Hunt(targets=(1,), diagnosis=True),),
            alone=True,
            praise="a target of rank 1 counts three times as much as one of rank 0, under a curve that falls",
        ),
        "steps": Level(
            points=2,
            again=True,
            cases=(Hunt(targets=(4, 1), rows=7), Hunt(targets=(1, 2, 3), rows=9)),
            praise="the gradients and the loss of one device, whichever rank has the short answers",
        ),
        "edges": Level(
            points=1,
            cases=(
                Hunt(targets=(0, 3)),
                Hunt(targets=(2, 0, 0), rows=6, model="tied"),
                Hunt(targets=(4, 4), model="deep"),
                Hunt(targets=(3,)),
            ),
            praise="also where ranks have no target at all, or all have as many, and on one rank",
        ),
    },
    hints=(
        "climb(Released, Loop, answers, 2) names the rung. It also says what counts the same on both ranks, and should "
        "not.",
        "Each rank's gradient is that of its own mean: one of its targets counts 1 over the number of *its* targets. "
        "Rank 0 has six, rank 1 has two. DDP halves both, which changes nothing about their ratio.",
        "Which number should a rank divide by, and does it know it? It sees its own rows alone, so the ranks have to "
        "add up their counts: comm.all_reduce(torch.tensor([mine])).",
        "Now every rank divides by all targets, and DDP's average divides by the number of ranks besides. Multiply "
        "by dist.get_world_size() before backward(), as in 03.3. Then mend the loss that is returned, too.",
    ),
)
