"""Who holds which chunk before and after each primitive, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from course_lib.errors import four_parts

LARGEST_PICTURE = 8  # ranks: as many as there are hues


class Chunk(NamedTuple):
    """Chunk `number` of the tensor of one rank, or of the sum over several; nothing, if `sources` is empty."""

    sources: tuple[int, ...]
    number: int

    @property
    def name(self) -> str:
        """A0 is chunk 0 of rank 0's tensor, Σ0 the sum of all ranks' chunks 0."""
        if not self.sources:
            return "empty"
        return f"{chr(ord('A') + self.sources[0])}{self.number}" if len(self.sources) == 1 else f"Σ{self.number}"


Holdings = tuple[tuple[Chunk, ...], ...]  # by rank, by place
_Rule = Callable[[int, int, range], tuple[int, ...]]  # (rank, place, ranks) -> sources of the chunk there

MEANINGS = {
    "broadcast": "one rank's tensor to every rank",
    "scatter": "one rank deals out its tensor, a chunk to each",
    "gather": "one rank collects every rank's chunk",
    "all_gather": "every rank collects every rank's chunk",
    "reduce": "one rank gets the sum of all tensors",
    "all_reduce": "every rank gets the sum of all tensors",
    "reduce_scatter": "every rank gets one chunk of the sum",
    "all_to_all": "every rank sends a chunk to every rank",
}
OPERATIONS = tuple(MEANINGS)


def _whole_on_root(r: int, c: int, ranks: range) -> tuple[int, ...]:
    return (0,) if r == 0 else ()


def _whole_on_all(r: int, c: int, ranks: range) -> tuple[int, ...]:
    return (r,)


def _own_chunk(r: int, c: int, ranks: range) -> tuple[int, ...]:
    return (r,) if r == c else ()


_RULES: dict[str, tuple[_Rule, _Rule]] = {
    "broadcast": (_whole_on_root, lambda r, c, ranks: (0,)),
    "scatter": (_whole_on_root, lambda r, c, ranks: (0,) if r == c else ()),
    "gather": (_own_chunk, lambda r, c, ranks: (c,) if r == 0 else ()),
    "all_gather": (_own_chunk, lambda r, c, ranks: (c,)),
    "reduce": (_whole_on_all, lambda r, c, ranks: tuple(ranks) if r == 0 else ()),
    "all_reduce": (_whole_on_all, lambda r, c, ranks: tuple(ranks)),
    "reduce_scatter": (_whole_on_all, lambda r, c, ranks: tuple(ranks) if r == c else ()),
    "all_to_all": (_whole_on_all, lambda r, c, ranks: (c,)),
}


def holdings(operation: str, world_size: int) -> tuple[Holdings, Holdings]:
    """What every rank holds before and after `operation`; the root, where there is one, is rank 0.

    Raises: ValueError for an operation that moves no chunks, and for more ranks than there are hues.
    """
    check_picture_size("who_holds_what", world_size)
    if operation not in _RULES:
        raise ValueError(
            four_parts(
                "who_holds_what",
                f"operation={operation!r}",
                "only the eight primitives that move data have a before and an after",
                f"choose one of {', '.join(OPERATIONS)}",
            )
        )
    before, after = (_table(rule, range(world_size)) for rule in _RULES[operation])
    if operation == "all_to_all":  # chunk j of every rank lands on rank j
        after = tuple(tuple(Chunk(c.sources, rank) for c in row) for rank, row in enumerate(after))
    return before, after


def check_picture_size(operation: str, world_size: int, largest: int = LARGEST_PICTURE) -> None:
    """Raise unless `world_size` ranks fit the page, each with its own hue."""
    if not 1 <= world_size <= largest:
        raise ValueError(
            four_parts(
                operation,
                f"world_size={world_size}",
                f"this picture holds 1 to {largest} ranks",
                "draw fewer ranks: the pattern is the same",
            )
        )


def _table(rule: _Rule, ranks: range) -> Holdings:
    return tuple(tuple(Chunk(rule(r, c, ranks), c) for c in ranks) for r in ranks)
