"""Tensor parallelism, the whole ladder: the multilayer perceptron and decoders of three shapes, with other axes too."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from ladder_models import STEPS

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.schedules import make_schedule
from course_lib.training.batches import Batches
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.trainer import Trainer
from course_lib.verify import RUNGS, assert_parallel_equals

VOCABULARY = 17  # divides by no number of ranks
TEXT = bytes(torch.randint(VOCABULARY, (2048,), generator=torch.Generator().manual_seed(0)).tolist())
TOKENS = Batches(text=TEXT, batch_size=7, sequence=5, ragged=True)


def config(**changes):
    """Twelve heads, so that every number of ranks divides them; of keys and values there are fewer."""
    fields = {
        "name": "small",
        "hidden_size": 24,
        "n_layers": 2,
        "n_heads": 12,
        "n_kv_heads": 12,
        "ffn_size": 20,
        "vocab_size": VOCABULARY,
        "tied": False,
    }
    return ModelConfig(**fields | changes)


LLAMA = config(n_kv_heads=6, norm="rms")
SHAPES = {
    "llama": LLAMA,
    "llama, 2 kv heads": config(n_kv_heads=2, norm="rms", tied=True),
    "llama, 1 kv head": config(n_kv_heads=1, norm="rms", biases=("qkv",)),
    "olmo": config(norm="layer_unweighted", tied=True),
    "gpt": config(
        norm="layer",
        positions="learned",
        max_sequence=5,
        gated_ffn=False,
        tied=True,
        biases=("qkv", "attention_output", "ffn"),
    ),
}


def alone(train, shape):
    return Trainer(Decoder(SHAPES[shape]), train)


def tensor_parallel(train, shape, **options):
    return Trainer(Decoder(SHAPES[shape]), train, mesh=make_mesh(tp=dist.get_world_size()), apply=(tensor(**options),))


def numbers(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(7, 6, generator=generator), torch.randint(2, (7,), generator=generator)


def test_the_perceptron_of_38_parameters_with_a_gelu():
    def reference(train):
        return Trainer(MLP(gelu=True), train)

    def parallel(train):
        trainer = Trainer(MLP(gelu=True), train, mesh=make_mesh(tp=2), apply=(tensor(),))
        assert sum(p.numel() for p in trainer.model.parameters()) == 20
        return trainer

    report = assert_parallel_equals(reference, parallel, numbers, world_size=2, steps=STEPS)
    assert tuple(report.deviations) == RUNGS


@pytest.mark.parametrize(
    ("shape", "ranks"),
    [
        ("llama", 1),
        ("llama", 2),
        ("llama", 3),
        ("llama, 2 kv heads", 4),
        ("llama, 1 kv head", 3),
        ("olmo", 4),
        ("gpt", 2),
        ("gpt", 3),
    ],
)
def test_a_decoder(shape, ranks):
    parallel = partial(tensor_parallel, shape=shape)
    report = assert_parallel_equals(partial(alone, shape=shape), parallel, TOKENS, world_size=ranks, steps=STEPS)
    assert tuple(report.deviations) == RUNGS and report.max_deviation <= 1e-11


@pytest.mark.parametrize(
    ("shape", "ranks", "kept"),
    [("llama", 2, "keep"), ("llama, 2 kv heads", 4, "regather"), ("gpt", 3, "regather"), ("gpt", 2, "keep")],
)
def test_sequence_parallel(shape, ranks, kept):
    parallel = partial(tensor_parallel, shape=shape, sequence_parallel=kept)
    assert_parallel_equals(partial(alone, shape=shape), parallel, TOKENS, world_size=ranks, steps=STEPS)


def with_replicas(train, shape, **options):
    mesh = make_mesh(dp=dist.get_world_size() // 2, tp=2)
    return Trainer(Decoder(SHAPES[shape]), train, mesh=mesh, apply=(tensor(**options), replicate()))


@pytest.mark.parametrize("kept", [None, "regather"])
def test_over_data_parallelism(kept):
    parallel = partial(with_replicas, shape="llama, 1 kv head", sequence_parallel=kept)
    assert_parallel_equals(partial(alone, shape="llama, 1 kv head"), parallel, TOKENS, world_size=4, steps=STEPS)


def staged(train, shape, schedule, **options):
    mesh = make_mesh(pp=2, dp=dist.get_world_size() // 4, tp=2)
    apply = [tensor(**options), stages(make_schedule(schedule, 2, 2))]
    apply += [replicate()] if dist.get_world_size() > 4 else []
    return Trainer(Decoder(SHAPES[shape]), train, mesh=mesh, apply=apply)


@pytest.mark.parametrize(
    ("shape", "schedule", "kept", "ranks"),
    [("gpt", "1f1b", None, 4), ("llama", "zb-h1", "regather", 4), ("olmo", "gpipe", "keep", 8)],
)
def test_in_the_stages_of_a_pipeline(shape, schedule, kept, ranks):
    parallel = partial(staged, shape=shape, schedule=schedule, sequence_parallel=kept)
    assert_parallel_equals(partial(alone, shape=shape), parallel, TOKENS, world_size=ranks, steps=STEPS)
