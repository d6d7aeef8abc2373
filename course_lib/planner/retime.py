"""The best policies once more, instruction by instruction: what the closed form leaves out, and whether it matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from course_lib.planner.policy_search import Found, policy_name
from course_lib.sim.exact import exact_step


@dataclass(frozen=True, kw_only=True)
class Retimed:
    """One policy by both ways. Units: seconds."""

    index: int  # in `found.policies`
    name: str
    closed_s: float
    exact_s: float

    @property
    def off(self) -> float:
        """How much longer the lists take, as a share of the closed form's time."""
        return self.exact_s / self.closed_s - 1


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """The best policies in the order of their lists' times."""

    policies: tuple[Retimed, ...]

    @property
    def median_off(self) -> float:
        """Of all differences, without their signs, the middle one."""
        return median(abs(one.off) for one in self.policies)

    @property
    def most_off(self) -> Retimed:
        """The policy for which the two differ most."""
        return max(self.policies, key=lambda one: abs(one.off))

    @property
    def best_before(self) -> int:
        """At which place, from 1, the closed form had the policy that is the fastest by its lists."""
        return 1 + sum(one.closed_s < self.policies[0].closed_s for one in self.policies)


def retimed(found: Found, indices: Sequence[int] | None = None) -> Recheck:
    """The policies at `indices`, else the hundred fastest, timed on the instruction lists of `course_lib.schedules`.

    Cost: about 20 microseconds for each instruction; a hundred pipelines of 16 stages take some ten seconds.
    """
    chosen = range(min(100, len(found))) if indices is None else indices
    each = [
        Retimed(
            index=index,
            name=policy_name(found.policies, index),
            closed_s=float(found.step_s[index]),
            exact_s=exact_step(found.job, found.policies, index).step_s,
        )
        for index in chosen
    ]
    return Recheck(policies=tuple(sorted(each, key=lambda one: one.exact_s)))
