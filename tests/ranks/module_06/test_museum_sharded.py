"""Every bug of sharded data parallelism passes for training by its loss curve, and is caught on its rung."""

from __future__ import annotations

from functools import cache

import pytest
import torch.distributed as dist
from museum_data import BATCHES, LETTERS, MAX_NORM, tight

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.sharding import fully_shard
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import SHARDED_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

WORLD_SIZE = 2
STEPS = 40
MODEL = ModelConfig(
    name="reader", hidden_size=16, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=32, vocab_size=LETTERS, tied=False
)


def alone(config):
    return Trainer(Decoder(MODEL), tight(config))


def on_ranks(config, *bugs):
    mesh = make_mesh(dp=dist.get_world_size())
    return Trainer(Decoder(MODEL), tight(config), mesh=mesh, apply=(fully_shard(), *bugs))


@cache
def reference_curve():
    return curve_alone(alone, BATCHES.batch, STEPS)


CAUGHT = {  # ratio and kind that the ladder finds on the bug's first rung, the cause it names first, and its way out
    "divided_twice": (0.5, "ratio", "averaged twice", "divided by the number of ranks once more$"),
    "norm_of_own_pieces": (0.7534, "ratio", "norms apart", "add the squares over the ranks that hold different parts"),
    "old_copy_in_backward": (None, "other", "some wrong", "the first step is right, but not the second's gradients"),
    "last_micro_batch_alone": (None, "other", "micro-batches missing", "only micro-batch 1 of 2 counts"),
}


def test_every_bug_is_tested():
    assert list(SHARDED_BUGS) == list(CAUGHT)


@pytest.fixture(params=SHARDED_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def test_its_loss_curve_looks_right(bug):
    curve = curve_on_ranks(bug.planted(on_ranks), BATCHES.batch, world_size=WORLD_SIZE, steps=STEPS)
    assert loss_curve_looks_right(curve.losses, reference_curve().losses)
    assert min(reference_curve().norms) > MAX_NORM


def test_it_is_caught(bug):
    ratio, kind, cause, way_out = CAUGHT[bug.name]
    with pytest.raises(NotEqual, match=way_out) as caught:
        assert_parallel_equals(bug.sound(alone), bug.planted(on_ranks), BATCHES.batch, world_size=WORLD_SIZE)
    error = caught.value
    assert (error.rung, error.kind, error.causes[0]) == (bug.first_rung, kind, cause)
    if ratio is not None:
        assert error.ratio == pytest.approx(ratio, abs=1e-3)


def test_without_a_bug_the_same_training_climbs():
    assert_parallel_equals(alone, on_ranks, BATCHES.batch, world_size=WORLD_SIZE)
