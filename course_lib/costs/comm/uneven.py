"""An all-to-all whose messages are of any size: what each rank sends to each other one is known, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.costs.comm.traffic import Case, CommTime
from course_lib.errors import four_parts


def all_to_all_uneven(sizes: Sequence[Sequence[int]], *, node_size: int | None = None) -> CommTime:
    """`sizes[r][j]` are the bytes that rank r has for rank j: in step s = 1 .. p - 1, rank r sends to rank r + s.

    What a rank has for itself stays where it is. What is empty is no message, and a step without a message is none. A
    step takes as long as its largest message, so one rank that has much for another holds up all.
    Source: Thakur, Rabenseifner & Gropp 2005, section 3.3 (pairwise exchange).
    Raises: ValueError unless there is a size for each pair of ranks.
    """
    p = len(sizes)
    if not p or any(len(row) != p or min(row) < 0 for row in sizes):
        values = f"{p} ranks, rows of {[len(row) for row in sizes]}"
        rule = "each rank has a size, 0 or more, for each rank"
        raise ValueError(four_parts("all_to_all_uneven", values, rule, "give a square table of bytes"))
    ranks = range(p)
    others = [[(j, sizes[r][j], sizes[j][r]) for j in ranks if j != r] for r in ranks]
    return CommTime(
        sent_bytes=tuple(sum(out for _, out, _ in row) for row in others),
        received_bytes=tuple(sum(into for _, _, into in row) for row in others),
        messages=tuple(sum(out > 0 for _, out, _ in row) for row in others),
        path=tuple(
            step._replace(nbytes=largest)
            for s, step in enumerate(Case(world_size=p, length=1, itemsize=1, node_size=node_size).pairwise_path(), 1)
            if (largest := max(sizes[r][(r + s) % p] for r in ranks))
        ),
    )


def transposed(sizes: Sequence[Sequence[int]]) -> list[list[int]]:
    """The way back: rank j returns to rank r as much as came from it."""
    return [list(row) for row in zip(*sizes, strict=True)]
