"""Sharded data parallelism beside the ladder: precision, accumulation, recomputation, and who keeps which states."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharded_models import LLAMA, TOKENS, alone, sharded
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.config import TrainConfig
from course_lib.gauges.track import track_step
from course_lib.models.decoder import Decoder
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.offload import CPUOffloadPolicy
from course_lib.parallel.sharding.sharded import ShardedModel
from course_lib.parallel.sharding.untouched import row_of
from course_lib.ranks import RankError, run_ranks
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.split import split_sizes
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.step import summed_loss

ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=0.5, accumulation=2)
EIGHT = replace(TOKENS, batch_size=8)
TECHNIQUES = {
    "zero 1": zero(1),
    "zero 2": zero(2),
    "full": fully_shard(),
    "hybrid": fully_shard(strategy="HYBRID_SHARD", shards=2),
    "secondary": fully_shard(secondary=2),
    "bf16": fully_shard(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


def trained(technique=None, config=ADAMW):
    """Losses and weights after some steps of two micro-batches each."""
    torch.manual_seed(0)
    trainer = alone(config) if technique is None else sharded(config, TECHNIQUES[technique])
    losses = [trainer.step(EIGHT.batch(number)) for number in range(3)]
    return losses, trainer.parameters()


@pytest.mark.parametrize("technique", sorted(TECHNIQUES.keys() - {"bf16"}))
def test_micro_batches_add_up(technique):
    (losses, weights), *others = run_ranks(trained, 4, technique)
    wanted_losses, wanted = trained()
    torch.testing.assert_close(losses, wanted_losses)
    assert len(others) == 3 and weights.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-5, atol=1e-6)


def test_bf16_computes_and_float32_is_trained():
    """bf16 keeps 8 bits, a relative error of 1/256 in each number; SGD, for Adam would make a sign of a small one."""
    sgd = TrainConfig(accumulation=2)
    torch.manual_seed(0)
    before = alone(sgd).parameters()
    (losses, weights), *_ = run_ranks(trained, 4, "bf16", sgd)
    wanted_losses, wanted = trained(config=sgd)
    torch.testing.assert_close(losses, wanted_losses, rtol=1 / 256, atol=0)
    assert losses != wanted_losses
    moved = {name: wanted[name] - before[name] for name in before}
    off = {name: weights[name] - wanted[name] for name in before}
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    assert max((off[name].norm() / moved[name].norm()).item() for name in before) < 4 / 256


def test_ranks_that_share_weights_have_equally_many_micro_batches():
    def uneven():
        sharded(ADAMW, TECHNIQUES["full"]).step(TOKENS.batch(0))  # 7 rows: one rank has a single one

    with pytest.raises(RankError, match="1 samples in a share, 2 micro-batches; ranks that share"):
        run_ranks(uneven, 4)


def recomputed(how):
    """Gradients where layers keep their input alone, and compute a second time in backward."""
    torch.manual_seed(0)
    model = Decoder(LLAMA).double()
    if how == "ours":
        checkpoint_layers(model.layers)
    group = dist.new_group()
    ShardedModel(model, Sharing(group, group))
    if how == "torch":
        for layer in model.layers:
            layer.forward = _checkpointed(layer.forward)
    summed_loss(model, TOKENS.batch(0)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).square().sum().item()


def _checkpointed(forward):
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


@pytest.mark.parametrize("how", ["ours", "torch"])
def test_what_is_computed_twice_finds_its_unit_whole(how):
    squares = run_ranks(recomputed, 3, how)
    torch.manual_seed(0)
    model = Decoder(LLAMA).double()
    summed_loss(model, TOKENS.batch(0)).backward()
    wanted = sum(p.grad.square().sum().item() for p in model.parameters())
    assert sum(squares) == pytest.approx(wanted, rel=1e-12)


def which_are_roots():
    group = dist.new_group()
    model = nn.Sequential(OrderedDict(root=nn.Linear(6, 7), head=nn.Linear(7, 3)))
    return [(unit.label, unit.is_root) for unit in ShardedModel(model, Sharing(group, group)).units]


def test_a_module_that_is_called_root_is_a_unit_as_others():
    assert run_ranks(which_are_roots, 3) == [[("root", False), ("head", False), ("root", True)]] * 3


def states_held(stage):
    """How many numbers this rank's optimizer keeps, its counters apart."""
    trainer = sharded(ADAMW, zero(stage))
    trainer.step(EIGHT.batch(0))
    return sum(x.numel() for state in trainer.optimizer.state.values() for x in state.values() if x.dim())


@pytest.mark.parametrize("stage", [1, 2])
def test_ranks_share_the_optimizer_s_states(stage):
    held = run_ranks(states_held, 3, stage)
    moments = 2 * sum(p.numel() for p in Decoder(LLAMA).parameters())
    rows = LLAMA.n_layers + 1  # each is cut by itself, and a piece of it may have one number more than another
    assert sum(held) == moments and max(held) - min(held) <= 2 * rows


def kinds_of_rows(*techniques):
    """The classes that a row of each technique is made of, the plain row's own ancestors apart."""
    made = [sharded(ADAMW, technique).model for technique in techniques]
    rows = [row_of(next(model.layers[0].parameters())) for model in made]
    return [[kind.__name__ for kind in type(row).__mro__ if kind.__module__ != "builtins"] for row in rows]


def test_the_plain_row_is_what_runs_and_additions_stand_before_it():
    techniques = (
        fully_shard(),
        fully_shard(param_dtype=torch.bfloat16),
        fully_shard(strategy="HYBRID_SHARD", shards=2),
        fully_shard(secondary=2, gather_dtype=torch.int8, offload_policy=CPUOffloadPolicy()),
        zero(1),
    )
    for plain, mixed, hybrid, many, resident in run_ranks(kinds_of_rows, 4, *techniques):
        assert plain == mixed == ["FlatRow"]
        assert hybrid == ["CopiedRow", "FlatRow"]
        assert many[1:] == ["SecondaryRow", "QuantisedRow", "OffloadedRow", "FlatRow"]
        assert resident == ["ResidentRow", "FlatRow"]


def changed_after_a_forward(secondary):
    """Gradients where weights have changed since a forward that no backward followed."""
    torch.manual_seed(0)
    trainer = sharded(ADAMW, fully_shard(secondary=secondary))
    trainer.model(TOKENS.batch(0)[0])
    with torch.no_grad():
        for layer in trainer.model.layers:
            for parameter in layer.parameters():
                parameter.mul_(1.5)
    trainer.compute_gradients(EIGHT.batch(1))
    return trainer.gradients()


def test_what_neighbours_keep_is_the_last_forwards_and_has_the_same_bits():
    everyone = run_ranks(changed_after_a_forward, 4, 2)
    wanted = run_ranks(changed_after_a_forward, 4, None)[0]
    assert all(torch.equal(gradients[name], wanted[name]) for gradients in everyone for name in wanted)


def told():
    """Bytes that a rank tells the others of its weights, and those that it has."""
    trainer, sizes = sharded(TrainConfig(), fully_shard()), []
    gather = dist.all_gather_object

    def measured(found, mine, **options):
        sizes.append(len(pickle.dumps(mine)))
        gather(found, mine, **options)

    with patch.object(dist, "all_gather_object", measured):
        trainer.parameters()
    held = sum(p.nbytes for p in trainer.local.parameters.values())
    return sizes, held, len(trainer.local.parameters)


def test_a_piece_is_told_without_the_row_that_it_lies_in():
    for (told_bytes,), held, pieces in run_ranks(told, 2):
        assert told_bytes < held + 700 * pieces  # a pickled tensor's own description


def between_forward_and_backward():
    """Bytes of whole units and of what neighbours keep, and what they should be: the root, and half of each other."""
    trainer = sharded(ADAMW, fully_shard(secondary=2))
    trainer.step(EIGHT.batch(0))
    found = [instant.gathered for instant in track_step(trainer, EIGHT.batch(1)) if instant.name == "loss"]
    numbers = {row.names: row.whole.numel() for row in map(row_of, trainer.model.parameters())}
    root = [n for names, n in numbers.items() if "embedding.weight" in names]
    kept = [split_sizes(n, 2)[dist.get_rank() % 2] for names, n in numbers.items() if "embedding.weight" not in names]
    return found, 4 * (sum(root) + sum(kept)), len(kept)


def test_neighbours_keep_a_unit_in_pieces():
    for found, wanted, units in run_ranks(between_forward_and_backward, 4):
        assert found == [wanted] * 2 and units == 3  # two micro-batches
