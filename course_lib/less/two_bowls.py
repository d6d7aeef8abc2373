"""Two workers in two bowls, and the way of each between two averages: where local steps lead when data differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.errors import four_parts

# A long bowl and a round one whose middles are apart: the mean of their middles is not the middle of their mean.
CURVATURES = torch.tensor([[1.0, 0.1], [0.3, 0.6]], dtype=torch.float64)  # (2 workers, 2)
MIDDLES = torch.tensor([[-1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
OPTIMUM = (CURVATURES * MIDDLES).sum(0) / CURVATURES.sum(0)  # of both together
_START = torch.tensor([-1.6, 1.6], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The points that each worker and their mean came through: paths[worker][step] = (x, y)."""

    every: int  # steps between two averages
    paths: list[list[tuple[float, float]]]
    means: list[tuple[float, float]]  # at first, and after each average

    @property
    def off(self) -> float:
        """How far the last mean is from the optimum."""
        return (torch.tensor(self.means[-1], dtype=torch.float64) - OPTIMUM).norm().item()


def drift(every: int, *, steps: int, rate: float = 0.1) -> Drift:
    """Both workers descend their own bowl, and meet at their mean after every so many steps.

    Raises: ValueError unless the steps end with an average.
    """
    if every < 1 or steps < every or steps % every:
        rule = "the last step is followed by an average"
        way_out = "choose steps as a multiple of every"
        raise ValueError(four_parts("drift", f"every={every}, steps={steps}", rule, way_out))
    models = _START.expand(2, -1)
    seen, means = [models], [models[0]]
    for step in range(1, steps + 1):
        models = models - rate * CURVATURES * (models - MIDDLES)
        seen.append(models)
        if step % every == 0:
            models = models.mean(0, keepdim=True).expand(2, -1)
            seen.append(models)
            means.append(models[0])
    paths = torch.stack(seen, 1)  # (2 workers, points, 2)
    return Drift(every=every, paths=[_points(path) for path in paths], means=_points(torch.stack(means)))


def _points(path: Tensor) -> list[tuple[float, float]]:
    return [(x, y) for x, y in path.tolist()]
