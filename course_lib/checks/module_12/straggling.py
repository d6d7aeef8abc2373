"""12.8: a watchdog that finds slow ranks by their own work, and accuses nobody for noise or for a single step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import isclose
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.verify.ratios import times

_WINDOW, _REST, _FACTOR = 9, 4, 1.25  # steps; those that fill no window
_USUAL, _NOISE, _SLOW, _SPIKE, _SMALL, _ALL = 0.2, 0.04, 1.5, 8.0, 1.6, 1.7
_Window = Sequence[Sequence[float]]  # by rank, the seconds of each step


class _Said(NamedTuple):
    """Of each window: who is slow, and what that costs."""

    slow: list[list[int]]
    cost: list[float]


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Windows of each kind, in an order that the seed draws; in the first one the last step is a little slow."""
    draw, ranks = random.Random(1049 * seed + case.world_size), case.world_size
    kinds = ["one", "spike", "all", "two" if ranks > 2 else "one", "even"]
    draw.shuffle(kinds)
    steps: list[list[float]] = []
    for kind in ["last", *kinds, "rest"]:
        who, spike = draw.sample(range(ranks), 2 if kind == "two" else 1), draw.randrange(_WINDOW)
        for number in range(_REST if kind == "rest" else _WINDOW):
            own = [_USUAL * draw.uniform(1 - _NOISE, 1 + _NOISE) for _ in range(ranks)]
            small, large = _SMALL if number == _WINDOW - 1 else 1.0, _SPIKE if number == spike else 1.0
            slower = {"one": _SLOW, "two": _SLOW, "spike": large, "last": small}.get(kind, 1.0)
            whole = _ALL if kind == "all" else 1.0
            steps.append([second * whole * (slower if rank in who else 1) for rank, second in enumerate(own)])
    return {"own": torch.tensor(steps, dtype=torch.float64), "window": _WINDOW, "factor": _FACTOR}


def _windows(task: Mapping[str, Any]) -> list[_Window]:
    own, size = task["own"], task["window"]
    return [own[first : first + size].T.tolist() for first in range(0, len(own) - size + 1, size)]


_Typical = Callable[[Sequence[float]], float]


def _said(task: Mapping[str, Any], typical: _Typical = median, among: _Typical = min, before: int = 0) -> _Said:
    """By what is typical of a rank in a window, over what is so among all of them; `before`: over its own past."""
    found, past = _Said([], []), list[list[float]]()
    for window in _windows(task):
        of_ranks = [typical(mine) for mine in window]
        past.append(of_ranks)
        usual = (
            past[max(0, len(past) - 1 - before) if before < _WINDOW else 0]
            if before
            else [among(of_ranks)] * len(window)
        )
        slow = [rank for rank, mine in enumerate(of_ranks) if mine > task["factor"] * usual[rank]]
        found.slow.append(slow)
        found.cost.append(_cost(window, slow))
    return found


def _cost(window: _Window, slow: Sequence[int]) -> float:
    """Seconds of all steps, over those without the slow ranks: a step lasts as long as on its slowest rank."""
    whole = sum(map(max, zip(*window, strict=True)))
    rest = [mine for rank, mine in enumerate(window) if rank not in slow] or window
    return whole / sum(map(max, zip(*rest, strict=True)))


def _mistakes(task: Mapping[str, Any]) -> dict[str, _Said]:
    """What is said of a list of slow ranks, by the mistake that gives it."""
    together = {**task, "own": task["own"].max(dim=1, keepdim=True).values.expand_as(task["own"])}
    return {
        "that is by the seconds of whole steps, which are the same on all ranks: everybody waits for the slowest": (
            _said(together)
        ),
        "that is by means, and one slow step moves the mean of a window": _said(task, typical=fmean),
        "that is by each rank's slowest step, and one step alone says nothing": _said(task, typical=max),
        "that is by the last step of each window": _said(task, typical=lambda mine: mine[-1]),
        "that compares with the mean of all ranks, which slow ranks move, too": _said(task, among=fmean),
        "that compares with the median of all ranks, and where half of them are slow, it is between": _said(
            task, among=median
        ),
        "that compares with a rank's own window before. Where all are slower, nobody is a straggler": (
            _said(task, before=1)
        ),
        "that compares with a rank's own first window. Where all are slower, nobody is a straggler": (
            _said(task, before=len(task["own"]))
        ),
    }


def _verdict(case: Start, ran: Ran) -> str | None:
    """Who is accused, then what it costs, then what has travelled."""
    task, answer = dict(ran.task), ran.saved("answer.pt")
    if not isinstance(answer, dict) or {"slow", "cost"} - answer.keys():
        return "answer.pt is to hold a dict with 'slow' and 'cost'"
    right, slow, cost = _said(task), _ranks(answer["slow"]), _floats(answer["cost"])
    if slow is None or len(slow) != len(right.slow):
        return f"'slow' is to be a list with a list of ranks for each of {len(right.slow)} windows"
    if slow != right.slow:
        number = next(i for i, (one, other) in enumerate(zip(slow, right.slow, strict=True)) if one != other)
        why = "; or ".join(says for says, one in _mistakes(task).items() if one.slow == slow)
        text = f"in window {number + 1} {_who(slow[number])} there, and in truth {_who(right.slow[number])}"
        return text + f": {why}" * bool(why)
    if cost is None or len(cost) != len(right.cost):
        return f"the ranks are right; 'cost' is to be a list of {len(right.cost)} numbers"
    for number, (got, want) in enumerate(zip(cost, right.cost, strict=True)):
        if not isclose(got, want, rel_tol=1e-9):
            return f"the ranks are right; in window {number + 1} the cost is {got:.9g} there, and {want:.9g} is right"
    return _too_many(ran, len(right.slow))


def _ranks(found: Any) -> list[list[int]] | None:
    if isinstance(found, list | tuple) and all(isinstance(one, list | tuple | Tensor) for one in found):
        return [sorted(int(rank) for rank in one) for one in found]
    return None


def _floats(found: Any) -> list[float] | None:
    return [float(one) for one in found] if isinstance(found, list | tuple | Tensor) else None


def _who(ranks: Sequence[int]) -> str:
    if not ranks:
        return "nobody is slow"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'} slow"


def _too_many(ran: Ran, windows: int) -> str | None:
    """A watchdog must not slow down what it watches, and knows of a rank what that rank says."""
    due = windows * _WINDOW * 8
    for rank, one in enumerate(ran.ended):
        calls = [call for call in one.calls if call.operation != "barrier"]
        if len(calls) != windows:
            return (
                f"all is right, but rank {rank} makes {plural(len(calls), 'call')} of collectives in {windows} windows"
            )
        if (sent := sum(call.bytes for call in calls)) != due:
            return f"all is right, but rank {rank} hands {sent} B to collectives, {times(sent / due)} its own seconds"
    return None


_STRAGGLING = ScriptExercise(
    key="12.8",
    title="your own watchdog for stragglers",
    task=_task,
    verdict=_verdict,
    levels={
        "four": Level(
            points=3,
            cases=(Start(world_size=4),),
            praise="it finds the slow ranks of each window, and accuses nobody for noise or for one slow step",
        ),
        "two": Level(
            points=2,
            again=True,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="and on 2 processes, with one collective in each window",
        ),
    },
    hints=(
        "Write down the nine seconds of two ranks, one of them with a single slow step. Which number of the nine says "
        "how fast the rank usually is, and does not care about one of them?",
        "Each rank puts its seconds of a window into a tensor, and one all-gather gives every rank all of them. So "
        "rank 0 can judge without asking again.",
        "If all ranks are slower in a window, perhaps the storage or the network was. A straggler is slow beside the "
        "others in the same window, and the fastest of them says what is possible.",
        "The cost: a step lasts as long as its largest number. Add up the largest numbers of all steps, once with all "
        "ranks and once without the slow ones.",
    ),
)
