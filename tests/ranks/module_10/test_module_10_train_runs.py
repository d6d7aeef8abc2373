"""`train` with averages that lose something: it goes on to the bit, and on other ranks from what they have together."""

from __future__ import annotations

import pytest
import torch
from ladder_models import EVEN, Toy

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
from tests.ranks.module_11.test_module_11_train_runs import losses, run_in

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


FILES = {"one file": (Trainer.save, Trainer.load), "pieces": (save_pieces, load_pieces)}
SERVED_TWICE = (replicate(lossy=double_squeeze(top_k(0.1))),)
WRITTEN = {  # what is trained on, and by how many ranks: all by one pool
    "squeezed": (SERVED_TWICE, {"dp": 4}),
    "local": ((local(5),), {"dp": 4}),
    "gossip": ((gossip("complete", track=True),), {"dp": 4}),
    "clusters": ((fully_shard(), local(5)), {"across": 2, "dp": 2}),
}


def held(trainer):
    """A rank's weights, what the trainer tells of all, and what a lossy average keeps."""
    kinds = [kind for kind in (RESIDUAL, SERVED) if kind in trainer.apart.memory.kinds]
    told = flat(trainer.parameters().values())
    return flat(trainer.local.parameters.values()), told, {kind: kept(trainer, kind) for kind in kinds}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The folder of each, and what ranks held after three steps, when they wrote it."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def write():
        found = {}
        for name, (apply, degrees) in WRITTEN.items():
            trainer = make(apply, **degrees)
            for step in range(3):
                trainer.step(EVEN.batch(step))
            for how, (save, _) in FILES.items():
                save(trainer, folder / f"{name}, {how}")
            found[name] = held(trainer)
        return found

    return folder, run_ranks(write, 4)


def read(folder, ranks, *asked):
    """Of each name with techniques and degrees what ranks have that read it, for both kinds of files."""

    def run():
        found = []
        for name, apply, degrees in asked:
            for how, (_, load) in FILES.items():
                trainer = make(apply, **degrees)
                load(trainer, folder / f"{name}, {how}")
                found.append(held(trainer))
        return found

    return zip(*run_ranks(run, ranks), strict=True)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_on_other_ranks_means_stay_where_they_were(ranks, checkpoints):
    folder, written = checkpoints
    degrees = {"dp": ranks}
    asked = [(name, WRITTEN[name][0], degrees) for name in ("squeezed", "local")]
    squeezed, local_steps = (both for both in _in_twos(read(folder, ranks, *asked)))
    for after in squeezed:
        before = [found["squeezed"] for found in written]
        assert torch.equal(after[0][0], before[0][0])
        means = [torch.stack([memory[RESIDUAL] for *_, memory in found]).mean(0) for found in (before, after)]
        assert torch.allclose(means[0], means[1], rtol=0, atol=1e-15) and means[0].abs().max() > 1e-3
        # What servers keep is dealt anew: all of it is there, each number once.
        together = [sorted(torch.cat([memory[SERVED] for *_, memory in found]).tolist()) for found in (before, after)]
        assert together[0] == together[1] and any(together[0])

    own = torch.stack([found["local"][0] for found in written])
    assert (own[0] - own[1]).abs().max() > 1e-3
    means = own.view(ranks, 4 // ranks, -1).mean(1) if 4 % ranks == 0 else own.mean(0, keepdim=True).expand(ranks, -1)
    for after in local_steps:
        for rank, (weights, told, _) in enumerate(after):
            assert torch.allclose(weights, means[rank], rtol=0, atol=1e-15)
            assert torch.allclose(told, own.mean(0), rtol=0, atol=1e-15)


def _in_twos(found):
    found = list(found)
    return [found[at : at + 2] for at in range(0, len(found), 2)]


def test_more_ranks_and_other_techniques_go_on_from_it(checkpoints):
    folder, written = checkpoints
    mean = torch.stack([found["gossip"][0] for found in written]).mean(0)
    clusters = written[0]["clusters"][1]
    asked = [
        ("gossip", WRITTEN["gossip"][0], {"dp": 6}),
        ("gossip", (replicate(),), {"dp": 6}),
        ("gossip", (local(2),), {"dp": 6}),
    ]
    for after in read(folder, 6, *asked):
        assert all(torch.allclose(told, mean, rtol=0, atol=1e-15) for _, told, _ in after)
    asked = [("clusters", (replicate(), local(5)), {"across": 2, "dp": 2}), ("clusters", *WRITTEN["clusters"])]
    whole, sharded = _in_twos(read(folder, 4, *asked))
    for after in whole:
        assert torch.equal(after[0][0], after[1][0]) and not torch.equal(after[0][0], after[2][0])
    for after in (*whole, *sharded):
        assert all(torch.equal(told, clusters) for _, told, _ in after)


def test_a_plain_checkpoint_begins_without_a_memory(tmp_path):
    def run():
        make((replicate(),), dp=2).save(tmp_path / "at")
        trainer = make((replicate(lossy=error_feedback(top_k(0.1))),), dp=2)
        trainer.step(EVEN.batch(0))
        trainer.load(tmp_path / "at")
        return trainer.apart.memory.kinds

    assert all(not any(kinds.values()) for kinds in run_ranks(run, 2))
