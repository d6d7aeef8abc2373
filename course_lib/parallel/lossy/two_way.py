"""Compressed on both ways: each rank is the server of a stretch of every gradient, and its answer is compressed too.

`rounds` = 1 is Double-Squeeze. With more of them each message is followed by others of what it left out, as NEOLITHIC
does; that paper also lets each step have as many mini-batches as rounds, which is the caller's `accumulation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib import comm
from course_lib.less.compressor import Compressor
from course_lib.parallel.lossy.exchange import ROUNDS, Memories, Rule, Talk, Tensors, next_turns
from course_lib.parallel.lossy.feedback import RESIDUAL

SERVED = "served"  # what a server has not passed on


@dataclass(frozen=True)
class TwoWay:
    """Both ends remember what their messages left out.

    Cost: `costs.comm.less.double_squeeze_time`: about twice a gradient's compressed bytes, however many ranks.
    Source: Tang et al. 2019, DoubleSqueeze, algorithm 1; Huang et al. 2022, NEOLITHIC.
    """

    compressor: Compressor
    rounds: int = 1

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {ROUNDS: "apart", RESIDUAL: "own", SERVED: "stretch"}

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        turns = next_turns(memory, gradients)
        wanted = {}
        for name, gradient in gradients.items():
            wanted[name] = gradient + memory.row(RESIDUAL, name, gradient)

        stretches = {name: x.tensor_split(talk.size) for name, x in wanted.items()}

        # 1. Every rank sends each server its stretches, compressed.
        messages = self._for_servers(stretches, talk, turns, memory)
        here = len(messages[talk.rank])  # all ranks' messages to one server are equally long
        came = comm.all_to_all_uneven(messages, [(here,)] * talk.size, group=talk.group)

        # 2. Every server averages what came, and sends all ranks the average, compressed.
        mine = {name: parts[talk.rank] for name, parts in stretches.items()}
        answer = self._answer(came, mine, talk, turns, memory)
        lengths = [(len(message),) for message in messages]  # a server answers as long as it was asked
        answers = comm.all_to_all_uneven([answer] * talk.size, lengths, group=talk.group)

        # 3. All put the servers' stretches together.
        found = {name: list[Tensor]() for name in wanted}
        for server, of_server in enumerate(answers):
            at = 0
            for name in wanted:
                like = stretches[name][server]
                found[name].append(self._came(of_server[at : at + self._bytes(like)], like))
                at += self._bytes(like)
        return {name: torch.cat(parts) for name, parts in found.items()}

    def _for_servers(
        self, stretches: Mapping[str, Sequence[Tensor]], talk: Talk, turns: Mapping[str, int], memory: Memories
    ) -> list[Tensor]:
        """A message for each server; what they leave out is kept."""
        messages, left = list[Tensor](), {name: list[Tensor]() for name in stretches}
        for server in range(talk.size):
            parts = []
            for name in stretches:
                message, rest = self._sent(stretches[name][server], talk, f"{name}>{server}", turns[name])
                parts.append(message)
                left[name].append(rest)
            messages.append(torch.cat(parts))
        for name, rests in left.items():
            memory.keep(RESIDUAL, name, torch.cat(rests))
        return messages

    def _answer(
        self, came: Sequence[Tensor], mine: Tensors, talk: Talk, turns: Mapping[str, int], memory: Memories
    ) -> Tensor:
        """This rank's message as a server: the mean of what came; what it leaves out is kept."""
        parts, at = [], 0
        for name, like in mine.items():
            nbytes = self._bytes(like)
            total = torch.zeros_like(like)
            for message in came:
                total += self._came(message[at : at + nbytes], like)
            at += nbytes
            total = total / talk.size + memory.row(SERVED, name, like)
            message, rest = self._sent(total, talk, f"{name}<", turns[name])
            parts.append(message)
            memory.keep(SERVED, name, rest)
        return torch.cat(parts)

    def _sent(self, x: Tensor, talk: Talk, name: str, turn: int) -> tuple[Tensor, Tensor]:
        """The messages of all rounds for a stretch as one, and what they leave out."""
        messages = [torch.empty(0, dtype=torch.uint8, device=x.device)]
        rest = x.clone()
        for number in self._rounds(x):
            message = self.compressor.encode(rest, talk.draws(f"{name}/{number}", turn, alike=False))
            messages.append(message)
            rest = rest - self._decoded(message, rest)
        return torch.cat(messages), rest

    def _came(self, message: Tensor, like: Tensor) -> Tensor:
        """What the messages of all rounds give for a stretch."""
        found = torch.zeros_like(like)
        for number in self._rounds(like):
            one = self._bytes(like) // self.rounds
            found += self._decoded(message[number * one : (number + 1) * one], like)
        return found

    def _decoded(self, message: Tensor, like: Tensor) -> Tensor:
        return self.compressor.decode(message, len(like), like.dtype, torch.Generator())

    def _rounds(self, x: Tensor) -> Iterator[int]:
        """A gradient of fewer numbers than ranks leaves some servers nothing to do."""
        yield from range(self.rounds if len(x) else 0)

    def _bytes(self, x: Tensor) -> int:
        return self.rounds * self.compressor.message_bytes(len(x), x.element_size()) if len(x) else 0
