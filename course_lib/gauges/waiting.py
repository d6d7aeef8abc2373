"""Who waits for whom in a job that stands still, and for whom all wait in the end.

With tensor and data parallelism a rank is in two groups, and a hang spreads through them. Rank 3 has stopped. So rank 2
waits for it in a call of their tensor-parallel group, and rank 0 waits for rank 2 in one of their data-parallel group.
Neither has done anything wrong. Follow the waiting to its end, where a rank waits for nobody (`ranks.ends`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from course_lib.gauges.recorded_calls import ALL_RANKS, DESCRIPTION, Dump, FlightCall, is_done, recorded_call


class Group(NamedTuple):
    """A process group by torch's name for it: its kind, as "mesh_tp", and its ranks.

    Of a group that a dump has `listed` these are all of them, of another those of which a call there is remembered.
    """

    name: str
    kind: str
    ranks: tuple[int, ...]
    listed: bool


class Wait(NamedTuple):
    """The first call of a rank that is not done, and the ranks of its group that have not come to it.

    A call with `async_op=True` is such a one, too, wherever the rank's Python is.
    """

    rank: int
    group: Group
    call: FlightCall
    missing: tuple[int, ...]


def groups_in(dumps: Mapping[int, Dump]) -> list[Group]:
    """The group of all ranks, and then all others in which a rank has called; of the dumps, by rank, some may be lost.

    NCCL's dumps list the ranks of each group. Gloo's list at most one group, without its name: if it is the only one,
    that tells how many ranks there are.
    """
    kinds = {ALL_RANKS: DESCRIPTION}
    known = {*dumps}.union(
        *(_listed(group["ranks"]) for dump in dumps.values() for group in dump["pg_config"].values())
    )
    ranks: dict[str, set[int]] = {ALL_RANKS: {*range(max(known, default=-1) + 1)}}
    listed = {ALL_RANKS}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            name, kind = entry["process_group"]
            kinds.setdefault(name, kind)
            ranks.setdefault(name, set()).add(rank)
    for dump in dumps.values():
        for name in kinds.keys() & dump["pg_config"].keys():
            ranks[name] |= _listed(dump["pg_config"][name]["ranks"])
            listed.add(name)
    return [Group(name, kind, tuple(sorted(ranks[name])), name in listed) for name, kind in kinds.items()]


@cache
def _listed(ranks: str) -> frozenset[int]:
    """The ranks of a group as a dump writes them, "[0, 1]"; a thousand ranks write the same thousand."""
    return frozenset(json.loads(ranks))


def waits_in(dumps: Mapping[int, Dump], groups: Sequence[Group]) -> dict[int, Wait]:
    """By rank: the first of its calls that is not done. Whose first is a send or a receive is left out."""
    by_name = {group.name: group for group in groups}
    reached = {rank: _last_numbers(dump) for rank, dump in dumps.items()}
    found = {}
    for rank, dump in dumps.items():
        entry = next((one for one in dump["entries"] if not is_done(one)), None)
        if entry is None or entry.get("is_p2p"):
            continue
        call, group = recorded_call(entry), by_name[entry["process_group"][0]]
        missing = [other for other in group.ranks if reached.get(other, {}).get(group.name, 0) < call.number]
        found[rank] = Wait(rank, group, call, tuple(missing))
    return found


def _last_numbers(dump: Dump) -> dict[str, int]:
    """By group: the number of the last collective that this rank has called there."""
    return {one["process_group"][0]: one["collective_seq_id"] for one in dump["entries"] if not one.get("is_p2p")}
