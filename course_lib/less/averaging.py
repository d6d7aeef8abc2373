"""Models in place of gradients: each worker steps by itself, and now and then the models are averaged.

`local` averages all of them after every so many steps (local SGD, FedAvg). `gossip` averages with neighbours after each
(DSGD); with `track` each worker also follows the mean gradient of all, by gossip about gradients.
Source: Stich 2019, Local SGD Converges Fast; Lian et al. 2017, Can Decentralized Algorithms Outperform Centralized
Algorithms? (DSGD); Nedic, Olshevsky and Shi 2017 (gradient tracking).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from course_lib.errors import four_parts
from course_lib.less.methods import summed_bytes
from course_lib.less.run import LabRun, Watch
from course_lib.less.topologies import mixing, neighbours
from course_lib.less.workers import Problem

_Rate = Callable[[int], float]


def local(problem: Problem, every: int, *, steps: int = 600, rate: float = 1.0, decays: bool = True) -> LabRun:
    """Each worker descends alone, and after `every` steps all models become their mean.

    A rate that `decays` falls to zero.
    Raises: ValueError for fewer than one step between.
    """
    if every < 1:
        raise ValueError(four_parts("local", f"every={every}", "steps lie between two averages", "choose every >= 1"))
    models, watch = _of_each(problem), Watch(problem, steps)
    rates = _rates(rate, steps, decays)
    for step in range(steps):
        watch.look(step, models)
        models = models - rates(step) * problem.gradients(models)
        if (step + 1) % every == 0:
            models = models.mean(1, keepdim=True).expand_as(models)
    nbytes = summed_bytes(models.shape[-1] * models.element_size(), problem.workers) / every
    return watch.ended(f"local, every {every}", steps, models, nbytes)


def gossip(
    problem: Problem, topology: str, *, track: bool = False, steps: int = 600, rate: float = 1.0, decays: bool = True
) -> LabRun:
    """Each worker descends, then averages its model with its neighbours'; losses are those of the mean of all models.

    Raises: ValueError as `mixing`.
    """
    models, watch = _of_each(problem), Watch(problem, steps)
    matrices = [matrix.to(models.dtype) for matrix in mixing(topology, problem.workers)]
    rates = _rates(rate, steps, decays)
    gradients = trackers = problem.gradients(models)  # at first each worker takes its own gradient for the mean
    for step in range(steps):
        watch.look(step, models)
        matrix = matrices[step % len(matrices)]
        models = matrix @ (models - rates(step) * trackers)
        new = problem.gradients(models)
        trackers = matrix @ trackers + new - gradients if track else new
        gradients = new
    sends = sum(max(len(neighbours(matrix, rank).send_to) for rank in range(problem.workers)) for matrix in matrices)
    nbytes = (1 + track) * sends / len(matrices) * models.shape[-1] * models.element_size()
    return watch.ended(f"gossip, {topology}" + ", tracking" * track, steps, models, nbytes)


def _of_each(problem: Problem) -> Tensor:
    """Shapes: -> (seeds, workers, size)."""
    return problem.start[:, None].expand(-1, problem.workers, -1)


def _rates(rate: float, steps: int, decays: bool) -> _Rate:
    return lambda step: rate * (1 - step / steps) if decays else rate
