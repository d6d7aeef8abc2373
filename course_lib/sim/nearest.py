"""The published run that is nearest to a layout, and whether it is near: where none is, errors are larger.

A distance is in doublings: those between the two models' parameters, sequences, micro-batches, their number, and
degrees, added up. Sharing weights as ZeRO-3 does, or not, counts as one. GPU and program do not count.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from course_lib.config import ModelConfig
from course_lib.costs.model.parameters import model_parameters
from course_lib.sim.policies import Policies
from course_lib.sim.runs import Run

FAR = 3.0  # doublings: farther off, left-out runs err by 1.4 to 2.2 times as much, by what is known of the stack
_NAMED = 3  # differences, in words
_SAME_SIZE = 0.05  # doublings between two models that are not worth a word
_SIZES = ("sequence", "micro_batch", "n_microbatches", "dp", "tp", "cp", "pp", "ep")
_WORDS = {"micro_batch": "micro-batch", "n_microbatches": "micro-batches"}
_NAMES = ("source", "model", "gpu")
_COLUMNS = (*_NAMES, "parameters", *_SIZES, "zero_3")
_FILE = Path(__file__).parent / "data" / "layouts.csv"

Places = npt.NDArray[np.float64]  # (n, 10): logarithms to the base of two, and 1 for ZeRO-3


@dataclass(frozen=True)
class Neighbour:
    """A published run and what is not as in the layout that it is nearest to."""

    source: str
    model: str
    gpu: str
    distance: float  # in doublings
    differences: tuple[str, ...]  # what it had otherwise, the largest factor first

    @property
    def in_words(self) -> str:
        """The run, how far it is, and up to three differences."""
        run = f"{self.model} on {self.gpu}, of {self.source}"
        if not self.differences:
            return f"{run}, the same layout"
        more = len(self.differences) - _NAMED
        named = ", ".join(self.differences[:_NAMED]) + f", and {more} more" * (more > 0)
        return f"{run}, {self.distance:.1f} doublings away; unlike yours it had {named}"

    @property
    def is_far(self) -> bool:
        """Whether errors of layouts so far from any that was measured are larger."""
        return self.distance > FAR


def neighbours(model: ModelConfig, policies: Policies) -> list[Neighbour]:
    """Of each policy the nearest published run. Cost: some 6,000 operations a policy."""
    names, measured = _published()
    found = []
    for own in places_of(model, policies):
        apart = np.abs(measured - own)
        nearest = int(apart.sum(1).argmin())
        distance, differences = float(apart[nearest].sum()), _differences(own, measured[nearest])
        found.append(Neighbour(**names[nearest], distance=distance, differences=differences))
    return found


def places_of(model: ModelConfig, policies: Policies) -> Places:
    """Where policies lie: the model's parameters, then sizes and degrees, then ZeRO-3."""
    n = len(policies)
    sizes = [np.broadcast_to(getattr(policies, name), n) for name in _SIZES]
    numbers = np.stack([np.full(n, model_parameters(model)), *sizes]).astype(np.float64)
    return np.vstack([np.log2(numbers), np.broadcast_to(policies.zero_stage, n) == 3]).T


def far_from_others(runs: Sequence[Run], groups: Sequence[Hashable]) -> npt.NDArray[np.bool_]:
    """Whether each run is far from all runs of other groups, which are left when its own group is left out."""
    places = np.concatenate([places_of(run.model, run.policies) for run in runs])
    number = {group: n for n, group in enumerate(dict.fromkeys(groups))}
    group = np.array([number[one] for one in groups])
    apart = np.abs(places[:, None] - places[None]).sum(2)
    apart[group[:, None] == group[None]] = np.inf
    return np.asarray(apart.min(1) > FAR)


def layouts_as_csv(runs: Sequence[Run], source_names: dict[str, str]) -> str:
    """The text of layouts.csv: each layout once, with the first source and model that have it."""
    text, seen = io.StringIO(), set()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in runs:
        sizes = (
            model_parameters(run.model),
            *(run.policy[name] for name in _SIZES),
            int(run.policy["zero_stage"] == 3),
        )
        if sizes not in seen:
            seen.add(sizes)
            writer.writerow((source_names[run.source], run.model.name, run.gpu, *sizes))
    return text.getvalue()


@cache
def _published() -> tuple[list[dict[str, str]], Places]:
    """What is named, and the place, of each layout that constants were fitted to."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = np.array([[float(row[column]) for column in _COLUMNS[len(_NAMES) :]] for row in rows])
    numbers[:, :-1] = np.log2(numbers[:, :-1])
    return [{name: row[name] for name in _NAMES} for row in rows], numbers


def _differences(own: Any, other: Any) -> tuple[str, ...]:
    """What the published run has otherwise, the largest factor first."""
    words = {}
    for name, mine, its in zip(_COLUMNS[len(_NAMES) :], own, other, strict=True):
        if name == "zero_3" and mine != its:
            words["ZeRO-3" if its else "no ZeRO-3"] = 1.0
        elif name == "parameters" and abs(mine - its) > _SAME_SIZE:
            words[f"{2**its / 1e9:.3g} billion parameters"] = abs(mine - its)
        elif name != "parameters" and round(2**mine) != round(2**its):
            words[f"{_WORDS.get(name, name)} {2**its:.0f}"] = abs(mine - its)
    return tuple(sorted(words, key=lambda one: -words[one]))
