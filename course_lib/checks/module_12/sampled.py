"""12.7: a run that stops in the middle of its data and goes on with other processes: no row lost, none read twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level

_ROWS, _BATCH, _STOP, _STEPS = 50, 8, 7, 20  # an epoch ends in the middle of a batch
_MOST = 10  # numbers of a state
_Steps = list[list[int]]


def _task(case: Start, seed: int) -> dict[str, Any]:
    workers = 2 if case.look else 0
    stop = _STOP + seed % 2
    return {"rows": _ROWS, "seed": 1021 * seed + 53, "batch": _BATCH, "workers": workers, "stop": stop, "steps": _STEPS}


def _order(task: Mapping[str, Any], *, first: int = 0, epoch: int = 1, whole: bool = False) -> _Steps:
    """The rows of the steps from one on; each epoch adds `epoch` to the seed, `whole`: it drops an incomplete batch."""
    rows, batch = task["rows"], task["batch"]

    def one_by_one() -> Any:
        for number in count():
            dice = torch.Generator().manual_seed(task["seed"] + number * epoch)
            yield from torch.randperm(rows, generator=dice).tolist()[: rows - rows % batch if whole else rows]

    found = list(islice(one_by_one(), (first + task["steps"]) * batch))
    return [found[step * batch : (step + 1) * batch] for step in range(first, first + task["steps"])]


def _verdict(case: Start, ran: Ran) -> str | None:
    """The first start, then the second one, then what was kept between them."""
    task = dict(ran.task)
    due = _order(task)
    for name, ranks, first, end in (
        ("first", case.world_size, 0, task["stop"]),
        ("second", case.then, task["stop"], task["steps"]),
    ):
        found = _steps(ran, name, ranks)
        if isinstance(found, str):
            return found
        together = [sorted(row for rows in step for row in rows) for step in zip(*found, strict=False)]
        if {len(mine) for mine in found} != {end - first}:
            counts = ", ".join(str(len(mine)) for mine in found)
            why = _instead(task, together, first) if together else ""
            return f"the {name} start has read {counts} steps on its ranks, and {end - first} are due on each" + (
                f"; {why}" if why else ""
            )
        if reason := _wrong_rows(task, together, due, first):
            return f"the {name} start, on {ranks}: {reason}"
        if uneven := [rank for rank, mine in enumerate(found) if {len(rows) for rows in mine} != {_BATCH // ranks}]:
            return f"the {name} start: rank {uneven[0]} does not read {_BATCH // ranks} rows in each step: cut evenly"
    return _large(ran.saved("state.pt"))


def _steps(ran: Ran, name: str, ranks: int) -> list[_Steps] | str:
    """What each rank has read, step by step."""
    found = []
    for rank in range(ranks):
        mine = ran.saved(f"{name}{rank}.pt")
        mine = mine.tolist() if isinstance(mine, Tensor) else mine
        if not isinstance(mine, list) or not all(isinstance(rows, list | tuple | Tensor) for rows in mine):
            return f"{name}{rank}.pt is to hold a list with the rows of each step"
        found.append([[int(row) for row in rows] for rows in mine])
    return found


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
        ways.append(("it begins with the first row again: is the state loaded?", _order(task)))
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
    held = _numbers(state)
    return (
        f"all rows are right, but state.pt holds {held} numbers, and {_MOST} are enough: what follows from the seed "
        "need not be kept"
        if held > _MOST
        else None
    )


def _numbers(state: Any) -> int:
    if isinstance(state, Mapping):
        return sum(map(_numbers, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(_numbers, state))
    return state.numel() if isinstance(state, Tensor) else 1


_SAMPLED = ScriptExercise(
    key="12.7",
    title="your own sampler that goes on elsewhere",
    task=_task,
    verdict=_verdict,
    levels={
        "elsewhere": Level(
            points=3,
            cases=(Start(world_size=2, then=4),),
            praise="stopped on 2 processes and gone on with 4: no row is lost, none is read twice",
        ),
        "ahead": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, then=2, look="ahead"),),
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
        "run is: count steps where the rows arrive, in the loop.",
    ),
)
