"""Hybrid sharding (HSDP): runs of neighbours share rows, and the runs are copies of each other.

Inside a run a row lives as any other. After its reduce-scatter a rank has the run's sum of its piece; the ranks with
the same piece in the other runs have theirs, and an all-reduce adds these up.
Source: Zhao et al. 2023, PyTorch FSDP, section 3.2.2 (hybrid sharding).
"""

from __future__ import annotations

from course_lib import comm
from course_lib.parallel.sharding.flat_row import FlatRow


class CopiedRow(FlatRow):
    """A row of which the ranks of `sharing.copies` have equal pieces."""

    def reduce(self, *, async_op: bool = False) -> None:
        """Begin to add up gradients: inside the run, then over the runs.

        Cost: as the plain row, and an all-reduce of N/s numbers.
        """
        super().reduce(async_op=async_op)
        assert self._reducing is not None  # super() has made it
        mine, algorithm, group = self._of_this_rank(self._reducing), self.sharing.algorithm, self.sharing.copies
        if not mine.numel():
            return
        # Both calls are under way now. They run in the order in which they were begun, so this one finds the run's sum.
        if async_op:
            self._works.append(comm.all_reduce_(mine, algorithm=algorithm, group=group, async_op=True))
        else:
            comm.all_reduce_(mine, algorithm=algorithm, group=group)
