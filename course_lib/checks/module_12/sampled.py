"""12.7: a run that is killed in the middle of its data and goes on with other processes: no row is lost.

It is killed while each rank stands in the same step of its own, as `ranks.killed` does it, so the same rows were read
and the same files are whole each time. The step is drawn, and the script is not told.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level

_ROWS, _BATCH, _STEPS = 50, 8, 20  # an epoch ends in the middle of a batch
_HOLDS = 1000  # what stands in a row, beside its number: so rows are known from what a sampler says of them
_EVERY = (5, 6)
_MOST = 10  # numbers of a state
_AHEAD = 4  # batches that two workers have read ahead
_Steps = list[list[int]]
_Notes = dict[int, list[int]]  # the rows of one rank, by step


@dataclass(frozen=True, kw_only=True)
class _Killed(Start):
    """Killed once; `due`: in a step after which a checkpoint would have been due."""

    due: bool = False

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'process')}, killed, then {self.then}"

    def every(self, seed: int) -> int:
        """Steps from one checkpoint to the next."""
        return random.Random(f"every {seed}").choice(_EVERY)

    def killed_in(self, seed: int) -> int:
        """After two checkpoints, in the second epoch; at least one step is undone which was over."""
        every = self.every(seed)
        return 3 * every if self.due else 2 * every + random.Random(f"killed {seed}").randrange(2, every)


def _task(case: _Killed, seed: int) -> dict[str, Any]:
    workers, every = 2 if case.look else 0, case.every(seed)
    return {
        "rows": _ROWS,
        "seed": 1021 * seed + 53,
        "batch": _BATCH,
        "workers": workers,
        "every": every,
        "steps": _STEPS,
    }


def _order(task: Mapping[str, Any], *, first: int = 0, epoch: int = 1, whole: bool = False) -> _Steps:
    """The rows of the steps from one on; each epoch adds `epoch` to the seed, `whole`: it drops an incomplete batch."""
    rows, batch = task["rows"], task["batch"]

    def one_by_one() -> Any:
        for number in count():
            dice = torch.Generator().manual_seed(task["seed"] + number * epoch)
            yield from torch.randperm(rows, generator=dice).tolist()[: rows - rows % batch if whole else rows]

    found = list(islice(one_by_one(), (first + task["steps"]) * batch))
    return [found[step * batch : (step + 1) * batch] for step in range(first, first + task["steps"])]


def _verdict(case: _Killed, ran: Ran) -> str | None:
    """What is kept; the rows of each start were looked at before."""
    return _large(ran.saved("state.pt"))


def _wrong_start(case: _Killed, ran: Ran) -> str | None:
    """The rows of the last start: the first one is judged before there is a second."""
    task, second = dict(ran.task), len(ran.starts) > 1
    ranks, end = (case.then, task["steps"]) if second else (case.world_size, ran.killed_in)
    first = _kept(task, ran.killed_in) if second else 0
    where = f"the {'second' if second else 'first'} start, on {ranks}: "
    found = [_notes(ran, rank, ranks) for rank in range(ranks)]
    if reason := (_wrong_begin(case, found[0], first, ran) if second else None) or _wrong_steps(found, first, end):
        return where + reason
    if any(row < 0 for mine in found for rows in mine.values() for row in rows):
        return f"{where}train gets numbers of rows, and no rows: what `make_loader` has made brings them"
    together = [sorted(row for mine in found for row in mine[step]) for step in range(first + 1, end + 1)]
    if reason := _wrong_rows(task, together, _order(task), first):
        return where + reason
    even = _BATCH // ranks
    if uneven := [rank for rank, mine in enumerate(found) if {len(rows) for rows in mine.values()} != {even}]:
        return f"{where}rank {uneven[0]} does not read {even} rows in each step: cut evenly"
    return None


def _kept(task: Mapping[str, Any], killed_in: int) -> int:
    """The step of the last checkpoint."""
    every: int = task["every"]
    return (killed_in - 1) // every * every


def _notes(ran: Ran, rank: int, ranks: int) -> _Notes:
    """What `train` has written; a step that is there twice has the rows of both."""
    path, found = ran.folder / f"rank{rank}_of_{ranks}.txt", _Notes()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        step, *rows = map(int, line.split())
        found.setdefault(step, []).extend(row - _HOLDS for row in rows)
    return found


def _wrong_begin(case: _Killed, mine: _Notes, kept: int, ran: Ran) -> str | None:
    """What the second start makes of the first one's end."""
    begin, every = next(iter(mine), 0), ran.task["every"]
    if not begin:
        own = kept * ran.task["batch"] // case.world_size  # rows that one rank had read
        counted = kept * case.then >= ran.task["steps"] * case.world_size and own in _held(ran.saved("state.pt"))
        return f"it makes no step, and the last checkpoint is that of step {kept}" + (
            f": state.pt has {own}, the rows of one rank. Is that taken times the ranks of now?" * counted
        )
    if begin == kept + 1:
        return None
    if "state.pt" not in ran.left[0]:
        return (
            f"it begins with step {begin}. When all were killed in step {ran.killed_in}, there was no state.pt, though "
            f"steps {every} and {2 * every} were over. A kill asks nobody, so what waits for the end is never saved"
        )
    if begin == 1:
        return "it begins with step 1 again: is state.pt loaded?"
    where = f"it begins with step {begin}, and the last checkpoint is that of step {kept}. Its weights have"
    if begin <= kept:
        return f"{where} seen the rows of {_span(begin, kept)}, so these are trained on twice"
    ahead = ran.task["workers"] and begin == kept + 1 + _AHEAD
    return f"{where} not seen the rows of {_span(kept + 1, begin - 1)}, so these are lost" + (
        ": is that what workers had read ahead, where what was trained on counts?" * ahead
    )


def _span(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _wrong_steps(found: Sequence[_Notes], first: int, end: int) -> str | None:
    """By their numbers alone: whether each rank makes each step that is due."""
    for rank, mine in enumerate(found):
        if list(mine) != list(range(first + 1, end + 1)):
            made = f" ({', '.join(map(str, mine))})" if mine else ""
            return f"rank {rank} calls train in {plural(len(mine), 'step')}{made}, and {_span(first + 1, end)} are due"
    return None


def _wrong_rows(task: Mapping[str, Any], found: _Steps, due: _Steps, first: int) -> str | None:
    """The first step that is wrong, and how one reads what was read."""
    right = [sorted(rows) for rows in due[first : first + len(found)]]
    if found == right:
        return None
    step = next(i for i, (one, other) in enumerate(zip(found, right, strict=True)) if one != other)
    where = f"step {first + step + 1}"
    if len(set(found[step])) < len(set(right[step])) and step == 0:
        return (
            f"in {where} {plural(len(set(found[step])), 'row')} are read, some by several ranks, and {_BATCH} are due"
        )
    if reason := _instead(task, found, first):
        return f"{reason}; seen first in {where}"
    if len(found[step]) < _BATCH:
        few = plural(len(found[step]), "row")
        return (
            f"in {where} {few} are read, and {_BATCH} are due: a batch in which an epoch ends goes on in the next one"
        )
    all_due, read = Counter(row for rows in right for row in rows), Counter(row for rows in found for row in rows)
    lost, twice = (all_due - read).total(), (read - all_due).total()
    if lost == 0:
        return f"in {where} other rows are read than in the one order, and in the end all of them: whose order is it?"
    return f"from {where} on, {plural(lost, 'row')} are lost and {twice} are read once more than due"


def _instead(task: Mapping[str, Any], found: _Steps, first: int) -> str:
    """Which mistake gives this; empty if none is known."""
    before = first * task["batch"] // task["rows"] * task["rows"]  # rows of the epochs that are over
    ways: list[tuple[str, Sequence[Sequence[int]]]] = [
        ("each epoch has the same order: the seed of epoch e is seed + e", _order(task, epoch=0)[first:]),
        (
            "the rows that are left when an epoch ends are dropped, and the next step begins with a new epoch",
            _order(task, whole=True)[first:],
        ),
    ]
    if first:
        ways.append(("it begins with the first row again: does the sampler know where it goes on?", _order(task)))
        ways.append(("it begins with its epoch again", _from(task, before)))
        ways += [
            (
                f"it begins {plural(ahead, 'step')} too far, and the rows between are lost: is that what workers had "
                "read ahead, where what was trained on counts?",
                _order(task, first=first + ahead),
            )
            for ahead in range(1, 7)
        ]
        ways.append(("it begins a step too early, and reads the last one once more", _order(task, first=first - 1)))
        ways += [
            (
                f"it begins at row {at}, and {first * task['batch']} had been read: whose rows does the state count?",
                rows,
            )
            for at, rows in ((at, _from(task, at)) for at in range(2, 2 * first * task["batch"] + 1))
        ]
    return next((why for why, rows in ways if [sorted(one) for one in rows[: len(found)]] == found), "")


def _from(task: Mapping[str, Any], row: int) -> _Steps:
    """The steps if reading begins at so many rows of the whole order."""
    rows = [one for step in _order(task, first=0) + _order(task, first=task["steps"]) for one in step]
    batch = task["batch"]
    return [rows[row + step * batch : row + (step + 1) * batch] for step in range(task["steps"])]


def _large(state: Any) -> str | None:
    """A state that holds what follows from the seed."""
    held = len(_held(state))
    return (
        f"all rows are right, but state.pt holds {held} numbers, and {_MOST} are enough: what follows from the seed "
        "need not be kept"
        if held > _MOST
        else None
    )


def _held(state: Any) -> list[Any]:
    """Its numbers, wherever they stand in it."""
    if isinstance(state, Mapping):
        return _held([*state.values()])
    if isinstance(state, list | tuple):
        return [number for part in state for number in _held(part)]
    return state.flatten().tolist() if isinstance(state, Tensor) else [state]


_SAMPLED = ScriptExercise(
    key="12.7",
    title="your own sampler that goes on elsewhere",
    task=_task,
    verdict=_verdict,
    between=_wrong_start,
    killed_in=lambda case, seed: case.killed_in(seed),
    levels={
        "elsewhere": Level(
            points=3,
            cases=(_Killed(world_size=2, then=4),),
            praise="killed on 2 processes and gone on with 4: no row is lost, and only what was undone is read again",
        ),
        "ahead": Level(
            points=2,
            again=True,
            cases=(_Killed(world_size=4, then=2, look="ahead", due=True),),
            praise="and from 4 to 2, while workers read ahead",
        ),
    },
    hints=(
        "Forget the ranks first. One process reads all rows in one order; after k steps it has read k · batch of them. "
        "Which single number says where it has to go on?",
        "Each rank can compute the whole order from the seed, without asking anybody. From the place where the run is, "
        "it takes the next batch, and of this its own part: rows[rank::world_size].",
        "A batch may reach into the next epoch. So think of one endless order, that is made epoch by epoch, and let "
        "divmod(place, rows) say in which epoch a place is, and where.",
        "Workers ask a sampler for batches long before they are trained on. So the sampler must not say how far the "
        "run is: count steps where the rows arrive, in the loop, and save there, since a kill leaves no time to.",
    ),
)
