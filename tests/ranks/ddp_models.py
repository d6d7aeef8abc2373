"""Small models, steps and comparisons for the tests of DDP."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder

TINY = ModelConfig(
    name="tiny", hidden_size=12, n_layers=1, n_heads=2, n_kv_heads=1, ffn_size=20, vocab_size=32, tied=True
)
ROWS, STEPS, TOLERANCE = 72, 3, 1e-12


class Perceptron(nn.Module):
    """Uneven prime sizes, one frozen layer, a scalar parameter."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layers[2].requires_grad_(False)

    def forward(self, x):
        return self.layers(x) * self.scale


class Counting(Perceptron):
    """Buffers of two dtypes that every forward changes, and that every output depends on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(7))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        shifted = x - self.mean
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        self.calls += 1
        return super().forward(shifted)


def decoder():
    return Decoder(TINY)


def inputs(make_model, step):
    generator = torch.Generator().manual_seed(step)
    if make_model is decoder:
        return torch.randint(32, (ROWS, 4), generator=generator)
    return torch.randn(ROWS, 7, generator=generator, dtype=torch.float64)


def step(model, optimizer, rows, *, accumulation=1, set_to_none=True):
    """One step by micro-batches; under no_sync all but the last, where there is such a thing."""
    optimizer.zero_grad(set_to_none=set_to_none)
    parts = rows.tensor_split(accumulation)
    for number, part in enumerate(parts, start=1):
        alone = number < accumulation and hasattr(model, "no_sync")
        with model.no_sync() if alone else nullcontext():
            (model(part).square().mean() / accumulation).backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return gradients


def train(model, make_model, make_optimizer, share, **options):
    """All gradients of all steps, then parameters and buffers."""
    optimizer = make_optimizer(model.parameters())
    found = []
    for number in range(STEPS):
        found += step(model, optimizer, share(inputs(make_model, number)), **options)
    return found + [x.detach().clone() for x in (*model.parameters(), *model.buffers())]


def deviation(ours, theirs):
    """The largest difference, relative to the largest number of its tensor."""
    assert len(ours) == len(theirs)
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            worst = max(worst, ((mine - other).abs().max() / other.abs().max().clamp(min=1e-30)).item())
    return worst


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
