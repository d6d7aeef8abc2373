"""What torch's flight recorder holds: every collective that a rank has called, its number, and the line that called it.

A dump is `pickle.loads(torch._C._distributed_c10d._dump_fr_trace())`, or from JSON, which has no lines of code. Calls
are numbered within a group of ranks. How groups depend on each other is `waiting.py`'s; in words, `flight.py`'s.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Dump = Mapping[str, Any]
ALL_RANKS = "0"  # torch's name of the group of all ranks
DESCRIPTION = "default_pg"  # what torch says of it
_GIVES_ITS_OWN = ("scatter", "all_to_all")  # only the root has something to scatter, and messages may be unequal
_HAS_A_ROOT = ("broadcast", "reduce", "scatter", "gather")  # which often stands at a line of its own
_NOT_YOURS = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|/course_lib/|^<frozen")


class FlightCall(NamedTuple):
    """One collective of one rank; `place` is where your own code stood, as "save, line 59"."""

    number: int
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    done: bool
    place: str


class Difference(NamedTuple):
    """The number of a call in which ranks differ, and which of them are unlike most others."""

    number: int
    ranks: tuple[int, ...]


def flight_calls(dump: Dump, group: str = ALL_RANKS) -> list[FlightCall]:
    """One rank's collectives in one group of ranks, in their order; sends and receives are left out."""
    return [recorded_call(one) for one in dump["entries"] if one["process_group"][0] == group and not one.get("is_p2p")]


def recorded_call(entry: Mapping[str, Any]) -> FlightCall:
    """One entry of a dump, without what nobody asks for."""
    return FlightCall(
        number=entry["collective_seq_id"],
        operation=entry["profiling_name"].rpartition(":")[2],
        sizes=tuple(map(tuple, entry["input_sizes"])),
        done=is_done(entry),
        place=_place(entry.get("frames", ())),
    )


def is_done(entry: Mapping[str, Any]) -> bool:
    """Whether a call has ended, well or with an error.

    Gloo's `state` says "scheduled" for ever, so what has ended is read from `retired`. NCCL retires a call that has
    timed out, too, and its watchdog may retire one some time after it has ended, so there the `state` tells.
    """
    if entry["profiling_name"].startswith("gloo:"):
        return bool(entry["retired"])
    return bool(entry["state"] == "completed")


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost frame comes first; torch's own are above yours."""
    own = [frame for frame in frames if not _NOT_YOURS.search(frame["filename"])]
    return f"{own[0]['name']}, line {own[0]['line']}" if own else ""


def calls_by_number(calls_by_rank: Sequence[Sequence[FlightCall]]) -> dict[int, list[FlightCall | None]]:
    """For each number the ranks' calls side by side, None where a rank has none.

    The recorder forgets its oldest calls, so this begins where all ranks still remember.
    """
    known = [{call.number: call for call in calls} for calls in calls_by_rank]
    first = max((min(calls, default=1) for calls in known), default=1)
    last = max((max(calls, default=0) for calls in known), default=0)
    return {number: [calls.get(number) for calls in known] for number in range(first, last + 1)}


def unlike_most(calls: Sequence[FlightCall | None]) -> tuple[int, ...]:
    """Ranks whose operation, sizes or place is not the most common one.

    Of two as common, who has called counts before who has not, and then rank 0's side.
    """
    seen = [call and must_agree(call) for call in calls]
    times = Counter(seen)
    usual = max(times, key=lambda one: (times[one], one is not None))
    return tuple(rank for rank, one in enumerate(seen) if one != usual)


def must_agree(call: FlightCall) -> tuple[str, object, object]:
    """Operation, sizes and place, where they must be alike on all ranks of a group; None for what is a rank's own."""
    sizes = None if call.operation in _GIVES_ITS_OWN else call.sizes
    place = None if call.operation in _HAS_A_ROOT else call.place
    return call.operation, sizes, place


def first_difference(calls_by_rank: Sequence[Sequence[FlightCall]]) -> Difference | None:
    """The first call in which not all ranks do the same at the same place; None if they never part."""
    unlike = {number: unlike_most(calls) for number, calls in calls_by_number(calls_by_rank).items()}
    return next((Difference(number, ranks) for number, ranks in unlike.items() if ranks), None)


def with_named_groups(dump: Dump, world_size: int | None = None) -> dict[str, Any]:
    """The same dump, in which `torchfrtrace` finds the group of all ranks by its name.

    Gloo lists one group under an empty name, and the tool stops there with a KeyError. Give the `world_size` if your
    script makes further groups, for the list is empty then; their calls are left out, as no dump says who is in them.
    """
    if "" not in dump["pg_config"]:
        return {**dump}
    ranks = dump["pg_config"][""]["ranks"] if world_size is None else str([*range(world_size)])
    entries = [one for one in dump["entries"] if one["process_group"][0] == ALL_RANKS]
    named = {"name": ALL_RANKS, "desc": DESCRIPTION, "ranks": ranks}
    return {**dump, "entries": entries, "pg_config": {ALL_RANKS: named}}


def write_for_torchfrtrace(dumps: Path, target: Path) -> None:
    """A folder's pickled dumps, one of each rank, with named groups in a new folder under the same file names."""
    target.mkdir(parents=True)
    files = [*dumps.iterdir()]
    for file in files:
        mended = with_named_groups(pickle.loads(file.read_bytes()), len(files))
        (target / file.name).write_bytes(pickle.dumps(mended))
