"""`python -m course_lib train model=FOLDER text=FILE`: a model of transformers, trained on ranks and given back."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
import transformers
from test_train_memory import held_while_begun

from course_lib.cli import train_run
from course_lib.cli.main import main
from course_lib.cli.train_config import read_train
from course_lib.ranks import devices, run_ranks
from course_lib.training.checkpoint import FILE
from tests.overrides import last_of

TEXT = "The quick brown fox jumps over the lazy dog, and köttur sleeps. " * 40
SMALL = ["steps=2", "batch=4", "sequence=16", "optimizer=sgd", "lr=0.1", "precision=fp64"]
SHARED = {"own": ["dp=2", "tp=2", "zero_stage=3"], "torch": ["dp=2", "tp=2", "zero_stage=3", "engine=torch"]}
PROMPT = torch.arange(12)[None]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "initializer_range": 0.1,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A folder with a Llama's weights, a text, and the run of one device."""
    folder = tmp_path_factory.mktemp("brought")
    torch.manual_seed(3)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(folder / "llama")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    assert main(["train", *asked(folder, "alone")]) == 0
    return folder


def asked(folder, out, *overrides):
    return [f"model={folder}/llama", f"text={folder}/text.txt", *last_of(*SMALL, *overrides), f"out={folder}/{out}"]


def run_on_ranks(folder):
    """What the command does on each of its ranks, for both engines."""
    for engine, overrides in SHARED.items():
        run = read_train(asked(folder, engine, *overrides))
        if dist.get_rank() == 0:
            run.out.mkdir()
        dist.barrier()
        train_run.work(run, train_run.make_batches(run), devices.choose(dist.get_rank(), run.ranks, "cpu"), False, bool)


def test_no_rank_ever_has_the_whole_model_of_a_shape(brought):
    sizes = SIZES | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8}
    config = transformers.LlamaConfig(**sizes)
    config.save_pretrained(brought / "shape")
    tensors = [x.nbytes for x in transformers.LlamaForCausalLM(config).double().parameters()]
    shape = asked(brought, "new", *SHARED["own"])[1:] + [f"model={brought}/shape"]
    for most, parts in run_ranks(held_while_begun, 4, *shape, timeout=120):
        assert parts < 0.26 * sum(tensors) and parts < most < parts + 3 * max(tensors) < 0.6 * sum(tensors)


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def logits(folder):
    """What transformers computes with what is in a folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)(PROMPT).logits


def test_the_first_loss_is_that_of_the_folders_weights(brought):
    tokens = torch.tensor([[*TEXT.encode()]])
    model = transformers.AutoModelForCausalLM.from_pretrained(brought / "llama", dtype=torch.float64)
    whole = model(tokens[:, :512], labels=tokens[:, :512]).loss.item()
    assert losses(brought / "alone")[0] == pytest.approx(whole, rel=0.1)  # of other windows of the same text
    assert losses(brought / "alone")[1] < losses(brought / "alone")[0]


def test_ranks_give_the_losses_and_the_logits_of_one_device(brought):
    run_ranks(run_on_ranks, 4, brought, timeout=120)
    alone = logits(brought / "alone" / "transformers")
    assert not torch.allclose(alone, logits(brought / "llama"), atol=1e-3)
    for engine in SHARED:
        assert losses(brought / engine) == pytest.approx(losses(brought / "alone"), rel=1e-6)
        torch.testing.assert_close(logits(brought / engine / "transformers"), alone, rtol=1e-6, atol=1e-6)


def test_what_is_given_back_is_what_was_trained(brought):
    """Bit for bit: the checkpoint beside it has the weights that transformers loads."""
    saved = torch.load(brought / "alone" / "step-2" / FILE, weights_only=True)["model"]
    model = transformers.AutoModelForCausalLM.from_pretrained(brought / "alone" / "transformers", dtype=torch.float64)
    weights = {f"model.{name}": x for name, x in model.state_dict().items()}
    assert weights.keys() == saved.keys() and all(torch.equal(weights[name], x) for name, x in saved.items())
