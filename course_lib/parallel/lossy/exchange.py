"""What every lossy average stands on: messages of a few gradients in one, numbers drawn alike, and what is kept.

A method is asked once for each bucket of gradients. What it remembers is kept by the parameters' names: buckets may be
dealt anew, and a checkpoint outlives them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib import comm

Tensors = dict[str, Tensor]  # by parameter name, each a row of numbers
Rule = Literal[
    "own",  # each rank has a row of its own, a number for each of the parameter's
    "alike",  # all ranks have the same row
    "stretch",  # each rank has its stretch of one row, as `torch.tensor_split` cuts it
    "apart",  # all ranks have the same, of a shape of its own
]
ROUNDS = "rounds"  # of each parameter the exchanges so far


@dataclass
class Memories:
    """What a method keeps between steps: kinds of numbers, each with a rule that says whose they are."""

    rules: Mapping[str, Rule]
    kinds: dict[str, Tensors] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = {kind: {} for kind in self.rules}

    def of(self, kind: str, name: str, begin: Callable[[], Tensor]) -> Tensor:
        """What is kept of one parameter; the first time it is what `begin` gives."""
        kept = self.kinds[kind]
        if name not in kept:
            kept[name] = begin()
        return kept[name]

    def row(self, kind: str, name: str, like: Tensor) -> Tensor:
        """The same of numbers that are zero at first."""
        return self.of(kind, name, partial(torch.zeros_like, like))

    def keep(self, kind: str, name: str, x: Tensor) -> None:
        """Have this from here on."""
        self.kinds[kind][name] = x


class Method(Protocol):
    """How ranks come to one average of their gradients that is not the exact one."""

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The kinds of numbers that it keeps."""

    def average(self, gradients: Tensors, talk: Talk, memory: Memories) -> Tensors:
        """What every rank takes for the mean, the same bit by bit on all of them.

        `gradients` are one bucket's, each a row of numbers; the method may keep them.
        """


@dataclass(frozen=True)
class Talk:
    """The ranks that exchange, and the numbers that they draw for it."""

    group: ProcessGroup
    seed: int = 0

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self.group.rank()

    @property
    def size(self) -> int:
        """How many ranks exchange."""
        return self.group.size()

    def draws(self, name: str, turn: int, *, alike: bool) -> torch.Generator:
        """Random numbers for one parameter's exchange number `turn`: those of all ranks, or this rank's own.

        They follow from names and numbers alone, so that a run which goes on draws what it would have drawn.
        """
        whose = "all" if alike else str(self.rank)
        key = zlib.crc32(f"{self.seed}/{name}/{turn}/{whose}".encode())
        return torch.Generator().manual_seed(key)

    def gathered(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Messages of bytes from every rank, each (bytes,) -> (p, bytes); they travel as one.

        Cost: (p - 1) times the bytes of this rank's, in p - 1 steps.
        """
        mine = torch.cat(list(messages))
        everyone = comm.all_gather(mine[None], group=self.group)
        return list(everyone.split([len(message) for message in messages], dim=1))

    def mean(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """The means of rows of numbers over the ranks; they travel as one.

        Cost: an all-reduce by ring, 2 (p - 1)/p of their bytes.
        """
        if not rows:
            return []
        flat = torch.cat(list(rows))
        comm.all_reduce_(flat, op=ReduceOp.AVG, algorithm="ring", group=self.group)
        return list(flat.split([len(row) for row in rows]))


def next_turns(memory: Memories, names: Iterable[str]) -> dict[str, int]:
    """Of each parameter the number of this exchange, from 0; from here on it is over."""
    turns = {name: turn_of(memory, name) for name in names}
    for name, turn in turns.items():
        memory.keep(ROUNDS, name, torch.tensor(turn + 1))
    return turns


def turn_of(memory: Memories, name: str) -> int:
    """The number of the exchange that comes next."""
    return int(memory.kinds[ROUNDS].get(name, 0))
