"""What the ranks that share a sequence know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.sequence_cut import Order, SequenceCut


class Documents:
    """Which document each position of a batch belongs to; a position meets those of its own alone."""

    def __init__(self) -> None:
        self.numbers: Tensor | None = None  # (B, S); `told` gives it

    def told(self, ends: Tensor) -> None:
        """A batch comes, in which these positions (B, S) close a document."""
        self.numbers = ends.cumsum(1) - ends.long()  # the token that closes a document still belongs to it

    def same(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Whether positions are of one document: (S,) and (T,) -> (B, S, T)."""
        assert self.numbers is not None
        return self.numbers[:, queries, None] == self.numbers[:, None, keys]

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """To each position a weighted mean of the values in the past of its document; all positions are here."""
        assert self.numbers is not None
        every = torch.arange(self.numbers.shape[1], device=self.numbers.device)
        seen = self.same(every, every) & (every[:, None] >= every)  # (B, S, S)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], enable_gqa=True)


@dataclass(kw_only=True)
class SharedSequence:
    """The ranks of a group share sequences in some order; `cut` says which positions each has of the one at hand.

    With `seconds_per_pair` attention lasts so long for each pair of a query and a key, for the emulated clock.
    """

    group: ProcessGroup
    order: Order
    seconds_per_pair: float = 0.0
    documents: Documents | None = None  # several in a sequence; None: it is one
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

    def gathered(self, x: Tensor) -> Tensor:
        """What the ranks have of all positions, in the sequence's own order: (B, S/p, …) -> (B, S, …)."""
        here = x.movedim(1, 0).contiguous()
        every = comm.all_gather(here, length=self.cut.length, group=self.group)
        return every[self.cut.natural()].movedim(0, 1).contiguous()

    def same_document(self, source: int, queries: slice, keys: slice) -> Tensor | None:
        """Which of this rank's queries and the keys of `source` are of one document; None where a sequence is one."""
        if self.documents is None:
            return None
        mine, theirs = self.cut.positions(self.rank)[queries], self.cut.positions(source)[keys]
        return self.documents.same(torch.tensor(mine), torch.tensor(theirs))

    def spend(self, pairs: float, what: str) -> None:
        """On the emulated clock, let attention between so many queries and keys take its time."""
        if self.seconds_per_pair:
            comm.compute(self.seconds_per_pair * pairs, what)
