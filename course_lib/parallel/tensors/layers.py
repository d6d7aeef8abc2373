"""Layers of which each rank has a part; together they compute what the layer that they are made from computes.

Each takes over that layer's parameters, of which its rank has kept its part (`cutting`). There are two places where
ranks talk, the beginning and the end of a `Region`:

    enter   forward: nothing              backward: the ranks' gradients of x are added up (Megatron's f)
    leave   forward: terms are added up   backward: nothing (Megatron's g)

A column-parallel map enters, a row-parallel one leaves, and between the two nobody needs anybody: whatever works on
each feature by itself, or on each head, may stand there. Under sequence parallelism the same two places gather and
scatter positions.

Column and row are those of Megatron's Y = X A, while torch stores A transposed: a column of A is a row of `weight`.
Letters are those of `course_lib.config`.
Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.parallel.tensors.region import Region
from course_lib.parallel.tensors.vocabulary import check_words


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b, of which each rank computes some features.

    Shapes: (B, S, in) -> (B, S, out/tp), weight (out/tp, in), bias (out/tp). With `gathered`, the number of features
    of all ranks, they are put together at the end: -> (B, S, out).
    Cost: nothing in forward, an all-reduce of the input's gradient in backward; maps that read the same input share
        it, by an `Entrance`.
    """

    def __init__(self, linear: nn.Linear, region: Region, *, gathered: int = 0) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.region = region
        self.gathered = gathered

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)  # (B, S, out/tp)
        if self.gathered:
            y = self.region.operators.gather_from_region(y, length=self.gathered)  # (B, S, out)
        return y

    def features(self, x: Tensor) -> Tensor:
        """Those of this rank."""
        # Every rank goes on with x in its own way, so x is owed a gradient by each of them.
        x = self.region.enter(x)
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T + b, of whose input each rank has some features; b is added once, to the sum.

    Shapes: (B, S, in/tp) -> (B, S, out), weight (out, in/tp), bias (out).
    Cost: an all-reduce of the output in forward, nothing in backward.
    """

    def __init__(self, linear: nn.Linear, region: Region) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.region = region

    def forward(self, x: Tensor) -> Tensor:
        terms = F.linear(x, self.weight)  # (B, S, out), but of this rank's features alone
        y = self.region.leave(terms)
        # Before the sum every rank would add the bias, and y would have it tp times.
        if self.bias is not None:
            y = y + self.bias
        return y


class VocabParallelEmbedding(nn.Module):
    """A table of which each rank has some rows; for a token of another rank it gives zeros.

    Shapes: (B, S) int64 -> (B, S, H), weight (V/tp, H). This rank's `rows` are from the first up to the second.
    Cost: an all-reduce of the output in forward, nothing in backward.
    Raises: ValueError in teaching mode for a token outside the vocabulary.
    """

    def __init__(self, embedding: nn.Embedding, region: Region, rows: tuple[int, int]) -> None:
        super().__init__()
        self.weight = embedding.weight
        self.region = region
        self.first, self.last = rows
        self.vocab_size = embedding.num_embeddings
        # A padding token's row gets no gradient, on the rank that has it.
        self.padding: int | None = None
        padding = embedding.padding_idx
        if padding is not None and self.first <= padding < self.last:
            self.padding = padding - self.first

    def forward(self, tokens: Tensor) -> Tensor:
        check_words("VocabParallelEmbedding", tokens, self.vocab_size)
        others = (tokens < self.first) | (tokens >= self.last)  # (B, S): words of other ranks
        # They look at row 0 instead, since some row must be looked at, and what they find there is made zero.
        places = (tokens - self.first).masked_fill(others, 0)
        mine = F.embedding(places, self.weight, self.padding)  # (B, S, H)
        mine = mine.masked_fill(others.unsqueeze(-1), 0.0)
        # Of every token one rank has the row, and the others add zeros.
        return self.region.leave(mine)
