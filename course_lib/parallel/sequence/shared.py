"""What the ranks that share a sequence know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.sequence_cut import Order, SequenceCut


@dataclass(kw_only=True)
class SharedSequence:
    """The ranks of a group share sequences in some order; `cut` says which positions each has of the one at hand.

    With `seconds_per_pair` attention lasts so long for each pair of a query and a key, for the emulated clock.
    """

    group: ProcessGroup
    order: Order
    seconds_per_pair: float = 0.0
    cut: SequenceCut = field(init=False)  # `told` gives it

    @property
    def rank(self) -> int:
        """This rank's place in the group."""
        return self.group.rank()

    @property
    def size(self) -> int:
        """How many ranks share."""
        return self.group.size()

    def told(self, length: int) -> None:
        """A sequence of so many positions comes."""
        self.cut = SequenceCut(length, self.size, self.order)

    def positions(self, device: torch.device) -> Tensor:
        """This rank's, as an index."""
        return torch.tensor(self.cut.positions(self.rank), device=device)

    def spend(self, pairs: float, what: str) -> None:
        """On the emulated clock, let attention between so many queries and keys take its time."""
        if self.seconds_per_pair:
            comm.compute(self.seconds_per_pair * pairs, what)
