"""Which gradients a backward must bring, and what happens to a parameter that got none: three policies.

No gradient is not a gradient of zero: AdamW would let the weight decay. Parameters go by their number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm
from course_lib.comm.switches import active
from course_lib.parallel.data.options import OPERATION, Plan
from course_lib.parallel.table import agreement

_UNUSED = "pass find_unused_parameters=True"


class EveryParameter:
    """Every backward brings every rank a gradient of every trained parameter.

    `together` are the ranks that raise if one of them must: all that would wait for it.
    """

    def __init__(self, plan: Plan, names: Sequence[str], device: torch.device, together: ProcessGroup) -> None:
        self.plan, self.names, self.device, self.together = plan, names, device, together
        self.rule = "every backward brings a gradient of every trained parameter on every rank"
        self.way_out = f"freeze it before wrapping, or {_UNUSED}"

    def awaited(self) -> set[int]:
        """The parameters whose gradients a bucket waits for before it leaves."""
        return set(range(len(self.names)))

    def settle(self, used: set[int]) -> set[int]:
        """After a backward that brought the gradients of `used`: who else is to have the average as gradient.

        Raises: ValueError if other parameters got gradients than must; on all ranks if the guard is on.
        """
        expected = self.awaited()
        problems = []
        for what, numbers in (("no gradient of", expected - used), ("a gradient of", used - expected)):
            if numbers:
                names = [self.names[number] for number in sorted(numbers)]
                problems.append(f"{what} {agreement.listing(names)} on rank {dist.get_rank()}")
        problem = " and ".join(problems)
        # Ranks that saw no problem must hear of it too, or they would wait for this one in the next step.
        agreement.no_problem(OPERATION, problem, self.rule, self.way_out, self.together, compare=active.guard)
        return expected

    def used_anywhere(self, used: set[int]) -> set[int]:
        """Which parameters got a gradient on any rank. Cost: one all-reduce of a byte for each parameter."""
        if not self.names:
            return set()
        flags = torch.zeros(len(self.names), dtype=torch.uint8, device=self.device)
        flags[list(used)] = 1
        plan = self.plan
        comm.all_reduce_(flags, op=ReduceOp.MAX, algorithm=plan.algorithm, group=plan.group)
        return set(flags.nonzero().flatten().tolist())


class _AnyRank(EveryParameter):
    """`find_unused_parameters`: a rank may have no gradient of some parameters, and then counts as zero."""

    def settle(self, used: set[int]) -> set[int]:
        """What any rank used: the others are left without a gradient."""
        return self.used_anywhere(used)


class Static(EveryParameter):
    """`static_graph`: every backward uses what the first one used on this rank."""

    def __init__(self, plan: Plan, names: Sequence[str], device: torch.device, together: ProcessGroup) -> None:
        super().__init__(plan, names, device, together)
        self.rule = "a static graph's gradients are always those of its first backward"
        self.way_out = f"pass static_graph=False, {_UNUSED}"
        self.first: set[int] | None = None  # what the first backward used here
        self.anywhere = super().awaited()

    def awaited(self) -> set[int]:
        """What this rank's first backward used; before that, everything."""
        if self.first is None:
            return super().awaited()
        return self.first

    def settle(self, used: set[int]) -> set[int]:
        """What any rank's first backward used."""
        if self.first is None:
            self.first = used
            self.anywhere = self.used_anywhere(used)
        else:
            super().settle(used)
        return self.anywhere


def policy(plan: Plan, names: Sequence[str], device: torch.device, together: ProcessGroup) -> EveryParameter:
    """The one that the wrapper's options ask for."""
    kind = EveryParameter
    if plan.static_graph:
        kind = Static
    elif plan.find_unused_parameters:
        kind = _AnyRank
    return kind(plan, names, device, together)
