"""Every bug of adapters passes for training by its loss curve, and is caught on its rung."""

from __future__ import annotations

from functools import cache

import pytest
from museum_data import BATCHES, LETTERS, MAX_NORM, tight

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.savers.lora import add_lora
from course_lib.savers.targets import ALL
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import ADAPTER_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

WORLD_SIZE = 2
STEPS = 40
MODEL = ModelConfig(
    name="writer", hidden_size=16, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=32, vocab_size=LETTERS, tied=False
)


def adapted():
    """Beside weights that are large enough to be worth something: nobody has trained them."""
    model = Decoder(MODEL)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(5.0)
    return add_lora(model, 4, 16.0, targets=(*ALL, "head"))


def alone(config):
    return Trainer(adapted(), tight(config))


def on_rows(config, *bugs):
    return Trainer(adapted(), tight(config), mesh=make_mesh(dp=WORLD_SIZE), apply=(replicate(), *bugs))


def on_positions(config, *bugs):
    technique = tensor(sequence_parallel="keep")
    return Trainer(adapted(), tight(config), mesh=make_mesh(tp=WORLD_SIZE), apply=(technique, *bugs))


@cache
def reference_curve():
    return curve_alone(alone, BATCHES.batch, STEPS)


CAUGHT = {  # who trains, the cause that the ladder names first, and its way out
    "own_adapters": (on_rows, "left out", "only of layers.0.attention.q_proj.B, .* it is left out of averaging"),
    "adapter_not_summed": (
        on_positions,
        "terms of one batch",
        "layers.0.attention.o_proj.B, .* add the terms up over the ranks",
    ),
}


def test_every_bug_is_tested():
    assert list(ADAPTER_BUGS) == list(CAUGHT)


@pytest.fixture(params=ADAPTER_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def test_its_loss_curve_looks_right(bug):
    sound, *_ = CAUGHT[bug.name]
    curve = curve_on_ranks(bug.planted(sound), BATCHES.batch, world_size=WORLD_SIZE, steps=STEPS)
    assert loss_curve_looks_right(curve.losses, reference_curve().losses)
    assert min(reference_curve().norms) > MAX_NORM


def test_it_is_caught(bug):
    sound, cause, way_out = CAUGHT[bug.name]
    with pytest.raises(NotEqual, match=way_out) as caught:
        assert_parallel_equals(alone, bug.planted(sound), BATCHES.batch, world_size=WORLD_SIZE)
    assert caught.value.rung == bug.first_rung and caught.value.causes[0] == cause


@pytest.mark.parametrize("make", [on_rows, on_positions])
def test_without_a_bug_the_same_training_climbs(make):
    assert_parallel_equals(alone, make, BATCHES.batch, world_size=WORLD_SIZE)
