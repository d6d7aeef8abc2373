"""All workers hold one model and step along what a method takes for their mean gradient."""

from __future__ import annotations

from course_lib.less.methods import Memory, Method, Shapes
from course_lib.less.run import LabRun, Watch
from course_lib.less.workers import SHAPES, Problem


def descend(
    problem: Problem,
    method: Method,
    *,
    gradients: int = 600,
    rate: float = 1.0,
    momentum: float = 0.9,
    shapes: Shapes = SHAPES,
) -> LabRun:
    """So many gradients of each worker, at a rate that falls to zero; momentum averages what the workers agreed on.

    A method that takes several gradients into a step makes fewer steps: all methods see as many points.
    """
    model, memory, watch = problem.start, Memory(shapes=shapes), Watch(problem, gradients)
    together = method.gradients_a_step
    steps, average = gradients // together, model.new_zeros(model.shape)
    for step in range(steps):
        watch.look(step * together, model)
        drawn = sum((problem.gradients(model) for _ in range(together - 1)), problem.gradients(model)) / together
        average = momentum * average + (1 - momentum) * method.agree(drawn, memory)
        model = model - rate * (1 - step / steps) * average
    sent = method.sent_bytes(shapes, model.element_size(), problem.workers)
    return watch.ended(str(method), steps * together, model, sent / together)
