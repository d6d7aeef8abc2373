"""What never fits on one rank: models that get their numbers piece by piece, and optimizer states on a disk."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from sharded_models import LLAMA, TOKENS, sharded
from torch import nn

from course_lib.config import TrainConfig
from course_lib.gauges.allocated import peak_bytes
from course_lib.models.decoder import Decoder, init_weight
from course_lib.parallel.sharding.offload import CPUOffloadPolicy, DiskOffloadPolicy, StatesOnDisk, Tiers, tier_bytes
from course_lib.parallel.sharding.units import weights_of_units
from course_lib.parallel.sharding.wrapping import by_block, by_block_group
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import RankError, run_ranks
from course_lib.training.initial import drawn
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.trainer import Trainer

RANKS = 3
ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=0.5)
TIED = replace(LLAMA, tied=True)


def on_meta(config=LLAMA):
    with torch.device("meta"):
        return Decoder(config)


def by_one_rank(config):
    """What the same seed gives where one rank fills the whole model, one parameter after the other."""
    torch.manual_seed(0)
    weights = {name: torch.empty(x.shape) for name, x in on_meta(config).named_parameters()}
    for name, weight in weights.items():
        init_weight(name, weight)
    return weights


# --- deferred initialisation ---


class Scaled(nn.Module):
    """A layer with a frozen weight and a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 7)
        self.frozen = nn.Parameter(torch.empty(7), requires_grad=False)
        self.register_buffer("scale", torch.empty(7))

    def forward(self, x):
        return self.linear(x) * self.scale + self.frozen


def born(config, technique):
    """Weights after the trainer was made by ranks that were seeded apart, and after a step."""
    torch.manual_seed(dist.get_rank())
    mesh = make_mesh(dp=RANKS)
    trainer = Trainer(on_meta(config), ADAMW, mesh=mesh, apply=(technique,), init=drawn(init_weight))
    first = {name: x.clone() for name, x in trainer.parameters().items()}
    trainer.step(TOKENS.batch(0))
    return first, trainer.parameters()


def existing(config, weights):
    """A step of a trainer whose model had these weights from the beginning."""
    model = Decoder(config)
    model.load_state_dict(weights, strict=False)
    trainer = Trainer(model, ADAMW, mesh=make_mesh(dp=RANKS), apply=(fully_shard(),))
    trainer.step(TOKENS.batch(0))
    return trainer.parameters()


@pytest.mark.parametrize(
    ("config", "technique"),
    [
        (LLAMA, fully_shard()),
        (TIED, fully_shard(by_block_group(2))),
        (LLAMA, fully_shard(strategy="NO_SHARD")),
        (TIED, zero(2)),
        (TIED, replicate()),
        (LLAMA, torch_fully_shard()),
    ],
)
def test_a_model_on_meta_gets_the_weights_that_one_rank_would_give_it(config, technique):
    wanted = by_one_rank(config)
    everyone = run_ranks(born, RANKS, config, technique)
    after = run_ranks(existing, RANKS, config, wanted)[0]
    for first, trained in everyone:
        assert first.keys() == wanted.keys() == trained.keys()
        for name, weight in wanted.items():
            assert torch.equal(first[name], weight) and not torch.equal(trained[name], weight)
            torch.testing.assert_close(trained[name], after[name])


def of_another_kind():
    """Frozen weights, buffers, and half precision."""
    torch.manual_seed(dist.get_rank())
    with torch.device("meta"):
        model = Scaled()
    buffer, technique = model.scale, fully_shard(lambda _: [("linear",)], param_dtype=torch.bfloat16)
    trainer_with(technique, model, init=drawn(lambda _, x: nn.init.normal_(x)))
    assert model.scale is buffer
    model(torch.ones(2, 6)).sum().backward()
    return model.scale, {name: p.detach() for name, p in model.named_parameters()}, model.frozen.grad is None


def test_frozen_weights_and_buffers_get_numbers_too():
    everyone = run_ranks(of_another_kind, RANKS)
    torch.manual_seed(0)
    shapes = {"frozen": (7,), "linear.weight": (7, 6), "linear.bias": (7,), "scale": (7,)}  # parameters, then buffers
    wanted = {name: nn.init.normal_(torch.empty(shape)) for name, shape in shapes.items()}
    for name in ("frozen", "linear.weight", "linear.bias"):
        assert torch.equal(torch.cat([pieces[name] for _, pieces, _ in everyone]), wanted[name].flatten())
    assert all(no_gradient and torch.equal(scale, wanted["scale"]) for scale, _, no_gradient in everyone)


def held_while_born(config):
    """Bytes at the worst moment, what the pieces take, and the largest unit."""
    made = []

    def make():
        made.append(trainer_with(fully_shard(), on_meta(config), init=drawn(init_weight)))

    most, (trainer,) = peak_bytes(make), made
    units = weights_of_units(on_meta(config), by_block).values()
    pieces = sum(x.nbytes for x in trainer.local.parameters.values())
    return most, pieces, max(sum(p.numel() for p in named.values()) * 4 for named in units)


def test_no_rank_ever_holds_the_whole_model():
    config = replace(LLAMA, hidden_size=60, ffn_size=160, n_layers=8, vocab_size=64)
    whole = sum(x.numel() for x in on_meta(config).parameters()) * 4
    for most, pieces, unit in run_ranks(held_while_born, RANKS, config):
        slack = 16 * 1024  # labels and tables of the messages
        assert pieces < most <= pieces + unit + slack < 0.7 * whole


def says(attempt):
    try:
        attempt()
    except (ValueError, OSError) as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


def trainer_with(technique, model=None, init=None):
    return Trainer(model or on_meta(), TrainConfig(), mesh=make_mesh(dp=RANKS), apply=(technique,), init=init)


def forgets_the_norms(name, x):
    if x.dim() > 1:
        nn.init.normal_(x)


def refused():
    on_one = on_meta() if dist.get_rank() else Decoder(LLAMA)
    return [
        says(lambda: trainer_with(fully_shard())),
        says(lambda: trainer_with(fully_shard(), init=drawn(forgets_the_norms))),
        says(lambda: trainer_with(fully_shard(), on_one, init=drawn(init_weight))),
    ]


def test_what_has_no_numbers_is_refused_on_all_ranks():
    for without, forgotten, one in run_ranks(refused, RANKS):
        assert "Trainer: on meta: embedding.weight, " in without and "and 26 more; " in without
        assert "Trainer: init leaves layers.0.attention_norm.weight, " in forgotten
        assert " without numbers; init fills every tensor that is on meta, norms and buffers too; " in forgotten
        assert "embedding.weight is a trained parameter of shape (17, 10) and dtype float32 on rank 0 and" in one
        assert "float32 on meta on rank 1" in one


# --- offload ---


def trained(policy=None, config=ADAMW, steps=3):
    """Weights after some steps, saved and loaded in between, and where everything lies."""
    torch.manual_seed(0)
    trainer = sharded(config, fully_shard(offload_policy=policy))
    for number in range(steps):
        trainer.step(TOKENS.batch(number))
    state = trainer.state()
    again = sharded(config, fully_shard(offload_policy=policy))
    again.restore(state)
    again.step(TOKENS.batch(steps))
    pieces = again.local.parameters.values()
    held = sum(x.nbytes for x in pieces)
    left = os.listdir(policy.folder) if isinstance(policy, DiskOffloadPolicy) else []
    return again.state(), tier_bytes(pieces, again.optimizer, policy), held, left


def same(one, other):
    """Whether two states of trainers are equal bit by bit."""
    assert one["model"].keys() == other["model"].keys()
    assert one["optimizer"]["state"].keys() == other["optimizer"]["state"].keys()
    pairs = [(one["model"], other["model"])]
    pairs += [(one["optimizer"]["state"][key], other["optimizer"]["state"][key]) for key in one["optimizer"]["state"]]
    return all(torch.equal(left[name], right[name]) for left, right in pairs for name in left)


def test_states_on_a_disk_and_pieces_in_main_memory_change_no_bit(tmp_path):
    plain, near, on_disk = (
        run_ranks(trained, RANKS, p) for p in (None, CPUOffloadPolicy(), DiskOffloadPolicy(tmp_path))
    )
    for (wanted, tiers, held, _), (host, host_tiers, _, _), (disk, disk_tiers, _, left) in zip(
        plain, near, on_disk, strict=True
    ):
        assert len(wanted["optimizer"]["state"]) == 30 and same(host, wanted) and same(disk, wanted)
        assert tiers == Tiers(device=3 * held, host=0, disk=0)  # weights, and two states of Adam
        assert host_tiers == Tiers(device=0, host=3 * held, disk=0)
        assert disk_tiers == Tiers(device=0, host=held, disk=2 * held)
        assert left == [] == os.listdir(tmp_path)


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1}, 1),
    (torch.optim.SGD, {}, 0),
    (torch.optim.Adam, {"amsgrad": True}, 3),
    (torch.optim.Adagrad, {}, 1),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}, 3),
]


def by_many(folder):
    """Weights by optimizers with and without a disk, and how many numbers they have on it for each of theirs."""
    found = []
    for kind, options, _ in OPTIMIZERS:
        weights = []
        for offload in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 3))
            first, *others = model.parameters()
            groups = [{"params": [first], "lr": 0.1}, {"params": others}]
            optimizer = kind(groups, lr=0.01, **options)
            if offload:
                optimizer = StatesOnDisk(optimizer, folder, dist.group.WORLD)
            for _ in range(3):
                optimizer.zero_grad()
                optimizer.step(partial(_backward, model))
            weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        found.append((torch.equal(*weights), tier_bytes(model.parameters(), optimizer, None).disk / weights[0].nbytes))
    return found


def _backward(model):
    loss = model(torch.ones(4, 6)).square().sum()
    loss.backward()
    return loss


def test_every_optimizer_finds_its_states(tmp_path):
    (found,) = run_ranks(by_many, 1, tmp_path)
    assert found == [(True, copies) for _, _, copies in OPTIMIZERS]


def disk_is_full(folder):
    """On one rank there is no room for the file; a checkpoint was there before."""
    trainer = trainer_with(fully_shard(), Decoder(LLAMA))
    trainer.step(TOKENS.batch(0))
    trainer.save(folder)
    fails = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if dist.get_rank() == 1 else None
    with patch.object(os, "posix_fallocate", side_effect=fails, wraps=os.posix_fallocate):
        said = says(lambda: sharded(ADAMW, offloaded(folder)))
    again = trainer_with(offloaded(folder), Decoder(LLAMA))
    again.load(folder)
    return said, same(again.state(), trainer.state()), os.listdir(folder)


def offloaded(folder):
    return fully_shard(offload_policy=DiskOffloadPolicy(folder))


def test_a_full_disk_is_one_line_on_all_ranks_and_costs_no_checkpoint(tmp_path):
    everyone = run_ranks(disk_is_full, RANKS, tmp_path)
    assert len({said for said, _, _ in everyone}) == 1
    for said, loaded, files in everyone:
        assert said.startswith("OSError DiskOffloadPolicy: rank 1 wants ") and "\n" not in said
        assert f" KiB in {tmp_path}: No space left on device; the disk must have room for all optimizer states " in said
        assert loaded and files == ["trainer.pt"]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        RankError, match=r"DiskOffloadPolicy: rank 0 wants .* in .*/nowhere: No such file or directory; "
    ):
        run_ranks(trained, 1, DiskOffloadPolicy(tmp_path / "nowhere"))
