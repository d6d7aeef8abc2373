"""Dropout under tensor parallelism: one mask where the ranks compute the same, several where each has its features."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder, GatedFeedForward
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.schedules import make_schedule
from course_lib.training.batches import Batches
from course_lib.training.techniques import stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

CONFIG = ModelConfig(
    name="small", hidden_size=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=20, vocab_size=17, tied=True
)
TEXT = bytes(torch.randint(17, (1024,), generator=torch.Generator().manual_seed(0)).tolist())
TOKENS = Batches(text=TEXT, batch_size=4, sequence=6)


class Dropping(GatedFeedForward):
    """Drops some of its inner features."""

    def __init__(self):
        super().__init__(CONFIG)
        self.inner = nn.Dropout(0.5)

    def forward(self, x):
        return self.down_proj(self.inner(F.silu(self.gate_proj(x)) * self.up_proj(x)))


class Jitter(nn.Module):
    """Noise of a router of `transformers`: random too, and no dropout."""

    def __init__(self):
        super().__init__()
        self.router_jitter_noise = 0.3

    def forward(self, x):
        return x * torch.empty_like(x).uniform_(1.0 - self.router_jitter_noise, 1.0 + self.router_jitter_noise)


def decoder(*, inside):
    """A decoder that drops behind each layer and inside of each feed-forward, or has noise behind each layer alone."""
    model = Decoder(CONFIG)
    for layer in model.layers:
        layer.dropout = nn.Dropout(0.3) if inside else Jitter()
        layer.register_forward_hook(lambda layer, _, y: layer.dropout(y))
        if inside:
            layer.ffn = Dropping()
    return model


def parallel(train, *, inside=False, checkpointed=False, schedule=None, **options):
    model = decoder(inside=inside)
    for layer in model.layers if checkpointed else ():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    mesh = make_mesh(pp=dist.get_world_size() // 2, tp=2)
    return Trainer(model, train, mesh=mesh, apply=[tensor(**options), *([stages(schedule)] if schedule else [])])


def test_outside_blocks_the_ranks_draw_what_one_device_draws():
    def alone(train):
        return Trainer(decoder(inside=False), train)

    before_a_checkpoint = RUNGS[:6]  # which the trainer makes without the random numbers' state; `train` adds it
    assert_parallel_equals(alone, parallel, TOKENS, world_size=2, rungs=before_a_checkpoint)


def trained(*, seeds=(7, 100), **options):
    """By name the masks of two steps; the weights that all ranks have; the ordinary numbers that come next."""
    torch.manual_seed(seeds[dist.get_rank()])
    trainer = parallel(TrainConfig(learning_rate=0.1), inside=True, **options)
    masks = {}
    for name, module in trainer.model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, x, y, name=name: masks.setdefault(name, []).append(y != 0))
    for step in range(2):
        trainer.step(TOKENS.batch(step))
    places = trainer.local.layout.places
    copies = {name: p.detach() for name, p in trainer.local.parameters.items() if not places[name].shard}
    return masks, copies, torch.rand(3)


def differ(one, other):
    return not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def on_two_ranks():
    return run_ranks(trained, 2)


def test_masks_are_the_same_outside_and_others_inside(on_two_ranks):
    (first, copies, _), (second, others, _) = on_two_ranks
    assert len(first) == 4 and all(len(masks) == 2 for masks in first.values())
    for name, masks in first.items():
        assert differ(masks, second[name]) == name.endswith("inner"), name
        assert differ(masks[:1], masks[1:])
    assert copies and all(torch.equal(copies[name], others[name]) for name in copies)


def test_what_is_computed_again_in_backward_drops_the_same(on_two_ranks):
    again = run_ranks(partial(trained, checkpointed=True), 2)
    for (_, copies, after), (_, others, after_too) in zip(on_two_ranks, again, strict=True):
        assert all(torch.equal(copies[name], others[name]) for name in copies) and torch.equal(after, after_too)


def test_with_positions_of_its_own_a_rank_drops_its_own_everywhere():
    (first, copies, _), (second, others, _) = run_ranks(partial(trained, seeds=(7, 7), sequence_parallel="keep"), 2)
    assert all(differ(masks, second[name]) for name, masks in first.items())
    assert all(torch.equal(copies[name], others[name]) for name in copies)


# --- in the stages of a pipeline ---


def noisy_gradients():
    """One device's, with the state of its random numbers when each of the two layers begins."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    trainer, states = Trainer(decoder(inside=False), TrainConfig()), []
    for layer in trainer.model.layers:
        layer.register_forward_pre_hook(lambda *_: states.append(torch.get_rng_state()))
    loss = trainer.compute_gradients(TOKENS.batch(0))
    torch.set_default_dtype(torch.float32)
    return states, loss, trainer.gradients()


def noisy_stage(states):
    """The loss and gradients of a layer on each stage, whose first rank alone has one device's random numbers."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    model, (stage, part) = decoder(inside=False), divmod(dist.get_rank(), 2)
    torch.manual_seed(part) if part else torch.set_rng_state(states[stage])
    apply = (tensor(), stages(make_schedule("gpipe", 2, 1)))
    trainer = Trainer(model, TrainConfig(), mesh=make_mesh(pp=2, tp=2), apply=apply)
    loss = trainer.compute_gradients(TOKENS.batch(0))
    torch.set_default_dtype(torch.float32)
    return loss, trainer.gradients()


def test_outside_blocks_each_stage_draws_what_one_device_draws_there():
    states, alone, expected = noisy_gradients()
    assert not torch.equal(*states)
    for loss, found in run_ranks(noisy_stage, 4, states):
        assert loss == pytest.approx(alone, rel=1e-12) and found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "options"), [("1f1b", {"checkpointed": True}), ("zb-h1", {})])
def test_in_a_pipeline_s_stages_too_masks_are_others_inside_alone(name, options):
    schedule = make_schedule(name, 2, 2)
    by_rank = run_ranks(partial(trained, seeds=(7, 100, 3, 9), schedule=schedule, **options), 4)
    for (first, copies, _), (second, others, _) in (by_rank[:2], by_rank[2:]):
        assert len(first) == 2 and all(len(masks) >= 4 for masks in first.values())
        for name, masks in first.items():
            assert differ(masks, second[name]) == name.endswith("inner"), name
            assert differ(masks[:1], masks[-1:])  # of one micro-batch and of another, in another step
        assert copies and all(torch.equal(copies[name], others[name]) for name in copies)
