"""Formulas of broadcast, reduce, scatter and gather along a tree whose root is `root`.

Naive means the star: every other rank is a child of the root, served one after the other. Tree means the
binomial tree: with v = (rank - root) mod p, the children of v are v + 1, v + 2, v + 4, ... below
v + (lowest set bit of v), and all of them below p; the root's are v + 1, v + 2, v + 4, ... below p.
Source: Thakur, Rabenseifner & Gropp 2005, section 3.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.costs.comm.traffic import Case, CommTime, Step


class Tree(NamedTuple):
    """Who sends to whom, seen from the root outwards."""

    children: tuple[tuple[int, ...], ...]  # by rank
    subtree: tuple[tuple[int, ...], ...]  # by rank: itself and all below
    levels: tuple[tuple[tuple[int, int], ...], ...]  # (parent, child) pairs that can talk at the same time


def star(case: Case) -> Tree:
    """Every other rank hangs on the root, which talks to one at a time."""
    others = tuple(r for r in case.ranks if r != case.root)
    return Tree(
        children=tuple(others if r == case.root else () for r in case.ranks),
        subtree=tuple(tuple(case.ranks) if r == case.root else (r,) for r in case.ranks),
        levels=tuple(((case.root, r),) for r in others),
    )


def binomial(case: Case) -> Tree:
    """Every rank that has the data passes it on: ceil(log2 p) levels."""
    p = case.world_size
    distances = [1 << k for k in range((p - 1).bit_length())]

    def rank(v: int) -> int:
        return (v + case.root) % p

    def span(v: int) -> int:  # of ranks below and with v, were p a power of two
        return v & -v or 1 << (p - 1).bit_length()

    relative = [(r - case.root) % p for r in case.ranks]
    return Tree(
        children=tuple(tuple(rank(v + d) for d in distances if d < span(v) and v + d < p) for v in relative),
        subtree=tuple(tuple(rank(u) for u in range(v, min(v + span(v), p))) for v in relative),
        levels=tuple(tuple((rank(v), rank(v + d)) for v in range(0, p - d, 2 * d)) for d in reversed(distances)),
    )


def broadcast(case: Case, tree: Tree) -> CommTime:
    """The whole tensor on every edge, from the root outwards."""
    return _outwards(case, tree, [case.nbytes] * case.world_size)


def reduce(case: Case, tree: Tree) -> CommTime:
    """The whole tensor, partly summed, on every edge, towards the root."""
    return _inwards(case, tree, [case.nbytes] * case.world_size)


def scatter(case: Case, tree: Tree) -> CommTime:
    """On the edge to a rank, the chunks of the ranks in its subtree, as one message."""
    return _outwards(case, tree, _subtree_bytes(case, tree))


def gather(case: Case, tree: Tree) -> CommTime:
    """On the edge from a rank, the chunks of the ranks in its subtree, as one message."""
    return _inwards(case, tree, _subtree_bytes(case, tree))


def _subtree_bytes(case: Case, tree: Tree) -> list[int]:
    return [sum(case.chunks[r] for r in below) for below in tree.subtree]


def _outwards(case: Case, tree: Tree, payload: list[int]) -> CommTime:
    """Cost when `payload[r]` bytes go to rank r from its parent."""
    return CommTime(
        sent_bytes=tuple(sum(payload[child] for child in tree.children[r]) for r in case.ranks),
        received_bytes=tuple(payload[r] * (r != case.root) for r in case.ranks),
        messages=tuple(sum(payload[child] > 0 for child in tree.children[r]) for r in case.ranks),
        path=_path(case, tree, payload),
    )


def _inwards(case: Case, tree: Tree, payload: list[int]) -> CommTime:
    """Cost when `payload[r]` bytes go from rank r to its parent: the mirror image of `_outwards`."""
    out = _outwards(case, tree, payload)
    return CommTime(
        sent_bytes=out.received_bytes,
        received_bytes=out.sent_bytes,
        messages=tuple(int(sent > 0) for sent in out.received_bytes),
        path=out.path[::-1],
    )


def _path(case: Case, tree: Tree, payload: list[int]) -> tuple[Step, ...]:
    """One step per level, except where all messages would be empty."""
    steps = (case.step(max(payload[child] for _, child in level), level) for level in tree.levels)
    return tuple(step for step in steps if step.nbytes)
