"""`python -m course_lib train` on one device: what it composes, prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from hydra.core.global_hydra import GlobalHydra

from course_lib.cli import train as command
from course_lib.cli import train_checks, train_run
from course_lib.cli.main import main
from course_lib.cli.train_config import MODELS, OPTIONS, check_started, read_train
from course_lib.config import ParallelConfig, TrainConfig, load_model, model_names, parse_model
from course_lib.costs.model.parameters import model_parameters
from course_lib.models.decoder import Decoder, init_weight
from course_lib.presets import names, read
from course_lib.ranks import devices
from course_lib.schedules import make_schedule
from course_lib.training.batches import Batches
from course_lib.training.initial import drawn
from course_lib.training.loop import tokens_of, train
from course_lib.training.trainer import Trainer
from tests.overrides import last_of

SMALL = ["steps=3", "batch=4", "sequence=16", "optimizer=sgd", "lr=0.1", "precision=fp64"]
TEXT = bytes(range(32, 127)) * 20
PP = ["pp=2"]
SHARED = ["tp=2", "sequence_parallel=keep"]
REGATHERED = ["tp=2", "sequence_parallel=regather", "engine=torch"]
LINE = re.compile(r"step (\d)/3  loss (\d\.\d{6})  [\d,]+ tokens/s  rank 0: peak RSS [\d.]+ [MG]iB")


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    """These tests are not about the text."""
    monkeypatch.setattr(train_run, "load_text", lambda: TEXT)
    monkeypatch.delenv("RANK", raising=False)


def run(*overrides):
    return main(["train", *last_of(*overrides)])


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_it_is_the_trainer_of_the_notebooks(tmp_path, capsys):
    assert run(*SMALL, f"out={tmp_path}/run") == 0
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Decoder(parse_model(read("tiny", "tiny_llama")).config).double()
    trainer = Trainer(model, TrainConfig(optimizer="sgd", learning_rate=0.1), init=drawn(init_weight))
    expected = [step.loss for step in train(trainer, Batches(text=TEXT, batch_size=4, sequence=16), 3)]
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-12)
    assert expected[-1] < expected[0]
    out, err = capsys.readouterr()
    heading, *lines, last, written = out.splitlines()
    assert heading.startswith("tiny Llama, 125 k parameters in float64; engine=own, one device (cpu); ")
    shown = [LINE.fullmatch(line) for line in lines]
    assert [(match[1], match[2]) for match in shown] == [
        (str(number), f"{loss:.6f}") for number, loss in enumerate(expected, start=1)
    ]
    assert last == f"loss {expected[0]:.6f} -> {expected[-1]:.6f} nats per token in 3 steps"
    assert (written, err) == (f"written: config.yaml, metrics.jsonl, step-3/ in {tmp_path}/run", "")


def test_the_results_hold_the_exact_configuration_and_nothing_else_stays(tmp_path, capsys):
    overrides = [*SMALL, "model=tiny_gpt", "model.n_layers=1", "seed=7", f"out={tmp_path}/run"]
    assert run(*overrides) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    files = ["LATEST", "config.yaml", "metrics.jsonl", "step-3"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert text.splitlines()[0] == f"# python -m course_lib train {shlex.join(overrides)}"
    values = yaml.safe_load(text)
    assert set(values) == {*OPTIONS, "model"} and (values["seed"], values["dp"], values["pp"], values["tp"]) == (
        7,
        1,
        1,
        1,
    )
    assert parse_model(values["model"]).config == replace(parse_model(read("tiny", "tiny_gpt")).config, n_layers=1)


def test_its_checkpoint_is_the_trainer_s(tmp_path, capsys):
    assert run(*SMALL, f"out={tmp_path}/run") == 0
    config = parse_model(read("tiny", "tiny_llama")).config
    fresh = Trainer(Decoder(config).double(), TrainConfig(optimizer="sgd", learning_rate=0.1))
    fresh.load(tmp_path / "run" / "step-3")
    loss = fresh.step(Batches(text=TEXT, batch_size=4, sequence=16).batch(3))
    assert run(*SMALL, "steps=4", f"out={tmp_path}/longer") == 0
    assert losses(tmp_path / "longer")[3] == pytest.approx(loss, rel=1e-12)


def test_the_seed_decides_the_losses(tmp_path, capsys):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(*SMALL, f"seed={seed}", f"out={tmp_path}/{name}") == 0
    a, b, c = (losses(tmp_path / name) for name in "abc")
    assert a == b and a != c


@pytest.mark.parametrize("name", names("tiny"))
def test_every_tiny_model_learns(name, tmp_path, capsys):
    assert run("steps=6", "batch=8", "sequence=32", "lr=0.01", f"model={name}", f"out={tmp_path}/run") == 0
    found = losses(tmp_path / "run")
    assert found[-1] < found[0] - 0.3


def test_tiny_models_are_not_among_the_published_ones():
    assert set(MODELS) == {*names("tiny"), *model_names()} and not set(names("tiny")) & set(model_names())
    assert read_train(["model=llama3_1_8b"]).model == load_model("llama3_1_8b")


def test_another_vocabulary_has_tokens_of_its_own(monkeypatch):
    monkeypatch.setattr("course_lib.training.loop.load_tokens", lambda text, vocab_size: (None, [vocab_size]))
    assert tokens_of(TEXT, 256) is TEXT and tokens_of(TEXT, 300) == [300]


def test_on_a_terminal_one_line_is_overwritten_and_ended(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert run(*SMALL) == 0
    out = capsys.readouterr().out
    assert out.count("\r\x1b[Kstep ") == 3
    last = out.split("\r\x1b[K")[-1].splitlines()
    assert LINE.fullmatch(last[0]) and last[1].startswith("loss ")


@pytest.mark.parametrize(("steps", "lines"), [(1, 1), (20, 20), (39, 39), (1000, 21)])
def test_a_long_run_does_not_fill_the_screen(steps, lines):
    shown = [number for number in range(1, steps + 1) if train_run.is_shown(number, steps)]
    assert (len(shown), shown[0], shown[-1]) == (lines, 1, steps)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=gpt4"], "train: model='gpt4'; there is no such model, and no such folder; choose one of tiny_gpt, "),
        (["model.size=3"], "train: model.size=3; Could not override 'model.size'; "),
        (["model.n_heads=3"], "ModelConfig 'tiny Llama': n_heads=3; n_heads divides hidden_size=64; choose n_heads"),
        (["model=mixtral_8x7b"], "train: Mixtral 8x7B on 1 rank needs 695.9 GiB; this machine has "),
        (["stepps=3"], "train: stepps=3; a training run has no 'stepps'; choose from model, dp, pp, tp, cp, ep, "),
        (["steps=1,2"], "train: steps=1,2; several values stand in brackets; write steps=[value,value]"),
        (["~lr"], "train: ~lr; a training run needs all its values; give lr another value"),
        (["lr"], "train: lr; Error parsing override 'lr'; write name=value"),
        (["steps=0"], "train: steps=0; steps is positive; give steps >= 1"),
        (["steps=2.5"], "train: steps=2.5; steps is of whole numbers; write them without quotes and units"),
        (["seed=-1"], "train: seed=-1; a seed has 32 bits; give 0 <= seed < 4294967296"),
        (["lr=fast"], "train: lr='fast'; lr is a number; write it without quotes and units"),
        (["lr=0"], "TrainConfig: learning_rate=0.0; learning_rate > 0, and finite; give learning_rate > 0"),
        (["lr=nan"], "TrainConfig: learning_rate=nan; learning_rate > 0, and finite; give learning_rate > 0"),
        (["lr_schedule=linear"], "LearningRate: schedule='linear'; not a known schedule; choose from constant, cosine"),
        (["warmup_steps=20"], "LearningRate: warmup_steps=20, steps=20; a step is left after the warm-up; give 0 <= "),
        (["warmup_steps=0.1"], "train: warmup_steps=0.1; warmup_steps is of whole numbers; write them without quotes"),
        (["optimizer=lion"], "TrainConfig: optimizer='lion'; not a known optimizer; choose from sgd, adamw, adamw8bit"),
        (["accumulation=0"], "TrainConfig: accumulation=0; a step takes whole micro-batches, at least one; give "),
        (["engine=jax"], "train: engine='jax'; not a known kind; choose from own, torch"),
        (["parallel=ddp"], "train: parallel=ddp; a training run has no 'parallel'; choose from model, dp, pp, tp"),
        (["dp=0"], "train: dp=0; dp is positive; give dp >= 1"),
        (["pp=1.5"], "train: pp=1.5; pp is of whole numbers; write them without quotes and units"),
        (["dp=11", "pp=3", "batch=33"], "ranks: world_size=33; a pool has 1 to 32 ranks; choose a number in that"),
        (["dp=4", "batch=3"], "train: batch=3 with dp=4; every rank needs a sequence; give batch >= 4, or less dp"),
        (["sequence=2000"], "Batches: 1900 tokens, sequence=2000; a window takes sequence + 1 tokens; give a longer "),
        (["batch=500"], "Batches: batch_size=500, 29 windows; an epoch has each window once; give batch_size <= 29"),
        (["model=tiny_gpt", "sequence=1025"], "ModelConfig 'tiny GPT': sequence=1025; its table of learned positions"),
        (["model.vocab_size=99"], "train_tokenizer: vocab_size=99; it holds the 256 bytes, and 16 bits hold its "),
        (["model=llama3_1_405b"], "train: Llama 3.1 405B on 1 rank needs 5.906 TiB; this machine has "),
        (
            ["schedule=1f1b"],
            "train: schedule=1f1b with pp=1; it belongs to a pipeline; leave schedule out, or give pp >= 2",
        ),
        (
            ["dp=2", "microbatches=2"],
            "train: microbatches=2 with pp=1; it belongs to a pipeline; leave",
        ),
        (["engine=torch", "stages_per_rank=1"], "train: stages_per_rank=1 with pp=1; it belongs to a pipeline; leave "),
        ([*PP, "engine=torch"], "train: engine=torch with pp=2; PyTorch's engine trains along dp and tp here; ch"),
        (
            [*PP, "dp=3", "batch=16"],
            "train: batch=16 in 2 micro-batches on 3 pipelines; all micro-batches have equally many sequences; give "
            "batch=18",
        ),
        ([*PP, "microbatches=2.5"], "train: microbatches=2.5; microbatches is of whole numbers; write them without "),
        ([*PP, "microbatches=0"], "make_schedule: n_microbatches=0; n_microbatches is a positive whole number; give "),
        (
            [*PP, "microbatches=3"],
            "train: batch=16 in 3 micro-batches; all micro-batches have equally many sequences; give batch=18, or "
            "microbatches that divide 16",
        ),
        ([*PP, "batch=1"], "train: batch=1 in 2 micro-batches; all micro-batches have equally many sequences; "),
        ([*PP, "schedule=2f2b"], "make_schedule: name='2f2b'; no schedule is called so; choose one of gpipe, 1f1b, zb"),
        ([*PP, "stages_per_rank=2"], "make_schedule: 1f1b, stages_per_rank=2; it has one stage on each rank; give 1, "),
        ([*PP, "schedule=interleaved", "stages_per_rank=1"], "make_schedule: interleaved, stages_per_rank=1; a rank "),
        ([*PP, "schedule=interleaved", "microbatches=1"], "make_schedule: interleaved, n_microbatches=1, n_ranks=2; "),
        ([*PP, "accumulation=2"], "train: accumulation=2 with pp=2; a pipeline accumulates over its micro-batches; "),
        (["pp=5", "batch=5"], "train: 5 stages, tiny Llama has 4 layers with its embedding and head; every st"),
        (["tp=0"], "train: tp=0; tp is positive; give tp >= 1"),
        (["tp=2", "sequence_parallel=all"], "train: sequence_parallel='all'; not a known kind; choose from keep, reg"),
        (["sequence_parallel=keep"], "train: sequence_parallel=keep with tp=1; the ranks that share matrices share "),
        (REGATHERED, "train: engine=torch with sequence_parallel=regather; PyTorch keeps a block's gathered input "),
        ([*SHARED, "sequence=1"], "train: sequence=1 with tp=2 and sequence_parallel=keep; every rank needs a posi"),
        (
            ["tp=3"],
            "tensor: layers.0.attention.q_proj: 4 heads on 3 ranks; a head stays whole; keys and values of fewer ",
        ),
        (
            ["tp=8", "engine=torch"],
            "torch_tensor: tp=8, 4 heads of layers.0.attention.q_proj; PyTorch's styles take ",
        ),
        (
            ["tp=4", "engine=torch"],
            "torch_tensor: tp=4, 2 heads of layers.0.attention.k_proj; PyTorch's styles take parts of ",
        ),
        (
            ["tp=2", "engine=torch", "model.vocab_size=257"],
            "torch_tensor: tp=2, 257 rows of embedding; PyTorch's styles take parts of one size, and copy none; ",
        ),
        ([*PP, "tp=2", "engine=torch"], "train: engine=torch with pp=2; PyTorch's engine trains along dp and tp here"),
        ([*PP, "model=llama3_1_405b"], "train: Llama 3.1 405B on 2 ranks needs 5.906 TiB; this machine has "),
        (["out=no/such"], "train: out='no/such'; there is no folder 'no'; make it, or name another"),
    ],
)
def test_a_mistake_is_one_line_in_four_parts(tmp_path, monkeypatch, capsys, overrides, message):
    monkeypatch.chdir(tmp_path)
    assert run(*overrides) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message)
    assert err.count("\n") == 1 and err.count("; ") >= 2
    assert not GlobalHydra.instance().is_initialized() and list(tmp_path.iterdir()) == []


def test_a_pipeline_has_defaults_that_the_results_name():
    run = read_train([*PP])
    assert [run.values[name] for name in ("schedule", "microbatches", "stages_per_rank")] == ["1f1b", 2, 1]
    assert run.schedule == make_schedule("1f1b", 2, 2)
    interleaved = read_train([*PP, "schedule=interleaved", "microbatches=4"])
    assert interleaved.schedule == make_schedule("interleaved", 2, 4, stages_per_rank=2)
    assert read_train([*PP, "batch=1", "microbatches=1"]).schedule == make_schedule("1f1b", 2, 1)
    assert read_train(["dp=2"]).schedule is None


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (["dp=8"], 8 * 4),
        (["pp=8"], 4),  # together they keep one model's states
        (["pp=2", "dp=3", "batch=18"], 3 * 4),
        (["pp=2", "optimizer=sgd"], 2),
        (["tp=2"], 4),
        (["dp=2", "pp=2", "tp=2", "optimizer=sgd"], 4),
    ],
)
def test_the_ranks_of_a_pipeline_need_one_model_s_states(overrides, numbers):
    run = read_train(overrides)
    assert train_checks.numbers_needed(run, run.ranks) == numbers * model_parameters(run.model)


def test_results_are_never_overwritten(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert run(*SMALL, f"out={tmp_path}/run") == 2
    rule = "it is there already, and each run has its own; name another folder"
    assert capsys.readouterr().err == f"train: out='{tmp_path}/run'; {rule}\n"


def test_a_folder_that_cannot_be_made_is_found_before_the_run(tmp_path, monkeypatch, capsys):
    def refused(path, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    assert run(*SMALL, f"out={tmp_path}/run") == 2
    out, err = capsys.readouterr()
    line = f"train: out='{tmp_path}/run'; cannot be written: Permission denied; name another folder\n"
    assert (out, err) == ("", line)


def test_a_loss_that_is_not_finite_fails_the_run_and_leaves_its_metrics(tmp_path, capsys):
    assert run(*SMALL, "precision=fp32", "lr=1e38", f"out={tmp_path}/run") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("step 1/3")
    line = err.splitlines()[-1]
    assert line.startswith("Trainer: loss nan on rank 0; one such loss would spoil the weights of all ranks; look at ")
    assert line.endswith(f"; '{tmp_path}/run' keeps metrics.jsonl and no checkpoint: the same command begins anew")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml", "metrics.jsonl"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("out of\nmemory")])
def test_a_run_that_breaks_off_is_one_line_and_leaves_its_metrics(tmp_path, monkeypatch, capsys, error):
    def broken(*_):
        raise error

    monkeypatch.setattr("course_lib.training.checkpoint.write", broken)
    assert run(*SMALL, f"out={tmp_path}/run") == 1
    text = " ".join(str(error).split())
    kept = f"'{tmp_path}/run' keeps metrics.jsonl and no checkpoint: the same command begins anew"
    assert capsys.readouterr().err == f"train: {type(error).__name__}: {text}; {kept}\n"
    assert len(losses(tmp_path / "run")) == 3


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(self, batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert run(*SMALL, f"out={tmp_path}/run") == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("gpus", "ranks", "asked", "device", "backend"),
    [
        (0, 1, "", "cpu", "gloo"),
        (1, 1, "", "cuda:0", "cpu:gloo,cuda:nccl"),
        (4, 3, "", "cuda:0", "cpu:gloo,cuda:nccl"),
        (4, 1, "cpu", "cpu", "cpu:gloo,cuda:nccl"),
        (1, 2, "", "cpu", "cpu:gloo,cuda:gloo"),
        (1, 2, "cuda", "cuda:0", "cpu:gloo,cuda:gloo"),
    ],
)
def test_training_takes_a_gpu_for_each_rank_or_what_is_asked(monkeypatch, gpus, ranks, asked, device, backend):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("COURSE_LIB_DEVICE", asked)
    choice = devices.choose_for_training(0, ranks)
    assert (str(choice.device), choice.backend) == (device, backend)


def test_the_degrees_are_those_that_torchrun_started(monkeypatch):
    assert read_train(["dp=3"], partial(check_started, started=3)).ranks == 3
    assert read_train(["dp=2", "pp=2"], partial(check_started, started=4)).parallel == ParallelConfig(dp=2, pp=2)
    message = (
        "^train: dp x pp x cp x tp = 2; torchrun started 3; give degrees whose product is 3, as dp=3, or torchrun --"
    )
    with pytest.raises(ValueError, match=message):
        read_train(["dp=2"], partial(check_started, started=3))
    monkeypatch.setitem(os.environ, "RANK", "0")
    monkeypatch.setattr(command, "train_under_torchrun", lambda overrides, interrupt: 5)
    assert run("dp=3") == 5
