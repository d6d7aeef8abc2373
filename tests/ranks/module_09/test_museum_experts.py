"""Every bug of expert parallelism passes for training by its loss curve, and is caught on its rung."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from museum_data import BATCHES, LETTERS, MAX_NORM, tight

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.moe import MoEDecoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.balance import balanced
from course_lib.training.expert_technique import experts
from course_lib.training.recompute_technique import recompute
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import DECOYS, EXPERT_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

WORLD_SIZE = 2
STEPS = 40
MODEL = ModelConfig(
    name="writer with experts",
    hidden_size=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    ffn_size=16,
    vocab_size=LETTERS,
    tied=True,
    n_experts=4,
    experts_per_token=2,
)


def alone(config):
    return Trainer(MoEDecoder(MODEL), tight(config))


def on_ranks(config, *bugs):
    return Trainer(MoEDecoder(MODEL), tight(config), mesh=make_mesh(ep=WORLD_SIZE), apply=(experts(), *bugs))


@cache
def reference_curve():
    return curve_alone(alone, BATCHES.batch, STEPS)


CAUGHT = {  # whose gradients the ladder names, and its way out
    "experts_times_ep": "layers.0.ffn.experts.gate_proj, .* alone: divide the sum over the ranks",
    "router_not_summed": "layers.0.ffn.router.weight",
    "dense_not_summed": "only of embedding.weight, .* it is left out of averaging",
}


def test_every_bug_is_tested():
    assert list(EXPERT_BUGS) == list(CAUGHT)


@pytest.fixture(params=EXPERT_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def test_its_loss_curve_looks_right(bug):
    curve = curve_on_ranks(bug.planted(on_ranks), BATCHES.batch, world_size=WORLD_SIZE, steps=STEPS)
    assert loss_curve_looks_right(curve.losses, reference_curve().losses)
    assert min(reference_curve().norms) > MAX_NORM


def test_it_is_caught(bug):
    with pytest.raises(NotEqual, match=CAUGHT[bug.name]) as caught:
        assert_parallel_equals(alone, bug.planted(on_ranks), BATCHES.batch, world_size=WORLD_SIZE)
    assert caught.value.rung == bug.first_rung


def test_without_a_bug_the_same_training_climbs():
    assert_parallel_equals(alone, on_ranks, BATCHES.batch, world_size=WORLD_SIZE)


def recomputed(config, *decoys, again=True):
    """On ranks that share the experts and balance their load; the layers are computed `again` in backward, or not."""
    apply = (experts(), *([recompute()] if again else []), balanced(0.1), *decoys)
    return Trainer(MoEDecoder(MODEL), tight(config), mesh=make_mesh(ep=WORLD_SIZE), apply=apply)


def with_the_decoy(config):
    return recomputed(config, DECOYS["balance_shown"].technique)


def balanced_alone(config):
    return Trainer(MoEDecoder(MODEL), tight(config), apply=(balanced(0.1),))


def shown_in_a_step(again):
    torch.manual_seed(0)
    trainer = recomputed(TrainConfig(), DECOYS["balance_shown"].technique, again=again)
    trainer.step(BATCHES.batch(0))
    return trainer.model.shown


def test_a_number_that_is_shown_twice_as_large_is_trained_once():
    once, twice = (run_ranks(shown_in_a_step, WORLD_SIZE, again) for again in (False, True))
    assert all(one > 0 for one in once) and twice == pytest.approx([2 * one for one in once])
    assert_parallel_equals(balanced_alone, with_the_decoy, BATCHES.batch, world_size=WORLD_SIZE)
