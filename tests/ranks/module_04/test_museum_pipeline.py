"""Every bug of pipeline parallelism passes for training by its loss curve, and is caught on its rung."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from museum_data import BATCHES, LETTERS, MAX_NORM, tight
from pipeline_models import staged

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.schedules import make_schedule
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import PIPELINE_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

WORLD_SIZE = 2
MICROBATCHES = 4
STEPS = 40
MODEL = ModelConfig(
    name="reader",
    hidden_size=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    ffn_size=32,
    vocab_size=LETTERS,
    tied=True,
)


def alone(config):
    return Trainer(Decoder(MODEL), tight(config))


def on_ranks(config, *bugs):
    return staged(Decoder(MODEL), tight(config), make_schedule("zb-h1", WORLD_SIZE, MICROBATCHES), *bugs)


@cache
def reference_curve(ragged):
    return curve_alone(alone, replace(BATCHES, ragged=ragged).batch, STEPS)


CAUGHT = {  # ratio and kind that the ladder finds on the bug's first rung, the cause it names first, and its way out
    "not_divided_by_microbatches": (
        4.0,
        "ratio",
        "not divided by micro-batches",
        "divide each micro-batch's loss by their number$",
    ),
    "mean_of_means": (None, "other", "mean of micro-batch means", "weigh it by its number of targets$"),
    "tied_not_summed": (None, "other", "terms", "is the gradient of every use in it"),
    "tied_not_equal": (
        None,
        "other",
        "not broadcast",
        "embedding.weight on rank 1 was not rank 0's before the first step",
    ),
    "clipped_by_stage": (0.992749, "ratio", "norms apart", "count each of them once"),
    "tied_counted_twice": (1.401359, "ratio", "tied twice", "count each of them once, whatever is replicated, tied"),
    "last_weights_left_out": (None, "other", "micro-batches missing", "only micro-batch 0, 1, 2 of 4 counts: add"),
    "first_optimizer_saved": (1.0, "other", "some states lost", "the optimizer's state of what is placed pp: rank 1"),
}


def test_every_bug_is_tested():
    assert list(PIPELINE_BUGS) == list(CAUGHT)
    assert all(re.fullmatch(r"https://github\.com/\S+", bug.where.link) for bug in PIPELINE_BUGS.values())


@pytest.mark.parametrize("name", PIPELINE_BUGS)
def test_its_loss_curve_looks_right(name):
    bug = PIPELINE_BUGS[name]
    batch_of = bug.batch_of(BATCHES, WORLD_SIZE)
    curve = curve_on_ranks(bug.planted(on_ranks), batch_of, world_size=WORLD_SIZE, steps=STEPS)
    reference = reference_curve(bug.ragged)
    assert loss_curve_looks_right(curve.losses, reference.losses)
    assert len(curve.norms) == STEPS and min(reference.norms) > MAX_NORM


@pytest.mark.parametrize("name", PIPELINE_BUGS)
def test_it_is_caught(name):
    bug = PIPELINE_BUGS[name]
    ratio, kind, cause, way_out = CAUGHT[name]
    with pytest.raises(NotEqual, match=way_out) as caught:
        find(bug, bug.planted(on_ranks))
    error = caught.value
    assert (error.rung, error.kind, error.causes[0]) == (bug.first_rung, kind, cause)
    if ratio is not None:
        assert error.ratio == pytest.approx(ratio, abs=1e-3)


def find(bug, parallel):
    assert_parallel_equals(alone, parallel, bug.batch_of(BATCHES, WORLD_SIZE), world_size=WORLD_SIZE)


@pytest.mark.parametrize("name", ["mean_of_means", "tied_not_summed"])
def test_without_the_bug_the_same_training_climbs(name):
    """One for each kind of batch; and the patches are gone after the runs above."""
    find(PIPELINE_BUGS[name], PIPELINE_BUGS[name].sound(on_ranks))
