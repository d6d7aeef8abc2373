"""What a run in the laboratory leaves behind, and when it looks at its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, stdev

from torch import Tensor

from course_lib.less.workers import Problem

_LOOKS = 24  # in a run, about, and at its start and end


@dataclass(frozen=True, kw_only=True)
class Run:
    """The losses of one method, looked at now and then.

    Units: `bytes_a_step` are what one worker sends in one step, on average; a step is one gradient of each worker.
    """

    name: str
    bytes_a_step: float
    steps: tuple[int, ...]  # after how many
    losses: tuple[tuple[float, ...], ...]  # then, of each seed
    model: Tensor = field(repr=False, compare=False)  # the last, of all workers' models the mean: (seeds, size)

    @property
    def mean_losses(self) -> dict[int, float]:
        """By step, over the seeds."""
        return {step: fmean(losses) for step, losses in zip(self.steps, self.losses, strict=True)}

    @property
    def loss(self) -> float:
        """At the end, over the seeds."""
        return fmean(self.losses[-1])

    @property
    def spread(self) -> float:
        """The standard deviation of the last loss between the seeds; 0 of a single one."""
        return stdev(self.losses[-1]) if len(self.losses[-1]) > 1 else 0.0


def steps_to(losses: Mapping[int, float], goal: float) -> float | None:
    """After how many steps a loss first is the goal's, on straight lines between the looks; None: never.

    Shapes: losses by step, in their order.
    """
    looks = [*losses.items()]
    if looks and looks[0][1] <= goal:
        return float(looks[0][0])
    for (step, loss), (later, lower) in pairwise(looks):
        if lower <= goal:
            return step + (loss - goal) / (loss - lower) * (later - step)
    return None


class Watch:
    """Looks at the loss of a run at even distances, and once more at its end."""

    def __init__(self, problem: Problem, steps: int) -> None:
        self._problem, self._every = problem, max(1, steps // _LOOKS)
        self._seen: dict[int, tuple[float, ...]] = {}

    def look(self, step: int, model: Tensor) -> None:
        """The model after so many steps, if it is time. Shapes: (seeds, size)."""
        if step % self._every == 0:
            self._keep(step, model)

    def ended(self, name: str, step: int, model: Tensor, bytes_a_step: float) -> Run:
        """The run, with its last loss."""
        self._keep(step, model)
        return Run(
            name=name,
            bytes_a_step=bytes_a_step,
            steps=tuple(self._seen),
            losses=tuple(self._seen.values()),
            model=model,
        )

    def _keep(self, step: int, model: Tensor) -> None:
        self._seen[step] = tuple(self._problem.loss(model).tolist())
