"""EF21: each rank sends by how much its gradient differs from what the others believe it to be, compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.less.compressor import Compressor
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Rule, Talk, Tensors, next_turns
from course_lib.parallel.lossy.feedback import compressed_mean

_BELIEVED, _TOGETHER = "believed", "together"


@dataclass(frozen=True)
class EF21:
    """Of each rank's gradient all have an estimate, which every message brings nearer to it.

    Where gradients come to rest, so do the estimates, at the true values. Where mini-batches let them jump, estimates
    run after them, and the learning rate has to be smaller.

    Cost: as `ErrorFeedback`.
    Source: Richtarik, Sokolov & Fatkhullin 2021, EF21, algorithm 2.
    """

    compressor: Compressor

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {ROUNDS: "apart", _BELIEVED: "own", _TOGETHER: "alike"}

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        news = {}
        for name, gradient in gradients.items():
            news[name] = gradient - memory.row(_BELIEVED, name, gradient)
        turns = next_turns(memory, gradients)
        means, sent = compressed_mean(self.compressor, news, talk, turns)
        found = {}
        for name, gradient in gradients.items():
            memory.keep(_BELIEVED, name, memory.kinds[_BELIEVED][name] + sent[name])
            before = memory.row(_TOGETHER, name, gradient)
            found[name] = before + means[name]
            memory.keep(_TOGETHER, name, found[name])
        return found
