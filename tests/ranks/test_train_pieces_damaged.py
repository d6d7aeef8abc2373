"""A checkpoint in pieces: a bit that flips in any of its files, and a disk that is full while one rank writes."""

from __future__ import annotations

import resource
import shutil
import signal
import time

import cloudpickle
import pytest
import torch.distributed as dist
from test_train_resume import TEXT, losses, run, run_stopped

from course_lib.cli import train_run
from course_lib.training import step_folders
from course_lib.training.batches import Batches

SHARED = ["dp=2", "zero_stage=3", "optimizer=adamw"]
FILES = [".metadata", "__0_0.distcp", "__1_0.distcp", "checksums.json", "written_by.json"]


cloudpickle.register_pickle_by_value(__import__(__name__))


@pytest.fixture(scope="module")
def patch():
    """What lasts as long as this file's runs that are made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "load_text", lambda: TEXT)
        patch.delenv("RANK", raising=False)
        yield patch


@pytest.fixture(scope="module")
def whole(patch, tmp_path_factory):
    """The losses of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(*SHARED, f"out={folder}") == 0
    return losses(folder)


@pytest.fixture(scope="module")
def stopped(patch, tmp_path_factory):
    """A run that was stopped after step 3 and keeps two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    assert run_stopped(patch, *SHARED, "checkpoint_every=1", f"out={folder}") == 1
    return folder


@pytest.mark.parametrize("file", FILES)
def test_a_bit_that_flips_is_told_with_its_file_and_what_remains(tmp_path, capsys, stopped, whole, file):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    assert sorted(path.name for path in (folder / "step-3").iterdir()) == FILES  # none is left out here
    damaged = folder / "step-3" / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    asked = [*SHARED, "checkpoint_every=1", f"out={folder}"]
    assert run(*asked) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"load_pieces: {damaged} ") and "altered" in err and err.count("\n") == 1
    assert f"keeps step-2: write step-2 into {folder}/LATEST, and the same command goes on from there" in err
    (folder / "LATEST").write_text("step-2")
    if file == "written_by.json":  # what proves that the run wrote step-3 is gone, so it does not remove that
        assert run(*asked) == 1
        assert f"{folder}/step-3 is there, and this run did not write it: move it away" in capsys.readouterr().err
        shutil.move(folder / "step-3", tmp_path)
    assert run(*asked) == 0
    assert losses(folder) == whole


class FullForOne(Batches):
    """Batches after which rank 1 can write no file above 100 kB: the system's own refusal, in the middle of a save."""

    folder = None

    def batch(self, step):
        while step == 3 and step_folders.latest(self.folder) is None:  # which a thread writes meanwhile
            time.sleep(0.01)
        if step == 3 and dist.get_rank() == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        return super().batch(step)


def test_a_disk_that_is_full_for_one_rank_leaves_the_checkpoint_before(tmp_path, monkeypatch, capsys, whole):
    folder = tmp_path / "run"
    asked = [*SHARED, "checkpoint_every=2", f"out={folder}"]

    def batches(run):
        made = FullForOne(text=TEXT, batch_size=run.batch, sequence=run.sequence)
        made.__dict__.update(folder=run.out)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(train_run, "make_batches", batches)
        assert run(*asked) == 1
    err = capsys.readouterr().err
    assert "File too large" in err and "on rank 1" in err and err.count("\n") == 1
    assert err.endswith(f"'{folder}' keeps step 2: the same command goes on from there\n")
    assert sorted(path.name for path in folder.iterdir()) == ["LATEST", "config.yaml", "metrics.jsonl", "step-2"]
    assert run(*asked) == 0
    assert losses(folder) == whole
