"""`train` with averages that lose something: it goes on to the bit, and on other ranks from what they have together."""

from __future__ import annotations

import pytest
import torch
from ladder_models import EVEN, Toy
from test_module_11_train_runs import losses, run_in

from course_lib.config import TrainConfig
from course_lib.less import top_k
from course_lib.parallel.lossy.feedback import RESIDUAL
from course_lib.parallel.lossy.two_way import SERVED
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training import (
    Trainer,
    double_squeeze,
    error_feedback,
    fully_shard,
    gossip,
    load_pieces,
    local,
    replicate,
    save_pieces,
)

EACH = [
    ["dp=2", "lossy=top_k:0.05"],
    ["dp=2", "lossy=power_sgd:2"],
    ["dp=2", "pp=2", "lossy=sign"],
    ["dp=4", "across=2", "zero_stage=3", "local=3", "outer=0.7:0.9"],
    ["dp=4", "gossip=one_peer_exponential"],
    ["dp=2", "cp=2", "lossy=ef21:0.1"],
]


@pytest.mark.parametrize("words", EACH, ids=str)
def test_a_run_goes_on_to_the_bit(words, tmp_path):
    """Half of them by one file, half by pieces; the stop lies between two meetings."""
    whole = losses(*words)
    assert whole[-1] < whole[0]
    assert run_in(tmp_path / "run", *words, "steps=2") == whole[:2]
    assert run_in(tmp_path / "run", *words) == whole


def test_losing_nothing_a_run_is_that_of_exact_averages():
    for words in (
        ["dp=3", "lossy=top_k:1"],
        ["dp=4", "across=2", "lossy=double_squeeze:1"],
        ["dp=2", "local=1", "sgd"],
    ):
        optimizer = ["optimizer=sgd"] if words[-1] == "sgd" else []
        words = [word for word in words if word != "sgd"] + optimizer + ["max_norm=null"]
        dp = [word for word in words if word.startswith("dp=")]
        assert losses(*words) == pytest.approx(losses(*dp, *optimizer, "max_norm=null"), rel=1e-11)


def kept(trainer, kind):
    return torch.cat([trainer.apart.memory.kinds[kind][name] for name in trainer.trained])


def flat(tensors):
    return torch.cat([x.detach().flatten() for x in tensors])


def make(apply, **degrees):
    torch.manual_seed(0)
    return Trainer(
        Toy().double(), TrainConfig(optimizer="adamw", learning_rate=0.01), mesh=make_mesh(**degrees), apply=apply
    )


def written(folder, apply, save, ranks, **degrees):
    """What ranks hold after three steps, and a checkpoint of it."""

    def run():
        trainer = make(apply, **degrees)
        for step in range(3):
            trainer.step(EVEN.batch(step))
        save(trainer, folder)
        memory = trainer.apart.memory
        names = [kind for kind in (RESIDUAL, SERVED) if kind in memory.kinds]
        return flat(trainer.local.parameters.values()), {kind: kept(trainer, kind) for kind in names}

    return run_ranks(run, ranks)


def read(folder, apply, load, ranks, **degrees):
    def run():
        trainer = make(apply, **degrees)
        load(trainer, folder)
        memory = trainer.apart.memory
        names = [kind for kind in (RESIDUAL, SERVED) if kind in memory.kinds]
        told = flat(trainer.parameters().values())
        return flat(trainer.local.parameters.values()), {kind: kept(trainer, kind) for kind in names}, told

    return run_ranks(run, ranks)


FILES = {"one file": (Trainer.save, Trainer.load), "pieces": (save_pieces, load_pieces)}


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_on_other_ranks_the_mean_of_what_is_kept_stays(how, ranks, tmp_path):
    save, load = FILES[how]
    apply = (replicate(lossy=double_squeeze(top_k(0.1))),)
    before = written(tmp_path / "at", apply, save, 4, dp=4)
    after = read(tmp_path / "at", apply, load, ranks, dp=ranks)
    assert torch.equal(after[0][0], before[0][0])
    means = [torch.stack([memory[RESIDUAL] for _, memory, *_ in found]).mean(0) for found in (before, after)]
    assert torch.allclose(means[0], means[1], rtol=0, atol=1e-15) and means[0].abs().max() > 1e-3
    # What servers keep is dealt anew: all of it is there, each number once.
    together = [sorted(torch.cat([memory[SERVED] for _, memory, *_ in found]).tolist()) for found in (before, after)]
    assert together[0] == together[1] and any(together[0])


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_of_weights_that_differ_fewer_ranks_take_means(how, ranks, tmp_path):
    save, load = FILES[how]
    before = written(tmp_path / "at", (local(5),), save, 4, dp=4)
    own = torch.stack([weights for weights, _ in before])
    after = read(tmp_path / "at", (local(5),), load, ranks, dp=ranks)
    means = own.view(ranks, 4 // ranks, -1).mean(1) if 4 % ranks == 0 else own.mean(0, keepdim=True).expand(ranks, -1)
    for rank, (weights, _, told) in enumerate(after):
        assert torch.allclose(weights, means[rank], rtol=0, atol=1e-15)
        assert torch.allclose(told, own.mean(0), rtol=0, atol=1e-15)
    assert (own[0] - own[1]).abs().max() > 1e-3


@pytest.mark.parametrize("how", FILES)
def test_more_ranks_and_one_device_go_on_from_it(how, tmp_path):
    save, load = FILES[how]
    apply = (gossip("complete", track=True),)
    before = written(tmp_path / "at", apply, save, 2, dp=2)
    mean = torch.stack([weights for weights, _ in before]).mean(0)
    for found in (read(tmp_path / "at", apply, load, 4, dp=4), read(tmp_path / "at", (replicate(),), load, 3, dp=3)):
        assert all(torch.allclose(told, mean, rtol=0, atol=1e-15) for *_, told in found)


def test_clusters_that_shard_are_read_by_clusters_that_do_not(tmp_path):
    before = written(tmp_path / "at", (fully_shard(), local(5)), save_pieces, 4, across=2, dp=2)
    assert before
    found = read(tmp_path / "at", (replicate(), local(5)), load_pieces, 4, across=2, dp=2)
    again = read(tmp_path / "at", (fully_shard(), local(5)), load_pieces, 4, across=2, dp=2)
    assert torch.equal(found[0][2], again[0][2])
    assert torch.equal(found[0][0], found[1][0]) and not torch.equal(found[0][0], found[2][0])


def test_a_plain_checkpoint_begins_without_a_memory(tmp_path):
    written(tmp_path / "at", (replicate(),), Trainer.save, 2, dp=2)

    def run():
        trainer = make((replicate(lossy=error_feedback(top_k(0.1))),), dp=2)
        trainer.step(EVEN.batch(0))
        trainer.load(tmp_path / "at")
        return trainer.apart.memory.kinds

    assert all(not any(kinds.values()) for kinds in run_ranks(run, 2))
