"""The Llama that 06.4, 06.7 and 06.8 count with, in numbers: its blocks, one of them, and the root."""

from __future__ import annotations

from course_lib.config import load_model
from course_lib.costs.model.parameters import layer_weights, outer_weights

LLAMA = load_model("llama3_1_8b")
BLOCK, ROOT = (sum(weight.parameters for weight in found(LLAMA)) for found in (layer_weights, outer_weights))
