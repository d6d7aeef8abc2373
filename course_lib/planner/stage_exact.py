"""Assignments that are proven best: every one looked at, by dynamic programming, and by integer programming."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise
from math import comb, factorial, inf, prod
from typing import Any

import numpy as np

from course_lib.errors import four_parts
from course_lib.planner.assignment import Assignment, StageProblem

_MOST_LOOKED_AT = 2_000_000
_Terms = dict[int, float]  # of one row of constraints: variable -> factor


def exhaustive(problem: StageProblem) -> Assignment | None:
    """Look at every cut and every order of the kinds of GPU.

    Raises: ValueError where there are more than two million.
    """
    if (number := n_assignments(problem)) > _MOST_LOOKED_AT:
        rule, way_out = f"this method looks at no more than {_MOST_LOOKED_AT:,}", "choose method='dynamic'"
        raise ValueError(four_parts("assign_stages", f"{number:,} assignments", rule, way_out))
    n_layers, p = len(problem.layers), problem.n_stages
    orders = list(_orders([gpu.n_stages for gpu in problem.gpus]))
    answers = (
        Assignment(sizes=tuple(end - first for first, end in pairwise((0, *cuts, n_layers))), gpus=order)
        for cuts in combinations(range(1, n_layers), p - 1)
        for order in orders
    )
    return min(answers, key=problem.value)


def n_assignments(problem: StageProblem) -> int:
    """How many there are: cuts of the layers, times orders of the kinds of GPU."""
    p = problem.n_stages
    orders = factorial(p) // prod(factorial(gpu.n_stages) for gpu in problem.gpus)
    return comb(len(problem.layers) - 1, p - 1) * orders


def _orders(left: list[int]) -> Iterator[tuple[int, ...]]:
    """Every order of the kinds of which so many are left."""
    if not any(left):
        yield ()
    for gpu, count in enumerate(left):
        if count:
            rest = [n - (index == gpu) for index, n in enumerate(left)]
            yield from ((gpu, *order) for order in _orders(rest))


def dynamic(problem: StageProblem) -> Assignment | None:
    """The best rest of a pipeline depends only on the layers and the GPUs that are left: keep it for each such state.

    Cost: L^2 steps for each way to have used some GPUs of each kind; p L^2 with one kind.
    """
    n_layers, p = len(problem.layers), problem.n_stages

    @cache
    def best(first: int, left: tuple[int, ...]) -> tuple[float, tuple[int, ...], tuple[int, ...]]:
        """(slowest stage, sizes, kinds) of the layers from `first` on; infinite if they do not fit."""
        stages = sum(left)
        if not stages:
            return (0.0 if first == n_layers else inf), (), ()
        found: tuple[float, tuple[int, ...], tuple[int, ...]] = (inf, (), ())
        ends = range(first + 1, n_layers - stages + 2) if stages > 1 else (n_layers,)
        for gpu in (gpu for gpu, count in enumerate(left) if count):
            rest_left = tuple(count - (index == gpu) for index, count in enumerate(left))
            for end in ends:
                here = problem.seconds(first, end, gpu)
                if here >= found[0] or problem.lacking_bytes(first, end, p - stages, gpu) > 0:
                    break  # with one more layer it is slower still, and needs more
                rest, sizes, gpus = best(end, rest_left)
                if max(here, rest) < found[0]:
                    found = max(here, rest), (end - first, *sizes), (gpu, *gpus)
        return found

    slowest, sizes, gpus = best(0, tuple(gpu.n_stages for gpu in problem.gpus))
    return None if slowest == inf else Assignment(sizes=sizes, gpus=gpus)


def integer(problem: StageProblem) -> Assignment | None:
    """Mixed integer programming by HiGHS: yes or no for "layer l lies on stage s or before", and for each stage's GPU.

    The time t of the slowest stage is least; a row holds only for the GPU that a stage has ("big M").
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # here alone: a browser's Python has no HiGHS

    program = _Program(problem)
    rows, low, high = program.constraints()
    solved = milp(
        c=np.eye(program.n_variables)[program.time],
        constraints=LinearConstraint(rows, low, high),
        integrality=np.arange(program.n_variables) != program.time,
        bounds=Bounds(0, np.where(np.arange(program.n_variables) == program.time, np.inf, 1)),
        options={"mip_rel_gap": 0.0},
    )
    return program.answer(np.rint(solved.x)) if solved.success else None


class _Program:
    """The constraints: variables are first the layers' places, then the stages' GPUs, then the time."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem = problem
        self.n_layers, self.p = len(problem.layers), problem.n_stages
        self.n_places = self.n_layers * (self.p - 1)
        self.time = self.n_places + self.p * len(problem.gpus)
        self.n_variables = self.time + 1
        self.rows: list[tuple[_Terms, float, float]] = []

    def constraints(self) -> tuple[Any, list[float], list[float]]:
        """All rows as a sparse matrix, with the least and the most that each may be."""
        from scipy.sparse import coo_array

        self._in_order()
        self._one_gpu_each()
        for stage in range(self.p):
            self._time_and_room(stage)
        entries = [
            (row, column, factor) for row, (terms, *_) in enumerate(self.rows) for column, factor in terms.items()
        ]
        at, columns, factors = zip(*entries, strict=True)
        matrix = coo_array((factors, (at, columns)), shape=(len(self.rows), self.n_variables))
        return matrix, [low for _, low, _ in self.rows], [high for *_, high in self.rows]

    def answer(self, x: np.ndarray) -> Assignment:
        """The assignment that yes and no stand for."""
        ends = [
            int(x[[self._place(layer, stage) for layer in range(self.n_layers)]].sum()) for stage in range(self.p - 1)
        ]
        gpus = x[self.n_places : self.time].reshape(self.p, -1).argmax(axis=1)
        return Assignment(
            sizes=tuple(end - first for first, end in pairwise((0, *ends, self.n_layers))), gpus=tuple(map(int, gpus))
        )

    def _in_order(self) -> None:
        """If a layer is on a stage or before, so is the layer before it; each stage has a layer."""
        for stage in range(self.p - 1):
            for layer in range(1, self.n_layers):
                self._add({self._place(layer, stage): 1.0, self._place(layer - 1, stage): -1.0}, -inf, 0.0)
        for stage in range(self.p):
            terms = self._on([1.0] * self.n_layers, stage)
            self._add(terms, 1.0 - (self.n_layers if stage == self.p - 1 else 0), inf)
        for stage in range(1, self.p - 1):
            for layer in range(self.n_layers):
                self._add({self._place(layer, stage): 1.0, self._place(layer, stage - 1): -1.0}, 0.0, inf)

    def _one_gpu_each(self) -> None:
        kinds = range(len(self.problem.gpus))
        for stage in range(self.p):
            self._add({self._gpu(stage, kind): 1.0 for kind in kinds}, 1.0, 1.0)
        for kind in kinds:
            count = self.problem.gpus[kind].n_stages
            self._add({self._gpu(stage, kind): 1.0 for stage in range(self.p)}, count, count)

    def _time_and_room(self, stage: int) -> None:
        """No stage takes longer than t, in which all GPUs together would do everything, nor more room than there is."""
        problem, last = self.problem, stage == self.p - 1
        for kind in range(len(problem.gpus)):
            shares = [problem.seconds(layer, layer + 1, kind) / problem.bound_s for layer in range(self.n_layers)]
            most = sum(shares)
            terms = self._on(shares, stage) | {self.time: -1.0, self._gpu(stage, kind): most}
            self._add(terms, -inf, most - (most if last else 0.0))
        largest = max(gpu.room_bytes for gpu in problem.gpus)
        if largest == inf:
            return
        needs = [
            (layer.state_bytes + layer.kept_bytes * problem.in_flight(stage)) / largest for layer in problem.layers
        ]
        rooms = {self._gpu(stage, kind): -gpu.room_bytes / largest for kind, gpu in enumerate(problem.gpus)}
        self._add(self._on(needs, stage) | rooms, -inf, -sum(needs) if last else 0.0)

    def _on(self, amounts: list[float], stage: int) -> _Terms:
        """What the layers of a stage have of something; of the last stage, that less what all layers have."""
        terms: _Terms = {}
        for layer, amount in enumerate(amounts):
            if stage < self.p - 1:
                terms[self._place(layer, stage)] = amount
            if stage:
                terms[self._place(layer, stage - 1)] = -amount
        return terms

    def _place(self, layer: int, stage: int) -> int:
        return stage * self.n_layers + layer

    def _gpu(self, stage: int, kind: int) -> int:
        return self.n_places + stage * len(self.problem.gpus) + kind

    def _add(self, terms: _Terms, low: float, high: float) -> None:
        self.rows.append((terms, low, high))
