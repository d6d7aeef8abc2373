"""Compressed gradients: each rank sends a part of what it has, and may remember the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.less.compressor import Compressor
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Rule, Talk, Tensors, next_turns

RESIDUAL = "residual"


@dataclass(frozen=True)
class Compressed:
    """Every rank sends its gradient compressed, and what the message leaves out is lost.

    Cost: `costs.comm.less`: an all-gather of the messages; where they may be added up, an all-reduce of them.
    Source: Alistarh et al. 2017, QSGD, algorithm 1.
    """

    compressor: Compressor

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {ROUNDS: "apart"}

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        turns = next_turns(memory, gradients)
        means, _ = compressed_mean(self.compressor, gradients, talk, turns)
        return means


@dataclass(frozen=True)
class ErrorFeedback:
    """The same with a memory: what a message leaves out is added to the next step's gradient.

    So everything is sent in the end, only later: what was sent and what is kept are together all gradients so far.

    Source: Seide et al. 2014, 1-bit SGD; Stich et al. 2018, Sparsified SGD with Memory, algorithm 1 (MEM-SGD).
    """

    compressor: Compressor

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {ROUNDS: "apart", RESIDUAL: "own"}

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        wanted = {}
        for name, gradient in gradients.items():
            wanted[name] = gradient + memory.row(RESIDUAL, name, gradient)
        turns = next_turns(memory, gradients)
        means, sent = compressed_mean(self.compressor, wanted, talk, turns)
        for name in gradients:
            # Kept as it is, and never computed again: with draws it would be another one.
            memory.keep(RESIDUAL, name, wanted[name] - sent[name])
        return means


def compressed_mean(
    compressor: Compressor, wanted: Tensors, talk: Talk, turns: Mapping[str, int]
) -> tuple[Tensors, Tensors]:
    """The mean over the ranks of what arrives of each row of numbers, and what this rank has sent of its own."""
    messages = []
    for name, x in wanted.items():
        draws = talk.draws(name, turns[name], alike=compressor.adds_up)
        messages.append(compressor.encode(x, draws))

    def decoded(name: str, message: Tensor) -> Tensor:
        """(..., bytes) -> (..., d)"""
        x = wanted[name]
        return compressor.decode(message, len(x), x.dtype, talk.draws(name, turns[name], alike=compressor.adds_up))

    means, sent = {}, {}
    if compressor.adds_up:
        dtypes = [x.dtype for x in wanted.values()]
        numbers = [message.view(dtype) for message, dtype in zip(messages, dtypes, strict=True)]
        for name, mean in zip(wanted, talk.mean(numbers), strict=True):
            means[name] = decoded(name, mean.view(torch.uint8))
        for name, message in zip(wanted, messages, strict=True):
            sent[name] = decoded(name, message)
    else:
        for name, everyone in zip(wanted, talk.gathered(messages), strict=True):
            rows = decoded(name, everyone)
            means[name], sent[name] = rows.mean(0), rows[talk.rank]  # all ranks add in the same order
    return means, sent
