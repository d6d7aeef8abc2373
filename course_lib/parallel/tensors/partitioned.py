"""Partitioned activation checkpoints: of a layer's input, which all ranks of a group have, each keeps a piece.

Layers that compute a second time in backward keep nothing but their inputs, and under tensor parallelism all ranks keep
the same ones. Here each keeps 1/p of them, and they gather the rest when backward comes to the layer. Under sequence
parallelism a rank's input is such a piece already, and there is nothing to cut.
Source: Rajbhandari et al. 2020, ZeRO, section 6.1 (P_a).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.parallel.tensors.conjugate import Operators


class _Piece(NamedTuple):
    """What autograd keeps in place of a tensor: a copy, for a view would keep the tensor's memory."""

    numbers: Tensor
    shape: torch.Size


def in_pieces(operators: Operators) -> saved_tensors_hooks:
    """While it is entered, autograd keeps this rank's piece of each tensor, which must be the same on all ranks.

    Cost: in backward an all-gather of the tensor.
    """

    def keep(saved: Tensor) -> _Piece:
        return _Piece(operators.cut(saved.flatten(), 0).clone(), saved.shape)

    def find(kept: _Piece) -> Tensor:
        return operators.gathered(kept.numbers, 0, kept.shape.numel()).view(kept.shape)

    return saved_tensors_hooks(keep, find)
