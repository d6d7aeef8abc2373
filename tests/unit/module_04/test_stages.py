"""Models cut into stages, by hand and by cost; what cannot be cut is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.models.mlp import MLP
from course_lib.parallel.pipelines.stages import cut, layer_parameters, layers_of, passed_on, skeleton
from course_lib.parallel.table.layout import first_names
from course_lib.split import balanced_sizes, split_sizes

LLAMA = ModelConfig(
    name="small Llama", hidden_size=12, n_layers=3, n_heads=2, n_kv_heads=1, ffn_size=20, vocab_size=16, tied=True
)
GPT = replace(
    LLAMA,
    name="small GPT",
    n_kv_heads=2,
    tied=False,
    positions="learned",
    max_sequence=5,
    norm="layer",
    gated_ffn=False,
)


def parameters(stage):
    return sum(parameter.numel() for parameter in stage.parameters())


def test_the_small_model_is_cut_into_28_and_10_parameters():
    assert [parameters(stage) for stage in cut(MLP(), split_sizes(3, 2))] == [28, 10]
    assert [parameters(stage) for stage in cut(MLP(), balanced_sizes(layer_parameters(MLP()), 2))] == [28, 10]


@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 2, 1), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("config", [LLAMA, GPT], ids=lambda config: config.name)
def test_stages_in_a_row_are_the_model(config, sizes):
    torch.manual_seed(0)
    model, tokens = Decoder(config), torch.randint(16, (2, 5))
    stages = cut(model, sizes)
    x, passing = tokens, passed_on(cut(skeleton(model), sizes), tokens)
    for stage, taken in zip(stages, passing, strict=False):
        assert (x.shape, x.dtype) == (taken.shape, taken.dtype)
        x = stage(x)
    assert torch.equal(x, model(tokens)) and (x.shape, x.dtype) == (passing[-1].shape, passing[-1].dtype)
    assert {name for stage in stages for name, _ in stage.named_parameters()} >= dict(model.named_parameters()).keys()
    assert stages[0].embedding is model.embedding and stages[-1].norm is model.norm and stages[-1].head is model.head


def test_a_skeleton_tells_shapes_and_ties_and_holds_nothing():
    model, tokens = Decoder(LLAMA).double(), torch.randint(16, (2, 5))
    model.layers[1].requires_grad_(False)
    empty = skeleton(model)
    assert {tensor.device.type for tensor in empty.parameters()} == {"meta"}
    assert empty.head.weight is empty.embedding.weight and not empty.layers[1].ffn_norm.weight.requires_grad
    assert {tensor.device.type for tensor in model.parameters()} == {"cpu"}
    shapes = passed_on(cut(empty, (2, 3)), tokens)
    assert [tuple(one.shape) for one in shapes] == [(2, 5), (2, 5, 12), (2, 5, 16)]
    assert [one.dtype for one in shapes] == [torch.int64, torch.float64, torch.float64]
    assert first_names(empty)["head.weight"] == "embedding.weight"


def test_layers_by_parameters():
    sizes = layer_parameters(Decoder(replace(LLAMA, tied=False)))
    assert len(sizes) == len(layers_of(Decoder(LLAMA))) == 5
    assert sum(sizes) == parameters(Decoder(replace(LLAMA, tied=False)))
    assert sizes[0] == 16 * 12 and sizes[-1] == 16 * 12 + 12


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        (
            MLP(),
            (1, 1, 1, 0),
            "cut: 4 stages of 1, 1, 1, 0 layers, 3 layers in the model; every stage has a layer; choose",
        ),
        (
            MLP(),
            (1, 1),
            r"cut: sizes=\(1, 1\), 3 layers in the model; every layer lies on one stage; let them add up to 3",
        ),
        (MLP(), (1, 1, 1), "cut: stage 1 holds activation alone; every stage has parameters; give it a neighbour's"),
        (nn.Linear(2, 2), (1,), "cut: a Linear; it must be known in which order its layers run; give a Decoder"),
    ],
    ids=["more stages than layers", "a layer left over", "no parameters", "not a chain"],
)
def test_what_cannot_be_cut_is_refused(model, sizes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        cut(model, sizes)
