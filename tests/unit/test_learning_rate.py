"""The learning rate of each step: PyTorch's schedulers give the same, and a run that goes on needs no memory of it."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

from course_lib.training.learning_rate import LearningRate


@pytest.mark.parametrize(("schedule", "warmup"), [("constant", 4), ("cosine", 4), ("cosine", 1)])
def test_it_is_pytorch_s(schedule, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    after = CosineAnnealingLR(optimizer, T_max=12 - warmup) if schedule == "cosine" else ConstantLR(optimizer, 1.0)
    before = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    theirs = SequentialLR(optimizer, [before, after], milestones=[warmup])
    ours = LearningRate(peak=0.3, steps=12, warmup_steps=warmup, schedule=schedule)
    for number in range(1, 13):
        assert ours.of(number) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12), number
        optimizer.step()
        theirs.step()


def test_it_rises_to_the_peak_and_falls_to_almost_nothing():
    rate = LearningRate(peak=0.4, steps=103, warmup_steps=3, schedule="cosine")
    assert [rate.of(n) for n in (1, 2, 3, 4, 54)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.2])
    assert 0 < rate.of(103) < 0.4 / 1000
    assert {LearningRate(peak=0.4, steps=9).of(n) for n in range(1, 10)} == {0.4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": "linear"}, "schedule='linear'; not a known schedule; choose from constant, cosine"),
        ({"warmup_steps": 9}, "warmup_steps=9, steps=9; a step is left after the warm-up; give 0 <= warmup_steps < 9"),
        ({"warmup_steps": -1}, "warmup_steps=-1, steps=9; a step is left after the warm-up; give 0 <= warmup_steps < "),
    ],
)
def test_what_it_cannot_do_is_one_line(values, message):
    with pytest.raises(ValueError) as error:
        LearningRate(peak=0.1, steps=9, **values)
    assert str(error.value).startswith(f"LearningRate: {message}")
