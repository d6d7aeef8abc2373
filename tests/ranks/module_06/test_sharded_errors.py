"""What sharded data parallelism refuses: one clear line on all ranks, nobody waits, and the next step is right."""

from __future__ import annotations

import gc
import re
import weakref
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharded_models import MODELS, TOKENS, numbers, sharded
from torch import nn

from course_lib.config import TrainConfig
from course_lib.parallel.sharding import untouched
from course_lib.parallel.sharding.flat_row import Sharing
from course_lib.parallel.sharding.sharded import ShardedModel
from course_lib.parallel.sharding.wrapping import by_block_group, by_name
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer

RANKS = 4


def made(model="llama", technique=None, **degrees):
    mesh = make_mesh(**degrees or {"dp": RANKS})
    return Trainer(MODELS[model](), TrainConfig(), mesh=mesh, apply=(technique or fully_shard(),))


def tiny():
    return Trainer(nn.Linear(2, 1), TrainConfig(), mesh=make_mesh(dp=RANKS), apply=(fully_shard(),))


def both():
    Trainer(MODELS["llama"](), TrainConfig(), mesh=make_mesh(dp=RANKS), apply=(replicate(), fully_shard()))


def replaced():
    trainer = made()
    trainer.model.layers[1].ffn.up_proj.weight = nn.Parameter(torch.zeros(13, 10))
    trainer.step(TOKENS.batch(0))


def other_numbers():
    trainer = made()
    weight = trainer.model.layers[0].ffn.up_proj.weight
    weight.data = torch.zeros_like(weight)
    trainer.step(TOKENS.batch(0))


class Sometimes(nn.Module):
    """A layer that no loss comes to."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        return self.used(x) + 0 * self.unused(x).detach()


def no_gradient():
    Trainer(Sometimes(), TrainConfig(), mesh=make_mesh(dp=RANKS), apply=(fully_shard(),)).step(numbers(0))


def on_one_rank_alone():
    trainer = made()
    if dist.get_rank() == 2:
        trainer.model.layers[1].ffn.up_proj.weight = nn.Parameter(torch.zeros(13, 10))
    trainer.step(TOKENS.batch(0))


def optimizer_with_a_past():
    """An optimizer that has stepped before its model was sharded."""
    model = MODELS["mlp"]()
    optimizer = torch.optim.AdamW(model.parameters())
    model(numbers(0)[0]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    group = dist.new_group()
    ShardedModel(model, Sharing(group, group))
    model(numbers(0)[0]).sum().backward()
    optimizer.step()


def forward_before_the_step():
    """The root's unit is whole until the backward that never comes, and its gradients are put aside."""
    trainer = made()
    trainer.compute_gradients(TOKENS.batch(0))
    trainer.model(TOKENS.batch(1)[0])
    trainer.update()


def optimizer_of_whole_weights():
    """With ZeRO-1 the model's own parameters get no gradients."""
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = dist.new_group()
    ShardedModel(model, Sharing(group, group, resident=True), late=True)
    model(numbers(0)[0]).sum().backward()
    optimizer.step()


REFUSED = [
    (lambda: zero(3), r"zero: stage=3; ZeRO-1 and ZeRO-2 keep whole weights; choose 1 or 2, or for 3 fully_shard$"),
    (
        lambda: made(technique=fully_shard(strategy="FULL")),
        r"fully_shard: strategy='FULL'; .*; choose from NO_SHARD",
    ),
    (
        lambda: made(technique=fully_shard(strategy="SHARD_GRAD_OP", secondary=2)),
        r"fully_shard: strategy='SHARD_GRAD_OP', secondary=2; FULL_SHARD alone .*; leave secondary out, or ",
    ),
    (
        lambda: made(technique=fully_shard(gather_dtype=torch.bfloat16)),
        r"fully_shard: gather_dtype=torch.bfloat16; units are .*, or in one-byte numbers; give torch.int8, or leave it",
    ),
    (
        lambda: made(technique=fully_shard(strategy="NO_SHARD", gather_dtype=torch.int8)),
        r"fully_shard: gather_dtype=torch.int8, strategy='NO_SHARD'; weights that stay .*; leave gather_dtype out, or ",
    ),
    (lambda: made(technique=fully_shard(shards=2)), r"fully_shard: strategy='FULL_SHARD', shards=2; .*; give both, or"),
    (
        lambda: made(technique=fully_shard(strategy="HYBRID_SHARD", shards=3)),
        r"groups_within: 3 parts of dp=4; .*; choose from \[1, 2, 4\]$",
    ),
    (
        lambda: made(technique=fully_shard(strategy="HYBRID_SHARD", shards=0)),
        r"groups_within: 0 parts of dp=4; .*; choose from \[1, 2, 4\]$",
    ),
    (both, r"fully_shard: applied after replicate; "),
    (tiny, r"fully_shard: 3 trained parameters, 4 ranks; every rank has something to train; choose dp <= 3$"),
    (lambda: made(technique=fully_shard(by_name("blocks.*"))), r"by_name: no module is called 'blocks.\*'; "),
    (lambda: by_block_group(0), r"by_block_group: size=0; a group has blocks; give size >= 1$"),
    (replaced, r"fully_shard: layers.1.ffn.up_proj.weight is another parameter than the one that was sharded; "),
    (other_numbers, r"fully_shard: the numbers of layers.0.ffn.up_proj.weight were replaced; "),
    (on_one_rank_alone, r"fully_shard: layers.1.ffn.up_proj.weight is another parameter"),
    (
        no_gradient,
        r"fully_shard: no gradient of unused.weight, unused.bias; .*; freeze what is not used",
    ),
    (
        optimizer_with_a_past,
        r"fully_shard: AdamW has a state of shape \(.*\) for layer1.weight, .*; build the opti",
    ),
    (
        forward_before_the_step,
        r"fully_shard: SGD steps while embedding.weight is whole; .*; evaluate under torch.no_grad\(\), or after",
    ),
    (optimizer_of_whole_weights, r"zero: SGD holds the whole layer1.weight; .*; build the optimizer of the pieces"),
]


def everything():
    """What each of them says on this rank."""
    said = []
    for attempt, _ in REFUSED:
        try:
            attempt()
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))
    return said


def test_each_is_refused_in_one_line_on_all_ranks():
    everyone = run_ranks(everything, RANKS)
    assert len(everyone) == RANKS
    for said in everyone:
        for text, (_, wanted) in zip(said, REFUSED, strict=True):
            assert re.match(wanted, text) and "\n" not in text, text


def failed_once(overlap):
    """A backward that raises in the middle, then a step; and the same step alone."""
    found = []
    for fails in (True, False):
        torch.manual_seed(0)
        trainer = sharded(TrainConfig(), fully_shard(overlap=overlap))
        if fails:
            handle = trainer.model.layers[1].register_full_backward_hook(_fail)
            with pytest.raises(RuntimeError, match="on purpose"):
                trainer.step(TOKENS.batch(0))
            handle.remove()
        found.append(trainer.step(TOKENS.batch(1)))
        found.append({name: weight.clone() for name, weight in trainer.parameters().items()})
    return found


def _fail(*_):
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("overlap", [True, False])
def test_after_a_backward_that_failed_the_next_step_is_right(overlap):
    for first_loss, first, second_loss, second in run_ranks(failed_once, 3, overlap):
        assert first_loss == second_loss
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def come_and_gone():
    """After many sharded models: how often an optimizer's step is looked at, and how many of them still exist."""
    seen, alive = [], []
    group = dist.new_group()
    for number in range(3):
        model = nn.Linear(4, 4)
        ShardedModel(model, Sharing(group, group))
        model(torch.ones(1, 4)).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with patch.object(untouched, "_check", lambda parameter, *_: seen.append(parameter)):
            optimizer.step()
        alive.append(weakref.ref(model.weight))
        looked = len(seen)
        seen.clear()
        del model, optimizer
        gc.collect()
        assert looked == 2, number
    return sum(parameter() is not None for parameter in alive)


def test_a_model_that_is_gone_leaves_nothing_behind():
    assert run_ranks(come_and_gone, 2) == [0] * 2
