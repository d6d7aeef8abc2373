"""Layers to stages: one question, five ways to answer it, and how they compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.errors import four_parts
from course_lib.planner.assignment import Assignment, StageProblem, fitting
from course_lib.planner.stage_exact import dynamic, exhaustive, integer
from course_lib.planner.stage_sampled import annealing, policy_gradient

METHODS: dict[str, Callable[[StageProblem], Assignment | None]] = {
    "exhaustive": exhaustive,
    "dynamic": dynamic,
    "integer": integer,
    "annealing": annealing,
    "policy_gradient": policy_gradient,
}
_PROVEN = ("exhaustive", "dynamic", "integer")  # whose answer is the best there is


def assign_stages(problem: StageProblem, method: str = "dynamic") -> Assignment:
    """The assignment whose slowest stage is fastest, as `method` finds it.

    Raises: ValueError for an unknown method, and where it finds none with room for every stage.
    """
    if method not in METHODS:
        rule = "no method is called so"
        raise ValueError(four_parts("assign_stages", f"method={method!r}", rule, f"choose one of {', '.join(METHODS)}"))
    return fitting(problem, METHODS[method](problem), method)


@dataclass(frozen=True, kw_only=True)
class MethodRun:
    """What one method found, and what that took."""

    method: str
    answer: Assignment
    slowest_s: float  # of the answer's stages, for one micro-batch
    over_bound: float  # that over the time of a perfect division
    search_s: float

    @property
    def is_proven(self) -> bool:
        """Whether nothing is better; else nothing better was found."""
        return self.method in _PROVEN


def compare_methods(problem: StageProblem, methods: Sequence[str] = tuple(METHODS)) -> list[MethodRun]:
    """The same problem by each method."""
    found = []
    for method in methods:
        started = time.perf_counter()
        answer = assign_stages(problem, method)
        search_s = time.perf_counter() - started
        slowest_s = problem.value(answer)[1]
        found.append(
            MethodRun(
                method=method,
                answer=answer,
                slowest_s=slowest_s,
                over_bound=slowest_s / problem.bound_s,
                search_s=search_s,
            )
        )
    return found
