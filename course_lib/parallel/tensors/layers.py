"""Layers of which each rank has a part; together they compute what the layer that they are made from computes.

Each takes over that layer's parameters, of which its rank has kept its part. Letters as in `course_lib.config`. Column
and row are those of Megatron's Y = X A, while torch stores A transposed: a column of A is a row of `weight`.
Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.parallel.tensors.region import Region
from course_lib.parallel.tensors.vocabulary import check_words


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b, of which each rank computes some features.

    Shapes: (B, S, in) -> (B, S, out/tp), weight (out/tp, in), bias (out/tp); gathered: -> (B, S, out).
    Cost: nothing in forward, an all-reduce of the input's gradient in backward, one for all maps of an `Entrance`.
    """

    def __init__(self, linear: nn.Linear, entrance: Entrance, *, gathered: int = 0) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.entrance, self.gathered = entrance, gathered  # all features of all ranks, if they are to be put together
        entrance.add(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.entrance.output(self, x)
        return self.entrance.region.operators.gather_from_region(y, length=self.gathered) if self.gathered else y


class Entrance:
    """Column-parallel maps of one input, such as queries, keys and values, as one product and one backward.

    The first map that is called computes the features of all; the others, called with the same input, take theirs.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.maps: list[ColumnParallelLinear] = []
        self._input: Tensor | None = None
        self._waiting: dict[int, Tensor] = {}

    def add(self, one: ColumnParallelLinear) -> None:
        """Let another map share the input; its weights come to lie behind those of the others."""
        self.maps.append(one)
        fused = torch.cat([each.weight.data for each in self.maps])
        for each, rows in zip(self.maps, fused.split(self.sizes), strict=True):
            each.weight.data = rows

    @property
    def sizes(self) -> list[int]:
        """Each map's features on this rank."""
        return [len(one.weight) for one in self.maps]

    def output(self, one: ColumnParallelLinear, x: Tensor) -> Tensor:
        """One map's features."""
        if x is not self._input or id(one) not in self._waiting:
            self._input = x
            self._waiting = {id(each): y for each, y in zip(self.maps, self._outputs(x), strict=True)}
        mine = self._waiting.pop(id(one))
        if not self._waiting:
            self._input = None
        return mine

    def _outputs(self, x: Tensor) -> Sequence[Tensor]:
        biases: list[Tensor] = [one.bias for one in self.maps if one.bias is not None]
        parameters = [*(one.weight for one in self.maps), *biases]
        y = _EnteringLinear.apply(x, torch.cat(biases) if biases else None, self, *parameters)
        return y.split(self.sizes, -1)

    def weight(self) -> Tensor:
        """All weights as one, without a copy while they lie behind each other; also in a flat row they may."""
        first, *others = weights = [one.weight.data for one in self.maps]
        ends = [weight.data_ptr() + weight.nbytes for weight in weights]
        starts = [other.data_ptr() for other in others]
        if starts != ends[:-1] or any(x.untyped_storage()._cdata != first.untyped_storage()._cdata for x in others):
            return torch.cat(weights)
        return first.as_strided((sum(self.sizes), first.shape[1]), (first.shape[1], 1))


class _EnteringLinear(torch.autograd.Function):
    """x W^T + b for the weights of all maps; backward adds up the input's gradient while it makes the weights'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, entrance: Entrance, *parameters: Tensor) -> Tensor:
        whole, weight = entrance.region.entered(x), entrance.weight()
        ctx.save_for_backward(x if entrance.region.sequence_parallel == "regather" else whole)
        ctx.entrance, ctx.biased = entrance, bias is not None
        rows = whole.flatten(0, -2)
        y = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        return y.unflatten(0, whole.shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        region, sizes = ctx.entrance.region, ctx.entrance.sizes
        rows = gradient.flatten(0, -2)
        finish = None
        if ctx.needs_input_grad[0]:
            finish = region.start_entering_backward((rows @ ctx.entrance.weight()).unflatten(0, gradient.shape[:-1]))
        found: list[Tensor | None] = [None] * len(ctx.needs_input_grad[3:])
        if any(ctx.needs_input_grad[3:]):
            whole = region.entered(kept) if region.sequence_parallel == "regather" else kept
            found = [*(rows.t() @ whole.flatten(0, -2)).split(sizes)]
            found += rows.sum(0).split(sizes) if ctx.biased else ()
        wanted = [g if needed else None for g, needed in zip(found, ctx.needs_input_grad[3:], strict=True)]
        return finish() if finish else None, None, None, *wanted


class RowParallelLinear(nn.Module):
    """y = x W^T + b, of whose input each rank has some features; b is added once, to the sum.

    Shapes: (B, S, in/tp) -> (B, S, out), weight (out, in/tp), bias (out).
    Cost: an all-reduce of the output in forward, nothing in backward.
    """

    def __init__(self, linear: nn.Linear, region: Region) -> None:
        super().__init__()
        self.weight, self.bias, self.region = linear.weight, linear.bias, region

    def forward(self, x: Tensor) -> Tensor:
        y = self.region.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabParallelEmbedding(nn.Module):
    """A table of which each rank has some rows; for a token of another rank it gives zeros.

    Shapes: (B, S) int64 -> (B, S, H), weight (V/tp, H).
    Cost: an all-reduce of the output in forward, nothing in backward.
    Raises: ValueError in teaching mode for a token outside the vocabulary.
    """

    def __init__(self, embedding: nn.Embedding, region: Region, rows: tuple[int, int]) -> None:
        super().__init__()
        self.weight, self.region, (self.first, self.last) = embedding.weight, region, rows
        self.vocab_size = embedding.num_embeddings
        padding = -1 if embedding.padding_idx is None else embedding.padding_idx
        self.padding = padding - self.first if self.first <= padding < self.last else None  # a row without gradient

    def forward(self, tokens: Tensor) -> Tensor:
        check_words("VocabParallelEmbedding", tokens, self.vocab_size)
        others = (tokens < self.first) | (tokens >= self.last)
        mine = F.embedding((tokens - self.first).masked_fill(others, 0), self.weight, self.padding)
        return self.region.leave(mine.masked_fill(others.unsqueeze(-1), 0.0))


class ParallelRMSNorm(nn.Module):
    """RMSNorm over all features, of which each rank has some: their squares are added up.

    As theirs do, one of `transformers` computes in float32, whatever the model is in.
    Shapes: (B, S, W/tp) -> (B, S, W/tp), weight (W/tp). `copies` ranks have the same features.
    Cost: an all-reduce of (B, S, 1) in forward and one in backward.
    """

    def __init__(self, norm: nn.Module, region: Region, *, width: int, copies: int = 1) -> None:
        super().__init__()
        self.weight: Tensor = norm.get_parameter("weight")
        self.region, self.terms = region, width * copies
        self.in_float32 = not isinstance(norm, nn.RMSNorm)
        self.eps = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 and not self.in_float32 else x.float()
        squares = self.region.operators.sum_in_region(wide.square().sum(-1, keepdim=True))
        return (self.weight * (wide * torch.rsqrt(squares / self.terms + self.eps))).to(x.dtype)
