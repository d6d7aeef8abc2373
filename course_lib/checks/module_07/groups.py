"""07.1: with whom a rank shares a sequence, with whom it shares weights, and who of them sits in another node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.calls import calls_exercise
from course_lib.checks.kit.spec import Level

NAMES = ("the ranks of its tp group", "the ranks of its dp group", "the numbers of those in other nodes")
_Found = tuple[list[int], list[int], list[int]]
_Group = Callable[["Rank"], list[int]]


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A mesh of which every rank is asked about; other sizes for another seed."""

    text: str
    dp: int
    tp: int
    per_node: int = 8
    nodes: bool = False  # whether these are looked at
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def ranks(self, seed: int) -> list[Rank]:
        """All of them."""
        dp = self.dp + seed % 3 * (self.dp > 1)
        return [Rank(rank, dp, self.tp, self.per_node) for rank in range(dp * self.tp)]


class Rank(NamedTuple):
    """One of dp x tp ranks, so many of which are in a node."""

    rank: int
    dp: int
    tp: int
    per_node: int

    def __str__(self) -> str:
        return f"rank {self.rank} of dp {self.dp} x tp {self.tp}, {self.per_node} in a node"

    @property
    def along_tp(self) -> list[int]:
        """Its row of the mesh."""
        return [self.rank // self.tp * self.tp + other for other in range(self.tp)]

    @property
    def along_dp(self) -> list[int]:
        """Its column."""
        return [other * self.tp + self.rank % self.tp for other in range(self.dp)]

    def away(self, group: Sequence[int]) -> int:
        """How many of a group are in other nodes."""
        return sum(other // self.per_node != self.rank // self.per_node for other in group)


def _found(
    rank: int,
    dp: int,
    tp: int,
    per_node: int,
    *,
    along_tp: _Group = lambda one: one.along_tp,
    along_dp: _Group = lambda one: one.along_dp,
    away: Callable[[Rank, Sequence[int]], int] = lambda one, group: one.away(group),
) -> _Found:
    """Right, unless a part is chosen otherwise."""
    one = Rank(rank, dp, tp, per_node)
    rows, columns = along_tp(one), along_dp(one)
    return rows, columns, [away(one, rows), away(one, columns)]


def _wanted(one: Rank) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(part, dtype=torch.int64) for part in _found(*one))


_MESH = calls_exercise(
    key="07.1",
    title="who talks to whom",
    names=NAMES,
    records=lambda case, seed: case.ranks(seed),
    wanted=_wanted,
    only=lambda case: range(3 if case.nodes else 2),
    slips={
        "the two groups are swapped: ranks along tp are neighbours, and the next rank along dp is tp further": (
            partial(_found, along_tp=lambda one: one.along_dp, along_dp=lambda one: one.along_tp)
        ),
        "neighbouring ranks were put along dp. The last axis of the mesh has the neighbours, and that is tp": (
            partial(
                _found,
                along_tp=lambda one: [other * one.dp + one.rank % one.dp for other in range(one.tp)],
                along_dp=lambda one: [one.rank // one.dp * one.dp + other for other in range(one.dp)],
            )
        ),
        "the dp groups are neighbours too. Then neighbours would share both the sequence and the weights": (
            partial(_found, along_dp=lambda one: [one.rank // one.dp * one.dp + other for other in range(one.dp)])
        ),
        "from row to row of the mesh it is tp ranks further, since a row has so many": (
            partial(_found, along_dp=lambda one: [other * one.dp + one.rank % one.tp for other in range(one.dp)])
        ),
        "a group begins at its first rank, not at the one that is asked about": (
            partial(_found, along_tp=lambda one: [one.rank + other for other in range(one.tp)])
        ),
        "a row begins at rank // tp * tp: rank // tp is its number": (
            partial(_found, along_tp=lambda one: [one.rank // one.tp + other for other in range(one.tp)])
        ),
        "the rank itself is missing. It is in both of its groups": (
            partial(
                _found,
                along_tp=lambda one: [other for other in one.along_tp if other != one.rank],
                along_dp=lambda one: [other for other in one.along_dp if other != one.rank],
            )
        ),
        "those are coordinates, not ranks: the rank at dp i and tp j is i tp + j": (
            partial(_found, along_tp=lambda one: [*range(one.tp)], along_dp=lambda one: [*range(one.dp)])
        ),
        "those in the same node were counted": (partial(_found, away=lambda one, group: len(group) - one.away(group))),
        "those outside the first node were counted. Whose node is it about?": (
            partial(_found, away=lambda one, group: sum(other >= one.per_node for other in group))
        ),
        "the other nodes were counted, not the ranks in them": (
            partial(_found, away=lambda one, group: len({other // one.per_node for other in group}) - 1)
        ),
        "rank % per_node is a place inside a node. The node's number is rank // per_node": (
            partial(
                _found,
                away=lambda one, group: sum(o % one.per_node != one.rank % one.per_node for o in group),
            )
        ),
    },
    levels={
        "groups": Level(
            points=2,
            cases=(Mesh(text="three by two", dp=3, tp=2), Mesh(text="two by four", dp=2, tp=4)),
            praise="a row shares a sequence, a column shares weights, and every rank is in one of each",
        ),
        "nodes": Level(
            points=1,
            again=True,
            cases=(
                Mesh(text="tp fills a node", dp=3, tp=4, per_node=4, nodes=True),
                Mesh(text="two rows in a node", dp=4, tp=2, per_node=4, nodes=True),
            ),
            praise="where tp fills a node, it never leaves one, and everybody along dp is elsewhere",
        ),
        "edges": Level(
            points=1,
            cases=(
                Mesh(text="tp wider than a node", dp=2, tp=4, per_node=2, nodes=True),
                Mesh(text="a last node with free places", dp=3, tp=2, per_node=4, nodes=True),
                Mesh(text="dp alone", dp=4, tp=1, per_node=2, nodes=True),
                Mesh(text="tp alone", dp=1, tp=4, per_node=4, nodes=True),
            ),
            praise="also with one axis alone, and where a row of the mesh is torn apart between nodes",
        ),
    },
    hints=(
        "Draw the mesh: each row has tp ranks, numbered from left to right, and there are dp rows. Where is rank 5 of "
        "three by two?",
        "i, j = divmod(rank, tp) are its row and its column.",
        "Its row is [i * tp + other for other in range(tp)], its column [other * tp + j for other in range(dp)].",
        "Rank r sits in node r // per_node. Count the members of a group whose node is another one.",
    ),
)
