"""The ring all-reduce as plain data: which chunk travels in each step, and whose parts each buffer then holds."""

from __future__ import annotations

from typing import NamedTuple

from course_lib.errors import four_parts
from course_lib.viz.wires.holdings import check_picture_size

Parts = tuple[int, ...]  # the ranks whose data a chunk holds, in rank order


class Transfer(NamedTuple):
    """One chunk on its way from one rank to its right-hand neighbour."""

    source: int
    target: int
    chunk: int
    parts: Parts


class RingStep(NamedTuple):
    """The ring after one step."""

    number: int  # 0 is the start, 2(p - 1) the end
    phase: str  # "start", "reduce-scatter" or "all-gather"
    transfers: tuple[Transfer, ...]
    buffers: tuple[tuple[Parts, ...], ...]  # by rank, by chunk


def ring_steps(world_size: int) -> list[RingStep]:
    """Every state of a ring all-reduce, from the start to the end.

    Rank r owns chunk r in the middle: in reduce-scatter it first sends chunk r - 1, in all-gather chunk r.
    Source: Patarasuk & Yuan 2009.
    """
    check_picture_size("ring_all_reduce_step", world_size)
    p = world_size
    buffers: list[list[Parts]] = [[(rank,) for _ in range(p)] for rank in range(p)]
    steps = [RingStep(0, "start", (), _frozen(buffers))]
    for number in range(1, 2 * (p - 1) + 1):
        adding = number < p
        first = number if adding else number - p
        moving = [(rank, (rank - first) % p) for rank in range(p)]
        transfers = tuple(Transfer(rank, (rank + 1) % p, c, buffers[rank][c]) for rank, c in moving)
        for _, target, c, parts in transfers:
            buffers[target][c] = tuple(sorted({*buffers[target][c], *parts})) if adding else parts
        steps.append(RingStep(number, "reduce-scatter" if adding else "all-gather", transfers, _frozen(buffers)))
    return steps


def ring_step(world_size: int, step: int) -> RingStep:
    """One state of a ring all-reduce.

    Raises: ValueError for a step that the ring does not have.
    """
    steps = ring_steps(world_size)
    if not 0 <= step < len(steps):
        raise ValueError(
            four_parts(
                "ring_all_reduce_step",
                f"step={step}",
                f"a ring of {world_size} has steps 0 to {len(steps) - 1}: 0 is the start, then 2(p - 1) sends",
                "choose one of them",
            )
        )
    return steps[step]


def _frozen(buffers: list[list[Parts]]) -> tuple[tuple[Parts, ...], ...]:
    return tuple(tuple(row) for row in buffers)
