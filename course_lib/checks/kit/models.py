"""Small models that exercises are checked on, and exact gradients for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from course_lib.models.mlp import MLP
from course_lib.training.batches import Batch

Kind = Literal["mlp", "gelu", "frozen", "tied", "deep", "buffers"]
Tensors = Mapping[str, Tensor | None]
IN, OUT = 6, 2  # of all of them, the perceptron's
_EXACT = 12  # gradients are multiples of it: their averages over 1 to 4 ranks are whole numbers in fp32 too


class Tied(nn.Module):
    """Two layers with one weight, two biases and a head.

    Shapes: (B, 6) -> (B, 2).
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(IN, IN), nn.Linear(IN, IN), nn.Linear(IN, OUT)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def _frozen() -> nn.Module:
    model = MLP(gelu=True)
    model.layer1.requires_grad_(False)
    return model


def _deep() -> nn.Module:
    """Layers of different sizes, so that no two tensors are taken for one another."""
    widths = (IN, 5, 7, 4, OUT)
    layers = [part for pair in zip(widths, widths[1:], strict=False) for part in (nn.Linear(*pair), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def _buffers() -> nn.Module:
    """Batch normalisation counts in int64 and keeps a running mean and variance."""
    norm = nn.BatchNorm1d(4)
    for tensor in (norm.running_mean, norm.running_var):
        if tensor is not None:
            tensor.copy_(torch.rand(4) + 1)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked += torch.randint(1, 1000, ())
    return nn.Sequential(nn.Linear(IN, 4), norm, nn.GELU(), nn.Linear(4, OUT))


_MAKERS: dict[Kind, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "gelu": lambda: MLP(gelu=True),
    "frozen": _frozen,
    "tied": Tied,
    "deep": _deep,
    "buffers": _buffers,
}
WORDS: dict[Kind, str] = {
    "mlp": "the 6-4-2 MLP",
    "gelu": "the 6-4-2 MLP with GELU",
    "frozen": "the MLP with a frozen layer1",
    "tied": "a model with a tied weight",
    "deep": "an MLP of four layers",
    "buffers": "a model with buffers",
}


def build(kind: Kind, seed: int, dtype: torch.dtype | None = None) -> nn.Module:
    """A model with the weights of a seed; the process's own random numbers go on as if nothing was drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _MAKERS[kind]().to(dtype or torch.get_default_dtype())


def rows_of(number: int, generator: torch.Generator) -> Batch:
    """Random rows and classes."""
    return torch.randn(number, IN, generator=generator), torch.randint(OUT, (number,), generator=generator)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Copies of all gradients; None where there is none."""
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def state(model: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers."""
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def exact_gradients(model: nn.Module, world_size: int, seed: int) -> list[dict[str, Tensor]]:
    """Gradients for each rank, whole numbers whose average over the ranks has no rounding."""
    generator = torch.Generator().manual_seed(seed * 1009 + world_size)
    return [
        {
            name: _EXACT * torch.randint(-99, 100, p.shape, generator=generator).to(p.dtype)
            for name, p in trained(model).items()
        }
        for _ in range(world_size)
    ]
