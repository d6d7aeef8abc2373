"""A model cut into stages: modules that take what the stage before gives, and know nothing of ranks.

A stage holds the model's own layers under the model's own names, so that its parameters are called there as here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder, rotary_angles
from course_lib.models.mlp import MLP


class ChainStage(nn.Module):
    """Some of the layers of a model in which each layer takes what the one before gives."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, model.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        for name in self._modules:
            x = self.get_submodule(name)(x)
        return x


class DecoderStage(nn.Module):
    """Some of a decoder's layers; on the first stage its embedding, on the last its final norm and head.

    Shapes: (B, S) int64 on the first stage, (B, S, H) between stages, (B, S, V) after the last.
    """

    def __init__(self, model: Decoder, names: Sequence[str]) -> None:
        super().__init__()
        self.config = model.config
        self.embedding = model.embedding if "embedding" in names else None
        self.positions = model.positions if "positions" in names else None
        mine = [name.removeprefix("layers.") for name in names if name.startswith("layers.")]
        self.layers = nn.ModuleDict({name: model.layers[int(name)] for name in mine})
        self.norm = model.norm if "norm" in names else None
        self.head = model.head if "head" in names else None

    def forward(self, x: Tensor) -> Tensor:
        sequence, angles = x.shape[1], None
        x = self.begun(x)
        if self.config.positions == "rotary":
            angles = rotary_angles(sequence, self.config.head_size, x.device, self.config.rotary_base)
        for layer in self.layers.values():
            x = layer(x, angles)
        return self.ended(x)

    def begun(self, x: Tensor) -> Tensor:
        """What the first of the layers takes."""
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            self.config.check_sequence(x.shape[1])
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        return x

    def ended(self, x: Tensor) -> Tensor:
        """What the stage makes of the last layer's output."""
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def layers_of(model: nn.Module) -> list[tuple[str, ...]]:
    """Where a model may be cut: by layer, the names of what belongs together.

    A decoder's first layer is its embedding, its last the final norm with the head.
    Raises: ValueError for a model whose layers are not known to follow each other.
    """
    if isinstance(model, Decoder):
        first = ("embedding",) if model.positions is None else ("embedding", "positions")
        return [first, *((f"layers.{number}",) for number in range(len(model.layers))), ("norm", "head")]
    if isinstance(model, nn.Sequential | MLP):
        return [(name,) for name in model._modules]
    rule = "it must be known in which order its layers run"
    raise ValueError(four_parts("cut", f"a {type(model).__name__}", rule, "give a Decoder, an MLP or an nn.Sequential"))


def layer_parameters(model: nn.Module) -> list[int]:
    """By layer, its number of parameters: what `split.balanced_sizes` can balance."""
    return [
        sum(parameter.numel() for name in names for parameter in model.get_submodule(name).parameters())
        for names in layers_of(model)
    ]


def cut(model: nn.Module, sizes: Sequence[int]) -> list[nn.Module]:
    """The stages of a model, `sizes[s]` layers on stage s. Stages share their weights with the model.

    Raises: ValueError unless every stage has a layer and a parameter, and every layer a stage.
    """
    layers, parameters = layers_of(model), layer_parameters(model)
    _check(sizes, parameters, layers)
    stages: list[nn.Module] = []
    for start, end in pairwise([0, *accumulate(sizes)]):
        names = [name for layer in layers[start:end] for name in layer]
        stages.append(DecoderStage(model, names) if isinstance(model, Decoder) else ChainStage(model, names))
    return stages


def skeleton(model: nn.Module) -> nn.Module:
    """The model without its numbers: names, shapes, ties and what is frozen, in no memory."""
    empty: dict[int, Tensor] = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    for parameter in model.parameters():
        empty[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    return copy.deepcopy(model, memo=empty)


@torch.no_grad()
def passed_on(stages: Sequence[nn.Module], inputs: Tensor) -> list[Tensor]:
    """What each stage takes, and last what the last one gives, as empty tensors; `stages` are a skeleton's.

    A decoder's layer adds to what it takes and so gives its like: none is run, which on no device takes 2 ms each.
    """
    passing = [inputs.to("meta")]
    for stage in stages:
        x = passing[-1]
        passing.append(stage.ended(stage.begun(x)) if isinstance(stage, DecoderStage) else stage(x))
    return passing


def _check(sizes: Sequence[int], parameters: Sequence[int], layers: Sequence[Sequence[str]]) -> None:
    if len(sizes) > len(layers) or any(size < 1 for size in sizes):
        values = f"{len(sizes)} stages of {', '.join(map(str, sizes))} layers, {len(layers)} layers in the model"
        way_out = f"choose at most {len(layers)} stages of at least one layer"
        raise ValueError(four_parts("cut", values, "every stage has a layer", way_out))
    if sum(sizes) != len(layers):
        values = f"sizes={tuple(sizes)}, {len(layers)} layers in the model"
        raise ValueError(
            four_parts("cut", values, "every layer lies on one stage", f"let them add up to {len(layers)}")
        )
    for stage, (start, end) in enumerate(pairwise([0, *accumulate(sizes)])):
        if not sum(parameters[start:end]):
            names = ", ".join(name for layer in layers[start:end] for name in layer)
            rule, way_out = "every stage has parameters", "give it a neighbour's layer too, or choose fewer stages"
            raise ValueError(four_parts("cut", f"stage {stage} holds {names} alone", rule, way_out))
