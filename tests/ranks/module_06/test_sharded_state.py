"""A training state goes from layout to layout bit by bit: in one file with everything, and in a file for each rank."""

from __future__ import annotations

import shutil
from collections import Counter
from math import prod

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded_models import MODELS, TOKENS, alone, sharded
from torch import nn

from course_lib.config import TrainConfig
from course_lib.models.mlp import MLP
from course_lib.ranks import run_ranks
from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.techniques import replicate
from course_lib.training.torch_sharding import torch_fully_shard, torch_zero
from course_lib.training.trainer import Trainer

ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1)
HYBRID = fully_shard(strategy="HYBRID_SHARD", shards=2)
CHAIN = [
    (4, fully_shard()),
    (4, HYBRID),
    (3, zero(2)),
    (3, torch_zero()),
    (2, torch_fully_shard()),
    (2, replicate()),
]


def hop(technique, number, folder):
    """Take both checkpoints over and write them anew; what the rank has must be the same from both."""
    from_file = sharded(ADAMW, technique, "frozen")
    from_file.load(folder / f"whole-{number}")
    from_file.save(folder / f"whole-{number + 1}")
    from_pieces = sharded(ADAMW, technique, "frozen")
    load_pieces(from_pieces, folder / f"pieces-{number}")
    save_pieces(from_pieces, folder / f"pieces-{number + 1}")
    return differing(from_file.parts(), from_pieces.parts()), from_file.options == from_pieces.options


def differing(one, other):
    """Names of what is not the same bit by bit."""
    assert {name: {*kinds} for name, kinds in one.items()} == {name: {*kinds} for name, kinds in other.items()}
    return [name for name, kinds in one.items() for kind, x in kinds.items() if not torch.equal(x, other[name][kind])]


def test_through_six_layouts_and_back_everything_is_the_same_bit_by_bit(tmp_path):
    torch.manual_seed(0)
    first = alone(ADAMW, "frozen")
    for step in range(2):
        first.step(TOKENS.batch(step))
    first.save(tmp_path / "whole-0")
    save_pieces(first, tmp_path / "pieces-0")
    for number, (ranks, technique) in enumerate(CHAIN):
        assert run_ranks(hop, ranks, technique, number, tmp_path) == [([], True)] * ranks
    for load, kind in ((Trainer.load, "whole"), (load_pieces, "pieces")):
        last = alone(ADAMW, "frozen")
        load(last, tmp_path / f"{kind}-{len(CHAIN)}")
        assert differing(first.parts(), last.parts()) == []
        assert any(len(kinds) > 1 for kinds in last.parts().values()) and last.options == first.options
    assert first.step(TOKENS.batch(2)) == last.step(TOKENS.batch(2))
    assert differing(first.parts(), last.parts()) == []


def save_with(technique, folder):
    trainer = sharded(ADAMW, technique)
    trainer.step(TOKENS.batch(0))
    save_pieces(trainer, folder)
    return trainer.parameters()


def numbers_by_file(folder):
    """How many numbers each file has, and the names of what is in them."""
    table = dcp.FileSystemReader(folder).read_metadata()
    sizes = {
        (name, chunk.offsets): prod(chunk.sizes)
        for name, x in table.state_dict_metadata.items()
        for chunk in getattr(x, "chunks", [])
    }
    counted = Counter()
    for index, place in table.storage_data.items():
        counted[place.relative_path] += sizes.get((index.fqn, index.offset), 0)
    return counted, table.state_dict_metadata.keys()


def test_each_rank_writes_its_share_and_pytorch_reads_it(tmp_path):
    for technique, name in ((fully_shard(), "full"), (HYBRID, "hybrid")):
        wanted = run_ranks(save_with, 4, technique, tmp_path / name)[0]
        counted, names = numbers_by_file(tmp_path / name)
        total = sum(3 * x.numel() + 1 for x in wanted.values())  # weights, two states, a counter
        assert sum(counted.values()) == total and len(counted) == 4
        assert max(counted.values()) <= (0.3 if name == "full" else 0.55) * total
        assert "optimizer.state.layers.1.ffn.up_proj.weight.exp_avg_sq" in names
        model = MODELS["llama"]()
        with pytest.warns(UserWarning, match="torch.distributed is disabled"):
            dcp.load({"model": (found := model.state_dict())}, checkpoint_id=tmp_path / name, no_dist=True)
        for key, x in wanted.items():
            assert torch.equal(found[key], x)


def fail_to_write(folder):
    """The last rank's disk is full; what the others say, and whether there is a checkpoint."""
    trainer = sharded(ADAMW, fully_shard(), "mlp")
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 2:
            patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left on device on rank 2") as error:
            save_pieces(trainer, folder)
    save_pieces(trainer, folder)
    return str(error.value)


def full(content, file):
    raise OSError(28, "No space left on device")


def loaded_damaged(folder):
    with pytest.raises(ValueError) as error:
        load_pieces(sharded(ADAMW, fully_shard(), "mlp"), folder)
    return str(error.value)


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "altered":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[:-1] if how == "truncated" else content)


def test_a_file_that_one_rank_cannot_write_is_one_line_of_all_and_a_damaged_one_is_named(tmp_path):
    texts = run_ranks(fail_to_write, 3, tmp_path / "one")
    assert len(set(texts)) == 1 and "\n" not in texts[0] and [path.name for path in tmp_path.iterdir()] == ["one"]
    cases = [
        ("__1_0.distcp", "truncated", " bytes of "),
        ("__2_0.distcp", "altered", " was altered: its checksum is another; "),
        (".metadata", "altered", " was altered: its checksum is another; "),
        ("checksums.json", "truncated", " is truncated or altered; "),
    ]
    for name, how, said in cases:
        shutil.copytree(tmp_path / "one", folder := tmp_path / f"{name} {how}")
        damage(folder / name, how)
        texts = run_ranks(loaded_damaged, 3, folder)
        assert len(set(texts)) == 1 and texts[0].startswith(f"load_pieces: {folder / name} ") and said in texts[0]
        assert texts[0].endswith("; a checkpoint is read as it was written; take another checkpoint, or train anew")


def test_what_is_not_there_or_another_model_s_is_refused(tmp_path):
    trainer = Trainer(MLP(), ADAMW)
    with pytest.raises(ValueError, match=r"^load_pieces: no .*\.metadata; a checkpoint in pieces has a file"):
        load_pieces(trainer, tmp_path / "none")
    save_pieces(trainer, tmp_path / "one")
    with pytest.raises(
        ValueError, match=r"^save_pieces: .*one is there; a checkpoint in pieces is written over none; "
    ):
        save_pieces(trainer, tmp_path / "one")
    with pytest.raises(ValueError, match="embedding.weight is not there in the checkpoint and of shape"):
        load_pieces(alone(ADAMW), tmp_path / "one")


def test_a_module_may_bear_the_file_s_own_names(tmp_path):
    def named():
        return Trainer(nn.ModuleDict({"optimizer": nn.ModuleDict({"state": nn.Linear(2, 1)})}), ADAMW)

    save_pieces(one := named(), tmp_path / "one")
    load_pieces(other := named(), tmp_path / "one")
    assert differing(one.parts(), other.parts()) == []
