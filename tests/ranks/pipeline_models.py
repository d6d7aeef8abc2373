"""Models, batches and trainers for the pipeline's tests."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from ladder_models import TEXT
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.schedules import make_schedule
from course_lib.training.batches import IGNORED, Batches
from course_lib.training.techniques import replicate, stages
from course_lib.training.trainer import Trainer

ROWS = 12
RAGGED = Batches(text=TEXT, batch_size=ROWS, sequence=5, ragged=True)
LLAMA = ModelConfig(
    name="small Llama", hidden_size=8, n_layers=6, n_heads=2, n_kv_heads=1, ffn_size=12, vocab_size=16, tied=True
)
GPT = replace(
    LLAMA,
    name="small GPT",
    n_layers=2,
    n_kv_heads=2,
    positions="learned",
    max_sequence=5,
    norm="layer",
    gated_ffn=False,
    biases=("qkv", "attention_output", "ffn"),
)


class Shift(nn.Module):
    """Adds a learned shift to random numbers of its own: a layer with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(8))
        self.shift = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.noise * self.shift


def chain():
    """Layers of prime sizes, of which one has buffers."""
    return nn.Sequential(
        nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 8), Shift(), nn.Linear(8, 2)
    )


def frozen_decoder():
    """Of the first stages nothing is trained, of a later one something."""
    model = Decoder(replace(LLAMA, tied=False))
    for part in (model.embedding, model.layers[0], model.layers[1], model.layers[4].attention):
        part.requires_grad_(False)
    return model


MODELS = {
    "tied": lambda: Decoder(LLAMA),
    "frozen": frozen_decoder,
    "tied and frozen": lambda: freeze_embedding(Decoder(LLAMA)),
    "GPT": lambda: Decoder(GPT),
    "MLP": lambda: MLP(gelu=True),
    "chain": chain,
}


def freeze_embedding(model):
    model.embedding.requires_grad_(False)
    return model


def alone(config, model="tied"):
    """One device."""
    return Trainer(MODELS[model](), config)


def pipeline(config, name, p, m, v=1, model="tied", **options):
    """The same in stages."""
    return staged(MODELS[model](), config, make_schedule(name, p, m, stages_per_rank=v), **options)


def staged(model, config, schedule, *bugs, dp=1, mesh=None, **options):
    """A trainer of a model in stages, on `dp` pipelines."""
    mesh = mesh or make_mesh(pp=dist.get_world_size() // dp, dp=dp)
    return Trainer(model, config, mesh=mesh, apply=(stages(schedule, **options), *([replicate()] * (dp > 1)), *bugs))


def tokens(step):
    """Rows with targets that do not count, all of them in the first: micro-batches weigh unlike."""
    inputs, targets = RAGGED.batch(step)
    targets[0] = IGNORED
    targets[1, 1:] = IGNORED
    return inputs, targets


def numbers(step):
    """The same for models that take numbers."""
    generator = torch.Generator().manual_seed(step)
    targets = torch.randint(2, (ROWS,), generator=generator)
    targets[:2] = IGNORED
    return torch.randn(ROWS, 6, generator=generator), targets
