"""02.12: the bandwidth of an all-reduce, measured by a file of one's own, as nccl-tests print it, and its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from statistics import fmean, median
from typing import Any

import torch

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_02.on_the_clock import off_the_clock
from course_lib.ranks.counted import Call
from course_lib.verify.ratios import exactly

_SMALL = 128  # bytes of what ranks tell each other about times; the smallest tensor that is measured is far larger
_COLUMNS = ("bytes", "seconds", "algbw", "busbw")
_GB = 1e9


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Sizes, how often to warm up, and how often to measure: an odd number, so that one time is in the middle."""
    dice = torch.Generator().manual_seed(1021 * seed + 41)
    sizes = [4 * int(torch.randint(4**n, 2 * 4**n, (), generator=dice)) for n in (4, 5, 6, 7, 8)]
    warm_up, half = (int(torch.randint(2, 5, (), generator=dice)) for _ in range(2))
    return {"sizes": sizes, "warm_up": warm_up, "repeats": 2 * half + 1}


def _verdict(case: Start, ran: Ran) -> str | None:
    """What was run, then each rank's own times, then the table that follows from them, then the line through it."""
    task = dict(ran.task)
    for rank, one in enumerate(ran.ended):
        if reason := _wrong_runs(one.calls, task):
            return f"rank {rank} {reason}"
    own = [ran.saved(f"times{rank}.pt") for rank in range(case.world_size)]
    for rank, times in enumerate(own):
        if reason := _wrong_times(times, task):
            return f"times{rank}.pt {reason}"
    for rank, (one, times) in enumerate(zip(ran.ended, own, strict=True)):
        if reason := off_the_clock(one, times, task):
            return f"the times of rank {rank}: {reason}"
    answer = ran.saved("answer.pt")
    table = answer.get("table") if isinstance(answer, dict) else None
    if not isinstance(table, list) or not all(isinstance(row, dict) and {*_COLUMNS} <= row.keys() for row in table):
        return f"answer.pt is to hold a dict, and under 'table' a list of dicts with {', '.join(_COLUMNS)}"
    if [row["bytes"] for row in table] != task["sizes"]:
        return f"the table's bytes are {[row['bytes'] for row in table]}, the task's sizes {task['sizes']}"
    for number, row in enumerate(table):
        if reason := _wrong_row(row, [times[number] for times in own]):
            return f"{row['bytes']} bytes: {reason}"
    return _wrong_line(answer, table) if case.look else None


def _wrong_runs(calls: Sequence[Call], task: Mapping[str, Any]) -> str | None:
    """Each size so many times, and before each one that counts all ranks wait for each other."""
    large = [call for call in calls if call.bytes > _SMALL]
    if other := [call for call in large if call.operation != "all_reduce" or call.bytes not in task["sizes"]]:
        return f"also runs {other[0]}; what is measured is an all-reduce of {', '.join(map(str, task['sizes']))} B"
    due = task["warm_up"] + task["repeats"]
    for size in task["sizes"]:
        places = [place for place, call in enumerate(calls) if call.bytes == size]
        if len(places) != due:
            said = f"{task['warm_up']} to warm up and {task['repeats']} that are measured"
            return f"makes {plural(len(places), 'all-reduce')} of {size} B, and {due} are due: {said}"
        alone = [place for place in places[-task["repeats"] :] if calls[place - 1].bytes > _SMALL]
        if alone:
            return (
                f"starts {len(alone)} of the {task['repeats']} measured all-reduces of {size} B without a barrier "
                "before: who comes early then measures how long it waits for the others"
            )
    return None


def _wrong_times(times: Any, task: Mapping[str, Any]) -> str | None:
    sizes, repeats = len(task["sizes"]), task["repeats"]
    if not isinstance(times, list) or [len(one) if isinstance(one, list) else 0 for one in times] != [repeats] * sizes:
        return f"is to hold {sizes} lists, one for each size, of {repeats} seconds each; warm-ups are left out"
    if not all(isinstance(x, float) and x > 0 for one in times for x in one):
        return "holds what is no time: each is a float above 0, in seconds"
    if any(len(set(one)) == 1 for one in times):
        return f"holds the same time {repeats} times for one size: measure each all-reduce by itself"
    return None


def _wrong_row(row: Mapping[str, Any], times: Sequence[Sequence[float]]) -> str | None:
    """The columns, each from those before it in the learner's own table."""
    ranks, seconds = len(times), float(row["seconds"])
    right = max(map(median, times))
    if not _same(seconds, right):
        others = {
            "that is the largest of the ranks' means; one slow repeat moves a mean, so take the median": max(
                map(fmean, times)
            ),
            "that is rank 0's median; the slowest rank's counts": median(times[0]),
            "that is the median of the fastest rank; the slowest one's counts": min(map(median, times)),
            "that is the average of the ranks' medians; the slowest rank's counts": fmean(map(median, times)),
            "that is the largest of all times; take each rank's median first": max(map(max, times)),
            "that is the smallest of all times; take each rank's median first": min(map(min, times)),
            "that is the median of each repeat's slowest rank; take each rank's median first, and the largest of "
            "them": median(map(max, zip(*times, strict=True))),
        }
        text = f"seconds are {seconds:.4g}, and by the ranks' own times {right:.4g}"
        return text + _cause(seconds, others)
    algbw, factor = row["bytes"] / seconds / _GB, 2 * (ranks - 1) / ranks
    if not _same(row["algbw"], algbw):
        others = {"those are bytes a second": algbw * _GB, "those are GiB": algbw * _GB / 2**30}
        others |= {"those are MB": algbw * 1e3, "those are Gbit": 8 * algbw, "that has busbw's factor": algbw * factor}
        return f"algbw is {row['algbw']:.4g}, and bytes / seconds are {algbw:.4g} GB/s" + _cause(row["algbw"], others)
    if not _same(row["busbw"], algbw * factor):
        return f"busbw is {exactly(row['busbw'] / algbw)} algbw, and on {ranks} ranks it is {exactly(factor)} algbw"
    return None


def _wrong_line(answer: Mapping[str, Any], table: Sequence[Mapping[str, Any]]) -> str | None:
    """The line that is nearest, in relative terms, to the learner's own table."""
    try:
        found = _Line(float(answer["alpha"]), float(answer["beta"]))
    except (KeyError, TypeError, ValueError):
        return "table right, but under 'alpha' and 'beta' there are no two numbers"
    sizes, seconds = [float(row["bytes"]) for row in table], [float(row["seconds"]) for row in table]
    if found.is_near(_fitted(sizes, seconds, -1.0), sizes, seconds):
        return None
    others = {
        "every second counts alike there, so the largest tensor decides alone; divide each difference by its own "
        "seconds": _fitted(sizes, seconds, 0.0),
        "each difference is divided by the root of its seconds there; divide by the seconds": _fitted(
            sizes, seconds, -0.5
        ),
        "each difference is divided by the square of its seconds there; divide by the seconds": _fitted(
            sizes, seconds, -2.0
        ),
    }
    cause = next((f": {why}" for why, line in others.items() if found.is_near(line, sizes, seconds)), "")
    if not cause and _Line(found.beta, found.alpha).is_near(_fitted(sizes, seconds, -1.0), sizes, seconds):
        cause = ": they are in each other's place"
    right = _fitted(sizes, seconds, -1.0)
    return (
        f"table right, but the line nearest to it, relative to its seconds, has alpha {right.alpha:.4g} s and beta "
        f"{right.beta:.4g} s/B, yours {found.alpha:.4g} and {found.beta:.4g}{cause}"
    )


@dataclass(frozen=True)
class _Line:
    """Seconds by bytes."""

    alpha: float
    beta: float

    def is_near(self, other: _Line, sizes: Sequence[float], seconds: Sequence[float]) -> bool:
        """Whether both say the same of every row, up to a ten-thousandth: they were solved in another way."""
        apart = [self.alpha - other.alpha + (self.beta - other.beta) * size for size in sizes]
        return all(abs(off) < 1e-4 * second for off, second in zip(apart, seconds, strict=True))


def _fitted(sizes: Sequence[float], seconds: Sequence[float], power: float) -> _Line:
    """The least squares of differences that are multiplied by a power of the seconds."""
    t, unit = torch.tensor(seconds).double(), max(sizes)
    n = torch.tensor(sizes).double() / unit
    weight = t**power
    rows, right = torch.stack((torch.ones_like(n), n), dim=1) * weight[:, None], t * weight
    alpha, beta = torch.linalg.lstsq(rows, right[:, None]).solution.flatten().tolist()
    return _Line(alpha, beta / unit)


def _same(got: float, want: float) -> bool:
    return isclose(got, want, rel_tol=1e-5)


def _cause(got: float, others: Mapping[str, float]) -> str:
    return next((f": {why}" for why, value in others.items() if _same(got, value)), "")


_BANDWIDTH = ScriptExercise(
    key="02.12",
    title="your own bandwidth test",
    task=_task,
    verdict=_verdict,
    levels={
        "table": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="warm, together, by the median of the slowest rank: a table as nccl-tests print it",
        ),
        "line": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="line"),),
            praise="and the alpha and beta of the line that is nearest to it",
        ),
    },
    hints=(
        "Write down first what happens for one size, in order: which all-reduces are not measured, what makes all "
        "ranks start together, and between which two lines do you read time.perf_counter()?",
        "Each rank has its own median. dist.all_reduce(x, op=dist.ReduceOp.MAX) of a small tensor tells all of them "
        "the largest. The timing itself needs no other communication.",
        "Four ranks that are perfect send 2 * 3/4 of the tensor each. That factor turns algbw, which falls with more "
        "ranks, into busbw, which tells of the wire.",
        "The sum of ((alpha + beta * n - t) / t) squared: each row is (1/t, n/t), and is to give 1. torch.linalg.lstsq "
        "solves that, in float64.",
    ),
)
