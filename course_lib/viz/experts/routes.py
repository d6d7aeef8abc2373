"""Which token goes to which expert, and who is dropped, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from course_lib.errors import four_parts
from course_lib.split import split_sizes

Chosen = Sequence[Sequence[Sequence[int]]]  # by sequence, by token: its experts, the first choice first


class Row(NamedTuple):
    """One token at one of its experts; the token's rank has its sequence."""

    token: int
    rank: int
    expert: int
    kept: bool


@dataclass(frozen=True)
class Routes:
    """All rows, in the order of the tokens; experts and sequences are cut over ranks as `tensor_split` cuts."""

    rows: list[Row]
    n_experts: int
    n_ranks: int
    n_tokens: int
    most: list[int]  # rows that an expert takes of each sequence; empty without a capacity

    @classmethod
    def of(cls, chosen: Chosen, n_experts: int, ranks: int, capacity: float | None) -> Routes:
        """Sequences are dealt to ranks; of each, an expert takes its first rows up to `capacity` fair shares.

        >>> Routes.of([[[0], [0], [1], [0]]], 2, 1, 1.0).rows[-1]
        Row(token=3, rank=0, expert=0, kept=False)
        """
        _check(chosen, n_experts, ranks, capacity)
        rows, most, token = [], [], 0
        owners = [rank for rank, count in enumerate(split_sizes(len(chosen), ranks)) for _ in range(count)]
        for rank, sequence in zip(owners, chosen, strict=True):
            fair = sum(map(len, sequence)) / n_experts
            most += [] if capacity is None else [math.ceil(capacity * fair)]
            taken = [0] * n_experts
            for choices in sequence:
                for expert in choices:
                    taken[expert] += 1
                    rows.append(Row(token, rank, expert, capacity is None or taken[expert] <= most[-1]))
                token += 1
        return cls(rows, n_experts, ranks, token, most)

    @property
    def fair(self) -> float:
        """Rows of each expert if all had as many, and nothing were dropped."""
        return len(self.rows) / self.n_experts

    def count(self, expert: int, *, kept: bool = True, rank: int | None = None) -> int:
        """Rows of an expert, of one rank's tokens or of all."""
        return sum(row[2:] == (expert, kept) and rank in (None, row.rank) for row in self.rows)

    def experts_of(self, rank: int) -> range:
        """The experts that live on a rank."""
        ends = [0, *accumulate(split_sizes(self.n_experts, self.n_ranks))]
        return range(ends[rank], ends[rank + 1])

    def received(self, rank: int) -> int:
        """Rows that the experts of a rank compute."""
        return sum(self.count(expert) for expert in self.experts_of(rank))


def _check(chosen: Chosen, n_experts: int, ranks: int, capacity: float | None) -> None:
    operation = "plot_experts"
    if not 1 <= ranks <= min(len(chosen), n_experts):
        values = f"{len(chosen)} sequences, {n_experts} experts, {ranks} ranks"
        rule, way_out = "every rank has a sequence and an expert", "choose fewer ranks, or pass more sequences"
        raise ValueError(four_parts(operation, values, rule, way_out))
    if capacity is not None and not capacity > 0:
        rule, way_out = "an expert takes a row of each sequence at least", "give a capacity above 0, or none"
        raise ValueError(four_parts(operation, f"capacity={capacity}", rule, way_out))
    if not all(map(len, chosen)):
        values, rule = f"sequences of {', '.join(str(len(one)) for one in chosen)} tokens", "a sequence has a token"
        raise ValueError(four_parts(operation, values, rule, "pass chosen.view(B, S, k).tolist()"))
    wrong = {expert for sequence in chosen for choices in sequence for expert in choices} - {*range(n_experts)}
    if wrong:
        values, rule = f"expert {min(wrong)} of {n_experts}", "experts are numbered from 0"
        raise ValueError(four_parts(operation, values, rule, f"choose experts in 0..{n_experts - 1}"))
