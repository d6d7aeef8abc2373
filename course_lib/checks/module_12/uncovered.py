"""12.4: how many microseconds of each collective are exposed in a GPU's trace, and of which most."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isclose
from typing import Any

from course_lib.checks.kit.asked import asked_exercise
from course_lib.checks.kit.said import wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.traces import Event, union
from course_lib.checks.module_12.traced import COLLECTIVE, Trace, TracedStep
from course_lib.gauges.exposed import length, without
from course_lib.verify.numbers import number_of

_KIND = re.compile(COLLECTIVE + r"([A-Za-z]+)")
_Found = tuple[dict[str, float], str]


def _use(answer: Callable[..., Any], trace: Trace) -> _Found | str:
    """Runs on a rank; a text says what came instead."""
    found = answer(trace.events)
    if not isinstance(found, tuple | list) or len(found) != 2:
        return wrong_kind(type(found).__name__, "two things: a dict of microseconds, and a name")
    by_name, most = found
    if not isinstance(by_name, Mapping):
        return f"returned {type(by_name).__name__} in first place, not a dict of microseconds"
    numbers = {str(name): number_of(number) for name, number in by_name.items()}
    if strange := [name for name, number in numbers.items() if number is None]:
        return f"under {strange[0]!r} stands no number"
    return {name: float(number) for name, number in numbers.items() if number is not None}, str(most)


def _judge(trace: Trace, found: _Found | str) -> str | None:
    if isinstance(found, str):
        return found
    (numbers, most), (right, name) = found, _exposed(trace.events)
    if numbers.keys() != right.keys():
        return f"the names are {', '.join(sorted(numbers)) or 'none'}, expected {', '.join(sorted(right))}"
    for kind, want in right.items():
        if not isclose(numbers[kind], want, rel_tol=1e-6, abs_tol=0.05):
            return f"{kind} is exposed for {numbers[kind]:.1f} us there, and {want:.1f} us are right"
    if most != name:
        return f"the microseconds are right, but {most!r} is not the name under which most of them stand"
    return None


def _exposed(traced: Sequence[Mapping[str, Any]], mistake: str = "") -> _Found:
    """The right answer, and a few wrong ones."""
    events = [
        Event(one["name"], one["cat"], one["ts"], one["ts"] + one["dur"], one["pid"], one["tid"])
        for one in traced
        if one["ph"] == "X"
    ]
    kernels = [event for event in events if event.category == "kernel"]
    ours = [event for event in kernels if event.name.startswith(COLLECTIVE)]
    computing = {
        "all": events,
        "ops": [event for event in events if event.category == "cpu_op"],
        "copies": [event for event in events if event.category in ("kernel", "gpu_memcpy") and event not in ours],
    }.get(mistake, [event for event in kernels if event not in ours])
    by_kind: dict[str, list[Event]] = {}
    for event in ours:
        if (named := _KIND.match(event.name)) is not None:
            by_kind.setdefault(named[1], []).append(event)
    found, total = {}, {kind: length(union(mine)) for kind, mine in by_kind.items()}
    for kind, mine in by_kind.items():
        others = [event for event in ours if event not in mine] if mistake == "others" else []
        spans = union(mine)
        found[kind] = length(without(spans, union([*computing, *others])))
        if mistake == "total":
            found[kind] = length(spans)
        if mistake == "one by one":
            found[kind] = length(spans) - sum(length(spans) - length(without(spans, union([op]))) for op in computing)
        if mistake == "each":
            found[kind] = _each(mine, computing)
    by = total if mistake == "longest" else found
    return found, max(by, key=by.__getitem__)


def _each(collectives: Iterable[Event], computing: Sequence[Event]) -> float:
    """Added up, so what runs twice at the same time counts twice."""
    return sum(length(without(union([event]), union(computing))) for event in collectives)


_FSDP = ("AllGather", "ReduceScatter", "AllReduce")
_UNCOVERED = asked_exercise(
    key="12.4",
    title="which collective is exposed? Read a GPU's trace",
    records=lambda case, seed: case.traces(seed),
    use=_use,
    judge=_judge,
    quick=True,
    slips={
        "that is all time of the collectives. What computes meanwhile hides some of it": partial(
            _exposed, mistake="total"
        ),
        "ops of the CPU are taken for computing. They launch kernels, and the GPU computes in these": partial(
            _exposed, mistake="ops"
        ),
        "copies are taken for computing. They move bytes": partial(_exposed, mistake="copies"),
        "kernels are cut out one by one, and where two overlap, the time is cut out twice": partial(
            _exposed, mistake="one by one"
        ),
        "two collectives of the same kind that run at the same time are counted twice": partial(
            _exposed, mistake="each"
        ),
        "another collective is taken for computing. Two that run at the same time hide nothing of each other": partial(
            _exposed, mistake="others"
        ),
        "the microseconds are right, but that is the collective that takes longest. Most of it is hidden": partial(
            _exposed, mistake="longest"
        ),
    },
    levels={
        "plain": Level(
            points=2,
            cases=(
                TracedStep(text="a step of FSDP", kinds=_FSDP),
                TracedStep(text="a step of DDP", kinds=("AllReduce",)),
            ),
            praise="the collective that takes longest is hidden, and a short one costs the most",
        ),
        "streams": Level(
            points=2,
            again=True,
            cases=(
                TracedStep(text="two streams that compute", kinds=_FSDP, beside=True),
                TracedStep(text="two collectives at once", kinds=_FSDP, beside=True, together=True),
                TracedStep(text="a pipeline, too", kinds=("AllGather", "SendRecv"), together=True),
            ),
            praise="and where streams overlap, each microsecond counts once",
        ),
    },
    hints=(
        "Begin with three lists: spans of the collectives by name, spans of the kernels that compute, and all the "
        "rest, which you throw away. How do you tell a kernel from what the CPU has done?",
        "Join the spans that touch: sort by start, and let a span that begins before the last one has ended make it "
        "longer. Then no microsecond stands in two of them.",
        "Exposed is what is left of a collective's spans when the joined spans of computing are cut out. Or take the "
        "edges of all spans in order of time, and count how many of each kind are open.",
        "re.match(r'ncclDevKernel_([A-Za-z]+)', name) finds the collective's name, also where no underscore follows.",
    ),
)
