"""PyTorch's FSDP2 over its own tensor parallelism: equal to one device and to ours, on any mesh of the two axes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from sharded_models import TOKENS
from test_tensor_transformers import theirs

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.models.logits import Logits
from course_lib.parallel.mesh import make_mesh
from course_lib.parallel.wrapping import by_block_group
from course_lib.training.torch_sharding import torch_fully_shard
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
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
        (2, 2, (torch_tensor(), torch_fully_shard()), "llama"),
        (2, 2, (torch_tensor(), torch_fully_shard(strategy="SHARD_GRAD_OP")), "gpt"),
        (1, 4, (KEEP, torch_fully_shard()), "gpt"),
        (4, 1, (KEEP, torch_fully_shard(strategy="HYBRID_SHARD", shards=2)), "llama"),
        (3, 2, (KEEP, torch_fully_shard(by_block_group(2))), "frozen"),
        (1, 2, (KEEP,), "gpt"),
        (2, 2, (KEEP, torch_replicate()), "frozen"),
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


@pytest.mark.parametrize("family", ["Llama", "Olmo", "Olmo2"])
def test_real_architectures_equal_one_device(family):
    """Their norms and rotary angles are in float32; Olmo2 normalises queries and keys over the heads of all ranks."""
    together = partial(theirs_on_ranks, family=family)
    one = partial(theirs_alone, family=family)
    report = assert_parallel_equals(one, together, TOKENS.batch, world_size=4, tolerance=1e-6)
    assert tuple(report.deviations) == RUNGS
