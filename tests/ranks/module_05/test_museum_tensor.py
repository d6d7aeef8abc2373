"""Every bug of tensor parallelism passes for training by its loss curve, and is caught on its rung."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from museum_data import BATCHES, LETTERS, MAX_NORM, SEQUENCE, tight

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import TENSOR_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

WORLD_SIZE = 2
STEPS = 40
MODEL = ModelConfig(
    name="writer",
    hidden_size=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    ffn_size=32,
    vocab_size=LETTERS,
    tied=True,
    positions="learned",
    max_sequence=SEQUENCE,
    norm="layer",
    gated_ffn=False,
    biases=("qkv", "attention_output", "ffn"),
)


def alone(config):
    return Trainer(Decoder(MODEL), tight(config))


def on_ranks(config, *bugs, **options):
    mesh = make_mesh(tp=WORLD_SIZE)
    return Trainer(Decoder(MODEL), tight(config), mesh=mesh, apply=(tensor(**options), *bugs))


def in_sequence(config, *bugs):
    return on_ranks(config, *bugs, sequence_parallel="regather")


@cache
def reference_curve():
    return curve_alone(alone, BATCHES.batch, STEPS)


CAUGHT = {  # ratio and kind that the ladder finds on the bug's first rung, the cause it names first, and its way out
    "bias_with_each_term": (
        None,
        "other",
        "born zero",
        r"began as 0 \(layers.0.attention_norm.bias, layers.0.attention.o_proj.bias, .*\): does each count once",
    ),
    "bias_in_shares": (0.5, "ratio", "some scaled", "bias, each exactly 1/2 of one device's: its grad"),
    "norms_not_summed": (
        None,
        "other",
        "terms of one batch",
        "layers.0.attention_norm.weight, .* add the terms up over the ranks$",
    ),
    "kv_copies_not_summed": (
        None,
        "other",
        "terms of one batch",
        "layers.0.attention.k_proj.weight, .* add the terms up over the ranks$",
    ),
    "replicated_summed_again": (2.0, "ratio", "some scaled", ", each exactly 2.0 x one device's: its grad"),
    "replicated_counted_by_each": (1.2278, "ratio", "norm", "count each of them once, whatever is replicated"),
}


def test_every_bug_is_tested():
    assert list(TENSOR_BUGS) == list(CAUGHT)


@pytest.fixture(params=TENSOR_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def sound(bug):
    return in_sequence if bug.name == "norms_not_summed" else on_ranks


def test_its_loss_curve_looks_right(bug):
    curve = curve_on_ranks(bug.planted(sound(bug)), BATCHES.batch, world_size=WORLD_SIZE, steps=STEPS)
    assert loss_curve_looks_right(curve.losses, reference_curve().losses)
    assert min(reference_curve().norms) > MAX_NORM


def test_it_is_caught(bug):
    ratio, kind, cause, way_out = CAUGHT[bug.name]
    with pytest.raises(NotEqual, match=way_out) as caught:
        assert_parallel_equals(alone, bug.planted(sound(bug)), BATCHES.batch, world_size=WORLD_SIZE)
    error = caught.value
    assert (error.rung, error.kind, error.causes[0]) == (bug.first_rung, kind, cause)
    if ratio is not None:
        assert error.ratio == pytest.approx(ratio, abs=1e-3)


def perceptron(config):
    return Trainer(MLP(gelu=True), config)


def perceptron_in_parts(config, *bugs):
    return Trainer(MLP(gelu=True), config, mesh=make_mesh(tp=WORLD_SIZE), apply=(tensor(), *bugs))


def test_a_wrong_output_of_shared_matrices_is_no_matter_of_shares_of_the_batch():
    """The bias of the multilayer perceptron is not born 0."""
    wrong = TENSOR_BUGS["bias_with_each_term"].planted(perceptron_in_parts)
    way_out = "; weights are equal: add up a block's terms over the ranks once and its bias after that, and compare wh"
    batch = torch.eye(6), torch.arange(6) % 2
    with pytest.raises(NotEqual, match=way_out) as caught:
        assert_parallel_equals(perceptron, wrong, lambda _: batch, world_size=WORLD_SIZE, rungs=["output"])
    assert caught.value.causes == ("another function",)


@pytest.mark.parametrize("make", [on_ranks, in_sequence])
def test_without_a_bug_the_same_training_climbs(make):
    assert_parallel_equals(alone, make, BATCHES.batch, world_size=WORLD_SIZE)
