"""04.3: layers of unequal cost, cut into stages for the shortest step, and how long that step is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isclose
from typing import Any, NamedTuple

from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import by_the_library, plural
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.config import load_model
from course_lib.costs.model.parameters import layer_parameters
from course_lib.split import balanced_sizes, split_sizes
from course_lib.verify.numbers import number_of, whole_of

_MOST_SHOWN = 12  # layers whose costs are listed
LLAMA = load_model("llama3_1_8b")


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Costs, as a function of the seed, the number of stages, and of micro-batches."""

    text: str
    costs: Callable[[random.Random], list[int]]
    stages: int
    m: int = 4
    world_size: int = 1

    def __str__(self) -> str:
        return f"{self.text} in {plural(self.stages, 'stage')}, {self.m} micro-batch{'es' * (self.m > 1)}"


Given = tuple[list[int], int, int]  # the answer's arguments: costs, p, m


class CutReport(NamedTuple):
    """The numbers of layers that the answer gave, or what else it was; its step; what it called."""

    sizes: list[Any] | str
    step: float | None
    library: str


def _draw(case: Layers, seed: int) -> Given:
    return case.costs(random.Random(f"{seed} {case.text}")), case.stages, case.m


def attempt(function: Callable[..., Any], given: Given) -> CutReport:
    """Runs on a rank."""
    result, library = watched(function, given)
    return CutReport(*_taken_apart(result), library)


def _taken_apart(result: Any) -> tuple[list[Any] | str, float | None]:
    """Sizes and step, or what was returned in their place."""
    if not isinstance(result, list | tuple):
        return type(result).__name__, None
    if len(result) != 2 or not isinstance(result[0], list | tuple):
        return "one list", None
    return list(map(_plain, result[0])), number_of(result[1])


def _plain(size: Any) -> Any:
    """A whole number of NumPy or torch as Python's own; anything else as it is."""
    number = whole_of(size)
    return size if number is None else number


def verdict(case: Layers, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """A cut at all, then its slowest stage, then how long the step is with these stages."""
    (sizes, step, library), (costs, p, m) = reports[0], given
    shown = f" ({', '.join(map(str, costs))})" if len(costs) <= _MOST_SHOWN else ""
    reason = _no_cut(sizes, costs, p) or (_too_slow(sizes, costs, p) if m > 1 else None)
    reason = reason or _wrong_step(step, _stage_costs(sizes, costs), m)
    reason = reason or by_the_library(library)
    return f"{case}{shown}: {reason}" if reason else None


def step_ms(stages: Sequence[int], m: int) -> int:
    """GPipe's step: the first micro-batch passes all stages, each further one comes out one slowest stage later."""
    return sum(stages) + (m - 1) * max(stages)


def _wrong_step(step: float | None, stages: Sequence[int], m: int) -> str | None:
    """What is said of a step that these stages do not have."""
    right, slowest, p = step_ms(stages, m), max(stages), len(stages)
    if step is None:
        return "right sizes; but the step's length is no number"
    if isclose(step, right, rel_tol=1e-6):
        return None
    likely = {
        "that is the slowest stage's work alone; the first micro-batch also passes the others": m * slowest,
        "that is one micro-batch alone": sum(stages),
        "that is one device, where nobody works at the same time": m * sum(stages),
        "the first micro-batch's time in the slowest stage counts twice": sum(stages) + m * slowest,
        "as if every stage were as slow as the slowest": (m + p - 1) * slowest,
        "as if all stages were alike": (m + p - 1) * sum(stages) / p,
    }
    cause = next((f": {text}" for text, wrong in likely.items() if isclose(step, wrong, rel_tol=1e-6)), "")
    return f"right sizes; but with stages of {', '.join(map(str, stages))} ms the step is not {step:g} ms{cause}"


def _no_cut(sizes: list[Any] | str, costs: Sequence[int], p: int) -> str | None:
    if isinstance(sizes, str):
        return f"returned {sizes}, not two things: a list of one number of layers for each stage, and the step's ms"
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return f"returned {sizes[:_MOST_SHOWN]}: give whole numbers, how many layers each stage gets"
    if sum(sizes) == sum(costs) != len(costs):
        return f"returned {sizes}: these are the stages' times; give their numbers of layers"
    if p > 1 and sizes and sizes[-1] == len(costs):
        return f"returned {sizes}: these are places of the cuts; give the numbers of layers between them"
    if len(sizes) != p:
        return f"returned {len(sizes)} numbers, {sizes[:_MOST_SHOWN]}: {p} stages need {p}"
    if any(size < 1 for size in sizes):
        return f"stage {[size < 1 for size in sizes].index(True)} of {sizes} has no layer: its rank would only pass on"
    if sum(sizes) != len(costs):
        return f"{sizes} are {sum(sizes)} layers, the model has {len(costs)}"
    return None


def _too_slow(sizes: Sequence[int], costs: Sequence[int], p: int) -> str | None:
    best, got = _stage_costs(balanced_sizes(costs, p), costs), _stage_costs(sizes, costs)
    if max(got) <= max(best):
        return None
    slowest = got.index(max(got))
    text = f"stage {slowest} takes {max(got):,} ms, where {max(best):,} is possible"
    last = "the last stage takes longest; " * (slowest == p - 1)
    return f"{text}: {last}your stages take {', '.join(f'{cost:,}' for cost in got[:_MOST_SHOWN])}"


def _stage_costs(sizes: Sequence[int], costs: Sequence[int]) -> list[int]:
    return [sum(costs[start:end]) for start, end in pairwise([0, *accumulate(sizes)])]


def _uniform(costs: Sequence[int], p: int, m: int) -> tuple[list[int], int]:
    """A cut into equally many layers, and its step."""
    sizes = list(split_sizes(len(costs), p))
    return sizes, step_ms(_stage_costs(sizes, costs), m)


def llama(layers: int) -> list[int]:
    """Millions of weights that a token is multiplied by: the layers, and the head."""
    return [round(layer_parameters(LLAMA) / 1e6)] * layers + [round(LLAMA.vocab_size * LLAMA.hidden_size / 1e6)]


CUT = ProbeExercise(
    key="04.3",
    title="cut unequal layers",
    inputs=_draw,
    probe=attempt,
    verdict=verdict,
    left=lambda case, given, trial: trial.reports[0].sizes,
    slips={
        "that is a cut by number, as if all layers were alike: its slowest stage takes longer than it must": _uniform
    },
    levels={
        "small": Level(
            points=2,
            again=True,
            cases=(
                Layers(text="5 layers", costs=lambda random: [8, 1, 1, 1, 5], stages=2),
                Layers(text="6 layers", costs=lambda random: [1, 2, 3, 4, 5, 9], stages=3),
                Layers(text="5 layers", costs=lambda random: [5, 8, 4, 3, 8], stages=3),
                Layers(text="9 layers", costs=lambda random: random.choices(range(1, 30), k=9), stages=4),
                Layers(text="7 layers, their costs falling", costs=lambda random: [9, 8, 4, 4, 3, 3, 2], stages=3),
            ),
            praise="the shortest step, and its length",
        ),
        "edges": Level(
            points=1,
            cases=(
                Layers(text="4 layers", costs=lambda random: [3, 9, 2, 2], stages=1),
                Layers(text="5 layers", costs=lambda random: [1, 1, 9, 1, 1], stages=5),
                Layers(text="6 layers, one of them huge", costs=lambda random: [1, 1, 1, 1, 1, 50], stages=4),
                Layers(text="6 layers", costs=lambda random: [2, 7, 1, 8, 2, 8], stages=3, m=1),
            ),
            praise="right for one stage, for as many stages as layers, beside a huge layer, for one micro-batch",
        ),
        "models": Level(
            points=2,
            cases=(
                Layers(text="Llama 3.1 8B and its head", costs=lambda random: llama(LLAMA.n_layers), stages=4, m=32),
                Layers(text="Llama 3.1 8B and its head", costs=lambda random: llama(LLAMA.n_layers), stages=3, m=16),
                Layers(text="20 layers", costs=lambda random: random.choices(range(10, 99), k=20), stages=5, m=10),
            ),
            praise="also for a Llama, whose head weighs as much as two or three layers",
        ),
    },
    hints=(
        "Begin with the step of a given cut, and let `timed` show you a few. Make one stage slower, then add a "
        "micro-batch. By how much does the step grow each time?",
        "The first micro-batch passes every stage once. Each further one leaves the slowest stage as much later as "
        "that stage takes. So the step is the sum of all stages, and m - 1 times the slowest.",
        "The sum is the same for every cut, so look for the cut whose slowest stage is fastest. These models are "
        "small enough to try all of them: itertools.combinations(range(1, len(costs)), p - 1) gives every way to "
        "place p - 1 cuts.",
        "itertools.pairwise([0, *cuts, len(costs)]) gives where each stage starts and ends. So "
        "sum(costs[start:end]) is its time, end - start its number of layers, and the best cut is the min(..., "
        "key=...) by its step.",
    ),
)
