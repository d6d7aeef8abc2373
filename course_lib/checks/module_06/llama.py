"""The Llamas that 06.4, 06.7 and 06.8 count with, in numbers: one block, and the root."""

from __future__ import annotations

from course_lib.config import ModelConfig, load_model
from course_lib.costs.model.parameters import layer_weights, outer_weights

LLAMA, LARGE = load_model("llama3_1_8b"), load_model("llama3_1_70b")


def numbers_of(model: ModelConfig) -> tuple[int, int]:
    """Of one block, and of the root."""
    block, root = (sum(weight.parameters for weight in found(model)) for found in (layer_weights, outer_weights))
    return block, root


BLOCK, ROOT = numbers_of(LLAMA)
