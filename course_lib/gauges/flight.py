"""`python -m course_lib.gauges.flight FOLDER` says where ranks part and for whom they wait, from its `trace_RANK`.

In place of a folder it takes HOST:PORT, where torch's debug server answers for a job that hangs.
"""

from __future__ import annotations

import html
import json
import pickle
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from course_lib.errors import four_parts
from course_lib.gauges.recorded_calls import (
    ALL_RANKS,
    Dump,
    FlightCall,
    calls_by_number,
    first_difference,
    flight_calls,
    is_done,
    must_agree,
    recorded_call,
)
from course_lib.gauges.waiting import Group, Wait, groups_in, waits_in
from course_lib.ranks.ends import ends_of

_PATIENCE_S = 70  # the server itself waits a minute for a rank that is stopped
_MOST = 8  # lines of a kind, of a job with many ranks


def dumps_in(folder: Path) -> dict[int, Dump]:
    """A folder's dumps by rank, of files that end in it, as `trace_3` or torchtitan's `rank_3`.

    A rank whose node is lost has written none.
    Raises: ValueError if the folder holds dumps of several jobs, or a file is no dump.
    """
    names = [re.fullmatch(r"(.*?)(\d+)", file.name) for file in folder.iterdir()]
    ranks = {(found[1], int(found[2])): folder / found[0] for found in names if found}
    if len({prefix for prefix, _ in ranks}) > 1:
        raise ValueError(f"dumps of several jobs lie there: {', '.join(sorted({prefix for prefix, _ in ranks}))}")
    return {rank: _dump_of(file) for (_, rank), file in sorted(ranks.items())}


def _dump_of(file: Path) -> Dump:
    try:
        dump: Dump = pickle.loads(file.read_bytes())
        dump["entries"], dump["pg_config"]
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, ImportError) as error:
        raise ValueError(f"{file.name} is no whole dump ({error})") from error
    return dump


def _dumps_from(address: str) -> dict[int, Dump | None]:
    """What the debug server at HOST:PORT knows of each rank, and None of one that did not answer it; without lines.

    Source: torch 2.13, `torch.distributed.debug`, whose page of JSON has a heading and a block for each rank.
    Raises: OSError if nobody answers there.
    """
    with urlopen(f"http://{address}/fr_trace_json", timeout=_PATIENCE_S) as answer:
        page = answer.read().decode()
    blocks = [html.unescape(block) for block in re.findall(r"<h2>Rank.*?<pre>(.*?)</pre>", page, re.DOTALL)]
    return {rank: json.loads(block) if block.startswith("{") else None for rank, block in enumerate(blocks)}


def where_ranks_part(dumps: Mapping[int, Dump]) -> str:
    """In words: who waits for whom, and the first call in which ranks of a group differ, with the last call of each.

    What is not recorded does not count: over gloo sends and receives, and the making of groups. A job that runs looks
    for a moment as if it stood still, so of a second dump some seconds later the same must come.
    """
    groups = groups_in(dumps)
    waits = waits_in(dumps, groups)
    lines = [*_waiting(dumps, waits), *(line for group in groups for line in _parting(dumps, group, waits))]
    if not lines:
        lines = ["their recorded collectives agree, and none is ahead"]
        lines += {f"all have come to {_in_which(wait)}, and it has not ended" for wait in waits.values()}
    if lost := sorted({*groups[0].ranks} - dumps.keys()):
        lines.insert(0, f"no dump of {_named(lost)}: look there first, whether {_processes(lost)}")
    if any(entry.get("is_p2p") for dump in dumps.values() for entry in dump["entries"]):
        lines.append("sends and receives are not compared")
    return "\n".join([f"dumps of {_named([*dumps])}", *lines])


def _waiting(dumps: Mapping[int, Dump], waits: Mapping[int, Wait]) -> Iterator[str]:
    """Where to look first; then who waits, those first who wait for a rank that is looked at first."""
    ends, circle = ends_of({rank: wait.missing for rank, wait in waits.items()})
    unsure = [wait for wait in waits.values() if not wait.missing and not wait.group.listed]
    idle = [rank for rank in dumps if rank not in waits and (unsure or rank in ends)]
    if idle:
        yield f"look at {_named(idle)} first: others wait, and {_it_is(idle)} held up by no recorded collective"
    for rank in idle[:_MOST]:
        yield f"  rank {rank}: {_last_of(dumps[rank])}"
    if circle:
        yield f"{_named(circle)} wait in a circle: compare the order of their calls, and who has left one out"
    held = sorted((wait for wait in waits.values() if wait.missing), key=lambda wait: not {*wait.missing} & {*ends})
    lines = [f"  rank {wait.rank} waits for {_named(wait.missing)} in {_in_which(wait)}" for wait in held]
    lines += [f"  rank {wait.rank} waits in {_in_which(wait)}; who else is in it is not known" for wait in unsure]
    yield from lines[:_MOST]
    if lines[_MOST:]:
        yield f"  and {len(lines) - _MOST} more wait"


def _last_of(dump: Dump) -> str:
    """A rank's unfinished send or receive, or else its last collective."""
    for entry in dump["entries"]:
        if entry.get("is_p2p") and not is_done(entry):
            return f"waits in {entry['profiling_name']}"
    calls = [entry for entry in dump["entries"] if not entry.get("is_p2p")]
    return f"its last was {_said(recorded_call(calls[-1]))}" if calls else "it has called none"


def _parting(dumps: Mapping[int, Dump], group: Group, waits: Mapping[int, Wait]) -> Iterator[str]:
    """The first call of a group in which ranks differ. Where one is only waited for, that has been said already."""
    ranks = [rank for rank in group.ranks if rank in dumps]
    calls = [flight_calls(dumps[rank], group.name) for rank in ranks]
    found = first_difference(calls)
    if found is None or _only_waits(calls_by_number(calls)[found.number], found.number, group, waits):
        return
    few = 2 * len(found.ranks) < len(ranks)  # of half against half nobody is usual
    unlike = f"; unlike most: {', '.join(str(ranks[place]) for place in found.ranks)}" if few else ""
    yield f"ranks part in call {found.number}{_of(group)}{unlike}"
    last = {own[-1].number for own in calls if own}
    for number in [found.number, *sorted(number for number in last if number > found.number)]:
        made = calls_by_number(calls)[number]
        operations, shapes = {call.operation for call in made if call}, {call.sizes for call in made if call}
        unequal = len(operations) == 1 and len(shapes) > 1
        for rank, call in zip(ranks, made, strict=True):
            yield f"  call {number}, rank {rank}: {'no call' if call is None else _said(call, sizes=unequal)}"


def _only_waits(calls: Sequence[FlightCall | None], number: int, group: Group, waits: Mapping[int, Wait]) -> bool:
    """Whether all who have made this call made the same, and one of them still waits in it for the others."""
    alike = len({must_agree(call) for call in calls if call}) == 1
    return alike and any(wait.group == group and wait.call.number == number and wait.missing for wait in waits.values())


def _named(ranks: Sequence[int]) -> str:
    more = [f"and {len(ranks) - _MOST} more"] if ranks[_MOST:] else []
    return f"rank{'s' * (len(ranks) > 1)} {', '.join([*map(str, ranks[:_MOST]), *more])}"


def _it_is(ranks: Sequence[int]) -> str:
    return "it is" if len(ranks) == 1 else "they are"


def _processes(ranks: Sequence[int]) -> str:
    return "its process still runs" if len(ranks) == 1 else "their processes still run"


def _in_which(wait: Wait) -> str:
    return f"call {wait.call.number}{_of(wait.group)}, {_what(wait.call)}"


def _of(group: Group) -> str:
    if group.name == ALL_RANKS:
        return ""
    kind = f"group {group.name}" if group.kind == "undefined" else group.kind
    return f" of {kind} ({'' if group.listed else 'called by '}{_named(group.ranks)})"


def _said(call: FlightCall, *, sizes: bool = False) -> str:
    return f"{_what(call, sizes=sizes)}, {'ended' if call.done else 'waits'}"


def _what(call: FlightCall, *, sizes: bool = False) -> str:
    of_sizes = f" of {[*map(list, call.sizes)]}" if sizes or not call.place else ""
    return f"{call.operation}{of_sizes}{f' in {call.place}' * bool(call.place)}"


def main(words: Sequence[str]) -> int:
    """Say where the ranks of a folder or of a debug server part; 2 after one line if there is nothing to read."""
    place = " ".join(words)
    folder = Path(place) if place and Path(place).is_dir() else None
    try:
        dumps = dumps_in(folder) if folder else _dumps_from(place)
        rule = "" if dumps else "there is no dump of any rank"
    except (OSError, ValueError, HTTPException) as error:
        rule = str(error) if folder else f"no debug server answers there ({getattr(error, 'reason', error)})"
    if rule:
        way_out = "give a folder of trace_RANK, or the HOST:PORT of start_debug_server, on the host of rank 0"
        print(four_parts("flight", place or "nothing is named", rule, way_out), file=sys.stderr)
        return 2
    print(_told(dumps))
    return 0


def _told(dumps: Mapping[int, Dump | None]) -> str:
    silent = [str(rank) for rank, dump in dumps.items() if dump is None]
    if silent:
        return f"the debug server got no answer of rank {', '.join(silent)}; look there first (ps: stopped, T?)"
    return where_ranks_part({rank: dump for rank, dump in dumps.items() if dump is not None})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
