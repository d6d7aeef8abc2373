"""A folder of Hugging Face and a text of one's own: what is read of them, and one line for each that is not one."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from course_lib.cli import train_model, train_run
from course_lib.cli.main import main
from course_lib.cli.train_config import read_train
from course_lib.cli.train_run import make_batches
from course_lib.models.logits import Logits
from course_lib.parallel.table.local import Local
from course_lib.training import checkpoint
from course_lib.training.pretrained import Pretrained
from course_lib.units import format_bytes

TEXT = "one two three two one " * 40
SMALL = ["steps=2", "batch=2", "sequence=8", "lr=0.1"]
SIZES = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 256,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


@pytest.fixture
def folder(tmp_path):
    """A shape without weights, and a text."""
    transformers.LlamaConfig(**SIZES).save_pretrained(tmp_path / "llama")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "llama"


def train(folder, *overrides, text="text.txt"):
    names = {override.partition("=")[0] for override in overrides}
    small = [given for given in SMALL if given.partition("=")[0] not in names]
    return main(["train", f"model={folder}", f"text={folder.parent / text}", *small, *overrides])


def add_tokenizer(folder, words):
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def begun(folder):
    """A model of theirs, with weights that were drawn one after the other."""
    model = Logits(transformers.AutoModelForCausalLM.from_config(Pretrained(folder)._theirs))
    rule = Pretrained(folder).rule()
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        rule(name, weight.detach().fill_(torch.nan))
    return model


@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(**SIZES | {"hidden_size": 64}, initializer_range=0.3, attention_bias=True),
        transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, n_positions=64, vocab_size=256),
    ],
)
def test_weights_that_are_drawn_one_by_one_are_spread_as_theirs(tmp_path, config):
    config.save_pretrained(tmp_path)
    theirs = Logits(transformers.AutoModelForCausalLM.from_config(config))
    for (name, ours), weight in zip(begun(tmp_path).named_parameters(), theirs.parameters(), strict=True):
        if weight.std():
            assert ours.std().item() == pytest.approx(weight.std().item(), rel=0.15), name
            assert not torch.equal(ours, weight)
        else:
            assert torch.equal(ours, weight), name


def test_a_shape_without_weights_begins_with_these(folder, capsys):
    assert train(folder, "precision=fp64", f"out={folder.parent}/run", "recompute=layers") == 0
    assert capsys.readouterr().out.startswith("llama, 4.66 k parameters in float64; engine=own, one device, recompute")
    model = begun(folder).double()
    batches = make_batches(read_train([f"model={folder}", f"text={folder.parent}/text.txt", *SMALL]))
    inputs, targets = batches.batch(0)
    loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    first = json.loads((folder.parent / "run" / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert first == pytest.approx(loss.item(), rel=1e-6)
    again = Pretrained(folder.parent / "run" / "transformers")
    assert again.has_weights and again.shape().hidden_size == 8


def test_the_folders_own_tokenizer_makes_the_tokens_and_goes_with_the_trained_model(folder, capsys):
    add_tokenizer(folder, ["?", "one", "two", "three"])
    assert train(folder, f"out={folder.parent}/run") == 0
    assert "; text.txt, 200 tokens\n" in capsys.readouterr().out
    np.testing.assert_array_equal(Pretrained(folder).tokens_of("two four one"), [2, 0, 1])
    np.testing.assert_array_equal(Pretrained(folder.parent / "run" / "transformers").tokens_of("three"), [3])


def test_a_run_that_broke_off_after_its_export_writes_it_anew(folder, capsys, monkeypatch):
    asked = ["checkpoint_every=1", f"out={folder.parent}/run"]

    write = checkpoint.write

    def full(content, folder):
        if folder.name == "step-2":
            raise OSError("No space left on device")
        write(content, folder)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", full)
        assert train(folder, *asked) == 1
    assert "keeps step 1: the same command goes on from there" in capsys.readouterr().err
    half = folder.parent / "run" / "transformers" / "model.safetensors"
    expected = half.read_bytes()
    half.write_bytes(b"half of it")
    assert train(folder, *asked) == 0
    assert half.read_bytes() == expected
    assert sorted(path.name for path in (folder.parent / "run").iterdir()) == [
        "LATEST",
        "config.yaml",
        "metrics.jsonl",
        "step-1",
        "step-2",
        "transformers",
    ]


def test_a_run_that_could_not_be_kept_leaves_no_export(folder, capsys, monkeypatch):
    monkeypatch.setattr(checkpoint, "write", lambda content, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(folder, f"out={folder.parent}/run")
    assert sorted(path.name for path in (folder.parent / "run").iterdir()) == ["config.yaml", "metrics.jsonl"]


def test_an_export_s_place_is_somebody_else_s(folder, capsys):
    asked, run = [f"out={folder.parent}/run"], folder.parent / "run"
    assert train(folder, *asked) == 0
    exported = run / "transformers"
    (exported / "notes.txt").write_text("the best one")
    line = f"train: {exported}; the trained model is written there, and no run wrote this; move it away\n"
    assert train(folder, *asked, "steps=3") == 2
    assert capsys.readouterr().err == line
    assert sorted(path.name for path in exported.iterdir()) == [
        "checksums.json",
        "config.json",
        "model.safetensors",
        "notes.txt",
        "written_by.json",
    ]
    (exported / "notes.txt").unlink()
    (exported / "written_by.json").unlink()
    assert train(folder, *asked, "steps=3") == 2 and capsys.readouterr().err == line
    exported.rename(run / "kept")
    assert train(folder, *asked, "steps=3") == 0
    assert (run / "kept" / "model.safetensors").is_file() and (exported / "model.safetensors").is_file()


def test_what_is_not_a_run_s_own_stays_when_nothing_else_does(folder, capsys, monkeypatch):
    mine = folder.parent / "run" / "transformers" / "mine.txt"

    def fails(content, folder):
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "write", fails)
    assert train(folder, f"out={folder.parent}/run") == 1
    assert mine.read_text() == "mine"


def test_one_gpu_gets_the_weights_that_are_loaded(folder, monkeypatch):
    """Without a group nothing says which device it is, but what is current when the trainer gives memory."""
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(folder)
    monkeypatch.setattr(train_run, "Trainer", lambda model, config, **_: Local(model, None).device)
    made, run, gpu = train_model.on_meta, read_train([f"model={folder}"]), torch.device("cuda:0")
    monkeypatch.setattr(train_model, "on_meta", lambda run, device: made(run))
    assert train_run.make_trainer(run, gpu, init=None) == gpu


def unknown(folder):
    (folder / "config.json").write_text('{"model_type": "perceiver"}')


def broken(folder):
    (folder / "config.json").write_text("{")


def odd(folder):
    (folder / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama", "hidden_size": "wide"}))


def pickled(folder):
    (folder / "pytorch_model.bin").touch()


def other_shape(folder):
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"hidden_size": 16})).save_pretrained(folder)
    transformers.LlamaConfig(**SIZES).save_pretrained(folder)


def latin(folder):
    (folder.parent / "text.txt").write_bytes("köttur".encode("latin-1"))


WRONG = {
    "no config": (lambda folder: (folder / "config.json").unlink(), 2, "it has no config.json; name a folder that"),
    "an unknown family": (unknown, 2, "config_of: model_type='perceiver'; the shape of that family is not known here;"),
    "half a file": (broken, 2, "its config.json is no table of names and values; copy it once more"),
    "a word for a number": (odd, 2, "transformers refuses its config.json ("),
    "weights in another format": (pickled, 2, "its weights are in .bin alone; save it once more by"),
    "weights of another shape": (other_shape, 2, "has model.embed_tokens.weight of shape (256, 16), the model of (256"),
    "words that the model has not": (
        partial(add_tokenizer, words=[*map(str, range(300)), "one"]),
        2,
        "its tokenizer makes a token 300, the model has 256; give the folder the model's own",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").touch(), 2, "its tokenizer cannot be read ("),
    "a text that is not UTF-8": (latin, 2, "text.txt'; byte 1 is not UTF-8; convert it, as by iconv -t utf-8"),
    "no text": (lambda folder: (folder.parent / "text.txt").unlink(), 2, "cannot be read: No such file or directory"),
    "a short text": (
        lambda folder: (folder.parent / "text.txt").write_text("one two three"),
        2,
        "Batches: batch_size=2, 1 windows; an epoch has each window once; give batch_size <= 1, a longer text",
    ),
    "no folder": (shutil.rmtree, 2, "there is no such model, and no such folder; choose one of tiny_gpt, "),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_in_one_line_and_leaves_nothing(folder, capfd, wrong):
    spoil, status, message = WRONG[wrong]
    spoil(folder)
    capfd.readouterr()
    assert train(folder, f"out={folder.parent}/run") == status
    err = capfd.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not (folder.parent / "run").exists()
    assert main(["doctor", f"model={folder}", f"text={folder.parent}/text.txt", *SMALL]) in (1, 2)
    assert err.strip() in "".join(capfd.readouterr())  # the same reason


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("+model.n_layers=2",), "train: model.n_layers=2 with model='"),
        (("pp=2",), "'; pipelines here are of the course's own decoder; "),
    ],
)
def test_the_folder_says_the_shape_and_has_no_stages(folder, capsys, overrides, message):
    assert train(folder, *overrides) == 2
    err = capsys.readouterr().err
    assert message in err.replace(" with pp=2", "") and err.count("\n") == 1


def test_the_doctor_says_what_stays_whole(tmp_path, capsys):
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=64, vocab_size=256)
    config.save_pretrained(tmp_path / "gpt")
    assert main(["doctor", f"model={tmp_path}/gpt", "tp=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("stays replicated"))
    assert line.startswith("stays replicated: model.transformer.wpe (nothing says how it could be cut); ")
    assert "model.transformer.h.*.mlp.c_proj (c_fc is a Conv1D, and what is cut is a Linear)" in line
    (memory,) = (line for line in lines if line.startswith("memory"))
    parameters = sum(p.numel() for p in transformers.GPT2LMHeadModel(config).parameters())
    assert (
        f"(weights {format_bytes(4 * (parameters - 256 * 8 // 2))}, " in memory
    )  # of all that, the table alone is cut
