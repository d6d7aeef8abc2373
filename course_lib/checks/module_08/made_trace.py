"""A trace that nobody has measured, drawn so that each way to misread a trace gives a number of its own.

What a step of one's own exposes depends on the machine: on a lucky run a wrong parser finds the right number. So one is
drawn in which collectives overlap, one is hidden from beginning to end and one not at all, ops stand inside of others
and on two threads, and events that compute nothing have the category of those that do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import isclose
from typing import Any

from course_lib.checks.kit.traces import Event, named, union
from course_lib.gauges.exposed import length, without
from course_lib.gauges.exposed import union as joined

_LAUNCH, RUN, COMPUTE, BACKWARD = "c10d::", "gloo:", "aten::", "autograd::engine::evaluate_function"
_MAIN, _BESIDE, _GLOO, _SECOND = 31, 32, 41, 42  # threads: two that compute, two of gloo's
_PROCESS = 30
_REDUCE, _GATHER = "gloo:all_reduce", "gloo:all_gather"
_Piece = tuple[str, int, float, float]  # name, thread, start and end as shares of the collective's time

_PARTS: tuple[tuple[_Piece, ...], ...] = (
    (  # nothing hides it, though the backward's node stands around half of it
        ("aten::cat", _MAIN, -0.5, -0.25),
        ("c10d::allreduce_", _MAIN, -0.2, 0.15),
        (f"{BACKWARD}: AddmmBackward0", _MAIN, -0.6, 0.55),
        (_REDUCE, _GLOO, 0.0, 1.0),
    ),
    (  # one op hides all of it
        ("c10d::allreduce_", _MAIN, -0.3, -0.2),
        ("aten::addmm", _MAIN, -0.1, 1.2),
        ("aten::mm", _MAIN, -0.05, 0.7),
        (_REDUCE, _GLOO, 0.0, 1.0),
    ),
    (  # one op has begun before it, and one ends after it
        ("c10d::allreduce_", _MAIN, -0.4, -0.35),
        ("aten::linear", _MAIN, -0.3, 0.3),
        ("aten::addmm", _MAIN, -0.2, 0.2),
        (f"{BACKWARD}: GeluBackward0", _MAIN, 0.45, 1.6),
        ("aten::gelu_backward", _MAIN, 0.75, 1.5),
        (_REDUCE, _GLOO, 0.0, 1.0),
    ),
    (  # another one runs at the same time, and a second thread computes
        ("c10d::allreduce_", _MAIN, -0.1, 0.05),
        ("aten::mul", _MAIN, 0.1, 0.3),
        ("c10d::_allgather_base_", _MAIN, 0.35, 0.45),
        ("aten::sum", _BESIDE, 0.7, 0.85),
        (_REDUCE, _GLOO, 0.0, 1.0),
        (_GATHER, _SECOND, 0.5, 1.35),
    ),
)


def made_trace(seed: int) -> str:
    """The text of a file as export_chrome_trace writes it: other times and another order for each seed."""
    draw = random.Random(f"made {seed}")
    now, events = draw.uniform(1e6, 9e6), list[dict[str, Any]]()
    for part in (_PARTS[0], *draw.sample(_PARTS[1:], len(_PARTS) - 1)):
        takes = draw.uniform(300, 400)
        events += [
            _event(name, thread, now + start * takes, (end - start) * takes) for name, thread, start, end in part
        ]
        now += draw.uniform(2.4, 3.0) * takes
    draw.shuffle(events)
    name = {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": _GLOO, "args": {"name": "gloo"}}
    return json.dumps({"traceEvents": [name, *events]}, indent=1)


def _event(name: str, thread: int, start: float, takes: float) -> dict[str, Any]:
    category = "user_annotation" if name.startswith(RUN) else "cpu_op"
    times = {"ts": round(start, 3), "dur": round(takes, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": _PROCESS, "tid": thread, **times}


def exposed_in(events: Sequence[Event]) -> float:
    """Microseconds in which a collective runs and no op does."""
    return _with(named(events, RUN), named(events, COMPUTE))


def _with(collectives: Iterable[Event], ops: Iterable[Event]) -> float:
    return length(without(union(collectives), union(ops)))


def _one_by_one(events: Sequence[Event]) -> float:
    runs, ops = union(named(events, RUN)), [union([op]) for op in named(events, COMPUTE)]
    return length(runs) - sum(length(op) - length(without(op, runs)) for op in ops)


def _each_for_itself(events: Sequence[Event]) -> float:
    return sum(_with([run], named(events, COMPUTE)) for run in named(events, RUN))


def _if(hides: Callable[[Event, Event], bool]) -> Callable[[Sequence[Event]], float]:
    """By what one takes for an op that hides something of a collective."""

    def way(events: Sequence[Event]) -> float:
        runs, ops = named(events, RUN), named(events, COMPUTE)
        left = [without(union([run]), union(op for op in ops if hides(run, op))) for run in runs]
        return length(joined(chain(*left)))

    return way


def _of_one_thread(events: Sequence[Event]) -> float:
    launching = named(events, _LAUNCH)[0].thread
    return _with(named(events, RUN), (op for op in named(events, COMPUTE) if op.thread == launching))


def _from_first_to_last(events: Sequence[Event]) -> float:
    runs = union(named(events, RUN))
    return length(without([(runs[0][0], runs[-1][1])], union(named(events, COMPUTE))))


WRONG_WAYS: Mapping[str, Callable[[Sequence[Event]], float]] = {
    "that is all time of the collectives; what runs meanwhile hides some": lambda e: _with(named(e, RUN), ()),
    "that is what is hidden": lambda e: _with(named(e, RUN), ()) - exposed_in(e),
    "every cpu_op counts as compute there, also c10d:: and autograd::, which only stand around others": (
        lambda e: _with(named(e, RUN), (event for event in e if event.category == "cpu_op"))
    ),
    "ops are subtracted one by one there, and one that stands in another is subtracted twice": _one_by_one,
    "those are the launches (c10d::), and the collectives run on gloo's threads": (
        lambda e: _with(named(e, _LAUNCH), named(e, COMPUTE))
    ),
    "where two collectives run at the same time, it counts twice there": _each_for_itself,
    "a collective is found there by the name gloo:all_reduce alone": (
        lambda e: _with(named(e, _REDUCE), named(e, COMPUTE))
    ),
    "only the first collective is in it": (
        lambda e: _with([min(named(e, RUN), key=lambda run: run.start)], named(e, COMPUTE))
    ),
    "only ops of the thread that launches hide something there": _of_one_thread,
    "an op that has begun before the collective hides nothing there": _if(lambda run, op: run.start <= op.start),
    "an op hides something there only if the whole of it runs beside the collective": _if(
        lambda run, op: run.start <= op.start and op.end <= run.end
    ),
    "an op hides something there only if it runs for the whole of the collective": _if(
        lambda run, op: op.start <= run.start and run.end <= op.end
    ),
    "the time between two collectives is in it": _from_first_to_last,
    "all time of the ops is subtracted there, also what they run without a collective": (
        lambda e: _with(named(e, RUN), ()) - length(union(named(e, COMPUTE)))
    ),
    "those are milliseconds": lambda e: exposed_in(e) / 1000,
    "those are seconds": lambda e: exposed_in(e) / 1e6,
}


def why_wrong(found: float, events: Sequence[Event]) -> str:
    """Of a made trace: which way to misread it gives this number; empty if none of them does."""
    return next((says for says, way in WRONG_WAYS.items() if isclose(found, way(events), rel_tol=1e-6)), "")
