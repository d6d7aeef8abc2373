"""How much of a step's communication nothing hides: what is exposed in a trace of torch's profiler.

`events` is the list that a file of `export_chrome_trace` holds under `traceEvents`; its times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Events = Sequence[Mapping[str, Any]]
Spans = list[tuple[float, float]]  # from when to when: in order, none touches another


class Exposed(NamedTuple):
    """Seconds in which something is communicated, and those of them in which nothing is computed; their share."""

    communication_s: float
    exposed_s: float
    share: float
    by_name: dict[str, float]  # exposed seconds of each collective


def exposed(events: Events) -> Exposed:
    """A collective is exposed while no computation runs beside it."""
    communication, computation = sorted_out(events)
    computed = spans_of(computation)
    by_name = {}
    for name in sorted({_plain_name(event) for event in communication}):
        mine = spans_of(event for event in communication if _plain_name(event) == name)
        by_name[name] = length(without(mine, computed)) / 1e6
    communicated = spans_of(communication)
    alone = length(without(communicated, computed))
    share = alone / (length(communicated) or 1.0)
    return Exposed(length(communicated) / 1e6, alone / 1e6, share, by_name)


def sorted_out(events: Events) -> tuple[Events, Events]:
    """Communication and computation: NCCL's kernels and all others, or of a CPU gloo's calls and torch's."""
    timed = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in timed if event.get("cat") == "kernel"]
    if kernels:
        nccl = [event for event in kernels if event["name"].startswith("nccl")]
        return nccl, [event for event in kernels if not event["name"].startswith("nccl")]
    gloo = [event for event in timed if event["name"].startswith("gloo:")]
    return gloo, [event for event in timed if event["name"].startswith("aten::")]


def _plain_name(event: Mapping[str, Any]) -> str:
    """Without the types of a kernel's arguments, which several kernels of one name may have."""
    return str(event["name"].partition("(")[0])


def spans_of(events: Iterable[Mapping[str, Any]]) -> Spans:
    """When at least one of them runs."""
    return union((event["ts"], event["ts"] + event["dur"]) for event in events)


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same times, where what overlaps or touches is one span."""
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def without(spans: Spans, others: Spans) -> Spans:
    """The parts of `spans` that lie in none of the others."""
    left: Spans = []
    for start, end in spans:
        for first, last in others:
            if last <= start or first >= end:
                continue
            if first > start:
                left.append((start, first))
            start = max(start, last)
        if start < end:
            left.append((start, end))
    return left


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Of all together."""
    return sum(end - start for start, end in spans)
