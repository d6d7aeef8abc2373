"""How far the simulator is off on runs that its constants were not fitted to: by row, configuration, source, stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from course_lib.costs.sweep.software import UNKNOWN, Software
from course_lib.sim.fit import errors, fit
from course_lib.sim.nearest import far_from_others
from course_lib.sim.priors import OF_STACKS, STACKS
from course_lib.sim.runs import Run
from course_lib.sim.spread import quantiles
from course_lib.sim.table import table_of

Errors = npt.NDArray[np.float64]  # log(predicted/measured) of each run
_FOLDS, _SEED = 10, 17
_COVERED = 0.8  # of runs, that an interval promises to hold
_THREE, _DRAWS = 3, 20  # rows that a user measures; how often they are drawn
_FAVOURITES = 3  # layouts that somebody measures before he rents for weeks
_ROW_NOISE = 0.05  # in logarithms, of a row around its stack's mean
_STACK_SPREAD = OF_STACKS["stack"][2]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Absolute errors of step time as shares; over rows, and over the medians of sources."""

    rows: int
    median: float
    p90: float
    source_median: float
    worst_source: float


def held_out(
    runs: Sequence[Run],
    groups: Sequence[Hashable],
    *,
    seen_as: Callable[[Software], Software] = lambda software: software,
    held: Mapping[str, float] | None = None,
) -> Errors:
    """Each group predicted by constants that were fitted to all others; `seen_as` says what is known of its software.

    Cost: a fit for each group.
    """
    found = np.zeros(len(runs))
    start = fit(runs, held=held)
    for group in dict.fromkeys(groups):
        inside = np.array([one == group for one in groups])
        values = fit([run for run, there in zip(runs, inside, strict=True) if not there], start=start, held=held)
        left_out = [run for run, there in zip(runs, inside, strict=True) if there]
        found[inside] = errors(table_of([replace(run, software=seen_as(run.software)) for run in left_out]), values)
    return found


def _kind_alone(software: Software) -> Software:
    """What is known of software of which nobody says the name."""
    return replace(software, stack=None)


def nothing_known(software: Software) -> Software:
    """What is known of a stack that nobody has fitted."""
    return replace(software, stack=UNKNOWN)


def tests(runs: Sequence[Run]) -> dict[str, Errors]:
    """Five tests, from the one that flatters most to the one that flatters least."""
    folds = np.random.default_rng(_SEED).permutation(len(runs)) % _FOLDS
    sources = [run.source for run in runs]
    return {
        "random rows": held_out(runs, folds.tolist()),
        "configurations": held_out(runs, _configurations(runs)),
        "sources": held_out(runs, sources),
        "kinds": held_out(runs, sources, seen_as=_kind_alone),
        "stacks": held_out(runs, _stacks(runs), seen_as=nothing_known),
    }


def _configurations(runs: Sequence[Run]) -> list[int]:
    """Whole configurations together, in ten folds."""
    keys = [run.configuration for run in runs]
    different = list(dict.fromkeys(keys))
    fold = dict(zip(different, np.random.default_rng(_SEED).permutation(len(different)) % _FOLDS, strict=True))
    return [int(fold[key]) for key in keys]


def _stacks(runs: Sequence[Run]) -> list[str | None]:
    """The names of what ran them."""
    return [run.software.stack for run in runs]


def off_by(logs: Errors) -> Errors:
    """Absolute errors of the step time as shares of the measured one."""
    return np.abs(np.exp(logs) - 1)


def score(runs: Sequence[Run], logs: Errors) -> Score:
    """Medians over rows and over sources."""
    off, sources = off_by(logs), np.array([run.source for run in runs])
    medians = [float(np.median(off[sources == source])) for source in sorted(set(sources))]
    return Score(
        rows=len(runs),
        median=float(np.median(off)),
        p90=float(np.percentile(off, 90)),
        source_median=float(np.median(medians)),
        worst_source=max(medians),
    )


def interval(logs: Errors, groups: Sequence[Hashable]) -> tuple[float, float]:
    """The factors from a predicted step to the low and high end that hold so many runs.

    A group of n runs weighs sqrt(n). Few groups show too little of how far a further one may lie: of g the share is
    (g + 1/2)/g of what is promised.
    """
    there = len(set(groups))
    covered = min(1.0, _COVERED * (there + 0.5) / there)
    measured = -logs  # over predicted
    low, high = quantiles(measured, groups, ((1 - covered) / 2, (1 + covered) / 2))
    return float(np.exp(low)), float(np.exp(high))


class Seen(NamedTuple):
    """Errors of runs that the constants used for them had not seen, whose runs they are, and which lie far off."""

    logs: Errors
    groups: list[str]
    far: npt.NDArray[np.bool_]  # from all runs that the constants had seen

    def interval(self, *, is_far: bool, without: str | None = None) -> tuple[float, float]:
        """What is printed for layouts so near or far; or what would be, had a group's runs never been published."""
        counts = np.array([group != without for group in self.groups]) & (self.far == is_far)
        return interval(self.logs[counts], [group for group, there in zip(self.groups, counts, strict=True) if there])


def unseen(runs: Sequence[Run], errors_of: Mapping[str, Errors]) -> dict[str, Seen]:
    """By what is known of a run's software, the errors that `tests` found on `runs`, and whose runs they are.

    A stack is known if another source has it too: then its source was left out. If it has one source alone, whole
    configurations were.
    """
    sources = [run.source for run in runs]
    of_stack = defaultdict(set)
    for run in runs:
        of_stack[run.software.stack].add(run.source)
    elsewhere = np.array([len(of_stack[run.software.stack]) > 1 for run in runs])
    known = np.where(elsewhere, errors_of["sources"], errors_of["configurations"])
    far = far_from_others(runs, sources)
    far_from_known = np.where(elsewhere, far, far_from_others(runs, _configurations(runs)))
    fitted = np.array([run.software.stack in STACKS for run in runs])
    of_fitted = [source for source, there in zip(sources, fitted, strict=True) if there]
    return {
        "known": Seen(known[fitted], of_fitted, far_from_known[fitted]),
        "kind": Seen(errors_of["kinds"], sources, far),
        "unknown": Seen(errors_of["stacks"], sources, far_from_others(runs, _stacks(runs))),
    }


def coverage(seen: Seen, among: npt.NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """The share of rows, and the mean share of groups, within intervals made from the other groups alone.

    With `among`, of these rows.
    """
    counts = np.ones(len(seen.logs), dtype=bool) if among is None else among
    inside = np.zeros(len(seen.logs), dtype=bool)
    each = []
    for group in dict.fromkeys(seen.groups):
        own = np.array([one == group for one in seen.groups])
        for is_far in (False, True):
            if not (here := own & (seen.far == is_far)).any():
                continue
            low, high = np.log(seen.interval(is_far=is_far, without=group))
            inside[here] = (-seen.logs[here] >= low) & (-seen.logs[here] <= high)
        if (own & counts).any():
            each.append(float(inside[own & counts].mean()))
    return float(inside[counts].mean()), float(np.mean(each))


class Pair(NamedTuple):
    """Two layouts of one training that one source measured on the same GPUs."""

    source: str
    predicted_apart: float  # a share of the faster one's step
    right: bool  # whether the one that is predicted to be faster was


def pairs_of_layouts(runs: Sequence[Run], logs: Errors) -> list[Pair]:
    """Every two runs of one source that differ in their policy alone: same model, GPUs, batch, texts and software."""
    found = []
    for a, b in (two for places in _trainings(runs) for two in combinations(places, 2)):
        if runs[a].policy == runs[b].policy:
            continue
        measured = float(np.log(runs[a].step_s / runs[b].step_s))  # type: ignore[operator]
        predicted = measured + float(logs[a] - logs[b])
        found.append(Pair(runs[a].source, float(np.expm1(abs(predicted))), measured * predicted > 0))
    return found


class Sweep(NamedTuple):
    """The layouts of one training that one source measured, and how the simulator orders them."""

    source: str
    name: str  # of the model, its sizes, the GPUs and the attention kernel
    layouts: int
    order: float  # Spearman's rank correlation of predicted and measured steps
    regret: float  # how much longer the layout takes that is predicted to be the fastest, as a share
    regret_of_three: float  # the same for the best of the three that are predicted to be the fastest


def sweeps(runs: Sequence[Run], logs: Errors, *, at_least: int = 4) -> list[Sweep]:
    """Each training of which so many layouts were measured; the measure of who has to choose one."""
    from scipy.stats import spearmanr

    found = []
    for places in _trainings(runs):
        if len({tuple(sorted(runs[place].policy.items())) for place in places}) < at_least:
            continue
        measured = np.array([np.log(runs[place].step_s) for place in places])  # type: ignore[arg-type]
        predicted = measured + logs[places]
        favourites = np.argsort(predicted, kind="stable")[:_FAVOURITES]
        first = runs[places[0]]
        shape = f"{first.model.name}, {first.model.n_layers} x {first.model.hidden_size}"
        sizes = f"{first.policy['sequence']} tokens, batch {np.mean(first.policies.global_batch):.0f}"
        found.append(
            Sweep(
                source=first.source,
                name=f"{shape}, {sizes}, {first.gpus} {first.gpu}, {first.software.kernel}",
                layouts=len(places),
                order=float(spearmanr(predicted, measured).statistic),
                regret=float(np.expm1(measured[favourites[0]] - measured.min())),
                regret_of_three=float(np.expm1(measured[favourites].min() - measured.min())),
            )
        )
    return found


def _trainings(runs: Sequence[Run]) -> list[list[int]]:
    """The runs of one source that have all in common but their policy: model, GPUs, batch, texts and software."""
    alike: dict[Hashable, list[int]] = {}
    for place, run in enumerate(runs):
        p = run.policies
        size = run.gpus, float(np.mean(p.global_batch)), float(np.mean(p.sequence))
        alike.setdefault((run.source, run.gpu, run.model, run.software, *size), []).append(place)
    return [*alike.values()]


def own_factor(logs: Sequence[float]) -> float:
    """What a user's own measured rows multiply predictions by: their mean, drawn towards 1.

    The less the rows agree, and the fewer they are, the more it is drawn: s^2/n is weighed against how far stacks
    lie apart.
    """
    if not len(logs):
        return 1.0
    scatter = max(_ROW_NOISE, float(np.std(logs, ddof=1)) if len(logs) > 1 else _STACK_SPREAD) ** 2 / len(logs)
    return float(np.exp(-np.mean(logs) * _STACK_SPREAD**2 / (_STACK_SPREAD**2 + scatter)))


def with_three_rows(runs: Sequence[Run], logs: Errors) -> Mapping[str, tuple[float, float]]:
    """By cluster (a left-out source's runs on one GPU): the median error without, and with three of them measured.

    The three are drawn at random, twenty times; they do not count among the predicted.
    """
    drawn, clusters = np.random.default_rng(_SEED), np.array([cluster_of(run) for run in runs])
    found = {}
    for cluster in dict.fromkeys(clusters.tolist()):
        own = logs[clusters == cluster]
        if len(own) <= 2 * _THREE:
            continue
        after = []
        for _ in range(_DRAWS):
            order = drawn.permutation(len(own))
            after.append(np.median(off_by(own[order[_THREE:]] + np.log(own_factor(own[order[:_THREE]].tolist())))))
        found[cluster] = float(np.median(off_by(own))), float(np.mean(after))
    return found


def cluster_of(run: Run) -> str:
    """What a user would call a cluster: one source's GPUs of one kind."""
    return f"{run.source} {run.gpu}"


def noise_floor(runs: Sequence[Run]) -> list[float]:
    """How far repeated measurements of one configuration lie apart: the range of each over its mean, sorted."""
    repeats: dict[Hashable, list[float]] = {}
    for run in runs:
        assert run.step_s is not None
        same = run.model, run.gpu, run.software, run.convention, tuple(run.policy.items())
        repeats.setdefault(same, []).append(run.step_s)
    return sorted((max(times) - min(times)) / float(np.mean(times)) for times in repeats.values() if len(times) > 1)
