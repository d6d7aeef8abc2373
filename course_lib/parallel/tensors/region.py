"""The part of a block in which the ranks of a group work on different features: how to enter it and how to leave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from course_lib import comm
from course_lib.parallel.tensors.conjugate import Operators

SEQUENCE = 1  # the dim of (B, S, H) of which each rank has a part under sequence parallelism
SequenceParallel = Literal["keep", "regather"]  # a gathered input until backward, or only this rank's piece of it


@dataclass(kw_only=True)
class Region:
    """Where the features are cut over the ranks of `operators.group`.

    Outside, every rank has the same (B, S, H); under sequence parallelism it has (B, S/tp, H), of a sequence of
    `length` positions. Then the input of a region is gathered: "keep" keeps all of it until backward, "regather"
    gathers it a second time there.
    """

    operators: Operators
    sequence_parallel: SequenceParallel | None = None
    length: int = 0

    def leave(self, terms: Tensor) -> Tensor:
        """Add up the ranks' terms of the block's output, in place. Shapes: (B, S, H) -> (B, S, H) or (B, S/tp, H)."""
        if self.sequence_parallel:
            return self.operators.reduce_scatter_sequence(terms, SEQUENCE)
        return self.operators.reduce_from_region_(terms)

    # --- entering, without autograd: a column-parallel map has the pair in its own backward ---

    def entered(self, x: Tensor) -> Tensor:
        """What the region works on."""
        return self.operators.gathered(x, SEQUENCE, self.length) if self.sequence_parallel else x

    def start_entering_backward(self, gradient: Tensor) -> Callable[[], Tensor]:
        """Begin to add up the ranks' terms of an input's gradient; the result is what comes when it is called.

        The all-reduce runs while the caller goes on, in `gradient`'s own memory.
        """
        if self.sequence_parallel:
            mine = self.operators.summed_and_cut(gradient, SEQUENCE)
            return lambda: mine
        under_way = comm.all_reduce_(
            gradient, algorithm=self.operators.algorithm, group=self.operators.group, async_op=True
        )

        def finish() -> Tensor:
            under_way.wait()
            return gradient

        return finish
