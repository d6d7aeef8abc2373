"""Where all waiting leads, if each rank waits for some others: to ranks that wait for nobody, or into a circle."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Ends(NamedTuple):
    """Ranks that are waited for and wait for nobody, and ranks that wait for each other in a circle."""

    awaited: tuple[int, ...]
    circle: tuple[int, ...]


def ends_of(held_up_by: Mapping[int, Collection[int]]) -> Ends:
    """Follow the waiting to its ends, from the ranks that hold up each rank.

    Whoever waits for a rank that waits for an end is held up by that end. Of those that are held up by none, who is
    waited for by one of them stands in a circle.
    """
    held = {rank: {*others} for rank, others in held_up_by.items() if others}
    awaited = set().union(*held.values()) - held.keys()
    led = {*awaited}
    while more := {rank for rank, others in held.items() if rank not in led and others & led}:
        led |= more
    circle = held.keys() - led
    while circle != (inner := circle & set().union(*(held[rank] for rank in circle))):
        circle = inner
    return Ends(tuple(sorted(awaited)), tuple(sorted(circle)))
