"""Every bug of the museum passes for training by its loss curve, and is caught: on its rung, with its ratio."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from ladder_models import Replicated
from museum_data import BATCHES, LETTERS, SEQUENCE
from torch import Tensor, nn

from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, NotEqual, assert_parallel_equals
from course_lib.verify.data_order import DATA_ORDER, assert_same_order
from course_lib.verify.museum import BUGS, curve_alone, curve_on_ranks, fall, loss_curve_looks_right

WORLD_SIZE = 4
STEPS = 48


class Reader(nn.Module):
    """Predicts the next letter from this one and a fixed random vector of its position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 16)
        self.register_buffer("positions", 0.1 * torch.randn(SEQUENCE, 16))
        self.inner = nn.Linear(16, 32)
        self.head = nn.Linear(32, LETTERS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(nn.functional.gelu(self.inner(self.embedding(tokens) + self.positions)))


def alone(config):
    return Trainer(Reader(), config)


def on_ranks(config, *bugs):
    return Replicated(Reader(), config, *bugs)


@cache
def reference_curve(ragged):
    bug = BUGS["mean_of_means" if ragged else "summed"]
    return curve_alone(alone, bug.batch_of(BATCHES, WORLD_SIZE), STEPS)


CAUGHT = {  # ratio and kind that the ladder finds on the bug's first rung, and the cause that it names first
    "summed": (4.0, "ratio", "summed"),
    "parameters_averaged": (None, "other", "not averaged"),
    "parameters_not_broadcast": (None, "other", "not broadcast"),
    "buffers_not_broadcast": (None, "other", "not broadcast"),
    "no_sync_for_good": (None, "other", "not averaged"),
    "not_divided_by_accumulation": (2.0, "ratio", "not divided by micro-batches"),
    "mean_of_means": (None, "other", "mean of means"),
    "averaged_twice": (0.25, "ratio", "averaged twice"),
    "bf16_reduction": (1.0, "rounded", "rounded"),
    "same_share": (None, "other", "one share"),
    "norm_over_ranks": (2.0, "ratio", "norm over ranks"),
    "views_lost": (None, "other", "not averaged"),
    "own_loss": (None, "other", "own loss"),
    "clipped_before_averaging": (None, "other", "clipped before averaging"),
    "optimizer_not_loaded": (None, "other", "optimizer not loaded"),
    "not_reshuffled": (None, "repeated", "set_epoch is forgotten"),
}


def test_every_bug_is_tested_and_every_rung_has_one():
    assert list(BUGS) == list(CAUGHT) and len(BUGS) >= 10
    assert {bug.first_rung for bug in BUGS.values()} == {*RUNGS, DATA_ORDER}
    assert all(re.fullmatch(r"https://github\.com/\S+", bug.where.link) for bug in BUGS.values())


@pytest.mark.parametrize("name", BUGS)
def test_its_loss_curve_looks_right(name):
    bug = BUGS[name]
    batch_of = bug.batch_of(BATCHES, WORLD_SIZE)
    curve = curve_on_ranks(bug.planted(on_ranks), batch_of, world_size=WORLD_SIZE, steps=STEPS)
    assert loss_curve_looks_right(curve.losses, reference_curve(bug.ragged).losses)
    assert len(curve.norms) == STEPS


@pytest.mark.parametrize("name", BUGS)
def test_it_is_caught(name):
    bug = BUGS[name]
    ratio, kind, cause = CAUGHT[name]
    with pytest.raises(NotEqual) as caught:
        find(bug, bug.planted(on_ranks))
    error = caught.value
    assert (error.rung, error.kind, error.causes[0]) == (bug.first_rung, kind, cause)
    if ratio is not None:
        assert error.ratio == pytest.approx(ratio, abs=1e-3)
    if said := re.search(r"(\S+) on rank \d+: .*, deviation ([^ ;]+);", str(error)):  # one tensor, and its own number
        assert said[1] in (error.name, error.rung.split()[-1])
        assert float(said[2]) == pytest.approx(error.deviation, rel=0.05)


def test_a_fall_brings_the_rung_its_deviation_and_both_curves():
    found = fall(BUGS["summed"], alone, on_ranks, BATCHES, world_size=2, steps=8)
    assert (found.rung, found.rungs) == (BUGS["summed"].first_rung, RUNGS)
    assert found.deviation == pytest.approx(1.0)  # twice one device's gradients
    assert len(found.losses) == len(found.reference) == 8 and 0 < found.off < 0.2


def test_a_fall_without_a_ladder_is_refused():
    with pytest.raises(ValueError, match=r"fall: bug 'not_reshuffled'; the ladder gives the same batches"):
        fall(BUGS["not_reshuffled"], alone, on_ranks, BATCHES)


def find(bug, parallel):
    batch_of = bug.batch_of(BATCHES, WORLD_SIZE)
    if bug.first_rung == DATA_ORDER:
        assert_same_order(BATCHES, batch_of, 2 * BATCHES.steps_per_epoch)
    else:
        assert_parallel_equals(alone, parallel, batch_of, world_size=WORLD_SIZE)


@pytest.mark.parametrize("name", ["mean_of_means", "no_sync_for_good"])
def test_without_the_bug_the_same_training_climbs(name):
    """One for each kind of batch and of accumulation; and the patches are gone after the runs above."""
    find(BUGS[name], BUGS[name].sound(on_ranks))
