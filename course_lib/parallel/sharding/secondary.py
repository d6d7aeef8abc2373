"""Secondary pieces (hpZ): from forward to backward neighbours keep a row, so that it is gathered again among them.

Of `sharing.secondary`, a run of neighbours such as the GPUs of a node, each keeps a piece of the whole row when it is
freed after forward. In backward it is gathered from these, and no message leaves the run.
Source: Wang et al. 2023, ZeRO++, section 3.2.
"""

from __future__ import annotations

from torch import Tensor

from course_lib import comm
from course_lib.parallel.sharding.flat_row import FlatRow, piece_of


class SecondaryRow(FlatRow):
    """A row that is kept in pieces between forward and backward."""

    kept: Tensor | None = None  # this rank's secondary piece

    def gather(self, *, async_op: bool = False) -> None:
        """Begin to make the row whole: among neighbours, if they have kept it.

        What they kept has been rounded already if the row is quantised: it is sent as it is.
        """
        group, kept = self.sharing.secondary, self.kept
        if self._gathering is not None or kept is None or group is None:
            return super().gather(async_op=async_op)
        self.kept = None
        if not self.one_memory:
            self._give_memory()
            piece_of(self.whole, group).copy_(kept)
        if group.size() > 1:
            self._gathering = comm.all_gather_(
                self.whole, algorithm=self.sharing.algorithm, group=group, async_op=async_op
            )

    def free(self, *, keep: bool = False) -> None:
        """Give the memory back; with `keep` a piece stays."""
        self.wait()
        group = self.sharing.secondary
        self.kept = piece_of(self.whole, group).clone() if keep and group is not None else None
        super().free(keep=keep)

    def held(self) -> dict[str, list[Tensor]]:
        """As the plain row, and the piece."""
        found = super().held()
        if self.kept is not None:
            found["gathered"].append(self.kept)
        return found
