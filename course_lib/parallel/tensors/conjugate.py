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
    """One way forward, the other one backward: autograd does not see messages, so it must be told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: _Way, backward: _Way) -> Tensor:
        ctx.back = backward
        return forward(x)

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
        return conjugate(x, forward=_same, backward=self.summed)

    def copy_to_map(self, x: Tensor) -> Tensor:
        """The same for what one map alone reads: the gradient that it makes is nobody else's, and added up in place."""
        return conjugate(x, forward=_same, backward=lambda gradient: self.summed_(gradient.contiguous()))

    def reduce_from_region(self, x: Tensor) -> Tensor:
        """Add up the terms that the ranks made. Shapes: (...) -> (...). Megatron's g."""
        return conjugate(x, forward=self.summed, backward=_same)

    def reduce_from_region_(self, x: Tensor) -> Tensor:
        """The same in place, for terms that nothing else needs: no memory is taken."""
        result: Tensor = _ReduceInPlace.apply(x, self)
        return result

    def scatter_to_region(self, x: Tensor, dim: int = -1) -> Tensor:
        """Keep this rank's part of what all have. Shapes: (..., N, ...) -> (..., N/p, ...)."""
        length = x.shape[dim]
        return conjugate(
            x,
            forward=lambda x: self.cut(x, dim),
            backward=lambda gradient: self.gathered(gradient, dim, length),
        )

    def gather_from_region(self, x: Tensor, dim: int = -1, *, length: int) -> Tensor:
        """Put the parts together, for work that all do alike. Shapes: (..., N/p, ...) -> (..., N, ...), N `length`."""
        return conjugate(
            x,
            forward=lambda x: self.gathered(x, dim, length),
            backward=lambda gradient: self.cut(gradient, dim),
        )

    def gather_sequence(self, x: Tensor, dim: int = 1, *, length: int) -> Tensor:
        """Put the parts together, for work that each does its own way. Shapes: (B, S/p, H) -> (B, S, H), S `length`."""
        # The whole goes into different work, so each rank has a term of every position's gradient.
        return conjugate(
            x,
            forward=lambda x: self.gathered(x, dim, length),
            backward=lambda gradient: self.summed_and_cut(gradient, dim),
        )

    def reduce_scatter_sequence(self, x: Tensor, dim: int = 1) -> Tensor:
        """Add up the ranks' terms and keep this rank's positions. Shapes: (B, S, H) -> (B, S/p, H)."""
        length = x.shape[dim]
        return conjugate(
            x,
            forward=lambda x: self.summed_and_cut(x, dim),
            backward=lambda gradient: self.gathered(gradient, dim, length),
        )

    def sum_in_region(self, x: Tensor) -> Tensor:
        """Add up the ranks' terms, for work that each does its own way. Shapes: (...) -> (...)."""
        return conjugate(x, forward=self.summed, backward=self.summed)

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
        parts = x.tensor_split(self.group.size(), dim)
        return parts[self.group.rank()].contiguous()

    def gathered(self, x: Tensor, dim: int, length: int) -> Tensor:
        """The parts of all ranks together."""
        part = _first(x, dim)
        whole = comm.all_gather(part, length=length, algorithm=self._plain, group=self.group)
        return whole.movedim(0, dim).contiguous()

    def summed_and_cut(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of the sum."""
        whole = _first(x, dim)
        part = comm.reduce_scatter(whole, algorithm=self._plain, group=self.group)
        return part.movedim(0, dim).contiguous()

    @property
    def _plain(self) -> str:
        """The algorithm of what is no all-reduce: a tree, say, is none for an all-gather."""
        return self.algorithm if self.algorithm in ("naive", "native") else "ring"


def conjugate(x: Tensor, *, forward: _Way, backward: _Way) -> Tensor:
    """`forward(x)`, of which autograd knows that `backward` gives the gradient of x."""
    result: Tensor = _Conjugate.apply(x, forward, backward)
    return result


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)  # a result that is the input itself would be taken for a change in place


def _first(x: Tensor, dim: int) -> Tensor:
    """Collectives cut along dim 0."""
    return x.movedim(dim, 0).contiguous()
