"""Asynchronous SGD: a step along a gradient that was right some steps ago.

On f(x) = h/2 x^2 it is x_{t+1} = x_t - rate h x_{t-tau}. Its powers z^t solve z^{tau+1} = z^tau - rate h, and the
first to reach the unit circle does so at the limit below, which falls as pi / (2 tau + 1).
Source: Arjevani, Shamir and Srebro 2020, A Tight Convergence Analysis for SGD with Delayed Updates.
"""

from __future__ import annotations

import math

from course_lib.less.run import LabRun, Watch
from course_lib.less.workers import Problem


def largest_rate(staleness: int, curvature: float = 1.0) -> float:
    """Descent with a staleness in steps converges on a quadratic if and only if its rate is below this."""
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) / curvature


def stale_quadratic(staleness: int, *, rate: float, steps: int) -> list[float]:
    """x from 1 on, on f(x) = x^2 / 2, where each gradient is `staleness` steps old."""
    xs = [1.0] * (staleness + 1)
    for _ in range(steps):
        xs.append(xs[-1] - rate * xs[-1 - staleness])
    return xs[staleness:]


def stale(problem: Problem, staleness: int, *, steps: int = 600, rate: float = 1.0) -> LabRun:
    """The mean gradient of all workers at the model of some steps ago; the rate falls to zero, without momentum."""
    models, watch = [problem.start] * (staleness + 1), Watch(problem, steps)
    for step in range(steps):
        watch.look(step, models[-1])
        gradient = problem.gradients(models[0]).mean(1)
        models = [*models[1:], models[-1] - rate * (1 - step / steps) * gradient]
    nbytes = models[-1].shape[-1] * models[-1].element_size()
    return watch.ended(f"staleness {staleness}", steps, models[-1], nbytes)
