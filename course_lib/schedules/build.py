"""Schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib.errors import four_parts
from course_lib.schedules import orders
from course_lib.schedules.instructions import Compute, Schedule
from course_lib.schedules.messages import add_messages

_Order = Callable[[int, int, int], Iterator[Compute]]
_ORDERS: dict[str, _Order] = {
    "gpipe": orders.gpipe,
    "1f1b": orders.one_f_one_b,
    "zb-h1": orders.zero_bubble,
}
SCHEDULES = (*_ORDERS, "interleaved")


def make_schedule(name: str, n_ranks: int, n_microbatches: int, *, stages_per_rank: int = 1) -> Schedule:
    """A schedule for p ranks, m micro-batches and, if it is "interleaved", v stages on each rank.

    Raises: ValueError for an unknown name, and for numbers for which there is no such schedule.
    """
    _check(name, n_ranks, n_microbatches, stages_per_rank)
    lists = []
    for rank in range(n_ranks):
        if name == "interleaved":
            order = orders.interleaved(rank, n_ranks, n_microbatches, stages_per_rank)
        else:
            order = _ORDERS[name](rank, n_ranks, n_microbatches)
        lists.append(tuple(order))
    schedule = Schedule(
        name=name,
        n_microbatches=n_microbatches,
        lists=tuple(lists),
        stages_per_rank=stages_per_rank,
    )
    return add_messages(schedule)


def _check(name: str, p: int, m: int, v: int) -> None:
    if name not in SCHEDULES:
        _refuse(f"name={name!r}", "no schedule is called so", f"choose one of {', '.join(SCHEDULES)}")
    for what, number in (("n_ranks", p), ("n_microbatches", m), ("stages_per_rank", v)):
        if not isinstance(number, int) or number < 1:
            _refuse(f"{what}={number!r}", f"{what} is a positive whole number", f"give {what} >= 1")
    if name == "interleaved" and v < 2:
        _refuse(f"interleaved, stages_per_rank={v}", "a rank takes turns between stages", "give 2 or more, or use 1f1b")
    if name == "interleaved" and m % p:
        less = m // p * p
        way_out = f"choose {less} or {less + p}" if less else f"choose {p}"
        rule = "micro-batches go round the ranks in groups of n_ranks"
        _refuse(f"interleaved, n_microbatches={m}, n_ranks={p}", rule, way_out)
    if name != "interleaved" and v > 1:
        _refuse(f"{name}, stages_per_rank={v}", "it has one stage on each rank", "give 1, or use interleaved")


def _refuse(values: str, rule: str, way_out: str) -> None:
    raise ValueError(four_parts("make_schedule", values, rule, way_out))
