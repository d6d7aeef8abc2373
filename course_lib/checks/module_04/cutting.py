"""04.3: layers of unequal cost, cut into stages whose slowest is as fast as possible."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import by_the_library, plural
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.config import load_model
from course_lib.costs.model.parameters import layer_parameters
from course_lib.split import balanced_sizes, split_sizes
from course_lib.verify.numbers import whole_of

_MOST_SHOWN = 12  # layers whose costs are listed
LLAMA = load_model("llama3_1_8b")


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Costs, as a function of the seed, and the number of stages."""

    text: str
    costs: Callable[[random.Random], list[int]]
    stages: int
    world_size: int = 1

    def __str__(self) -> str:
        return f"{self.text} in {plural(self.stages, 'stage')}"


class Report(NamedTuple):
    """The numbers of layers that the answer gave, or what else it was; what it called, and what it changed."""

    sizes: list[Any] | str
    library: str
    changed: bool = False


def _draw(case: Layers, seed: int) -> tuple[list[int], int]:
    """The answer's arguments."""
    return case.costs(random.Random(f"{seed} {case.text}")), case.stages


def attempt(function: Callable[..., Any], given: tuple[list[int], int]) -> Report:
    """Runs on a rank."""
    costs = list(given[0])
    result, library = watched(function, (costs, given[1]))
    sizes = list(map(_plain, result)) if isinstance(result, list | tuple) else type(result).__name__
    return Report(sizes, library, costs != given[0])


def _plain(size: Any) -> Any:
    """A whole number of NumPy or torch as Python's own; anything else as it is."""
    number = whole_of(size)
    return size if number is None else number


def verdict(case: Layers, given: tuple[list[int], int], reports: tuple[Any, ...], book: Ledger) -> str | None:
    """A cut at all, then its slowest stage."""
    (sizes, library, changed), (costs, p) = reports[0], given
    shown = f" ({', '.join(map(str, costs))})" if len(costs) <= _MOST_SHOWN else ""
    reason = _no_cut(sizes, costs, p) or _too_slow(sizes, costs, p)
    if changed:  # first: what is cut may be the list as it was changed
        right = "right sizes, but " * (reason is None)
        reason = f"{right}your function changed the list `costs`, which is the caller's: work on a copy"
    reason = reason or by_the_library(library)
    return f"{case}{shown}: {reason}" if reason else None


def _no_cut(sizes: list[Any] | str, costs: Sequence[int], p: int) -> str | None:
    if isinstance(sizes, str):
        return f"returned {sizes}, not a list: one number of layers for each stage"
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return f"returned {sizes[:_MOST_SHOWN]}: give whole numbers, how many layers each stage gets"
    if sum(sizes) == sum(costs) != len(costs):
        return f"returned {sizes}: these are the stages' costs; give their numbers of layers"
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
    text = f"stage {slowest} costs {max(got):,}, where {max(best):,} is possible"
    last = "the last stage costs most; " * (slowest == p - 1)
    return f"{text}: {last}your stages cost {', '.join(f'{cost:,}' for cost in got[:_MOST_SHOWN])}"


def _stage_costs(sizes: Sequence[int], costs: Sequence[int]) -> list[int]:
    return [sum(costs[start:end]) for start, end in pairwise([0, *accumulate(sizes)])]


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
        "that is a uniform cut, as if all layers were alike: its slowest stage costs more than it must": (
            lambda costs, p: list(split_sizes(len(costs), p))
        )
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
            praise="the slowest stage is as fast as can be",
        ),
        "edges": Level(
            points=1,
            cases=(
                Layers(text="4 layers", costs=lambda random: [3, 9, 2, 2], stages=1),
                Layers(text="5 layers", costs=lambda random: [1, 1, 9, 1, 1], stages=5),
                Layers(text="6 layers, one of them huge", costs=lambda random: [1, 1, 1, 1, 1, 50], stages=4),
            ),
            praise="right for one stage, for as many stages as layers, and beside a huge layer",
        ),
        "models": Level(
            points=2,
            cases=(
                Layers(text="Llama 3.1 8B and its head", costs=lambda random: llama(LLAMA.n_layers), stages=4),
                Layers(text="Llama 3.1 8B and its head", costs=lambda random: llama(LLAMA.n_layers), stages=8),
                Layers(text="60 layers", costs=lambda random: random.choices(range(10, 99), k=60), stages=12),
            ),
            praise="also for models of many layers, in time",
        ),
    },
    hints=(
        "How slow the pipeline is, is decided by the largest sum of costs of any stage. Ask the other way round: "
        "if no stage may cost more than `limit`, how few stages do I need?",
        "Fill the first stage until the next layer would exceed the limit, then the second one, and so on. "
        "The right limit is the smallest one for which that takes p stages at most; every limit is the cost "
        "of some run of layers.",
        "That may give fewer than p stages. Then halve stages that have two layers or more: no stage gets slower.",
        "Or by recursion: best(first, stages) = the best cut of the layers from `first` on. Try every size "
        "of its first stage. Without functools.cache the same rests are cut again and again: forever, for 60 layers.",
    ),
)
