"""Models, batches and trainers for the tests of sharded data parallelism."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from pipeline_models import chain
from torch import nn

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.table.mesh import make_mesh
from course_lib.savers.lora import add_lora
from course_lib.training.batches import Batches
from course_lib.training.trainer import Trainer

VOCABULARY = 17  # no number here divides by a number of ranks
TEXT = bytes(torch.randint(VOCABULARY, (2048,), generator=torch.Generator().manual_seed(0)).tolist())
TOKENS = Batches(text=TEXT, batch_size=7, sequence=5, ragged=True)
LLAMA = ModelConfig(
    name="small Llama",
    hidden_size=10,
    n_layers=3,
    n_heads=5,
    n_kv_heads=1,
    ffn_size=13,
    vocab_size=VOCABULARY,
    tied=False,
)


def frozen() -> nn.Module:
    """In one layer only some of the weights are trained, in another none."""
    model = Decoder(LLAMA)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name and "v_proj" not in name and "layers.1" not in name)
    return model


def frozen_embedding() -> nn.Module:
    """Backward ends before it comes to what is frozen."""
    model = Decoder(LLAMA)
    model.embedding.requires_grad_(False)
    return model


MODELS = {
    "llama": lambda: Decoder(LLAMA),
    "tied": lambda: Decoder(replace(LLAMA, tied=True)),
    "frozen": frozen,
    "frozen embedding": frozen_embedding,
    "lora": lambda: add_lora(Decoder(LLAMA), 2),
    "mlp": lambda: MLP(gelu=True),
    "buffers": chain,
}


def numbers(step):
    """Seven rows for the models without words."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(7, 6, generator=generator), torch.randint(2, (7,), generator=generator)


def batch_of(model):
    """What a model is trained on."""
    return numbers if model in ("mlp", "buffers") else TOKENS.batch


def alone(train, model="llama"):
    return Trainer(MODELS[model](), train)


def sharded(train, technique, model="llama"):
    return Trainer(MODELS[model](), train, mesh=make_mesh(dp=dist.get_world_size()), apply=(technique,))
