"""`train model=FOLDER cp= ep=`: models of transformers on ranks that share their sequences and experts."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from test_train_folder_of_ones_own import SIZES, TEXT, losses

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.cli.train_config import read_train
from course_lib.cli.train_model import EXPORTS
from tests.overrides import last_of

FAMILIES = {
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
}
LOST = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
SMALL = [
    "steps=2",
    "batch=4",
    "sequence=17",
    "optimizer=sgd",
    "lr=0.1",
]  # in float32: their grouped product takes no double


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """Folders with the weights of two families, one with a shape alone, and a text."""
    folder = tmp_path_factory.mktemp("brought")
    for name, config in FAMILIES.items():
        torch.manual_seed(3)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    transformers.MixtralConfig(**FAMILIES["mixtral"].to_dict() | {"sliding_window": 8}).save_pretrained(
        folder / "sliding"
    )
    shutil.copytree(folder / "mixtral", folder / "torn")
    lost = {name: x for name, x in tensors(folder / "torn").items() if name != LOST}
    save_file(lost, folder / "torn" / "model.safetensors", {"format": "pt"})
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


def asked(folder, out, *overrides, model="mixtral"):
    return [f"model={folder}/{model}", f"text={folder}/text.txt", *last_of(*SMALL, *overrides), f"out={folder}/{out}"]


def tensors(folder):
    """By their names in the file."""
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("model", "shared"),
    [
        ("mixtral", ["dp=2", "ep=2", "cp=2", "context=ring", "zero_stage=3"]),
        ("qwen3_moe", ["dp=3", "batch=6", "ep=3", "zero_stage=1"]),
    ],
)
def test_weights_of_single_experts_are_read_trained_and_given_back_by_the_same_names(brought, model, shared):
    """In files each matrix of each expert is a tensor of its own, in the model all of them are one."""
    alone, many = f"{model}_alone", f"{model}_shared"
    batch = [given for given in shared if given.startswith("batch")]
    run = read_train(asked(brought, alone, *batch, model=model))
    tokens, targets = train_run.make_batches(run).batch(0)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(brought / model)(tokens).logits
    first = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), targets.flatten())

    assert main(["train", *asked(brought, alone, *batch, model=model)]) == 0
    assert main(["train", *asked(brought, many, *shared, model=model)]) == 0

    assert losses(brought / alone)[0] == pytest.approx(first.item(), rel=1e-5)
    assert losses(brought / many) == pytest.approx(losses(brought / alone), rel=1e-5)
    begun, one, other = (tensors(brought / path) for path in (model, f"{alone}/{EXPORTS[0]}", f"{many}/{EXPORTS[0]}"))
    assert begun.keys() == one.keys() == other.keys() and any(".experts.3." in name for name in begun)
    for name, want in one.items():
        torch.testing.assert_close(other[name], want, rtol=1e-4, atol=1e-6)
        assert not torch.equal(want, begun[name])
    again = transformers.AutoModelForCausalLM.from_pretrained(brought / many / EXPORTS[0])
    assert (
        again.state_dict().keys() == transformers.AutoModelForCausalLM.from_config(FAMILIES[model]).state_dict().keys()
    )


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("sliding", ["cp=2"], "context: mixtral with sliding_window=8; a query meets all keys up to its own, "),
        ("torn", ["dp=2", "ep=2"], f"model: {{folder}} misses {LOST}; "),
        ("mixtral", ["balance=0.1"], "train: model='"),
        ("mixtral", ["capacity=2"], "train: model='"),
        ("mixtral", ["dp=8", "batch=8", "ep=8"], "train: ep=8, 4 experts; every rank has one; choose ep in [1, 2, 4]"),
    ],
)
def test_what_it_refuses_before_a_rank_starts(brought, capsys, model, overrides, message):
    assert main(["train", *asked(brought, "none", *overrides, model=model)]) == 2
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.startswith(message.format(folder=brought / model))
        and err.count("\n") == 1
        and err.count("; ") >= 2
    )
