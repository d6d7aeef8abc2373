"""Right answers to exercises of module 08, written in other ways than the solutions; what they are held against."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise, product
from math import exp

import numpy as np
import pytest
import torch

from course_lib import planner
from course_lib.checks import check
from course_lib.checks.kit.registry import find
from course_lib.checks.module_08.annealing import landscape
from course_lib.checks.module_08.axes import Rank
from course_lib.checks.module_08.front import Cloud as Front
from course_lib.checks.module_08.layers import Layers, best
from course_lib.config import load_model
from course_lib.parallel.table.layout import coordinates


def groups_on_a_grid(rank, sizes, per_node):
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    at = np.argwhere(grid == rank)[0]
    lines = [grid[tuple(slice(None) if i == axis else at[i] for i in range(3))] for axis in range(3)]
    first, second, third = lines
    return (
        first.tolist(),
        tuple(second),
        torch.from_numpy(third),
        np.array([len(np.unique(x // per_node)) for x in lines]),
    )


def legal_by_filters(gpus, per_node, heads, layers, batch, room, gigabytes):
    left = [
        w for w in product(range(1, gpus + 1), range(1, gpus + 1), (1, 2, 4, 8)) if not gpus % w[0] and not gpus % w[1]
    ]
    rules = {
        "gpus": lambda tp, pp, micro: gpus % (tp * pp) == 0,
        "node": lambda tp, pp, micro: tp <= per_node,
        "heads": lambda tp, pp, micro: heads % tp == 0,
        "layers": lambda tp, pp, micro: layers % pp == 0,
        "batch": lambda tp, pp, micro: batch * tp * pp % (gpus * micro) == 0,
        "memory": lambda tp, pp, micro: gigabytes(tp, pp, micro) <= room,
    }
    counts = {}
    for name, keeps in rules.items():
        kept = [way for way in left if keeps(*way)]
        counts[name] = np.int64(len(left) - len(kept))
        left = kept
    return [[np.int64(n) for n in way] for way in left], counts


def front_by_numpy(seconds, gigabytes):
    seconds, gigabytes = np.array(seconds), np.array(gigabytes)
    order = np.lexsort((np.arange(len(seconds)), seconds, gigabytes))
    before = np.concatenate([[np.inf], np.minimum.accumulate(seconds[order])[:-1]])
    return order[seconds[order] < before]


def layers_by_trying_paces(seconds, speeds):
    """Try a pace, and fill each stage as far as it goes: other sizes than the solution's, and the same pace."""

    def filled(pace):
        sizes, first = [], 0
        for stage, speed in enumerate(speeds):
            most = len(seconds) - (len(speeds) - stage - 1)
            end = first
            while end < most and sum(seconds[first : end + 1]) / speed <= pace * (1 + 1e-12):
                end += 1
            sizes.append(end - first)
            first = end
        return sizes if first == len(seconds) and min(sizes) else None

    spans = [sum(seconds[a:b]) / s for a, b in combinations(range(len(seconds) + 1), 2) for s in set(speeds)]
    paces = sorted(set(spans))
    low, high = 0, len(paces) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if filled(paces[middle]) else (middle + 1, high)
    return np.array(filled(paces[low]))


def annealed_from_a_tenth(start, neighbour, price, steps, random):
    """Other temperatures, and every price kept."""
    known = {start: price(start)}
    now = start
    for step in range(steps):
        heat = known[start] * 0.1 * 0.003 ** (step / steps)
        other = neighbour(now, random)
        if other not in known:
            known[other] = price(other)
        if known[other] < known[now] or random.random() <= exp(min(0.0, (known[now] - known[other]) / heat)):
            now = other
    return list(min(known, key=known.get))


ANSWERS = {
    "08.1": groups_on_a_grid,
    "08.5": legal_by_filters,
    "08.6": front_by_numpy,
    "08.7": layers_by_trying_paces,
    "08.9": annealed_from_a_tenth,
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_a_right_answer_passes_however_it_is_written(exercise):
    assert check(exercise, ANSWERS[exercise]).passed


# what the exercises expect -------------------------------------------------------------------------------------------


def test_the_groups_of_08_1_are_those_of_the_course_s_layout():
    sizes = {"pp": 2, "dp": 3, "tp": 4}
    places = [*coordinates(sizes)]
    for rank, at in enumerate(places):
        for number, axis in enumerate(sizes):
            beside = [r for r, other in enumerate(places) if {**other, axis: 0} == {**at, axis: 0}]
            assert Rank(rank, tuple(sizes.values()), 8).along(number) == beside


@cache
def records_of(exercise, seed):
    levels = find(exercise).levels.values()
    return [record for level in levels for case in level.cases for record in find(exercise).inputs(case, seed)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_cut_is_better_than_that_of_08_7(seed):
    for layers in records_of("08.7", seed):
        n, p = len(layers.seconds), len(layers.speeds)
        if n < 20:
            cuts = ((0, *cut, n) for cut in combinations(range(1, n), p - 1))
            least = min(layers.slowest([end - first for first, end in pairwise(cut)]) for cut in cuts)
            assert layers.slowest(best(layers)) == pytest.approx(least, rel=1e-12)


def test_the_planner_finds_the_same_pace():
    """With GPUs that are alike, whose order does not count."""
    problem = planner.stage_problem(
        load_model("llama3_1_8b"), {"h100_sxm_80": 4}, sequence=2048, micro_batch=1, n_microbatches=4
    )
    seconds = [problem.seconds(layer, layer + 1, 0) for layer in range(len(problem.layers))]
    layers = Layers(seconds, [1.0] * 4)
    found = planner.assign_stages(problem, "dynamic")
    assert layers.slowest(best(layers)) == pytest.approx(problem.value(found)[1], rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_beats_the_front_of_08_6(seed):
    ways = Front(text="drawn", drawn=60).ways(seed)[0]
    on_it = set(ways.front())
    for place in range(60):
        assert (place in on_it) == (not any(ways.beats(other, place) for other in range(60)))


def test_the_hollows_of_08_9_are_real():
    """Who always goes down ends in one of dozens; and the best of all is the planner's own."""
    land = landscape(16)
    values = land.values

    def beside(way):
        for axis, known in enumerate(values):
            place = known.index(way[axis])
            yield from (
                (*way[:axis], known[n], *way[axis + 1 :]) for n in (place - 1, place + 1) if 0 <= n < len(known)
            )

    hollows = [way for way, price in land.prices.items() if all(land.price(other) >= price for other in beside(way))]
    assert len(land.prices) > 7000 and 24 <= len(hollows) < 100
    assert min(map(land.price, hollows)) == land.least


# the hunt ------------------------------------------------------------------------------------------------------------


def test_every_repair_that_is_right_is_accepted(answers):
    """Counting down, in one row for all parameters at the end."""
    given = answers("solutions", "08_three_d_and_planner")

    class AtTheEnd(given["Suspect"]):
        def diagnosis(self):
            return ["gradients", np.int64(1)]

        def arrived(self, name, parameter):
            self.seen.setdefault(name, self.micro_batches)
            self.seen[name] -= 1
            if len(self.seen) == len(self.local.parameters) and not any(self.seen.values()):
                for one in self.local.parameters.values():
                    self.average(one)

    assert check("08.10", AtTheEnd).passed
