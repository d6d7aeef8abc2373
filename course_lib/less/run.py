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
class LabRun:
    """The losses of one method, looked at now and then.

    Units: `bytes_a_step` are what one worker sends in one step, on average; a step is one gradient of each worker.
    """

    name: str
    bytes_a_step: float
    steps: tuple[int, ...]  # after how many
    losses: tuple[tuple[float, ...], ...]  # then, of each seed
    apart: tuple[float, ...]  # then, the mean of |a worker's model - their mean|^2; 0 where all hold one model
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

    @property
    def settled_apart(self) -> float:
        """How far the models are apart in the later half of the run, on average over its looks."""
        return fmean(self.apart[len(self.apart) // 2 :])


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
        self._losses: dict[int, tuple[float, ...]] = {}
        self._apart: list[float] = []

    def look(self, step: int, models: Tensor) -> None:
        """What the workers hold after so many steps, if it is time. Shapes: (seeds, size) or (seeds, workers, size)."""
        if step % self._every == 0:
            self._keep(step, models)

    def ended(self, name: str, step: int, models: Tensor, bytes_a_step: float) -> LabRun:
        """The run, with its last loss. Shapes: as `look`."""
        self._keep(step, models)
        return LabRun(
            name=name,
            bytes_a_step=bytes_a_step,
            steps=tuple(self._losses),
            losses=tuple(self._losses.values()),
            apart=tuple(self._apart),
            model=_mean(models),
        )

    def _keep(self, step: int, models: Tensor) -> None:
        mean = _mean(models)
        self._losses[step] = tuple(self._problem.loss(mean).tolist())
        each = models if models.dim() == 3 else mean[:, None]
        self._apart.append((each - mean[:, None]).square().sum(-1).mean().item())


def _mean(models: Tensor) -> Tensor:
    """Of all workers' models. Shapes: -> (seeds, size)."""
    return models.mean(1) if models.dim() == 3 else models
