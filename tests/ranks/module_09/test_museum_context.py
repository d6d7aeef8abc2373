"""Bugs of shared sequences: what their loss curves look like, and on which rung they are caught."""

from __future__ import annotations

from functools import cache

import pytest
import torch.distributed as dist
from museum_data import BATCHES, LETTERS, MAX_NORM, tight

from course_lib.config import ModelConfig
from course_lib.models.decoder import Attention, Decoder, rotary_angles
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.context_technique import context
from course_lib.training.sharding import fully_shard
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import CONTEXT_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

SHARING = 2  # a sequence
STEPS = 40
MODEL = ModelConfig(
    name="reader",
    hidden_size=16,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    ffn_size=16,
    vocab_size=LETTERS,
    tied=False,
)


def alone(config):
    return Trainer(Decoder(MODEL), tight(config))


def on_ranks(config, *bugs):
    mesh = make_mesh(dp=dist.get_world_size() // SHARING, cp=SHARING)
    return Trainer(Decoder(MODEL), tight(config), mesh=mesh, apply=(context("ring"), fully_shard(), *bugs))


@cache
def reference_curve():
    return curve_alone(alone, BATCHES.batch, STEPS)


CAUGHT = {  # by how many ranks; ratio and kind on the bug's first rung, the causes that are named, and its way out
    "own_keys_in_backward": (2, None, "other", ("some wrong",), "what is special about it"),
    "angles_from_zero": (2, None, "other", ("from a position on",), "the first 4 positions of each row are right"),
    "averaged_over_sequence": (  # two shares of the batch too: else it is any factor
        4,
        0.5,
        "ratio",
        ("averaged twice", "averaged over all ranks"),
        "the average was divided by the number",
    ),
}


def test_every_bug_is_tested():
    assert list(CONTEXT_BUGS) == list(CAUGHT)


@pytest.fixture(params=CONTEXT_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def test_its_loss_curve_looks_right(bug):
    ranks, *_ = CAUGHT[bug.name]
    curve = curve_on_ranks(bug.planted(on_ranks), BATCHES.batch, world_size=ranks, steps=STEPS)
    looks_right = loss_curve_looks_right(curve.losses, reference_curve().losses)
    assert looks_right and curve.losses[-1] < curve.losses[0] - 0.3
    assert min(reference_curve().norms) > MAX_NORM


def test_it_is_caught(bug):
    ranks, ratio, kind, causes, way_out = CAUGHT[bug.name]
    with pytest.raises(NotEqual, match=way_out) as caught:
        assert_parallel_equals(bug.sound(alone), bug.planted(on_ranks), BATCHES.batch, world_size=ranks)
    error = caught.value
    assert (error.rung, error.kind, error.causes) == (bug.first_rung, kind, causes)
    if ratio is not None:
        assert error.ratio == pytest.approx(ratio, abs=1e-3)


def angles_of_a_contiguous_cut(setup):
    """The tokens lie in zigzag, the angles do not."""

    def hook(attention, args):
        here, size = args[0].shape[1], setup.local.size("cp")
        whole = rotary_angles(here * size, attention.head_size, args[0].device)
        return args[0], whole.tensor_split(size)[setup.local.rank("cp")]

    for module in setup.model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(hook)


def test_small_errors_of_angles_are_not_told_as_rounding():
    """Weights begin so small that attention hardly matters: what is wrong is as small as bfloat16's rounding."""
    with pytest.raises(NotEqual, match="the first 4 positions of each row are right") as caught:
        assert_parallel_equals(
            alone, lambda config: on_ranks(config, angles_of_a_contiguous_cut), BATCHES.batch, world_size=SHARING
        )
    assert (caught.value.rung, caught.value.causes) == ("output", ("from a position on",))
