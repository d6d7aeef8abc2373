"""What a key says, and in how many lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

Thing = TypeVar("Thing")


class Entry(NamedTuple):
    """What is said, after swatches of its colours; none for a remark."""

    text: str
    hues: Sequence[str] = ()
    striped: bool = False
    dashed: bool = False  # an empty place, with an outline of its colour


def broken(things: Iterable[Thing], width_of: Callable[[Thing], float], room: float) -> list[list[Thing]]:
    """Things in as few lines as their widths allow, in their order; each is followed by a space, the last one too."""
    lines: list[list[Thing]] = [[]]
    for thing in things:
        if lines[-1] and sum(map(width_of, [*lines[-1], thing])) > room:
            lines.append([])
        lines[-1].append(thing)
    return lines
