"""Runs as one record of arrays: the closed form times all at once, each with the constants that apply to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from course_lib.sim.constants import constant_names, rates_from
from course_lib.sim.machine import Machine
from course_lib.sim.policies import Policies
from course_lib.sim.runs import Run
from course_lib.sim.shape import Shape, shape_of
from course_lib.sim.step import StepTime, step_time

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """n runs; `names[coefficient]` says for each run which constant gives it."""

    runs: tuple[Run, ...]
    shape: Shape
    machine: Machine
    policies: Policies
    names: Mapping[str, tuple[str, ...]]
    switches: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def step_s(self) -> Array:
        """As measured."""
        return np.array([run.step_s for run in self.runs], dtype=np.float64)

    def places(self, constants: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
        """For each coefficient and run the place of its constant."""
        place = {name: number for number, name in enumerate(constants)}
        return {key: np.array([place[name] for name in names]) for key, names in self.names.items()}

    def times(self, values: Array, places: Mapping[str, npt.NDArray[np.int64]]) -> StepTime:
        """All runs at once, with these values of the constants that `places` were made for."""
        coefficients = {key: values[index] for key, index in places.items()}
        return step_time(self.shape, rates_from(self.machine, coefficients, **self.switches), self.policies)


def table_of(runs: Sequence[Run]) -> Table:
    """Runs in arrays."""
    names = [constant_names(run.machine.generation, run.software) for run in runs]
    software = [run.software for run in runs]
    return Table(
        runs=tuple(runs),
        shape=_stacked(Shape, [shape_of(run.model) for run in runs]),
        machine=_stacked(Machine, [run.machine for run in runs]),
        policies=_policies(runs),
        names={key: tuple(one[key] for one in names) for key in names[0]},
        switches={
            "fp8": np.array([float(one.fp8) for one in software]),
            "keeps_scores": np.array([float(one.timed_kernel == "scores") for one in software]),
            "gradient_bytes": np.array([float(one.gradient_bytes) for one in software]),
            "plain_norms": np.array([float(not run.job.fused_norms) for run in runs]),
        },
    )


def _policies(runs: Sequence[Run]) -> Policies:
    columns = {key: np.array([run.policy[key] for run in runs]) for key in runs[0].policy}
    return Policies(**columns).pieces(len(runs), np.float64)[0]


def _stacked(record: type[Any], each: Sequence[Any]) -> Any:
    """One record of arrays from many of numbers; names stay a list."""
    columns = {field.name: [getattr(one, field.name) for one in each] for field in fields(record)}
    return record(
        **{name: c if isinstance(c[0], str) else np.array(c, dtype=np.float64) for name, c in columns.items()}
    )
