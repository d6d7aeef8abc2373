"""Small models and batches for the ladder's tests."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.parallel.table.mesh import make_mesh
from course_lib.training.batches import IGNORED, Batches
from course_lib.training.techniques import replicate
from course_lib.training.trainer import Trainer

VOCABULARY = 16
STEPS = 2  # for tables of many cases: the second reads what the first has left. Tour and lessons climb with three
TEXT = bytes(torch.randint(VOCABULARY, (2048,), generator=torch.Generator().manual_seed(0)).tolist())
EVEN = Batches(text=TEXT, batch_size=12, sequence=5)
UNEVEN = Batches(text=TEXT, batch_size=7, sequence=5, ragged=True)  # 7 rows for 2, 3, 4 ranks, of different lengths

GPT = ModelConfig(  # a key's bias has a gradient that is zero by mathematics
    name="small GPT",
    hidden_size=12,
    n_layers=1,
    n_heads=2,
    n_kv_heads=2,
    ffn_size=20,
    vocab_size=VOCABULARY,
    tied=True,
    max_sequence=5,
    positions="learned",
    gated_ffn=False,
    norm="layer",
    biases=("qkv", "attention_output", "ffn"),
)


class Toy(nn.Module):
    """Tokens in, logits out; with random buffers, and if asked for with a tied head and a frozen inner layer."""

    def __init__(self, *, tied: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.register_buffer("positions", torch.randn(5, 6))
        self.register_buffer("known", torch.rand(VOCABULARY) < 0.5)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.inner.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions * self.known[tokens].unsqueeze(-1)
        return self.head(nn.functional.gelu(self.inner(x)))


def alone(config, **options):
    """One device."""
    return Trainer(Toy(**options), config)


def data_parallel(config, **options):
    """The same on ranks."""
    return Replicated(Toy(**options), config)


class Replicated(Trainer):
    """A trainer on all ranks, each with a share of the batch; tests override what it does."""

    def __init__(self, model, config, *bugs, **options):
        mesh = make_mesh(dp=dist.get_world_size())
        super().__init__(model, config, mesh=mesh, apply=(replicate(**options), *bugs))


def in_parts(config, accumulation, **options):
    """The same with micro-batches."""
    return data_parallel(replace(config, accumulation=accumulation), **options)


def some_ignored(step):
    """The last of the 7 rows has no target: of 4 ranks the last has no other."""
    inputs, targets = UNEVEN.batch(step)
    targets[-1] = IGNORED
    return inputs, targets
