"""Checkpoints of a run on two axes: in pieces, in the background, and whatever moment a rank is killed at."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import threading
import time
from unittest.mock import patch

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from sharded_models import TOKENS
from test_train_resume import losses

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import RankError, run_ranks
from course_lib.schedules import make_schedule
from course_lib.training import series, step_folders
from course_lib.training.batches import Batches
from course_lib.training.sharding import fully_shard
from course_lib.training.techniques import stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from tests.ranks.module_03.test_train_command import weights
from tests.ranks.module_06.test_sharded_tensor import ADAMW, LLAMA, both
from tests.ranks.module_07.test_two_axes import assert_same_state

TEXT = bytes(range(32, 127)) * 20
STEP = ["trainer.pt", "written_by.json"]


@pytest.fixture(autouse=True)
def on_the_ranks():
    cloudpickle.register_pickle_by_value(__import__(__name__))


# --- in the background ---


def saved_in_background(folder):
    """Train while the disk is slow; what was written, whether it was still being written, and what stays of three."""
    trainer, ready, sync = both(ADAMW, 2, 2, (tensor(), fully_shard())), threading.Event(), os.fsync
    writer = series.Background(trainer, folder, keep=2)

    def slow(descriptor):
        assert ready.wait(20)
        sync(descriptor)

    trainer.step(TOKENS.batch(0))
    before = {name: x.clone() for name, x in trainer.parameters().items()}
    with patch.object(os, "fsync", slow):
        writer.save_step(1, "first")
        trainer.step(TOKENS.batch(1))
        early = step_folders.latest(folder)
        ready.set()
        writer.finish()
    again = both(ADAMW, 2, 2, (tensor(), fully_shard()))
    record = series.resume(again, folder)
    same = all(torch.equal(x, before[name]) for name, x in again.parameters().items())
    for step in (2, 3):
        trainer.step(TOKENS.batch(step))
        writer.save_step(step, step)
    writer.finish()
    return early, record, same, trainer.state()


def taken_over(folder, degrees, apply):
    """What a trainer finds whose model has no numbers until then."""
    with torch.device("meta"):
        model = Decoder(LLAMA)
    records = []
    init = lambda trainer: records.append(series.resume(trainer, folder))  # noqa: E731
    trainer = Trainer(model, ADAMW, mesh=make_mesh(**degrees), apply=apply, init=init)
    return records[0], trainer.state()


def test_a_checkpoint_is_written_while_training_goes_on_and_read_at_any_layout(tmp_path):
    found = run_ranks(saved_in_background, 4, tmp_path)
    for early, record, same, _ in found:
        assert early is None and record == "first" and same
    assert sorted(os.listdir(tmp_path)) == ["LATEST", "step-2", "step-3"]
    files = sorted(os.listdir(tmp_path / "step-3"))
    assert files == [
        ".metadata",
        *(f"__{r}_0.distcp" for r in range(4)),
        "checksums.json",
        "written_by.json",
    ]
    assert step_folders.latest(tmp_path).name == "step-3"
    wanted = found[0][3]
    pipeline = stages(make_schedule("1f1b", 2, 2))
    for ranks, degrees, apply in ((4, {"dp": 4}, (fully_shard(),)), (2, {"pp": 2}, (pipeline,))):
        for record, state in run_ranks(taken_over, ranks, tmp_path, degrees, apply):
            assert record == 3
            assert_same_state(state, wanted)
    alone = Trainer(Decoder(LLAMA), ADAMW)
    assert series.resume(alone, tmp_path) == 3
    assert_same_state(alone.state(), wanted)


def test_on_one_device_too_what_is_written_is_the_state_before_it_went_on(tmp_path):
    trainer, again = (Trainer(Decoder(LLAMA), ADAMW) for _ in range(2))
    trainer.step(TOKENS.batch(0))
    before = copy.deepcopy(trainer.state())
    writer = series.Background(trainer, tmp_path)
    writer.save_step(1, "first")
    trainer.step(TOKENS.batch(1))
    writer.finish()
    assert series.resume(again, tmp_path) == "first" and sorted(os.listdir(tmp_path / "step-1")) == STEP
    assert_same_state(again.state(), before)


def fail_in_background(folder):
    """The last rank's disk is full: all ranks hear of it when they wait, and the checkpoint before is still there."""
    trainer = both(ADAMW, 1, 2, (tensor(),))
    writer = series.Background(trainer, folder)
    writer.save_step(1, None)
    writer.finish()
    with pytest.MonkeyPatch.context() as monkeypatch:
        if dist.get_rank() == 1:
            monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_item", full)
        writer.save_step(2, None)
        with pytest.raises(OSError, match="step-2: .*No space left on device on rank 1") as error:
            writer.save_step(3, None)
    return str(error.value)


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_what_goes_wrong_in_the_background_is_raised_on_all_ranks(tmp_path):
    first, second = run_ranks(fail_in_background, 2, tmp_path)
    assert first == second and sorted(os.listdir(tmp_path)) == ["LATEST", "step-1"]


# --- killed ---


STEPS = 4


def losses_from(folder, degrees, apply):
    """Of the steps after the last checkpoint."""
    torch.manual_seed(0)
    trainer = Trainer(Decoder(LLAMA), ADAMW, mesh=make_mesh(**degrees), apply=apply)
    done = series.resume(trainer, folder) or 0
    return [trainer.step(TOKENS.batch(step)) for step in range(done, STEPS)]


def killed_in_background(folder):
    """The last rank is killed by the thread that writes the second checkpoint."""
    torch.manual_seed(0)
    trainer = both(ADAMW, 2, 2, (tensor(), fully_shard()))
    writer = series.Background(trainer, folder)
    for step in range(STEPS):
        trainer.step(TOKENS.batch(step))
        if step == 1 and dist.get_rank() == 3:
            os.fsync = kill
        writer.save_step(step + 1, step + 1)


def test_killed_while_a_thread_writes_it_goes_on_from_the_checkpoint_before(tmp_path):
    apply = tensor(), fully_shard()
    whole = run_ranks(losses_from, 4, tmp_path, {"dp": 2, "tp": 2}, apply)
    with pytest.raises(RankError, match="rank 3 died"):
        run_ranks(killed_in_background, 4, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["LATEST", "step-1", "step-2.unfinished"]
    assert run_ranks(losses_from, 4, tmp_path, {"dp": 2, "tp": 2}, apply) == [losses[1:] for losses in whole]
    for found in run_ranks(losses_from, 4, tmp_path, {"tp": 4}, (tensor(),)):
        assert found == pytest.approx(whole[0][1:], abs=1e-6)


class Killed(Batches):
    """Batches that let the last rank be killed: in the middle of step 4, or in mid-save after it."""

    moment, folder = "", None

    def batch(self, step):
        while step == 3 and step_folders.latest(self.folder) is None:  # which a thread writes meanwhile
            time.sleep(0.01)
        if step == 3 and dist.get_rank() == dist.get_world_size() - 1:
            if self.moment == "step":
                train_run.Trainer.clip = kill  # its gradients are there, its weights as before
            else:
                os.fsync = kill
        return super().batch(step)


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def run(*overrides):
    small = ["steps=5", "batch=4", "sequence=16", "precision=fp32", "checkpoint_every=2"]
    return main(["train", *small, *overrides])


def run_killed(monkeypatch, moment, *overrides):
    def batches(run):
        made = Killed(text=TEXT, batch_size=run.batch, sequence=run.sequence, seed=run.seed)
        made.__dict__.update(moment=moment, folder=run.out)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(train_run, "make_batches", batches)
        return run(*overrides)


def test_a_rank_is_killed_in_mid_step_and_in_mid_save_and_the_run_goes_on_from_the_last_good_checkpoint(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(train_run, "load_text", lambda: TEXT)
    monkeypatch.delenv("RANK", raising=False)
    whole, parts, elsewhere = (tmp_path / name for name in ("whole", "parts", "elsewhere"))
    two_axes = ["dp=2", "tp=2", "zero_stage=3"]
    assert run(*two_axes, f"out={whole}") == 0
    for moment, left in (("step", []), ("save", ["step-4.unfinished"])):
        assert run_killed(monkeypatch, moment, *two_axes, f"out={parts}") == 1
        assert f"'{parts}' keeps step 2: the same command goes on from there" in capsys.readouterr().err
        assert [path.name for path in sorted(parts.glob("step-*"))] == ["step-2", *left]
    shutil.copytree(parts, elsewhere)
    assert run(*two_axes, f"out={parts}") == 0 and losses(parts) == losses(whole)
    assert run(f"out={elsewhere}") == 0 and len(losses(parts)) == 5
    found, wanted = (list(map(float, losses(folder))) for folder in (elsewhere, whole))
    assert found == pytest.approx(wanted, abs=1e-6)
    trained = [weights(folder / "step-5") for folder in (parts, whole)]
    assert trained[0] and all(torch.equal(x, trained[1][name]) for name, x in trained[0].items())
