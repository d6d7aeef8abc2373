"""A model of names and shapes alone: all of them are there, and nobody draws a number for it."""

from __future__ import annotations

import pytest
import torch

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.meta import all_on_meta

SIZES = {"hidden_size": 12, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "ffn_size": 20, "vocab_size": 16}
LLAMA = ModelConfig(name="like Llama", **SIZES, tied=False)
GPT = ModelConfig(
    name="like GPT",
    **SIZES,
    tied=True,
    norm="layer",
    gated_ffn=False,
    positions="learned",
    max_sequence=8,
    biases=("qkv", "ffn"),
)


def shapes(model):
    return {name: (x.shape, x.dtype, x.requires_grad) for name, x in model.state_dict(keep_vars=True).items()}


@pytest.mark.parametrize("config", [LLAMA, GPT], ids=lambda config: config.name)
def test_all_names_and_shapes_are_there_and_nothing_is_drawn(config, monkeypatch):
    want = shapes(Decoder(config))
    for drawing in ("normal_", "uniform_"):  # on meta the first of them imports PyTorch's compiler
        monkeypatch.setattr(torch.Tensor, drawing, lambda *_, **__: pytest.fail("a number is drawn"))
    with all_on_meta():
        model = Decoder(config)
    assert shapes(model) == want
    assert all(x.is_meta for x in model.state_dict().values())
    assert (model.head.weight is model.embedding.weight) == config.tied
