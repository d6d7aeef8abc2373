"""A trace that torch's profiler has exported: its events, and how long some of them run while no other does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import course_lib.gauges.exposed as exposed
from course_lib.gauges.exposed import Spans


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
        return events_in(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError):
        return f"{path.name} is no trace as export_chrome_trace writes it"


def events_in(text: str) -> list[Event]:
    """Those of a file's text. Raises: ValueError, KeyError or TypeError if it is no trace."""
    return [
        Event(one["name"], one.get("cat", ""), one["ts"], one["ts"] + one["dur"], one["pid"], one["tid"])
        for one in json.loads(text)["traceEvents"]
        if one.get("ph") == "X" and isinstance(one["pid"], int)
    ]


def named(events: Iterable[Event], start: str) -> list[Event]:
    """Those whose name begins so."""
    return [event for event in events if event.name.startswith(start)]


def union(events: Iterable[Event]) -> Spans:
    """When at least one of them runs."""
    return exposed.union((event.start, event.end) for event in events)
