"""EF21: each worker and its receivers hold a model of its gradient, and the message is what that lacks.

On a fixed gradient the model becomes exact, so the workers of a problem without noise come to the optimum. A stochastic
gradient jumps by its noise in every step, and the model runs after it.
Source: Richtarik, Sokolov and Fatkhullin 2021, EF21, algorithm 2; momentum: Fatkhullin, Tyurin and Richtarik 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from course_lib.errors import four_parts
from course_lib.less.compressor import Compressor, compressed
from course_lib.less.methods import Memory, Shapes, message_bytes, size_of


@dataclass(frozen=True)
class EF21:
    """The memory is each worker's "model" of its gradient, and with momentum its "average" of its gradients."""

    compressor: Compressor
    momentum: float = 0.0
    gradients_a_step: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"EF21 {self.compressor}" + (", momentum at the worker" if self.momentum else "")

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """Shapes: (..., workers, size) -> (..., size)."""
        before = memory.kept.get("average", gradients)
        memory.kept["average"] = self.momentum * before + (1 - self.momentum) * gradients
        model = memory.of("model", gradients)
        lacking = memory.kept["average"] - model
        memory.kept["model"] = model + compressed(self.compressor, lacking, memory.draws)
        return memory.kept["model"].mean(-2)

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """One message of each worker."""
        return message_bytes(self.compressor, size_of(shapes), itemsize, workers)


def ef21(compressor: Compressor, momentum: float = 0.0) -> EF21:
    """Send what the receivers' model of one's gradient lacks; `momentum` calms the gradient before it is compressed.

    Raises: ValueError for a momentum outside [0, 1).
    """
    if not 0 <= momentum < 1:
        rule, way_out = "an average of gradients weighs the newest", "choose 0 <= momentum < 1"
        raise ValueError(four_parts("ef21", f"momentum={momentum}", rule, way_out))
    return EF21(compressor, momentum)
