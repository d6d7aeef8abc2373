"""PyTorch's FSDP2 over its own tensor parallelism: equal to one device and to ours, on any mesh of the two axes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from sharded_models import TOKENS
from test_tensor_transformers import theirs

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.logits import Logits
from course_lib.parallel.local import own_part
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.wrapping import by_block_group
from course_lib.ranks import run_ranks
from course_lib.training.sharding import fully_shard, zero
from course_lib.training.tensor_technique import tensor
from course_lib.training.torch_sharding import torch_fully_shard, torch_zero
from course_lib.training.torch_techniques import torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

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
KEEP = torch_tensor(sequence_parallel="keep")  # five positions, which divide by no number of ranks


def frozen():
    """In one layer only some of the weights are trained, in another none."""
    model = Decoder(LLAMA)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name and "v_proj" not in name and "layers.1" not in name)
    return model


MODELS = {"llama": lambda: Decoder(LLAMA), "gpt": lambda: Decoder(GPT), "frozen": frozen}


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
        (3, 2, (KEEP, torch_fully_shard(by_block_group(2))), "frozen"),
        (1, 2, (KEEP,), "frozen"),
    ],
)
def test_it_equals_one_device(dp, tp, apply, model):
    together = partial(both, dp=dp, tp=tp, apply=apply, model=model)
    report = assert_parallel_equals(partial(alone, model=model), together, TOKENS.batch, world_size=dp * tp)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


def theirs_alone(config, family):
    return Trainer(Logits(theirs(family, vocab_size=18, num_key_value_heads=6)), config)


def theirs_on_ranks(config, family):
    model = Logits(theirs(family, vocab_size=18, num_key_value_heads=6))
    return Trainer(model, config, mesh=make_mesh(dp=2, tp=2), apply=(KEEP, torch_fully_shard()))


@pytest.mark.parametrize("family", ["Llama", "Olmo", "Olmo2", "Qwen3"])
def test_real_architectures_equal_one_device(family):
    """Their norms and rotary angles are in float32; Olmo2 normalises queries and keys over all heads, Qwen3 in each."""
    together = partial(theirs_on_ranks, family=family)
    one = partial(theirs_alone, family=family)
    report = assert_parallel_equals(one, together, TOKENS.batch, world_size=4, tolerance=1e-6)
    assert tuple(report.deviations) == RUNGS


def as_ours_or_refused(cases):
    """Weights after a step of ours and of PyTorch's; then what each case says: all of it in one start of the ranks."""
    stepped = []
    for apply in ((tensor(sequence_parallel="keep"), fully_shard()), (KEEP, torch_fully_shard())):
        torch.manual_seed(0)
        model, mesh = MODELS["gpt"]().double(), make_mesh(dp=3, tp=2)
        trainer = Trainer(model, TrainConfig(learning_rate=0.1), mesh=mesh, apply=apply)
        trainer.step(TOKENS.batch(0))
        stepped.append(trainer.parameters())
    local = trainer.local
    for name, parameter in local.parameters.items():
        assert torch.equal(local.part(name, parameter.detach().full_tensor()), own_part(parameter))
    said = []
    for apply, _ in cases:
        with pytest.raises(ValueError) as error:
            both(TrainConfig(), 3, 2, apply, "gpt")
        said.append(str(error.value))
    return stepped, said


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
]


def test_a_step_is_ours_each_part_lies_where_the_table_says_and_other_mixtures_are_refused():
    for (ours, theirs_), said in run_ranks(as_ours_or_refused, 6, REFUSED):
        assert ours.keys() == theirs_.keys() and len(ours) > 10
        for name, weight in ours.items():
            torch.testing.assert_close(theirs_[name], weight, rtol=1e-10, atol=1e-12)
        for text, (_, wanted) in zip(said, REFUSED, strict=True):
            assert text.startswith(wanted) and text.count("; ") >= 2


def test_pytorch_has_one_form_of_sequence_parallelism():
    message = (
        "torch_tensor: sequence_parallel='regather'; PyTorch keeps a block's gathered input until backward; choose"
    )
    with pytest.raises(ValueError, match=message):
        torch_tensor(sequence_parallel="regather")
