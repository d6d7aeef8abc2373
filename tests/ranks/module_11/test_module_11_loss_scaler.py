"""When the gradients of one rank overflow, all skip; with PyTorch's scaler ranks with different ones drift apart."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from sequence_models import DATA, LLAMA, alone, batches

from course_lib.config import TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.savers.loss_scaler import LossScaler
from course_lib.schedules import make_schedule
from course_lib.training.scaling_technique import scaled_loss
from course_lib.training.techniques import stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

LAYOUTS = {
    "tp": ({"tp": 2}, lambda: [tensor()]),
    "zero1": ({"dp": 2}, lambda: [DATA["zero1"]()]),
    "fsdp": ({"dp": 2}, lambda: [DATA["fsdp"]()]),
    "pp": ({"pp": 2}, lambda: [stages(make_schedule("1f1b", 2, 2))]),
}


def scaled(config, *, layout, scaler=None):
    """A trainer whose loss is scaled, if a scaler is given."""
    degrees, apply = LAYOUTS[layout]
    scaling = [scaled_loss(scaler)] if scaler is not None else []
    return Trainer(Decoder(LLAMA), config, mesh=make_mesh(**degrees), apply=[*apply(), *scaling])


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_a_scale_changes_nothing_that_is_trained(layout):
    """Powers of two: not a bit. Clipping sees the gradients as they are."""
    many = partial(scaled_climb, layout=layout)
    report = assert_parallel_equals(alone, many, batches(), world_size=2, steps=2)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def scaled_climb(config, layout):
    return scaled(config, layout=layout, scaler=LossScaler(2.0**10, growth_interval=1))


def with_an_overflow_on_the_last_rank(layout, whose):
    """Which ranks' weights moved, and their scales, after a step in which one number of one rank was infinite."""
    torch.manual_seed(0)
    scaler = LossScaler(4.0) if whose == "ours" else None
    trainer = scaled(TrainConfig(), layout=layout, scaler=scaler)
    torchs = torch.amp.GradScaler("cpu", init_scale=4.0) if whose == "torch's" else None
    if scaler is not None:
        unscale = scaler.unscale_
        scaler.unscale_ = lambda gradients, group: unscale(planted(gradients), group)
    before = [p.detach().clone() for p in trainer.local.parameters.values()]
    trainer.compute_gradients(batches().batch(0))
    if torchs is not None:
        list(planted(trainer.local.gradients().values()))
        torchs.scale(torch.zeros(1))  # what makes its number
        torchs.unscale_(trainer.optimizer)
        torchs.step(trainer.optimizer)
        torchs.update()
    else:
        trainer.update()
    moved = any(not torch.equal(*pair) for pair in zip(before, trainer.local.parameters.values(), strict=True))
    return moved, scaler.scale if torchs is None else torchs.get_scale()


def planted(gradients):
    """Of the last rank one number is infinite."""
    waiting = dist.get_rank() == dist.get_world_size() - 1
    for gradient in gradients:
        if waiting and gradient.numel():  # of what ranks share in pieces some are empty
            gradient.view(-1)[0] = torch.inf
            waiting = False
        yield gradient


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_all_ranks_skip_and_have_one_scale(layout):
    assert run_ranks(with_an_overflow_on_the_last_rank, 2, layout, "ours") == [(False, 2.0)] * 2


@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_with_pytorch_s_scaler_the_ranks_part(layout):
    """The first rank moves its half of the model and keeps its scale; nothing in its loss shows it."""
    assert run_ranks(with_an_overflow_on_the_last_rank, 2, layout, "torch's") == [(True, 4.0), (False, 2.0)]
