"""A run that was stopped goes on as if it had not been: at every step, in every layout, and in the middle of a save."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib import comm
from course_lib.cli import train_model, train_run
from course_lib.cli.main import main
from course_lib.cli.train_watch import watch
from course_lib.ranks import RankError, run_ranks
from course_lib.training import checkpoint, step_folders
from course_lib.training.batches import Batches
from course_lib.training.checkpoint import FILE
from tests.ranks.module_03.test_train_command import weights

SMALL = ["steps=5", "batch=4", "sequence=16", "precision=fp32", "model=tiny_gpt"]
TEXT = bytes(range(32, 127)) * 20
FILES = ["LATEST", "config.yaml", "metrics.jsonl", "step-4", "step-5"]  # of a checkpoint every two steps or fewer


class Stopping(Batches):
    """Batches that end the run when a certain step asks for its own."""

    stop_at = 3

    def batch(self, step):
        if step == self.stop_at:
            raise ValueError("stopped")
        return super().batch(step)


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    monkeypatch.setattr(train_run, "load_text", lambda: TEXT)
    monkeypatch.delenv("RANK", raising=False)
    cloudpickle.register_pickle_by_value(__import__(__name__))


def run(*overrides):
    names = {override.partition("=")[0] for override in overrides}
    return main(["train", *(given for given in SMALL if given.partition("=")[0] not in names), *overrides])


def run_stopped(monkeypatch, *overrides):
    def batches(run):
        return Stopping(text=TEXT, batch_size=run.batch, sequence=run.sequence, seed=run.seed)

    with monkeypatch.context() as patch:
        patch.setattr(train_run, "make_batches", batches)
        return run(*overrides)


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


LAYOUTS = {  # AdamW, which has more to keep, wherever a run is cut in another way
    "one device": ["optimizer=sgd"],
    "accumulation": ["accumulation=2", "optimizer=adamw", "lr_schedule=cosine", "warmup_steps=3"],
    "dp": ["dp=2", "optimizer=sgd", "warmup_steps=3"],
    "pp": ["pp=2", "optimizer=adamw"],
    "dp x pp": ["dp=2", "pp=2", "optimizer=adamw"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_command_goes_on_bit_by_bit(tmp_path, monkeypatch, capsys, layout):
    asked = [*LAYOUTS[layout], "checkpoint_every=2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(*asked, f"out={whole}") == 0
    assert run_stopped(monkeypatch, *asked, f"out={parts}") == 1
    assert capsys.readouterr().err.endswith(f"; '{parts}' keeps step 2: the same command goes on from there\n")
    assert sorted(path.name for path in parts.iterdir()) == ["LATEST", "config.yaml", "metrics.jsonl", "step-2"]
    assert run(*asked, f"out={parts}") == 0
    assert f"\ngoes on after step 2 of 5, from {parts}\n" in capsys.readouterr().out
    assert losses(parts) == losses(whole) and len(losses(parts)) == 5
    assert sorted(path.name for path in parts.iterdir()) == sorted(path.name for path in whole.iterdir()) == FILES
    found, wanted = weights(parts / "step-5"), weights(whole / "step-5")
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], x) for name, x in wanted.items())


def test_at_another_layout_it_goes_on_within_rounding(tmp_path, monkeypatch, capsys):
    assert run("precision=fp64", f"out={tmp_path}/whole") == 0
    out = f"out={tmp_path}/parts"
    shared = "dp=2", "zero_stage=2"
    assert run_stopped(monkeypatch, "precision=fp64", "checkpoint_every=2", *shared, out) == 1
    assert run("precision=fp64", "pp=2", "tp=2", out) == 0
    found, want = (losses(tmp_path / name) for name in ("parts", "whole"))
    assert found == pytest.approx(want, rel=1e-9)


class DrawsNumbers(torch.nn.Module):
    """A model that draws random numbers in each forward."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return torch.nn.functional.dropout(self.inner(inputs), 0.5)


def test_random_numbers_go_on_where_they_were(tmp_path, monkeypatch, capsys):
    make = train_model.Decoder
    monkeypatch.setattr(train_model, "Decoder", lambda config: DrawsNumbers(make(config)))
    assert run(f"out={tmp_path}/whole") == 0
    assert run_stopped(monkeypatch, "checkpoint_every=2", f"out={tmp_path}/parts") == 1
    assert run("checkpoint_every=2", f"out={tmp_path}/parts") == 0
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def in_child(prepare, *overrides):
    """The exit status of a run in a process of its own that is prepared first; negative: the signal that ended it."""
    child = os.fork()
    if child == 0:
        prepare()
        torch.set_num_threads(1)  # a child has no other
        os._exit(run(*overrides))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(moment):
    """SIGKILL when the process asks for the `moment`-th time that something reaches the disk."""
    times, sync = iter(range(moment + 1)), os.fsync

    def fsync(descriptor):
        if next(times) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    os.fsync = fsync


def test_killed_while_it_saves_it_has_the_checkpoint_before(tmp_path, capsys):
    assert in_child(int, "checkpoint_every=1", f"out={tmp_path}/whole") == 0
    asked, folder, found = ["checkpoint_every=1", f"out={tmp_path}/run"], tmp_path / "run", []
    for moment in (0, 2, 3, 4, 5, 4):  # the configuration, after the metrics a checkpoint, its pointer, the next ones
        assert in_child(partial(killed_at, moment), *asked) == -signal.SIGKILL
        latest = step_folders.latest(folder)
        found.append(0 if latest is None else step_folders.step_of(latest))
        if latest is not None:
            checkpoint.read(latest)
    assert found == [0, 0, 1, 2, 3, 4]  # one that is whole counts, even if the pointer does not name it yet
    assert in_child(int, *asked) == 0
    assert losses(folder) == losses(tmp_path / "whole")
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(tmp_path, monkeypatch, capfd):
    asked, folder = ["checkpoint_every=2", f"out={tmp_path}/run"], tmp_path / "run"
    assert run_stopped(monkeypatch, *asked) == 1
    before = (folder / "step-2" / FILE).read_bytes()
    capfd.readouterr()
    assert in_child(full_disk, *asked) == 1
    assert capfd.readouterr().err == (
        f"train: OSError: [Errno 27] File too large: '{folder}/step-4/{FILE}'; "
        f"'{folder}' keeps step 2: the same command goes on from there\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["LATEST", "config.yaml", "metrics.jsonl", "step-2"]
    assert (folder / "step-2" / FILE).read_bytes() == before
    assert run(*asked) == 0 and len(losses(folder)) == 5


def full_disk():
    """No file of this process grows above 100 kB: the error is another than a full disk's, the path is the same."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_what_one_rank_cannot_write_is_one_line_of_all(tmp_path, monkeypatch, capsys):
    asked, folder = ["checkpoint_every=2", "dp=2", f"out={tmp_path}/run"], tmp_path / "run"
    assert run_stopped(monkeypatch, *asked) == 1
    (folder / "step-4").write_text("a file where the next checkpoint's folder belongs")
    capsys.readouterr()
    assert run(*asked) == 1
    err = capsys.readouterr().err
    assert err.startswith("train: OSError: ") and "step-4" in err and err.count("\n") == 1
    assert err.endswith(f" (on the rank that writes); '{folder}' keeps step 2: the same command goes on from there\n")


class Full:
    def write(self, content):
        raise OSError(28, "No space left on device")


def full_while_written(content, file, save=torch.save):
    save(content, Full())


def full_at_the_end(descriptor):
    Full().write(b"")


@pytest.mark.parametrize(
    "full", [("torch.save", full_while_written), ("os.fsync", full_at_the_end)], ids=["while written", "at the end"]
)
def test_what_stopped_a_save_is_said_with_the_file_s_name(tmp_path, monkeypatch, full):
    monkeypatch.setattr(*full)
    (tmp_path / FILE).write_bytes(b"before")
    with pytest.raises(OSError, match=r"No space left on device: .*trainer.pt"):
        checkpoint.write({"model": torch.zeros(3)}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE] and (tmp_path / FILE).read_bytes() == b"before"


def damaged(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "altered":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        torch.save([1, 2, 3], path)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", "it is truncated or altered (File is not a zip file)"),
        ("empty", "it is truncated or altered (File is not a zip file)"),
        ("altered", "was altered: its checksum is another"),
        ("something else", "it holds something else than a model and its optimizer"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, monkeypatch, capsys, how, said):
    asked = ["checkpoint_every=2", f"out={tmp_path}/run"]
    assert run_stopped(monkeypatch, *asked) == 1
    damaged(tmp_path / "run" / "step-2" / FILE, how)
    capsys.readouterr()
    assert run(*asked) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"Trainer.load: {tmp_path}/run/step-2/{FILE}, ") and said in err and err.count("\n") == 1


def test_a_folder_is_one_run_s(tmp_path, monkeypatch, capsys):
    out = f"out={tmp_path}/run"
    assert run_stopped(monkeypatch, "checkpoint_every=2", out) == 1
    capsys.readouterr()
    rule = f"the unfinished run in '{tmp_path}/run'"
    for other, line in (
        ("lr=0.5", f"train: lr=0.5; {rule} began with lr=0.003; give lr=0.003, or another folder as out=\n"),
        ("model.n_layers=1", f"train: model.n_layers=1; {rule} began with model.n_layers=2; give model.n_"),
        ("steps=1", f"train: steps=1; the run in '{tmp_path}/run' has 2 already; give steps > 2, or another"),
    ):
        assert run("checkpoint_every=2", out, other) == 2
        assert capsys.readouterr().err.startswith(line)
    cosine = "lr_schedule=cosine", f"out={tmp_path}/cosine"
    assert run_stopped(monkeypatch, "checkpoint_every=2", *cosine) == 1
    capsys.readouterr()
    assert run(*cosine, "steps=6") == 2  # half a cosine ends with the run
    assert capsys.readouterr().err.startswith(f"train: steps=6; the unfinished run in '{tmp_path}/cosine' began with ")
    assert run(out) == 0
    assert run(out) == 2
    rule = f"the run in '{tmp_path}/run' has 5 already; give steps > 5, or another folder as out="
    assert capsys.readouterr().err == f"train: steps=5; {rule}\n"
    assert run(out, "steps=6") == 0 and len(losses(tmp_path / "run")) == 6


def test_two_runs_cannot_have_the_same_folder_at_once(tmp_path, monkeypatch, capsys):
    asked, seen = f"out={tmp_path}/run", []
    step = train_run.Trainer.step

    def started_again(self, batch):
        if not seen:
            seen.append(run(asked))
        return step(self, batch)

    monkeypatch.setattr(train_run.Trainer, "step", started_again)
    assert run(asked) == 0 and seen == [2]
    assert f"out='{tmp_path}/run'; another run writes there now; " in capsys.readouterr().err
    assert len(losses(tmp_path / "run")) == 5


def test_ranks_agree_on_minutes(tmp_path, monkeypatch, capsys):
    asked = ["dp=2", "checkpoint_every=0.00001min", f"out={tmp_path}/run"]  # any step takes longer
    assert run_stopped(monkeypatch, *asked) == 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "LATEST",
        "config.yaml",
        "metrics.jsonl",
        "step-2",
        "step-3",
    ]


class StoppingRank(Stopping):
    """Batches that stop the last rank, as a debugger or the system may."""

    folder = None

    def batch(self, step):
        train_run.STEP_S = 1.5  # on the ranks, where nobody wants to wait ten minutes
        while step == self.stop_at and step_folders.latest(self.folder) is None:  # which a thread writes meanwhile
            time.sleep(0.01)
        if step == self.stop_at and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return Batches.batch(self, step)


@pytest.mark.parametrize("parallel", ["dp=2", "pp=2"])
def test_a_rank_that_stops_is_named_and_the_others_say_where_they_wait(tmp_path, monkeypatch, capsys, parallel):
    def batches(run):
        made = StoppingRank(text=TEXT, batch_size=run.batch, sequence=run.sequence)
        made.__dict__.update(folder=run.out)
        return made

    monkeypatch.setattr(train_run, "make_batches", batches)
    assert run(parallel, "checkpoint_every=2", f"out={tmp_path}/run") == 1
    err = capsys.readouterr().err
    assert re.match(r"train: RankTimeout: no progress for [\d.]+ s: rank 0 waits in \w+.*; rank 1 ", err)
    assert "restarted" not in err and err.count("\n") == 1
    assert err.endswith("keeps step 2: the same command goes on from there\n")


def hang_under_watch():
    watch(0.5)
    if dist.get_rank() == 0:
        comm.recv(torch.empty(1), src=1)
    time.sleep(60)


def test_under_torchrun_each_rank_watches_itself(capsys):
    with pytest.raises(RankError, match="died"):
        run_ranks(hang_under_watch, 2, timeout=20.0)
    shown = capsys.readouterr().out
    assert "rank 0 │ train: not finished after 0.5 s: rank 0 waits in recv from 1" in shown
    assert "rank 1 │ train: not finished after 0.5 s: rank 1 still runs" in shown
