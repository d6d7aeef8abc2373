"""PyTorch's FSDP2 over its own tensor parallelism: equal to one device and to ours, on any mesh of the two axes."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from ladder_models import STEPS
from sharded_models import TOKENS

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.logits import Logits
from course_lib.parallel.sharding.wrapping import by_block_group
from course_lib.parallel.table.local import own_part
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import run_ranks
from course_lib.training.sharded_checkpoint import load_pieces, save_pieces
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_sharding import torch_fully_shard, torch_zero
from course_lib.training.torch_techniques import torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals
from tests.ranks.module_05.test_tensor_transformers import theirs
from tests.ranks.module_07.test_two_axes import assert_same_state

LLAMA = ModelConfig(  # divides by 2 and 4 ranks, as PyTorch's styles want it; its parts' rows divide by no dp
    name="small Llama",
    hidden_size=20,
    n_layers=2,
    n_heads=4,
    n_kv_heads=4,
    head_dim=2,
    ffn_size=12,
    vocab_size=20,
    tied=False,
)
GPT = replace(
    LLAMA,
    gated_ffn=False,
    positions="learned",
    max_sequence=8,
    norm="layer",
    biases=("qkv", "attention_output", "ffn"),
    tied=True,
)
ADAMW = TrainConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, max_norm=0.05)
KEEP = torch_tensor(sequence_parallel="keep")  # five positions, which divide by no number of ranks


def frozen():
    """In one layer only some of the weights are trained, in another none."""
    model = Decoder(LLAMA)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name and "v_proj" not in name and "layers.1" not in name)
    return model


def with_short_words():
    """Its embedding cuts words down to a length, so no plan cuts the embedding."""
    model = theirs("Llama", vocab_size=20, num_key_value_heads=6)
    model.model.embed_tokens.max_norm = 1.0
    return Logits(model)


MODELS = {
    "short words": with_short_words,
    "llama": lambda: Decoder(LLAMA),
    "gpt": lambda: Decoder(GPT),
    "frozen": frozen,
}


def theirs_alone(config, family, kv_heads):
    return Trainer(Logits(theirs(family, vocab_size=20, num_key_value_heads=kv_heads)), config)


def theirs_on_ranks(config, family, kv_heads, dp, tp):
    model, mesh = theirs(family, vocab_size=20, num_key_value_heads=kv_heads), make_mesh(dp=dp, tp=tp)
    return Trainer(Logits(model), config, mesh=mesh, apply=(KEEP, torch_fully_shard()))


@pytest.mark.parametrize(
    ("family", "kv_heads", "dp", "tp"), [("Llama", 6, 2, 2), ("Olmo", 12, 1, 4), ("Olmo2", 6, 2, 2), ("Qwen3", 6, 4, 1)]
)
def test_real_architectures_equal_one_device(family, kv_heads, dp, tp):
    """Their norms and rotary angles are in float32; Olmo2 normalises queries and keys over all heads, Qwen3 in each."""
    model = {"family": family, "kv_heads": kv_heads}
    one, together = partial(theirs_alone, **model), partial(theirs_on_ranks, **model, dp=dp, tp=tp)
    report = assert_parallel_equals(one, together, TOKENS.batch, world_size=dp * tp, tolerance=1e-6, steps=STEPS)
    assert tuple(report.deviations) == RUNGS


def refusals(cases):
    """What each case says; all of them in one start of the ranks."""
    found = []
    for apply, _, *model in cases:
        with pytest.raises(ValueError) as error, warnings.catch_warnings(action="ignore"):
            both(TrainConfig(), 2, 2, apply, *model or ["gpt"])
        found.append(str(error.value))
    return found


REFUSED = [
    (
        (torch_tensor(), fully_shard()),
        "fully_shard: parameters that PyTorch distributed; it takes tensors of this rank",
    ),
    ((torch_tensor(), zero(1)), "zero: parameters that PyTorch distributed; it takes tensors of this rank; apply "),
    (
        (torch_tensor(), torch_zero()),
        "zero: parameters that PyTorch distributed; it takes tensors of this rank; apply ",
    ),
    (
        (tensor(sequence_parallel="keep"), torch_fully_shard()),
        "torch_fully_shard: ranks along tp have terms of the gradient of layers.0.attention_norm.weight; it adds up ",
    ),
    ((KEEP,), "torch_tensor: a plan that leaves the vocabulary whole; PyTorch's loss is computed of ", "short words"),
]


def test_mixtures_that_cannot_be_are_refused_on_all_ranks():
    for texts in run_ranks(refusals, 4, REFUSED):
        for text, (_, wanted, *_) in zip(texts, REFUSED, strict=True):
            assert text.startswith(wanted) and text.count("; ") >= 2


def alone(config, model):
    return Trainer(MODELS[model](), config)


def both(config, dp, tp, apply, model):
    return Trainer(MODELS[model](), config, mesh=make_mesh(dp=dp, tp=tp), apply=apply)


@pytest.mark.parametrize(
    ("dp", "tp", "apply", "model"),
    [
        (2, 2, (torch_tensor(), torch_fully_shard(strategy="SHARD_GRAD_OP")), "gpt"),
        (1, 4, (KEEP, torch_fully_shard()), "gpt"),
        (4, 1, (KEEP, torch_fully_shard(strategy="HYBRID_SHARD", shards=2)), "llama"),
        (1, 2, (KEEP,), "frozen"),
        (3, 2, (KEEP, torch_fully_shard(by_block_group(2))), "frozen"),
    ],
)
def test_it_equals_one_device(dp, tp, apply, model):
    together = partial(both, dp=dp, tp=tp, apply=apply, model=model)
    report = assert_parallel_equals(
        partial(alone, model=model), together, TOKENS.batch, world_size=dp * tp, steps=STEPS
    )
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def trained_by_both(folder):
    """Ours takes a step, PyTorch's loads its pieces, both take the next; the states at the three points."""
    ways = (tensor(sequence_parallel="keep"), fully_shard()), (KEEP, torch_fully_shard())
    mesh = make_mesh(dp=3, tp=2)
    ours, by_torch = (Trainer(MODELS["gpt"]().double(), ADAMW, mesh=mesh, apply=apply) for apply in ways)
    ours.step(TOKENS.batch(0))
    save_pieces(ours, folder / "ours")
    load_pieces(by_torch, folder / "ours")
    states = [copy.deepcopy(trainer.state()) for trainer in (ours, by_torch)]
    for trainer in (ours, by_torch):
        trainer.step(TOKENS.batch(1))
    save_pieces(by_torch, folder / "by torch")
    for name, parameter in by_torch.local.parameters.items():
        assert torch.equal(by_torch.local.part(name, parameter.detach().full_tensor()), own_part(parameter))
    return states, [ours.parameters(), by_torch.parameters()], by_torch.state()


def test_pieces_of_ours_are_taken_over_and_trained_on_as_ours(tmp_path):
    """And one device takes over PyTorch's, each of which lies where the table says."""
    found = run_ranks(trained_by_both, 6, tmp_path)
    for (ours, by_torch), (weights, theirs_), _ in found:
        assert_same_state(by_torch, ours)
        assert weights.keys() == theirs_.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(theirs_[name], weight, rtol=1e-10, atol=1e-12)
    one_device = Trainer(MODELS["gpt"]().double(), ADAMW)
    load_pieces(one_device, tmp_path / "by torch")
    assert_same_state(one_device.state(), found[0][-1])


def test_pytorch_has_one_form_of_sequence_parallelism():
    message = (
        "torch_tensor: sequence_parallel='regather'; PyTorch keeps a block's gathered input until backward; choose"
    )
    with pytest.raises(ValueError, match=message):
        torch_tensor(sequence_parallel="regather")
