"""A trace that torch's profiler has exported: its events, and how long some of them run while no other does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Spans = list[tuple[float, float]]  # in order, none touches another


class Event(NamedTuple):
    """What ran from `start` to `end`, in microseconds."""

    name: str
    category: str
    start: float
    end: float
    pid: int
    thread: int


def events_of(path: Path) -> list[Event] | str:
    """Its events that have a duration, or in a sentence why there are none."""
    if not path.exists():
        return f"there is no {path.name} in the folder: each rank exports a trace of each step"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        return [
            Event(one["name"], one.get("cat", ""), one["ts"], one["ts"] + one["dur"], one["pid"], one["tid"])
            for one in found
            if one.get("ph") == "X" and isinstance(one["pid"], int)
        ]
    except (ValueError, KeyError, TypeError):
        return f"{path.name} is no trace as export_chrome_trace writes it"


def named(events: Iterable[Event], start: str) -> list[Event]:
    """Those whose name begins so."""
    return [event for event in events if event.name.startswith(start)]


def union(events: Iterable[Event]) -> Spans:
    """When at least one of them runs."""
    spans: Spans = []
    for event in sorted(events, key=lambda event: event.start):
        if spans and event.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], event.end))
        else:
            spans.append((event.start, event.end))
    return spans


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


def length(spans: Sequence[tuple[float, float]]) -> float:
    """Of all together."""
    return sum(end - start for start, end in spans)
