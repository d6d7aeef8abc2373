"""Whole decoders that no formula was made from: what autograd and the allocator keep, with and without recompute."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.config import ModelConfig
from course_lib.costs import activation_bytes
from course_lib.gauges.allocated import allocated_bytes, saved_bytes
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers

GQA = ModelConfig(
    name="grouped", hidden_size=320, n_layers=3, n_heads=10, n_kv_heads=5, ffn_size=900, vocab_size=700, tied=False
)
SHAPES = {
    "grouped": GQA,
    "as many kv heads": replace(GQA, hidden_size=256, n_layers=2, n_heads=4, n_kv_heads=4, ffn_size=1024),
    "tied, wide heads": replace(
        GQA, head_dim=96, hidden_size=512, n_layers=2, n_heads=8, n_kv_heads=2, ffn_size=640, tied=True
    ),
}
SIZES = [(1, 160), (2, 96), (5, 33)]
formats = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def by_torch(model):
    """PyTorch's own recompute of each layer."""
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


WAYS = {
    "none": (lambda model: None, "none"),
    "ours": (lambda model: checkpoint_layers(model.layers), "layers"),
    "torch's": (by_torch, "layers"),
}
TOGETHER = [  # every two of shape, size and way meet, by a Latin square
    (shape, *size, list(WAYS)[(row + column) % 3])
    for row, shape in enumerate(SHAPES)
    for column, size in enumerate(SIZES)
]


def prepared(config, way, dtype):
    torch.manual_seed(0)
    model = Decoder(config).to(dtype)
    WAYS[way][0](model)
    return model


def forward_of(model, config, batch, sequence):
    """A forward pass with its loss, and the bytes of its inputs and targets."""
    x, y = torch.randint(config.vocab_size, (2, batch, sequence), generator=torch.Generator().manual_seed(1)).clone()
    x, y = x.clone(), y.clone()
    return (lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten())), x.nbytes + y.nbytes


@pytest.mark.parametrize(("shape", "batch", "sequence", "way"), TOGETHER)
@formats
def test_autograd_keeps_the_formula_s_bytes(shape, batch, sequence, dtype, way):
    config = SHAPES[shape]
    model = prepared(config, way, dtype)
    forward, _ = forward_of(model, config, batch, sequence)
    formula = activation_bytes(config, batch=batch, sequence=sequence, itemsize=dtype.itemsize, recompute=WAYS[way][1])
    found = saved_bytes(model, forward)
    assert found == formula + dtype.itemsize  # cross-entropy's divisor
    assert found == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize(("shape", "batch", "sequence", "way"), TOGETHER)
def test_the_allocator_agrees(shape, batch, sequence, way):
    """A counter that knows nothing of autograd: what exists after forward, besides what existed before."""
    config, dtype = SHAPES[shape], torch.float32 if batch == 2 else torch.bfloat16
    model = prepared(config, way, dtype)
    forward, given = forward_of(model, config, batch, sequence)
    recompute = WAYS[way][1]
    formula = activation_bytes(config, batch=batch, sequence=sequence, itemsize=dtype.itemsize, recompute=recompute)
    found = allocated_bytes(forward) + given
    states = config.n_layers * torch.get_rng_state().nbytes if way == "torch's" else 0  # of the random numbers
    loss_and_divisor = 2 * dtype.itemsize
    assert found == formula + states + loss_and_divisor
    assert found == pytest.approx(
        formula, rel=0.02 if states else 0.01
    )  # the random numbers' states are no activations


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "none"])
def test_recompute_gives_the_same_gradients(shape, way):
    config = SHAPES[shape]
    gradients = []
    for how in ("none", way):
        model = prepared(config, how, torch.float32)
        forward_of(model, config, 2, 33)[0]().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "none"])
def test_recompute_trains_what_stands_behind_frozen_weights(way):
    """The first layer's input needs no gradient, and the weights of a layer are no input of it."""
    gradients = []
    for how in ("none", way):
        model = prepared(GQA, how, torch.float32)
        for part in (model.embedding, model.layers[0]):
            part.requires_grad_(False)
        forward_of(model, GQA, 2, 33)[0]().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) == 20
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_the_gauges_see_what_they_should():
    weight = torch.nn.Linear(64, 64, bias=False)
    x = torch.randn(8, 64)
    assert saved_bytes(weight, lambda: weight(x)) == x.nbytes  # the weight is kept too, but is no activation
    assert saved_bytes(weight, lambda: weight(x).sum() + weight(x).sum()) == x.nbytes  # one memory counts once
    assert allocated_bytes(lambda: torch.zeros(1000)) == 4000
    assert allocated_bytes(lambda: torch.zeros(1000).sum().item()) == 0
