"""Linear maps that may share a cut: what some of them give by column, one reads by row. Widths tell whether it fits."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from course_lib.parallel.tensors.styles import Style, head_size_of
from course_lib.savers.adapted import map_inside

_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads")


class Block:
    """Children of a module, by name: those to be cut by column, and those by row."""

    def __init__(self, module: nn.Module, columns: Sequence[str], rows: Sequence[str]) -> None:
        self.module, self.columns, self.rows = module, columns, rows

    @property
    def is_attention(self) -> bool:
        """Whether it has queries, keys or values."""
        return any(name[0] in "qkv" for name in self.columns)

    @property
    def norms(self) -> dict[str, Style]:
        """The children that are proven to normalise queries or keys, and the style that each needs."""
        found: dict[str, Style] = {}
        for column, name in self._normed.items():
            norm, width, head_size = self.module.get_submodule(name), self._width(column), head_size_of(self.module)
            shape = tuple(norm.get_parameter("weight").shape)
            if shape == (head_size,) and _is_of_each_row(norm):
                found[name] = "shared"
            elif shape == (width,) and is_rms_norm(norm):
                found[name] = "full norm"
        return found

    @property
    def _normed(self) -> dict[str, str]:
        """By map, the norm with a weight that is called after it."""
        names = {name: f"{name.removesuffix('_proj')}_norm" for name in self.columns}
        weights = {norm: getattr(getattr(self.module, norm, None), "weight", None) for norm in names.values()}
        return {name: norm for name, norm in names.items() if weights[norm] is not None}

    def problems(self) -> Iterator[str]:
        """Why its features cannot be cut between the columns and the row."""
        for name in [*self.columns, *self.rows]:
            if type(child := self._map(name)) is not nn.Linear:
                yield f"{name} is a {type(child).__name__}, and what is cut is a Linear"
                return
        if len(self.rows) != 1 or not self.columns:
            yield "a cut needs maps by column and one by row in the same module"
            return
        widths, inner = {name: self._linear(name).out_features for name in self.columns}, self._inner
        if self.is_attention:
            yield from self._of_heads(widths, inner)
        else:
            for name, width in widths.items():
                if width != inner:
                    yield f"{name} gives {width} features, {self.rows[0]} reads {inner}"
        yield from self._of_others({*widths.values(), inner})

    def _of_heads(self, widths: dict[str, int], inner: int) -> Iterator[str]:
        head_size, by_kind = head_size_of(self.module), {name[0]: width for name, width in widths.items()}
        counting = [name for name in _COUNTS if hasattr(self.module, name)]
        if sorted(name[0] for name in widths) != ["k", "q", "v"]:
            yield f"{', '.join(widths)} are not one map each of queries, keys and values"
        elif head_size is None or by_kind["k"] % head_size:
            yield "it does not say how many features a head has"
        elif counting:
            yield f"it counts heads by its own {counting[0]}"
        elif by_kind["q"] != inner or by_kind["k"] != by_kind["v"] or inner % by_kind["k"]:
            listed = ", ".join(f"{name} gives {width}" for name, width in widths.items())
            yield f"{listed} features, {self.rows[0]} reads {inner}"

    def _of_others(self, cut: set[int]) -> Iterator[str]:
        """What else there is may need what is cut, or heads: beside maps of no heads it may be a layer's, as wide."""
        norms = self.norms
        for name in self._normed.values():
            if name not in norms:
                shape = tuple(self.module.get_submodule(name).get_parameter("weight").shape)
                yield f"{name}, a weight of {shape}, is a norm neither of each head nor an RMSNorm over all"
        known = {*self.columns, *self.rows, *self._normed.values()}
        outside = self._linear(self.rows[0]).out_features
        for name, parameter in self.module.named_parameters():
            of_the_layer = outside in parameter.shape and not cut & {*parameter.shape} and not self.is_attention
            if name.partition(".")[0] not in known and not of_the_layer:
                yield f"{name} may work on features that would be cut"
        for name, child in self.module.named_children():
            if name not in known and "norm" in type(child).__name__.lower() and not list(child.parameters()):
                yield f"{name} may work on features that would be cut"

    def _width(self, name: str) -> int | None:
        """Features that a map gives; None for what is no linear one."""
        return getattr(self._map(name), "out_features", None)

    @property
    def _inner(self) -> int:
        return self._linear(self.rows[0]).in_features

    def _linear(self, name: str) -> nn.Linear:
        child = self._map(name)
        assert isinstance(child, nn.Linear)
        return child

    def _map(self, name: str) -> nn.Module:
        """A child; of an adapted map what the adapter stands beside."""
        return map_inside(self.module.get_submodule(name))


@torch.no_grad()
def is_rms_norm(norm: nn.Module) -> bool:
    """Whether it computes weight * x / sqrt(mean(x^2)): tried on numbers, since a class's name says little."""
    weight = norm.get_parameter("weight")
    if weight.dim() != 1:
        return False
    x = torch.arange(1.0, len(weight) + 1, device="cpu")
    return torch.allclose(_tried(norm, x), 2.0 * x * x.square().mean().rsqrt(), rtol=1e-3)


@torch.no_grad()
def _is_of_each_row(norm: nn.Module) -> bool:
    """Whether it takes each row by itself and all alike, so that a rank with some heads gives them what all would."""
    x = torch.arange(1.0, 2 * len(norm.get_parameter("weight")) + 1, device="cpu").view(2, -1).square()
    both, turned = _tried(norm, x), _tried(norm, x.flip(0))
    alone = torch.stack([_tried(norm, row[None])[0] for row in x])
    return torch.allclose(both, alone) and torch.allclose(both, turned.flip(0))


def _tried(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm makes of some numbers when its own are all 2."""
    probe = copy.deepcopy(norm).to_empty(device="cpu").float()
    for parameter in probe.parameters():
        parameter.fill_(2.0)
    y: Tensor = probe(x)
    return y
