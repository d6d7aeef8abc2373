"""Collectives that autograd knows: each operator's backward is its conjugate's forward.

                         forward                backward
copy_to_region           nothing                all-reduce
reduce_from_region       all-reduce             nothing
scatter_to_region        cut                    all-gather
gather_from_region       all-gather             cut
gather_sequence          all-gather             reduce-scatter
reduce_scatter_sequence  reduce-scatter         all-gather
sum_in_region            all-reduce             all-reduce

The region is where the ranks of a group work on different parts; outside it all of them do the same, or, with sequence
parallelism, each has some positions. Source: Shoeybi et al. 2019, Megatron-LM, section 3 (f and g); Korthikanti et al.
2022, section 4.2.2 (with and without bars).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm

_Way = Callable[[Tensor], Tensor]


class _Conjugate(torch.autograd.Function):
    """One way forward, the other one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: _Way, back: _Way) -> Tensor:
        ctx.back = back
        return ahead(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


class _ReduceInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operators: Operators) -> Tensor:
        ctx.mark_dirty(x)
        return operators.summed_(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass(frozen=True, kw_only=True)
class Operators:
    """The operators of one group; `algorithm` is that of its all-reduces.

    Cost: an all-reduce moves 2 (p - 1)/p M bytes, an all-gather or reduce-scatter half of that, M those of the whole.
    """

    group: ProcessGroup
    algorithm: str = "ring"

    def copy_to_region(self, x: Tensor) -> Tensor:
        """Let the ranks go on with the same tensor in different ways: its gradient has a term on each.

        Shapes: (...) -> (...). Megatron's f.
        """
        return _applied(x, _same, self.summed)

    def reduce_from_region(self, x: Tensor) -> Tensor:
        """Add up the terms that the ranks made. Shapes: (...) -> (...). Megatron's g."""
        return _applied(x, self.summed, _same)

    def reduce_from_region_(self, x: Tensor) -> Tensor:
        """The same in place, for terms that nothing else needs: no memory is taken."""
        result: Tensor = _ReduceInPlace.apply(x, self)
        return result

    def scatter_to_region(self, x: Tensor, dim: int = -1) -> Tensor:
        """Keep this rank's part of what all have. Shapes: (..., N, ...) -> (..., N/p, ...)."""
        length = x.shape[dim]
        return _applied(x, lambda x: self.cut(x, dim), lambda g: self.gathered(g, dim, length))

    def gather_from_region(self, x: Tensor, dim: int = -1, *, length: int) -> Tensor:
        """Put the parts together, for work that all do alike. Shapes: (..., N/p, ...) -> (..., N, ...), N `length`."""
        return _applied(x, lambda x: self.gathered(x, dim, length), lambda g: self.cut(g, dim))

    def gather_sequence(self, x: Tensor, dim: int = 1, *, length: int) -> Tensor:
        """Put the parts together, for work that each does its own way. Shapes: (B, S/p, H) -> (B, S, H), S `length`."""
        return _applied(x, lambda x: self.gathered(x, dim, length), lambda g: self.summed_and_cut(g, dim))

    def reduce_scatter_sequence(self, x: Tensor, dim: int = 1) -> Tensor:
        """Add up the ranks' terms and keep this rank's positions. Shapes: (B, S, H) -> (B, S/p, H)."""
        length = x.shape[dim]
        return _applied(x, lambda x: self.summed_and_cut(x, dim), lambda g: self.gathered(g, dim, length))

    def sum_in_region(self, x: Tensor) -> Tensor:
        """Add up the ranks' terms, for work that each does its own way. Shapes: (...) -> (...)."""
        return _applied(x, self.summed, self.summed)

    # --- the same without autograd ---

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the ranks."""
        return comm.all_reduce(x.contiguous(), algorithm=self.algorithm, group=self.group)

    def summed_(self, x: Tensor) -> Tensor:
        """The same in place."""
        return comm.all_reduce_(x, algorithm=self.algorithm, group=self.group)

    def largest_(self, x: Tensor) -> Tensor:
        """The maximum over the ranks, number by number, in place."""
        return comm.all_reduce_(x, op=ReduceOp.MAX, algorithm=self.algorithm, group=self.group)

    def cut(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part, as `torch.tensor_split` cuts."""
        return x.tensor_split(self.group.size(), dim)[self.group.rank()].contiguous()

    def gathered(self, x: Tensor, dim: int, length: int) -> Tensor:
        """The parts of all ranks together."""
        whole = comm.all_gather(_first(x, dim), length=length, algorithm=self._plain, group=self.group)
        return whole.movedim(0, dim).contiguous()

    def summed_and_cut(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of the sum."""
        part = comm.reduce_scatter(_first(x, dim), algorithm=self._plain, group=self.group)
        return part.movedim(0, dim).contiguous()

    @property
    def _plain(self) -> str:
        """The algorithm of what is no all-reduce."""
        return self.algorithm if self.algorithm in ("naive", "native") else "ring"


def _applied(x: Tensor, ahead: _Way, back: _Way) -> Tensor:
    result: Tensor = _Conjugate.apply(x, ahead, back)
    return result


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)  # a result that is the input itself would be taken for a change in place


def _first(x: Tensor, dim: int) -> Tensor:
    """Collectives cut along dim 0."""
    return x.movedim(dim, 0).contiguous()
