"""Bugs of two axes: what their loss curves look like, and on which rung they are caught."""

from __future__ import annotations

from functools import cache

import pytest
import torch.distributed as dist
from museum_data import BATCHES, LETTERS, MAX_NORM, tight

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.sharding import fully_shard
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import NotEqual, assert_parallel_equals
from course_lib.verify.museum import TWO_AXES_BUGS, curve_alone, curve_on_ranks, loss_curve_looks_right

STEPS = 40
MODEL = ModelConfig(
    name="reader", hidden_size=16, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=32, vocab_size=LETTERS, tied=False
)


def alone(config):
    return Trainer(Decoder(MODEL), tight(config))


def on_ranks(config, *bugs):
    mesh = make_mesh(dp=dist.get_world_size() // 2, tp=2)
    return Trainer(Decoder(MODEL), tight(config), mesh=mesh, apply=(tensor(), fully_shard(), *bugs))


@cache
def reference_curve():
    return curve_alone(alone, BATCHES.batch, STEPS)


CAUGHT = {  # ratio and kind that the ladder finds on the bug's first rung, the causes it names, and its way out
    "divided_by_all_ranks": (
        0.5,
        "ratio",
        ("averaged twice", "averaged over all ranks"),
        "all ranks, though only those along dp read different rows$",
    ),
    "norm_along_one_axis": (0.5303, "ratio", ("norms apart",), "add the squares over the ranks that hold different"),
    "other_rows_along_tp": (None, "other", ("other rows",), "do the ranks see the same inputs and targets"),
}
SEEN = ("other_rows_along_tp",)  # its loss falls, but stays above one device's


def test_every_bug_is_tested():
    assert list(TWO_AXES_BUGS) == list(CAUGHT)


@pytest.fixture(params=TWO_AXES_BUGS.values(), ids=lambda bug: bug.name)
def bug(request):
    return request.param


def test_its_loss_curve_looks_right_or_falls(bug):
    curve = curve_on_ranks(bug.planted(on_ranks), BATCHES.batch, world_size=4, steps=STEPS)
    looks_right = loss_curve_looks_right(curve.losses, reference_curve().losses)
    assert looks_right == (bug.name not in SEEN) and curve.losses[-1] < curve.losses[0] - 0.3
    assert min(reference_curve().norms) > MAX_NORM


def test_it_is_caught(bug):
    ratio, kind, causes, way_out = CAUGHT[bug.name]
    with pytest.raises(NotEqual, match=way_out) as caught:
        assert_parallel_equals(bug.sound(alone), bug.planted(on_ranks), BATCHES.batch, world_size=4)
    error = caught.value
    assert (error.rung, error.kind, error.causes) == (bug.first_rung, kind, causes)
    if ratio is not None:
        assert error.ratio == pytest.approx(ratio, abs=1e-3)
