"""The train command on ranks: equal to one device, one line for each mistake, no process and no half file left."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import kept_torchrun
import pytest
import torch
import torch.distributed as dist
import torchrun
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import course_lib.__main__
from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.config import parse_model
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.presets import read
from course_lib.ranks import server, shutdown
from course_lib.training.batches import Batches
from course_lib.training.text import load_text
from course_lib.training.torch_techniques import torch_replicate
from course_lib.training.trainer import Trainer
from course_lib.verify import assert_parallel_equals
from tests.overrides import last_of
from tools.paths import ROOT

SMALL = ["steps=3", "batch=5", "sequence=16", "optimizer=sgd", "lr=0.1", "precision=fp64"]
FILES = ["LATEST", "config.yaml", "metrics.jsonl", "step-3"]
BAD_LOSS = "; one such loss would spoil the weights of all ranks; look at that rank's batch, or lower the learning rate"
ENDS_S = 300.0  # an interrupted run is over within a second on an idle machine


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    """Only of this process: it makes the batches for its own ranks."""
    monkeypatch.setattr(train_run, "load_text", lambda: bytes(range(32, 127)) * 20)
    monkeypatch.delenv("RANK", raising=False)


def run(*overrides):
    return main(["train", *last_of(*overrides)])


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(checkpoint):
    """Of a checkpoint at any layout, in one file or in pieces, as PyTorch itself reads them."""
    if not (checkpoint / ".metadata").exists():
        return torch.load(checkpoint / "trainer.pt")["model"]
    dcp_to_torch_save(checkpoint, checkpoint.parent / "whole.pt")
    saved = torch.load(checkpoint.parent / "whole.pt", weights_only=False)
    return {name.removeprefix("model."): x for name, x in saved.items() if name.startswith("model.")}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return losses_alone(tmp_path_factory.mktemp("alone"), lambda: bytes(range(32, 127)) * 20)


@pytest.fixture(scope="module")
def one_device_that_reads(tmp_path_factory):
    """The same on the whole text, which is what ranks read that torchrun has started."""
    return losses_alone(tmp_path_factory.mktemp("alone"), load_text)


def losses_alone(folder, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "load_text", text)
        assert run(*SMALL, f"out={folder}/run") == 0
    return losses(folder / "run")


@pytest.mark.parametrize(("engine", "ranks"), [("own", 2), ("own", 4), ("torch", 2), ("torch", 4)])
def test_every_way_to_train_gives_the_losses_of_one_device(one_device, tmp_path, capsys, engine, ranks):
    again = f"recompute={'layers' if ranks == 4 else 'none'}"
    assert run(*SMALL, f"engine={engine}", f"dp={ranks}", again, f"out={tmp_path}/run") == 0
    assert losses(tmp_path / "run") == pytest.approx(one_device, rel=1e-9)
    out, err = capsys.readouterr()
    heading, *lines, last, _ = out.splitlines()
    assert (
        f"engine={engine}, dp={ranks} on {ranks} ranks{', recompute=layers' * (ranks == 4)} (cpu)" in heading
        and err == ""
    )
    assert [line.split("  ")[1] for line in lines] == [f"loss {loss:.6f}" for loss in one_device]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    assert f"\ndp: {ranks}\n" in (tmp_path / "run" / "config.yaml").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


KEEP, TORCH = ("sequence_parallel=keep",), ("engine=torch", "recompute=layers")
SHARED = {  # matrices, by engine and degrees
    "own, replicas": ("dp=2", "tp=2", "sequence_parallel=regather"),
    "own, stages": ("pp=2", "tp=2", "batch=4", "model=tiny_gpt", "recompute=layers"),
    "torch, replicas": ("dp=2", "tp=2", *TORCH, *KEEP, "model=tiny_gpt", "batch=4", "accumulation=2"),
}


@pytest.mark.parametrize("name", SHARED)
def test_ranks_that_share_matrices_give_the_losses_of_one_device(one_device, four_sequences, tmp_path, capsys, name):
    assert run(*SMALL, *SHARED[name], f"out={tmp_path}/run") == 0
    want = losses(four_sequences) if "model=tiny_gpt" in SHARED[name] else one_device
    assert losses(tmp_path / "run") == pytest.approx(want, rel=1e-9)
    out, err = capsys.readouterr()
    degrees = sorted(word for word in SHARED[name] if word[:2] in ("dp", "pp"))
    tp = next(word for word in SHARED[name] if word.startswith("tp"))
    assert f", {' x '.join([*degrees, tp])} on " in out.splitlines()[0] and err == ""
    assert f"\n{tp.replace('=', ': ')}\n" in (tmp_path / "run" / "config.yaml").read_text()


AGAIN = "recompute=layers"
SHARDED = {  # by engine: what ranks say of it
    "own, stage 1": ("dp=2", "zero_stage=1", "policy=by_block_group", "policy_size=2"),
    "own, stage 3": ("dp=4", "recompute=layers", "zero_stage=3", "strategy=HYBRID_SHARD", "shards=2", "offload=cpu"),
    "own, stage 1, matrices": ("dp=2", "tp=2", "zero_stage=1"),
    "own, stage 3, matrices": ("dp=2", "tp=2", AGAIN, "zero_stage=3", "strategy=FULL_SHARD", "offload=cpu"),
    "torch, stage 3, matrices": ("dp=2", "tp=2", *TORCH, "zero_stage=3", "strategy=SHARD_GRAD_OP"),
    "torch, stage 1": ("dp=3", "engine=torch", "zero_stage=1"),
    "torch, stage 2": ("dp=2", "engine=torch", "recompute=layers", "zero_stage=2"),
}


@pytest.mark.parametrize("name", SHARDED)
def test_ranks_that_share_weights_give_the_losses_of_one_device(one_device, tmp_path, capsys, name):
    asked = SHARDED[name]
    assert run(*SMALL, *asked, f"out={tmp_path}/run") == 0
    assert losses(tmp_path / "run") == pytest.approx(one_device, rel=1e-9)
    out, err = capsys.readouterr()
    said = " ".join(word for word in asked if not word.startswith(("dp", "tp", "engine")))
    said = said.replace("recompute=layers ", "recompute=layers, ")
    assert said in out.splitlines()[0].replace(" policy=by_block (", " (") and err == ""
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert all(f"\n{word.replace('=', ': ')}\n" in text for word in asked)


@pytest.mark.parametrize("engine", ["own", "torch"])
def test_what_is_computed_in_bf16_is_off_by_its_eight_bits(one_device, tmp_path, capsys, engine):
    asked = ["dp=2", f"engine={engine}", "zero_stage=3", "precision=bf16", "recompute=layers"]
    assert run(*SMALL, "precision=fp32", *asked, f"out={tmp_path}/run") == 0
    found = losses(tmp_path / "run")
    assert found == pytest.approx(one_device, rel=1 / 256) and found != pytest.approx(one_device, rel=1e-6)


PIPELINES = {  # how they are asked for, by ranks
    "1f1b": ("pp=2", "dp=2", "zero_stage=1"),
    "gpipe": ("pp=2", "schedule=gpipe", "microbatches=4"),
    "interleaved": ("pp=2", "schedule=interleaved"),
    "zb-h1": ("pp=4", "schedule=zb-h1", "microbatches=2", "recompute=layers"),
}


@pytest.fixture(scope="module")
def four_sequences(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "load_text", lambda: bytes(range(32, 127)) * 20)
        assert run(*SMALL, "batch=4", "model=tiny_gpt", f"out={folder}") == 0
    return folder


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_gives_the_losses_and_the_weights_of_one_device(four_sequences, tmp_path, capsys, name):
    overrides = ["batch=4", "model=tiny_gpt", *PIPELINES[name], f"out={tmp_path}/run"]
    assert run(*SMALL, *overrides) == 0
    want = losses(four_sequences)
    assert losses(tmp_path / "run") == pytest.approx(want, rel=1e-9)
    out, err = capsys.readouterr()
    heading, *lines, _, _ = out.splitlines()
    assert f" ranks, {name} with stages=4 " in heading or f" ranks, {name} with stages=2 " in heading
    assert err == "" and [line.split("  ")[1] for line in lines] == [f"loss {loss:.6f}" for loss in want]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    assert f"\nschedule: {name}\n" in (tmp_path / "run" / "config.yaml").read_text()
    found, reference = (weights(folder / "step-3") for folder in (tmp_path / "run", four_sequences))
    assert found.keys() == reference.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, reference[name], rtol=1e-9, atol=1e-9)


def on_one_device(config):
    return Trainer(Decoder(parse_model(read("tiny", "tiny_gpt")).config), config)


def by_pytorch(config):
    model = Decoder(parse_model(read("tiny", "tiny_gpt")).config)
    return Trainer(model, config, mesh=make_mesh(dp=dist.get_world_size()), apply=(torch_replicate(),))


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_trainer_by_pytorch_climbs_the_ladder(ranks):
    batches = Batches(text=bytes(range(32, 127)) * 20, batch_size=5, sequence=16, ragged=True)
    report = assert_parallel_equals(on_one_device, by_pytorch, batches, world_size=ranks, steps=2)
    assert report.world_size == ranks and len(report.losses) >= 2


@pytest.mark.parametrize(
    ("parallel", "ranks"),
    [
        (["dp=2"], "ranks 0, 1"),
        (["dp=2", "engine=torch"], "ranks 0, 1"),
        (["pp=2", "batch=4"], "rank 1"),
        (["pp=2", "dp=2", "batch=4"], "ranks 2, 3"),
    ],
)
def test_a_loss_that_is_not_finite_is_one_line_for_all_ranks(tmp_path, capsys, parallel, ranks):
    overrides = [*parallel, "precision=fp32", "lr=1e38", f"out={tmp_path}/run"]
    assert run(*SMALL, *overrides) == 1
    kept = f"; '{tmp_path}/run' keeps metrics.jsonl and no checkpoint: the same command begins anew"
    assert capsys.readouterr().err == f"Trainer: loss nan on {ranks}{BAD_LOSS}{kept}\n"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "metrics.jsonl"]


def test_ranks_that_the_system_refuses_are_one_line(tmp_path, monkeypatch, capsys):
    def refuse():
        raise OSError("no process can be started")

    shutdown()
    monkeypatch.setattr(server, "start_fork_server", refuse)
    assert run(*SMALL, "dp=2", f"out={tmp_path}/run") == 1
    assert capsys.readouterr().err == "train: OSError: no process can be started\n"
    assert list(tmp_path.iterdir()) == []


class Died(bytes):
    """A text that ends the rank which unpacks it."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_rank_that_dies_ends_the_run_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_run, "load_text", lambda: Died(bytes(range(32, 127)) * 20))
    assert run(*SMALL, "dp=2", f"out={tmp_path}/run") == 1
    err = capsys.readouterr().err
    assert re.match(r"train: RankError: rank \d died \(its process ended with status 1\)", err) and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def started(*command, cwd):
    """A process in a session of its own, so that it can be told from others."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_of(folder):
    """Processes that still work in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samefile(process / "cwd", folder) and (process / "stat").read_text().split()[-50] != "Z":
                found.append((process / "cmdline").read_text())
        except OSError:
            pass
    return found


TORCHRUN = torchrun.command(2, "-m", "course_lib")


@pytest.fixture(scope="module")
def two_ranks():
    """Of a torchrun, in which runs go one after another."""
    with kept_torchrun.kept(2, [train_run.__file__], PYTHONPATH=str(ROOT)) as ready:
        yield ready


@pytest.mark.parametrize("parallel", [["dp=2", "engine=torch"], ["pp=2", "microbatches=5"]])
def test_under_torchrun_the_losses_are_those_of_one_device(two_ranks, one_device_that_reads, tmp_path, parallel):
    with two_ranks.started(
        course_lib.__main__.__file__, "train", *last_of(*SMALL, *parallel), "out=run", cwd=tmp_path
    ) as run:
        statuses = run.wait(ENDS_S)
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert statuses == [0, 0], err
    assert losses(tmp_path / "run") == pytest.approx(one_device_that_reads, rel=1e-9)
    assert len([line for line in out.splitlines() if line.startswith("step ")]) == 3  # the first rank alone speaks
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    assert f"\n{parallel[0].replace('=', ': ')}\n" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("overrides", "line", "status"),
    [
        (["dp=2", "batch=1"], "train: batch=1 with dp=2; every rank needs a sequence; give batch >= 2, ", 2),
        (["dp=2", "precision=fp32", "lr=1e38"], f"Trainer: loss nan on ranks 0, 1{BAD_LOSS}", 1),
    ],
)
def test_under_torchrun_a_mistake_is_one_line_of_ours(tmp_path, overrides, line, status):
    process = started(*TORCHRUN, "train", *last_of(*SMALL, *overrides), "out=run", cwd=tmp_path)
    _, err = process.communicate()
    assert len([found for found in err.splitlines() if found.startswith(line)]) == 1
    # What follows is torchrun's report on its own behalf: one traceback of its own process, none of ours.
    assert f"(exitcode: {status})" in err and len(re.findall("^Traceback", err, re.MULTILINE)) == 1
    assert process.returncode == 1 and left_of(tmp_path) == []
    assert not (tmp_path / "run/LATEST").exists()
