"""12.3: from the flight recorder's dumps of all ranks to the one that strays, its operation, and a file and line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_12.recorded import Found, Hang, Recording

_KINDS = ("missing", "operation", "size")
_WANTED = "None or four things: how, the rank, the operation, and the place"
_Entry = Mapping[str, Any]
_Dumps = Sequence[Mapping[str, Any]]
_Groups = Mapping[str, Sequence[int]]


def _use(answer: Callable[..., Any], asked: Recording) -> list[Any] | str | None:
    """Runs on a rank; a text says what came instead."""
    found = answer(asked.dumps, asked.groups)
    if found is None:
        return None
    if not isinstance(found, tuple | list) or len(found) != len(Found._fields):
        return wrong_kind(type(found).__name__, _WANTED)
    return [part if isinstance(part, str | int) else str(part) for part in found]


def _judge(asked: Recording, found: list[Any] | str | None) -> str | None:
    want = asked.wanted
    if isinstance(found, str):
        return found
    if want is None or found is None:
        if want is None and found is None:
            return None
        shown = "None" if found is None else " ".join(map(str, found))
        meant = (
            "no rank strays: each call that has not come back was made by all of its group"
            if want is None
            else (f"a rank strays, in a way that is called {want.kind!r}")
        )
        return f"returned {shown}, but {meant}"
    kind, rank, operation, place = found
    if rank != want.rank:
        return f"rank {rank} is named, and another one strays{_victim(asked, rank)}"
    if kind != want.kind:
        known = "" if kind in _KINDS else f", which is none of {', '.join(_KINDS)}"
        return f"the right rank, but it is said to stray by {kind!r}{known}; it is not that"
    if operation != want.operation and operation != (want.kind == "missing" and asked.also):
        whose = "another rank waits in" if want.kind == "missing" else "the rank has called"
        return f"the right rank, but {operation} is not what {whose}"
    if place != want.place:
        return f"the right rank and operation, but {place} is not the place{_other_place(asked, place)}"
    return None


def _victim(asked: Recording, rank: Any) -> str:
    """Whether the rank that was named is a victim: it waits itself."""
    if isinstance(rank, bool) or rank not in range(len(asked.dumps)):
        return f": there are ranks 0 to {len(asked.dumps) - 1}"
    waits = any(not entry["retired"] for entry in asked.dumps[rank]["entries"])
    if asked.wanted is not None and asked.wanted.kind == "missing":
        return f"; rank {rank} waits in a call itself" if waits else ""
    return f"; what rank {rank} has called is what most ranks of its group have called" if waits else ""


def _other_place(asked: Recording, place: Any) -> str:
    entries = [entry for dump in asked.dumps for entry in dump["entries"]]
    if any(str(place) == _place(entry["frames"][0]) for entry in entries):
        return ": that is inside of torch. The first frame of one's own is asked"
    if any(str(place) == _place(entry["frames"][-1]) for entry in entries):
        return ": that is where the step was called, further out"
    return ""


def _place(frame: Mapping[str, Any]) -> str:
    return f"{frame['filename']}:{frame['line']}"


def _own(entry: _Entry, which: int = 2) -> str:
    return _place(entry["frames"][which])


def _find(dumps: _Dumps, groups: _Groups, mistake: str = "") -> tuple[str, int, str, str] | None:
    """The right answer, and a few wrong ones."""
    waiting = {rank for rank, dump in enumerate(dumps) if any(not entry["retired"] for entry in dump["entries"])} - (
        {*range(len(dumps))} if mistake == "victims" else set()
    )
    frame = {"torch": 0, "outer": -1}.get(mistake, 2)
    for name, members in groups.items():
        calls = {rank: _calls(dumps[rank], name, mistake) for rank in members}
        for number in sorted({n for mine in calls.values() for n, entry in mine.items() if not entry["retired"]}):
            absent = [rank for rank in members if number not in calls[rank]]
            past = [rank for rank in absent if max(calls[rank], default=0) > number and mistake != "forgotten"]
            there = {rank: calls[rank][number] for rank in members if rank not in absent}
            for rank in absent:
                if rank not in waiting and rank not in past:
                    last = next(iter(there.values())) if mistake == "others" else dumps[rank]["entries"][-1]
                    operation = last if mistake == "own" else next(iter(there.values()))
                    return "missing", rank, operation["profiling_name"], _own(last, frame)
            for kind, field in (("operation", "profiling_name"), ("size", "input_sizes")):
                usual = Counter(str(entry[field]) for entry in there.values()).most_common(1)[0][0]
                for rank, entry in there.items():
                    if not absent and str(entry[field]) != usual and (kind == "operation" or mistake != "names"):
                        right = (
                            next(e for e in there.values() if str(e[field]) == usual) if mistake == "usual" else entry
                        )
                        return kind, rank, right["profiling_name"], _own(entry, frame)
    return None


def _calls(dump: Mapping[str, Any], group: str, mistake: str) -> dict[int, _Entry]:
    """A rank's calls in a group, by their number."""
    mine = [entry for entry in dump["entries"] if entry["process_group"][0] == group or mistake == "one group"]
    return {place if mistake == "places" else entry["collective_seq_id"]: entry for place, entry in enumerate(mine)}


_HANGING = asked_exercise(
    key="12.3",
    title="who is missing? Read the flight recorder",
    records=lambda case, seed: case.recordings(seed),
    use=_use,
    judge=_judge,
    quick=True,
    slips={
        "that is a line inside of torch. The first frame of one's own says more": partial(_find, mistake="torch"),
        "that is where the step was called. The frame before it says which line of the step": partial(
            _find, mistake="outer"
        ),
        "that is where the others wait. Of the missing rank its own last call is asked": partial(
            _find, mistake="others"
        ),
        "that is what the missing rank called last. What the others wait in is asked": partial(_find, mistake="own"),
        "that is what most ranks have called. What the odd one has called is asked": partial(_find, mistake="usual"),
        "sizes are not compared. Ranks may call the same operation with unlike tensors": partial(
            _find, mistake="names"
        ),
        "calls are told by their places in the dump. But a recorder keeps the last ones only, and not as many on "
        "each rank: compare collective_seq_id": partial(_find, mistake="places"),
        "that rank has made the call, gone on and forgotten it: what it has kept of this group came later": partial(
            _find, mistake="forgotten"
        ),
        "the calls of all groups are counted together. Each group counts its own": partial(_find, mistake="one group"),
        "that rank is missed, but it waits itself, in another group: it is a victim": partial(_find, mistake="victims"),
    },
    levels={
        "missing": Level(
            points=2,
            cases=(
                Hang(text="one rank of four is missing", kind="missing"),
                Hang(text="all is well"),
                Hang(text="all are in the same call", under_way=True),
            ),
            praise="the missing rank, and where it was seen last",
        ),
        "odd": Level(
            points=2,
            cases=(
                Hang(text="another operation", kind="operation"),
                Hang(text="another size", kind="size"),
                Hang(text="recorders that have kept less", kind="missing", short=True),
                Hang(text="one has gone on before its dump", under_way=True, gone_on=True),
            ),
            praise="and the one that calls something else",
        ),
        "groups": Level(
            points=2,
            again=True,
            cases=(
                Hang(text="two groups of tp", kind="missing", tp=2, twice="tp"),
                Hang(text="two groups of four", kind="operation", ranks=8, tp=4, short=True),
                Hang(text="three groups of tp", kind="missing", ranks=6, tp=2, twice="dp", short=True),
                Hang(text="two groups, and all is well", tp=2, short=True),
            ),
            praise="and in many groups, where most of those who wait are victims",
        ),
    },
    hints=(
        "Begin with one group. Which calls have not come back on some rank, by their collective_seq_id? For each of "
        "them, which members of the group have no such call?",
        "A rank that has no such call is missing, unless it waits in a call of another group itself. Then "
        "somebody else keeps it from coming. And if it has a later call of this group, it has made that one too, "
        "and its recorder has forgotten it.",
        "If all members are there, compare what they have called, first profiling_name and then input_sizes. "
        "collections.Counter tells what most of them have; the one that differs is the odd one.",
        "frames begins inside. Go through it until a filename that does not contain site-packages.",
    ),
)
