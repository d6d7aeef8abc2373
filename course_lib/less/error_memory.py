"""Error feedback: what a message lacks is kept, and added to the next gradient before that is compressed.

A number that is never large enough to be sent grows in the memory until it is. All that was sent and what is still kept
add up to all gradients, exactly; so the model runs behind, by as much as is kept, and never away.
Source: Stich, Cordonnier and Jaggi 2018, Sparsified SGD with Memory, algorithm 1 (MEM-SGD); Seide et al. 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from course_lib.less.compressor import Compressor, compressed
from course_lib.less.methods import Memory, Shapes, message_bytes, size_of


@dataclass(frozen=True)
class ErrorFeedback:
    """Each worker has a memory of its own, "residual"."""

    compressor: Compressor
    gradients_a_step: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"{self.compressor} with memory"

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """Shapes: (..., workers, size) -> (..., size)."""
        due = gradients + memory.of("residual", gradients)
        sent = compressed(self.compressor, due, memory.draws)
        memory.kept["residual"] = due - sent
        return sent.mean(-2)

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """One message of each worker, as without a memory."""
        return message_bytes(self.compressor, size_of(shapes), itemsize, workers)


def error_feedback(compressor: Compressor) -> ErrorFeedback:
    """Send what the compressor lets through, and keep the rest for the next step."""
    return ErrorFeedback(compressor)


class Followed(NamedTuple):
    """One number of one worker, step by step."""

    gradients: list[float]
    sent: list[float]
    kept: list[float]  # after the step


def follow_number(compressor: Compressor, gradients: Tensor, place: int) -> Followed:
    """Error feedback on a worker's gradients, and of the number at one place what came, went and stayed.

    Shapes: gradients (steps, size).
    """
    method, memory = ErrorFeedback(compressor), Memory(shapes=[(gradients.shape[-1],)])
    followed = Followed([], [], [])
    for gradient in gradients:
        followed.gradients.append(gradient[place].item())
        followed.sent.append(method.agree(gradient[None], memory)[place].item())
        followed.kept.append(memory.kept["residual"][0, place].item())
    return followed


def merged(residuals: Tensor, workers: int) -> Tensor:
    """The memories of more workers than there will be, so that no gradient is lost: each new one has a group's mean.

    It is the mean, since a message of fewer workers counts for more in their mean.
    Shapes: (..., old workers, size) -> (..., workers, size), where `workers` divides the old.
    """
    return residuals.unflatten(-2, (workers, -1)).mean(-2)
