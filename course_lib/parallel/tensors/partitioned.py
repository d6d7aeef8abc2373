"""Partitioned activation checkpoints: of a layer's input, which all ranks of a group have, each keeps a piece.

Layers that compute a second time in backward keep nothing but their inputs, and under tensor parallelism all ranks keep
the same ones. Here each keeps 1/p of them, and they gather the rest when backward comes to the layer. Under sequence
parallelism a rank's input is such a piece already, and there is nothing to cut.
Source: Rajbhandari et al. 2020, ZeRO, section 6.1 (P_a).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.parallel.tensors.conjugate import Operators


class _Piece(NamedTuple):
    """What autograd keeps in place of a tensor: a copy, for a view would keep the tensor's memory."""

    numbers: Tensor
    shape: torch.Size


def partition_inputs(layers: Iterable[nn.Module], operators: Operators) -> None:
    """Let autograd keep a piece of each layer's input, which must be the same on all ranks.

    Cost: in backward an all-gather of the input each time that the layer saved it: once, if it is recomputed.
    """
    for layer in layers:
        layer.forward = partial(_in_pieces, operators, layer.forward)


def _in_pieces(operators: Operators, forward: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    address, shape = x.data_ptr(), x.shape  # the hooks last until backward: with x in them it would be kept whole

    def keep(saved: Tensor) -> Tensor | _Piece:
        if (saved.data_ptr(), saved.shape) != (address, shape):
            return saved
        return _Piece(operators.cut(saved.flatten(), 0).clone(), shape)

    def find(kept: Tensor | _Piece) -> Tensor:
        if isinstance(kept, _Piece):
            return operators.gathered(kept.numbers, 0, kept.shape.numel()).view(kept.shape)
        return kept

    with saved_tensors_hooks(keep, find):
        return forward(x, *others)
