"""Dumps of the flight recorder, drawn: what each rank of a program has recorded when one of them strays from it."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

_TORCH = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
_HOME, _MAIN = "/project/run", "train.py"
_DESCRIPTIONS = {"all": "default_pg", "tp": "mesh_tp", "dp": "mesh_dp"}
_OTHERS = {"all_reduce": "all_gather", "all_gather": "all_reduce"}
_Key = tuple[str, int]  # a group's name, and which of its calls


class Found(NamedTuple):
    """What is asked: how a rank strays, which one, in which operation, and where."""

    kind: str
    rank: int
    operation: str
    place: str


class _Spot(NamedTuple):
    """One call of the program: in which kind of group, which operation of how many numbers, and where it stands."""

    axis: str
    operation: str
    numbers: int
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line."""
        return f"{_HOME}/{self.file}:{self.line}"

    @property
    def recorded(self) -> str:
        """The operation's name in a dump."""
        return f"gloo:{self.operation}"


class Recording(NamedTuple):
    """The dumps of all ranks, the members of each group, and what they show; none if all is well."""

    dumps: list[dict[str, Any]]
    groups: dict[str, list[int]]
    wanted: Found | None
    also: str = ""  # another operation that a missing rank is missed in

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A program on so many ranks, in rows of `tp` ranks if that is not 0, and how one rank strays from it."""

    text: str
    kind: str = ""  # missing, operation or size; empty: nobody strays
    ranks: int = 4
    tp: int = 0
    twice: str = ""  # with rows: the kind of group, tp or dp, that makes two calls in a step
    short: bool = False  # the recorders have kept unlike numbers of entries, and the stray's the most
    under_way: bool = False  # dumped while all of them are in the same call
    gone_on: bool = False  # and one rank later, when its recorder has forgotten that call
    world_size: int = 1

    def __str__(self) -> str:
        return self.text

    def recordings(self, seed: int) -> list[Recording]:
        """Two. With rows the stray is the last of its row, then the first: victims have lower numbers, then higher.

        So whoever accuses victims is wrong in one of them, in whichever order they look through ranks or groups.
        """
        draw = random.Random(f"{seed} {self.text}")
        return [self._one(draw, self._who(draw, number), tp_first=number == 1) for number in range(2)]

    def _who(self, draw: random.Random, number: int) -> int:
        """The rank that strays. It is not rank 0, and with rows not in the first one."""
        if not self.tp:
            return draw.randrange(1, self.ranks)
        row = draw.randrange(1, self.ranks // self.tp)
        return self.tp * row + (0 if number else self.tp - 1)

    def _one(self, draw: random.Random, who: int, *, tp_first: bool) -> Recording:
        steps, program = draw.randrange(3, 6), self._program(draw)
        at = [spot.axis for spot in program].index("dp") - 1 if self.tp else draw.randrange(3)
        before = program * steps
        made = [[*before, *program[: at + 1]] for _ in range(self.ranks)]
        if self.tp:  # ranks of other rows come as far as the next call, and wait there for their column
            for rank in range(self.ranks):
                made[rank] += program[at + 1 : at + 2] * (rank // self.tp != who // self.tp)
        wanted = None
        if self.kind:
            made[who][-1], place = self._stray(made[who][-1], draw), made[who][-2].place
            wanted = Found(self.kind, who, made[who][-1].recorded, made[who][-1].place)
            if self.kind == "missing":
                wanted = wanted._replace(operation=made[who].pop().recorded, place=place)
        elif self.gone_on:
            made[who] = program * (steps + 3)
        elif not self.under_way:
            made = [before] * self.ranks
        dumps = self._forget(_dumps(made, self._groups(), last_is_open=self.under_way), who, len(program), draw)
        if self.gone_on:
            later = dumps[who]["entries"][len(before) + at + 1 :]
            dumps[who]["entries"] = [{**entry, "retired": True} for entry in later]
        listed = sorted(self._groups().items(), key=lambda group: tp_first and group[0][0] != "tp")
        groups = {name: list(ranks) for (_, name), ranks in listed}
        return Recording(dumps, groups, wanted, program[at + 1].recorded if self.tp else "")

    def _program(self, draw: random.Random) -> list[_Spot]:
        """The calls of a step, in the order of their lines."""
        axes = ["all"] * 3
        if self.tp:
            axes = [axis for axis in ("tp", "dp", "all") for _ in range(1 + (axis == self.twice))]
        files = ["model.py" if axis == "tp" or not (self.tp or place) else _MAIN for place, axis in enumerate(axes)]
        lines = sorted(draw.sample(range(20, 180, 10), len(axes)))
        kinds = list(_OTHERS)
        return [
            _Spot(axis, draw.choice(kinds), 4 * draw.randrange(2, 300), file, line)
            for axis, file, line in zip(axes, files, lines, strict=True)
        ]

    def _forget(self, dumps: list[dict[str, Any]], who: int, a_step: int, draw: random.Random) -> list[dict[str, Any]]:
        """Drops what ring buffers no longer hold. A step's calls are left at least, so one of each of a rank's groups.

        The others lose so many more than the stray that in none of its groups it has recorded fewest.
        """
        for rank, dump in enumerate(dumps if self.short else []):
            most = len(dump["entries"]) - a_step
            del dump["entries"][: 1 if rank == who else draw.randrange(a_step + 2, most + 1)]
        return dumps

    def _groups(self) -> dict[tuple[str, str], list[int]]:
        """By axis and name, as PyTorch counts them."""
        every, tp = [*range(self.ranks)], self.tp
        rows = [("tp", every[first : first + tp]) for first in range(0, self.ranks, tp)] if tp else []
        columns = [("dp", every[place::tp]) for place in range(tp)]
        named = enumerate([("all", every), *columns, *rows])
        return {(axis, str(number)): members for number, (axis, members) in named}

    def _stray(self, due: _Spot, draw: random.Random) -> _Spot:
        """What the rank calls instead."""
        own = due._replace(line=due.line + draw.randrange(1, 9))
        if self.kind == "operation":
            return own._replace(operation=_OTHERS[due.operation])
        return own._replace(numbers=due.numbers + 4) if self.kind == "size" else due


def _dumps(
    made: list[list[_Spot]], groups: dict[tuple[str, str], list[int]], *, last_is_open: bool
) -> list[dict[str, Any]]:
    """Each rank's, as `pickle.loads(_dump_fr_trace())` gives it."""
    book: list[list[tuple[_Key, _Spot]]] = []
    asked: dict[_Key, list[_Spot]] = defaultdict(list)
    for rank, calls in enumerate(made):
        counts: Counter[str] = Counter()
        book.append([])
        for spot in calls:
            name = next(name for (axis, name), ranks in groups.items() if axis == spot.axis and rank in ranks)
            counts[name] += 1
            book[-1].append(((name, counts[name]), spot))
            asked[name, counts[name]].append(spot)
    sizes = {name: len(members) for (_, name), members in groups.items()}
    back = {
        key for key, spots in asked.items() if len(spots) == sizes[key[0]] and len({s[1:3] for s in spots}) == 1
    } - ({book[0][-1][0]} if last_is_open else set())
    return [
        {"version": "2.10", "entries": [_entry(i, key, spot, key in back) for i, (key, spot) in enumerate(mine)]}
        for mine in book
    ]


def _entry(number: int, key: _Key, spot: _Spot, retired: bool) -> dict[str, Any]:
    """One call. The innermost frame comes first: torch's own, then the program's."""
    frames = [
        {"name": spot.operation, "filename": _TORCH, "line": 3245},
        {"name": "wrapper", "filename": _TORCH.replace("distributed_c10d", "c10d_logger"), "line": 83},
        {"name": "step", "filename": f"{_HOME}/{spot.file}", "line": spot.line},
        {"name": "main", "filename": f"{_HOME}/{_MAIN}", "line": 211},
    ]
    return {
        "record_id": number,
        "process_group": (key[0], _DESCRIPTIONS[spot.axis]),
        "collective_seq_id": key[1],
        "profiling_name": spot.recorded,
        "input_sizes": [[spot.numbers]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": retired,
        "is_p2p": False,
        "frames": frames,
    }
