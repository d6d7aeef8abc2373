"""08.1: the groups of a rank on three axes, in whichever order these stand, and the nodes that each group touches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.calls import calls_exercise
from course_lib.checks.kit.spec import Level

NAMES = ("the ranks along the first axis", "those along the second", "those along the third", "the numbers of nodes")
_Sizes = tuple[int, ...]
_Nodes = Callable[["Rank", Sequence[int]], int]


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A mesh of which every rank is asked about; other sizes for another seed."""

    text: str
    sizes: _Sizes
    per_node: int = 8
    nodes: bool = False  # whether these are looked at
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def ranks(self, seed: int) -> list[Rank]:
        """All of them."""
        first, *others = self.sizes
        sizes = (first + seed % 2 * (first > 1), *others)
        return [Rank(rank, sizes, self.per_node) for rank in range(prod(sizes))]


class Rank(NamedTuple):
    """One of the ranks of a mesh, so many of which are in a node."""

    rank: int
    sizes: _Sizes
    per_node: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {' x '.join(map(str, self.sizes))}, {self.per_node} in a node"

    def strides(self) -> list[int]:
        """How many ranks farther the next one along each axis is: the last counts fastest."""
        return [prod(self.sizes[axis + 1 :]) for axis in range(len(self.sizes))]

    def along(self, axis: int) -> list[int]:
        """The ranks that differ from it in that coordinate alone."""
        return self.from_stride(self.sizes[axis], self.strides()[axis])

    def from_stride(self, size: int, stride: int) -> list[int]:
        """So many ranks that far apart, this one among them."""
        first = self.rank - self.rank // stride % size * stride
        return [first + other * stride for other in range(size)]

    def nodes(self, group: Sequence[int]) -> int:
        """That a group touches."""
        return len({other // self.per_node for other in group})


_Group = Callable[[Rank, int], list[int]]


def _found(
    rank: int,
    sizes: _Sizes,
    per_node: int,
    *,
    group: _Group = Rank.along,
    nodes: _Nodes = Rank.nodes,
) -> tuple[list[int], ...]:
    """Right, unless a part is chosen otherwise."""
    one = Rank(rank, sizes, per_node)
    groups = [group(one, axis) for axis in range(len(sizes))]
    return *groups, [nodes(one, found) for found in groups]


def _wanted(one: Rank) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(part, dtype=torch.int64) for part in _found(*one))


def _first_fastest(one: Rank, axis: int) -> list[int]:
    return one.from_stride(one.sizes[axis], prod(one.sizes[:axis]))


def _next_size_only(one: Rank, axis: int) -> list[int]:
    """As if a step along an axis passed the next axis alone."""
    return one.from_stride(one.sizes[axis], one.sizes[axis + 1] if axis + 1 < len(one.sizes) else 1)


def _plane(one: Rank, axis: int) -> list[int]:
    """All ranks that share the axis's coordinate."""
    stride, size = one.strides()[axis], one.sizes[axis]
    mine = one.rank // stride % size
    return [other for other in range(prod(one.sizes)) if other // stride % size == mine]


_AXES = calls_exercise(
    key="08.1",
    title="who shares what on three axes",
    names=NAMES,
    records=lambda case, seed: case.ranks(seed),
    wanted=_wanted,
    only=lambda case: range(4 if case.nodes else 3),
    slips={
        "the first axis counts fastest here. The last one does: its neighbours are neighbouring ranks": (
            partial(_found, group=_first_fastest)
        ),
        "the groups stand in the opposite order. They are asked in the order of sizes": (
            partial(_found, group=lambda one, axis: one.along(len(one.sizes) - 1 - axis))
        ),
        "from one rank to the next along the first axis you pass the whole plane of the other two, so multiply their "
        "sizes": partial(_found, group=_next_size_only),
        "those are all ranks that share this coordinate. Along an axis it changes, and the two others stay": (
            partial(_found, group=_plane)
        ),
        "a group begins at coordinate 0 of its axis, not at the rank that is asked about": (
            partial(
                _found,
                group=lambda one, axis: [one.rank + n * one.strides()[axis] for n in range(one.sizes[axis])],
            )
        ),
        "those are coordinates along the axis. Which ranks have them?": (
            partial(_found, group=lambda one, axis: [*range(one.sizes[axis])])
        ),
        "the rank itself is missing. It is in all three of its groups": (
            partial(_found, group=lambda one, axis: [other for other in one.along(axis) if other != one.rank])
        ),
        "those are the ranks that sit in other nodes. Count the nodes, its own among them": (
            partial(_found, nodes=lambda one, group: sum(o // one.per_node != one.rank // one.per_node for o in group))
        ),
        "the rank's own node is not counted": (partial(_found, nodes=lambda one, group: one.nodes(group) - 1)),
        "that is how many nodes the group would fill if its ranks were neighbours. They lie apart, so look where each "
        "one sits": partial(_found, nodes=lambda one, group: -(-len(group) // one.per_node)),
        "rank % per_node is a place inside a node. The node's number is rank // per_node": (
            partial(_found, nodes=lambda one, group: len({other % one.per_node for other in group}))
        ),
    },
    levels={
        "groups": Level(
            points=2,
            cases=(Mesh(text="two by three by four", sizes=(2, 3, 4)), Mesh(text="two by two by two", sizes=(2, 2, 2))),
            praise="along each axis one coordinate changes, and the other two stay",
        ),
        "nodes": Level(
            points=1,
            again=True,
            cases=(
                Mesh(text="the last axis fills half a node", sizes=(4, 4, 4), nodes=True),
                Mesh(text="the last axis fills a node", sizes=(2, 4, 8), nodes=True),
            ),
            praise="the last axis stays inside a node, and each step along the first one leaves it",
        ),
        "edges": Level(
            points=1,
            cases=(
                Mesh(text="an axis of one rank", sizes=(3, 1, 4), per_node=4, nodes=True),
                Mesh(text="the last axis wider than a node", sizes=(2, 2, 8), per_node=4, nodes=True),
                Mesh(text="a last node with free places", sizes=(3, 2, 2), nodes=True),
            ),
            praise="also where an axis has one rank, or a group is torn apart between nodes",
        ),
    },
    hints=(
        "Take 2 x 2 x 2 and rank 5. The lesson has its coordinates: 1, 0 and 1. Change one of them at a time, and "
        "compute the ranks again.",
        "The next rank along the last axis is 1 farther. Along the second it is sizes[2] farther, and along the first "
        "sizes[1] * sizes[2].",
        "With that stride, rank // stride % size is the coordinate along an axis. Subtract coordinate * stride, and "
        "you are at the group's first rank.",
        "Rank r sits in node r // per_node. A set of these numbers has as many members as the group touches nodes.",
    ),
)
