"""What the eye accepts of a loss curve, and whose order of data is accepted. No ranks here."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from course_lib.training.batches import Batches
from course_lib.training.sampler import DistributedSampler
from course_lib.verify import NotEqual
from course_lib.verify.data_order import assert_same_order, sampled
from course_lib.verify.museum import (
    ADAPTER_BUGS,
    BUGS,
    CONTEXT_BUGS,
    DECOYS,
    EXPERT_BUGS,
    PIPELINE_BUGS,
    SAVER_BUGS,
    SHARDED_BUGS,
    TENSOR_BUGS,
    WRONG_LINES,
    loss_curve_looks_right,
)
from course_lib.verify.museum.curve import ending, off

REFERENCE = [4.0, 3.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0]
BATCHES = Batches(text=bytes(range(256)), batch_size=6, sequence=7)


EXHIBITS = {
    **BUGS,
    **DECOYS,
    **PIPELINE_BUGS,
    **TENSOR_BUGS,
    **SHARDED_BUGS,
    **CONTEXT_BUGS,
    **EXPERT_BUGS,
    **ADAPTER_BUGS,
    **SAVER_BUGS,
}


@pytest.mark.parametrize("name", EXHIBITS)
def test_an_exhibit_names_where_it_was_found(name):
    kinds = r"(issues|pull)/\d+|blob/[0-9a-f]{40}/\S+\.py"
    assert re.fullmatch(rf"https://github\.com/[\w-]+/[\w.-]+/({kinds})", EXHIBITS[name].where.link)


def test_every_sharded_exhibit_says_which_line_of_a_step_is_wrong():
    assert list(WRONG_LINES) == list(SHARDED_BUGS) and {*WRONG_LINES.values()} <= {*"GHRNU"}


def test_the_last_quarter_counts():
    assert ending(REFERENCE) == 1.0 and ending([3.0, 2.0]) == 2.0
    assert off([4.0, 1.0, 2.0, 1.1], REFERENCE) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("losses", "accepted"),
    [
        (REFERENCE, True),
        ([*REFERENCE[:-2], 1.04, 1.04], True),
        ([4.0, 9.0, 9.0, 9.0, 9.0, 9.0, 0.96, 0.96], True),
        ([*REFERENCE[:-2], 1.06, 1.06], False),
        ([*REFERENCE[:-2], 0.94, 0.94], False),
        ([4.0, math.nan, *REFERENCE[2:]], False),
        ([1.0, *REFERENCE[1:]], False),
    ],
    ids=["the same", "near", "anything between", "too high", "too low", "not a number", "does not fall"],
)
def test_a_curve_looks_right_if_it_is_finite_falls_and_ends_near(losses, accepted):
    assert loss_curve_looks_right(losses, REFERENCE) is accepted


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_samplers_serve_what_one_device_trains_on(world_size):
    assert_same_order(BATCHES, sampled(BATCHES, world_size), 3 * BATCHES.steps_per_epoch)


def test_an_order_that_is_not_drawn_again_is_named():
    bug = BUGS["not_reshuffled"]
    k = BATCHES.steps_per_epoch
    message = rf"^assert_same_order: step {k}, epoch 1: the sequences of step 0 again, .*; call set_epoch before each"
    with pytest.raises(NotEqual, match=message):
        assert_same_order(BATCHES, bug.batch_of(BATCHES, 3), 2 * k)
    sampler = DistributedSampler(4, rank=0, world_size=1)
    sampler.set_epoch(3)
    assert sampler.epoch == 3  # the patch is gone


def test_another_seed_is_named_at_once():
    message = (
        "^assert_same_order: step 0, epoch 0: other sequences than one device, .*; give all samplers the same seed"
    )
    with pytest.raises(NotEqual, match=message) as caught:
        assert_same_order(BATCHES, sampled(replace(BATCHES, seed=1), 3), 1)
    assert (caught.value.rung, caught.value.kind) == ("data order", "other")


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(
        ValueError, match="^sampled: batch_size=6, world_size=4; samplers give equal shares; give a mult"
    ):
        sampled(BATCHES, 4)
