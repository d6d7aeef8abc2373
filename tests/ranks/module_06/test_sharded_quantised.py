"""Units that are gathered in one-byte numbers: one device that rounds its weights the same way trains the same."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS
from sharded_models import MODELS, batch_of, sharded
from torch.func import functional_call

from course_lib.config import TrainConfig
from course_lib.parallel.sharding.quantised import BLOCK
from course_lib.parallel.sharding.units import rows_of, weights_of_units
from course_lib.parallel.sharding.wrapping import by_block, by_block_group
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

INT8 = {"gather_dtype": torch.int8}


class Straight(torch.autograd.Function):
    """Other numbers in forward, the same gradient."""

    @staticmethod
    def forward(ctx, x, rounded):
        return rounded.view_as(x).clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def rounded(row, shards):
    """The same as the library does, said once more: block by block."""
    found = []
    for block in (block for piece in row.tensor_split(shards) for block in piece.split(BLOCK)):
        scale = torch.zeros((), dtype=torch.float32).copy_(block.abs().max() if len(block) else 0) / 127
        found.append((block / scale).round() * scale)
    return torch.cat(found)


def weights_in_use(model, policy, shards):
    """What a model computes with, by name."""
    found = {}
    for named in weights_of_units(model, policy).values():
        for row in rows_of(named, resident=False, uneven=frozenset()):
            flat = rounded(torch.cat([p.detach().flatten() for p in row.values()]), shards)
            parts = flat.split([p.numel() for p in row.values()])
            found |= {name: Straight.apply(p, x) for (name, p), x in zip(row.items(), parts, strict=True)}
    return found


def rounding(train, model, policy, shards):
    """A trainer on one device whose model computes with the rounded weights, and trains its own."""
    whole = MODELS[model]()
    skeleton = copy.deepcopy(whole)
    whole.forward = lambda *args: functional_call(skeleton, weights_in_use(whole, policy, shards), args)
    return Trainer(whole, train)


@pytest.mark.parametrize(
    ("policy", "model", "world_size", "options"),
    [
        (by_block, "mlp", 1, {}),
        (by_block_group(2), "frozen", 2, {"strategy": "SHARD_GRAD_OP", "overlap": False}),
        (by_block, "tied", 3, {}),
        (by_block, "frozen", 4, {"secondary": 2}),
        (by_block, "mlp", 4, {"strategy": "HYBRID_SHARD", "shards": 2}),
    ],
)
def test_it_equals_one_device_that_rounds_alike(policy, model, world_size, options):
    alone = partial(rounding, model=model, policy=policy, shards=options.get("shards", world_size))
    together = partial(sharded, technique=fully_shard(policy, **INT8, **options), model=model)
    report = assert_parallel_equals(
        alone, together, batch_of(model), world_size=world_size, tolerance=1e-12, steps=STEPS
    )
    assert tuple(report.deviations) == RUNGS


def seen():
    """Each weight as the model computes with it in forward and in backward, and what one device would have."""
    torch.manual_seed(0)
    whole = MODELS["tied"]()
    wanted = {name: p.detach() for name, p in weights_in_use(whole, by_block, dist.get_world_size()).items()}
    torch.manual_seed(0)
    trainer, found = sharded(TrainConfig(), fully_shard(**INT8), "tied"), []

    def note(layer, *_):
        found.append({name: p.detach().clone() for name, p in layer.named_parameters()})

    layer = trainer.model.layers[1]
    layer.register_forward_pre_hook(note)
    layer.register_forward_hook(lambda layer, _, y: y.register_hook(partial(note, layer)) and None)
    trainer.compute_gradients(batch_of("tied")(0))
    return found, {name.removeprefix("layers.1."): x for name, x in wanted.items() if name.startswith("layers.1.")}


def test_all_ranks_compute_with_the_same_bits_forward_and_backward():
    for found, wanted in run_ranks(seen, 3):
        assert len(found) == 2 and len(wanted) == 9
        assert all(torch.equal(once[name], x) for once in found for name, x in wanted.items())
