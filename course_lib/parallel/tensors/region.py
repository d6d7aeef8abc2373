"""The part of a block in which the ranks of a group work on different features: how to enter it and how to leave it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from course_lib.errors import four_parts
from course_lib.parallel.tensors.conjugate import Operators

SEQUENCE = 1  # the dim of (B, S, H) of which each rank has a part under sequence parallelism
SequenceParallel = Literal["keep", "regather"]  # a gathered input until backward, or only this rank's piece of it


@dataclass(kw_only=True)
class Region:
    """Where the features are cut over the ranks of `operators.group`.

    Outside, every rank has the same (B, S, H); under sequence parallelism it has (B, S/tp, H), of a sequence of
    `length` positions. Then the input of a region is gathered: "keep" keeps all of it until backward, "regather"
    gathers it a second time there (`Entrance`).
    """

    operators: Operators
    sequence_parallel: SequenceParallel | None = None
    length: int = 0

    def enter(self, x: Tensor) -> Tensor:
        """What a map of the region reads: the same x, whose gradient each rank has a term of.

        Shapes: (B, S, H), or (B, S/tp, H), -> (B, S, H).
        Raises: ValueError under sequence parallelism for what has no sequence.
        """
        if not self.sequence_parallel:
            return self.operators.copy_to_map(x)
        self.check_sequence(x)
        return self.operators.gather_sequence(x, SEQUENCE, length=self.length)

    def leave(self, terms: Tensor) -> Tensor:
        """Add up the ranks' terms of the block's output, in place. Shapes: (B, S, H) -> (B, S, H) or (B, S/tp, H).

        Raises: as `enter`.
        """
        if not self.sequence_parallel:
            return self.operators.reduce_from_region_(terms)
        self.check_sequence(terms)
        return self.operators.reduce_scatter_sequence(terms, SEQUENCE)

    def check_sequence(self, x: Tensor) -> None:
        """Raise the four-part error for a tensor without positions."""
        if x.dim() <= SEQUENCE + 1:
            values, rule = f"a tensor of shape {tuple(x.shape)}", "sequence parallelism cuts the S of (B, S, H)"
            raise ValueError(four_parts("tensor", values, rule, "give batches of sequences, or no sequence_parallel"))
