"""What torch's flight recorder holds: every collective that a rank has called, its number, and the line that called it.

A dump is `pickle.loads(torch._C._distributed_c10d._dump_fr_trace())`, or from JSON, which has no lines of code.
`python -m course_lib.gauges.flight FOLDER` reads a folder's `trace_RANK` and says where ranks part; in place of a
folder it takes HOST:PORT, where torch's debug server answers for a job that hangs.
"""

from __future__ import annotations

import html
import json
import pickle
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from course_lib.errors import four_parts

Dump = Mapping[str, Any]
_PATIENCE_S = 70  # the server itself waits a minute for a rank that is stopped
_ALL_RANKS = ("0", "default_pg")  # torch's name and description of the group of all ranks
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


def flight_calls(dump: Dump) -> list[FlightCall]:
    """One rank's collectives in the group of all ranks, in their order; sends and receives are left out.

    Gloo's `state` says "scheduled" for ever, so what is done is read from `retired`.
    """
    entries = [one for one in dump["entries"] if tuple(one["process_group"]) == _ALL_RANKS and not one.get("is_p2p")]
    return [
        FlightCall(
            number=one["collective_seq_id"],
            operation=one["profiling_name"].rpartition(":")[2],
            sizes=tuple(map(tuple, one["input_sizes"])),
            done=one["retired"],
            place=_place(one.get("frames", ())),
        )
        for one in entries
    ]


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
    """Ranks whose operation, sizes or place is not the most common one; of two as common, rank 0's side counts."""
    seen = [call and (call.operation, call.sizes, call.place) for call in calls]
    usual = Counter(seen).most_common(1)[0][0]
    return tuple(rank for rank, one in enumerate(seen) if one != usual)


def first_difference(calls_by_rank: Sequence[Sequence[FlightCall]]) -> Difference | None:
    """The first call in which not all ranks do the same at the same place; None if they never part."""
    unlike = {number: unlike_most(calls) for number, calls in calls_by_number(calls_by_rank).items()}
    return next((Difference(number, ranks) for number, ranks in unlike.items() if ranks), None)


def with_named_groups(dump: Dump, world_size: int | None = None) -> dict[str, Any]:
    """The same dump, in which `torchfrtrace` finds the group of all ranks by its name.

    Gloo lists one group, the last that was made, under an empty name, and the tool stops there with a KeyError. Give
    the `world_size` if your script makes further groups; their calls are left out, as no dump says who is in them.
    """
    if "" not in dump["pg_config"]:
        return {**dump}
    ranks = dump["pg_config"][""]["ranks"] if world_size is None else str([*range(world_size)])
    entries = [one for one in dump["entries"] if tuple(one["process_group"]) == _ALL_RANKS]
    name, description = _ALL_RANKS
    return {**dump, "entries": entries, "pg_config": {name: {"name": name, "desc": description, "ranks": ranks}}}


def write_for_torchfrtrace(dumps: Path, target: Path) -> None:
    """A folder's pickled dumps, one of each rank, with named groups in a new folder under the same file names."""
    target.mkdir(parents=True)
    files = [*dumps.iterdir()]
    for file in files:
        mended = with_named_groups(pickle.loads(file.read_bytes()), len(files))
        (target / file.name).write_bytes(pickle.dumps(mended))


def dumps_in(folder: Path) -> list[Dump]:
    """A folder's dumps, one file `trace_RANK` of each rank."""
    files = sorted(folder.glob("trace_*"), key=lambda file: int(file.name.removeprefix("trace_")))
    return [pickle.loads(file.read_bytes()) for file in files]


def _dumps_from(address: str) -> list[Dump | None]:
    """What the debug server at HOST:PORT knows of each rank, and None of one that did not answer it; without lines.

    Source: torch 2.13, `torch.distributed.debug`, whose page of JSON has a heading and a block for each rank.
    Raises: OSError if nobody answers there.
    """
    with urlopen(f"http://{address}/fr_trace_json", timeout=_PATIENCE_S) as answer:
        page = answer.read().decode()
    blocks = [html.unescape(block) for block in re.findall(r"<h2>Rank.*?<pre>(.*?)</pre>", page, re.DOTALL)]
    return [json.loads(block) if block.startswith("{") else None for block in blocks]


def where_ranks_part(dumps: Sequence[Dump]) -> str:
    """In words: the first call in which ranks differ, and the last call of each."""
    calls = [flight_calls(dump) for dump in dumps]
    found = first_difference(calls)
    if found is None:
        return f"{len(dumps)} ranks make the same calls at the same places; none is ahead"
    lines = [f"ranks part in call {found.number}; unlike most: {', '.join(map(str, found.ranks))}"]
    for number in sorted({found.number, *(own[-1].number for own in calls if own)}):
        for rank, call in enumerate(calls_by_number(calls)[number]):
            lines.append(f"  call {number}, rank {rank}: {'no call' if call is None else _said(call)}")
    return "\n".join(lines)


def _said(call: FlightCall) -> str:
    place = f" in {call.place}" if call.place else f" of {[*map(list, call.sizes)]}"
    return f"{call.operation}{place}, {'done' if call.done else 'waits'}"


def main(words: Sequence[str]) -> int:
    """Say where the ranks of a folder or of a debug server part; 2 after one line if there is nothing to read."""
    place = " ".join(words)
    try:
        dumps = dumps_in(Path(place)) if place and Path(place).is_dir() else _dumps_from(place)
        rule = "" if dumps else "there is no dump of any rank"
    except (OSError, ValueError) as error:
        rule = f"no debug server answers there ({getattr(error, 'reason', error)})"
    if rule:
        way_out = "give a folder of trace_RANK, or the HOST:PORT of start_debug_server, on the host of rank 0"
        print(four_parts("flight", place or "nothing is named", rule, way_out), file=sys.stderr)
        return 2
    print(_told(dumps))
    return 0


def _told(dumps: Sequence[Dump | None]) -> str:
    silent = [str(rank) for rank, dump in enumerate(dumps) if dump is None]
    if silent:
        return f"the debug server got no answer of rank {', '.join(silent)}; look there first (ps: stopped, T?)"
    return where_ranks_part([dump for dump in dumps if dump is not None])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
