"""Autocast: products in 16 bits, all else in 32; ranks are as far off as one device is, and no further."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from sequence_models import batches, model_of, said

from course_lib.config import TrainConfig
from course_lib.gauges.allocated import saved_bytes
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.autocast_technique import autocast
from course_lib.training.context_technique import context
from course_lib.training.recompute_technique import recompute
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.step import summed_loss
from course_lib.training.techniques import replicate
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify.rounding import compare_rounding


def trainer_of(*apply, **degrees):
    torch.manual_seed(0)
    mesh = make_mesh(**degrees) if degrees else None
    return Trainer(model_of("llama"), TrainConfig(), mesh=mesh, apply=apply)


def gradients(*make, **degrees):
    """Of one batch, whole."""
    trainer = trainer_of(*(one() for one in make), **degrees)
    trainer.compute_gradients(batches().batch(0))
    return trainer.gradients()


def test_products_are_in_bf16_and_what_lasts_is_not():
    trainer, seen = trainer_of(autocast()), {}
    for name, module in trainer.model.named_modules():
        module.register_forward_hook(lambda _, __, y, name=name: seen.update({name: y.dtype}))
    output = trainer.output(batches().batch(0)[0])
    halves = {name for name, dtype in seen.items() if dtype == torch.bfloat16}
    assert {"layers.0.attention.q_proj", "layers.1.ffn.down_proj"} <= halves
    assert not halves & {"layers.0", "layers.1.ffn_norm", "norm", "embedding"} and output.dtype == torch.float32
    trainer.step(batches().batch(0))
    moments = [x for state in trainer.optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
    lasting = [*trainer.local.parameters.values(), *moments]
    assert {x.dtype for x in lasting} == {torch.float32}
    exact = trainer_of().output(batches().batch(0)[0])
    assert 0 < (output - exact).abs().max() < 0.03 * exact.abs().max()


def test_it_keeps_fewer_bytes_and_not_half_of_them():
    batch = batches().batch(0)
    models = trainer_of().model, trainer_of(autocast()).model
    plain, short = (saved_bytes(model, partial(summed_loss, model, batch)) for model in models)
    assert 0.5 * plain < short < plain


def kept_on_ranks(*make):
    trainer = trainer_of(*(one() for one in make), dp=2)
    inputs, targets = (x.tensor_split(2)[dist.get_rank()].clone() for x in batches().batch(0))
    return saved_bytes(trainer.model, lambda: trainer.engine.ends.loss(trainer.model(inputs), targets))


def test_stage_3_shares_the_matrices_and_not_their_short_copies():
    """A unit's numbers are freed after its forward; what autocast made of them, autograd holds until backward."""
    more = []
    for sharing in (replicate, fully_shard):
        plain, short = (run_ranks(kept_on_ranks, 2, *before, sharing)[0] for before in ((), (autocast,)))
        more.append(short - plain)
    assert more[0] == more[1]


@pytest.mark.parametrize(
    ("apply", "degrees"),
    [
        ([autocast, replicate], {"dp": 2}),
        ([autocast, fully_shard], {"dp": 3}),
        ([autocast, lambda: zero(1)], {"dp": 2}),
        ([lambda: context("ring"), autocast], {"cp": 2}),
        ([lambda: context("all_gather"), autocast], {"cp": 2}),
        ([lambda: context("ulysses"), autocast], {"cp": 2}),
        ([autocast, recompute, replicate], {"dp": 2}),
    ],
)
def test_ranks_are_off_by_rounding_alone(apply, degrees):
    exact, once = gradients(), gradients(autocast)
    (size,) = degrees.values()
    found = compare_rounding(exact, once, run_ranks(partial(gradients, *apply, **degrees), size)[0])
    assert len(found) == len(exact)
    assert all(one.is_sound for one in found) and max(one.ranks for one in found) > 1e-4


def test_a_bug_is_not_rounding():
    """One rank's rows alone: what the other has found is missing."""
    exact, once = gradients(), gradients(autocast)
    found = compare_rounding(exact, once, run_ranks(alone_on_its_rows, 2)[0])
    assert not any(one.is_sound for one in found if "norm" not in one.name)


def alone_on_its_rows():
    trainer = trainer_of(autocast())
    trainer.compute_gradients(tuple(x.tensor_split(2)[dist.get_rank()] for x in batches().batch(0)))
    return trainer.gradients()


def test_after_tensor_it_is_refused():
    refused = partial(said, partial(trainer_of, tensor(), autocast(), tp=2))
    found = run_ranks(refused, 2)
    assert found[0] == found[1] and found[0].startswith("autocast: applied after tensor; its layers multiply by ")
