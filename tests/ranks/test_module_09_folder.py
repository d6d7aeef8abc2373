"""`train model=FOLDER cp= ep=`: a Mixtral of transformers on ranks that share its sequences and its experts."""

from __future__ import annotations

import pytest
import torch
import transformers
from test_train_folder_of_ones_own import SIZES, TEXT, losses

from course_lib.cli.main import main
from tests.overrides import last_of

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SMALL = [
    "steps=2",
    "batch=4",
    "sequence=17",
    "optimizer=sgd",
    "lr=0.1",
]  # in float32: their grouped product takes no double


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A folder with a Mixtral's shape, whose weights are drawn, a text, and the run of one device."""
    folder = tmp_path_factory.mktemp("brought")
    config = transformers.MixtralConfig(**SIZES, **EXPERTS)
    config.save_pretrained(folder / "mixtral")
    config.sliding_window = 8
    config.save_pretrained(folder / "sliding")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    assert main(["train", *asked(folder, "alone")]) == 0
    return folder


def asked(folder, out, *overrides, model="mixtral"):
    return [f"model={folder}/{model}", f"text={folder}/text.txt", *last_of(*SMALL, *overrides), f"out={folder}/{out}"]


def test_it_trains_to_one_device_s_losses_and_is_given_back(brought):
    assert main(["train", *asked(brought, "shared", "dp=2", "ep=2", "cp=2", "context=ring", "zero_stage=3")]) == 0
    assert losses(brought / "shared") == pytest.approx(losses(brought / "alone"), rel=1e-5)
    made = [
        transformers.AutoModelForCausalLM.from_pretrained(brought / name / "transformers").state_dict()
        for name in ("shared", "alone")
    ]
    assert made[0].keys() == made[1].keys()
    for name, want in made[1].items():
        torch.testing.assert_close(made[0][name], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("sliding", ["cp=2"], "context: mixtral with sliding_window=8; a query meets all keys up to its own, "),
        ("mixtral", ["balance=0.1"], "train: model='"),
        ("mixtral", ["capacity=2"], "train: model='"),
        ("mixtral", ["dp=8", "batch=8", "ep=8"], "train: ep=8, 4 experts; every rank has one; choose ep in [1, 2, 4]"),
    ],
)
def test_what_it_refuses_before_a_rank_starts(brought, capsys, model, overrides, message):
    assert main(["train", *asked(brought, "none", *overrides, model=model)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(message) and err.count("\n") == 1 and err.count("; ") >= 2
