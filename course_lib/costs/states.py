"""Memory that lasts from one step to the next."""

from __future__ import annotations

from course_lib.config import ModelConfig
from course_lib.costs.parameters import model_parameters


def sgd_state_bytes(config: ModelConfig, *, itemsize: int) -> int:
    """Weights and gradients of a whole model under plain SGD, which keeps nothing else: 2 numbers a parameter."""
    return 2 * itemsize * model_parameters(config)
