"""Double-Squeeze and NEOLITHIC: compressed on the way to a server and on the way back, with a memory at both ends.

There is no machine that serves. The gradient is cut into as many stretches as there are workers, and each worker serves
one: it receives that stretch of all, compressed, and sends their mean to all, compressed. So a worker sends about twice
its compressed gradient, where an all-gather of whole messages sends one to each other worker.

NEOLITHIC sends `rounds` messages one after the other, each of what the ones before left out, and takes as many
gradients into one exchange, so that it sends no more. It is built from a description: workers and servers both compress
in rounds, and both keep what all rounds left out. Its paper's listing was not at hand and may differ in the memory.
Source: Tang et al. 2019, DoubleSqueeze, algorithm 1; Huang et al. 2022, Lower Bounds and Nearly Optimal Algorithms in
Distributed Learning with Communication Compression (NEOLITHIC; not looked up).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.less.compressor import Compressor, compressed
from course_lib.less.methods import Memory, Shapes, size_of


@dataclass(frozen=True)
class BothEnds:
    """The memories are each worker's "residual", and what the servers kept of their stretches, "served"."""

    compressor: Compressor
    rounds: int

    def __str__(self) -> str:
        return f"Double-Squeeze {self.compressor}" if self.rounds == 1 else f"NEOLITHIC {self.compressor}"

    @property
    def gradients_a_step(self) -> int:
        """As many as messages."""
        return self.rounds

    def agree(self, gradients: Tensor, memory: Memory) -> Tensor:
        """Shapes: (..., workers, size) -> (..., size)."""
        workers = gradients.shape[-2]
        due = gradients + memory.of("residual", gradients)
        sent = self._sent(due.tensor_split(workers, -1), memory)
        memory.kept["residual"] = due - sent
        mean = sent.mean(-2)
        due = mean + memory.of("served", mean)
        returned = self._sent(due.tensor_split(workers, -1), memory)
        memory.kept["served"] = due - returned
        return returned

    def sent_bytes(self, shapes: Shapes, itemsize: int, workers: int) -> float:
        """In each round a message of a stretch to all others, and one of the own stretch to all others."""
        stretch = self.compressor.message_bytes(-(-size_of(shapes) // workers), itemsize)
        return self.rounds * 2 * (workers - 1) * stretch

    def _sent(self, stretches: Sequence[Tensor], memory: Memory) -> Tensor:
        return torch.cat([in_rounds(self.compressor, x, self.rounds, memory.draws) for x in stretches], -1)


def in_rounds(compressor: Compressor, x: Tensor, rounds: int, draws: torch.Generator) -> Tensor:
    """x as its receiver knows it after so many messages, each of what is still left. Shapes: as x.

    With a contractive compressor (1 - delta)^rounds of |x|^2 is left at most.
    """
    left = x
    for _ in range(rounds):
        left = left - compressed(compressor, left, draws)
    return x - left


def double_squeeze(compressor: Compressor) -> BothEnds:
    """Compressed both ways, in one message each."""
    return BothEnds(compressor, 1)


def neolithic(compressor: Compressor, rounds: int) -> BothEnds:
    """Compressed both ways, in so many messages each, and as many gradients a step.

    Raises: ValueError for fewer rounds than one.
    """
    if rounds < 1:
        raise ValueError(four_parts("neolithic", f"rounds={rounds}", "something is sent", "choose rounds >= 1"))
    return BothEnds(compressor, rounds)
