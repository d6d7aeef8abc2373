"""`static_graph`: every backward is like the first one, so buckets can follow the order in which its gradients came."""

from __future__ import annotations

import torch
from torch import nn

from course_lib import comm
from course_lib.parallel.data.expected import Static
from course_lib.parallel.data.guarded import GuardedReducer
from course_lib.parallel.data.options import Plan


class StaticReducer(GuardedReducer):
    """In the first backward all buckets wait for its end; then they are filled anew, in the order of arrival."""

    expected: Static

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__(model, plan)
        self.arrived: dict[nn.Parameter, None] = {}  # in the first backward, in order

    @property
    def is_learning(self) -> bool:
        """Whether the first backward is still to come to its end."""
        return self.expected.first is None

    def begin(self) -> None:
        """A backward may have to begin again: the one before has failed."""
        self.arrived = {}
        super().begin()

    def mark_ready(self, parameter: nn.Parameter) -> None:
        """One parameter's gradient is complete."""
        super().mark_ready(parameter)
        if self.running and self.is_learning:
            self.arrived[parameter] = None

    def launch_full(self) -> None:
        """Not while the order is still to be learned: what comes twice may come late."""
        if not self.is_learning:
            super().launch_full()

    def hand_out(self) -> None:
        """Give out averages, and then learn from the first backward."""
        learning = self.is_learning
        super().hand_out()
        if learning:
            self._follow_first_rank()

    def _follow_first_rank(self) -> None:
        """New buckets of what any rank uses, in the order in which the first rank's gradients came.

        Cost: one broadcast of 8 bytes for each parameter.
        """
        arrived = [self.numbers[parameter] for parameter in self.arrived]
        others = sorted(set(self.numbers.values()) - set(arrived))
        mine = torch.tensor([*arrived, *others], device=self.parameters[0].device)
        order = comm.broadcast(mine, src=self.plan.first_rank, group=self.plan.group)
        kept = []
        for number in order.tolist():
            if number in self.expected.anywhere:
                kept.append(self.parameters[number])
        self.fill_buckets(kept)
        for bucket, place in self.home.values():
            bucket.take(place)  # the old buckets are gone, and gradients may have been views of them
