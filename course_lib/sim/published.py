"""The published runs that the project carries, and files of one's own in the same schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.errors import four_parts
from course_lib.sim.runs import Run, read_run

_FILE = Path(__file__).parent / "data" / "published.json"


def read_rows(path: Path, operation: str) -> list[Any]:
    """The rows of a file: a list, or the list `runs` of an object whose `sources` complete each row's source.

    Raises: ValueError for a file that is not there, not JSON, or holds no list of rows.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        rule = f"cannot be read: {error.strerror}"
        raise ValueError(four_parts(operation, f"runs={str(path)!r}", rule, "name a JSON file")) from None
    except (ValueError, RecursionError) as error:
        rule = f"is not JSON: {' '.join(str(error).split())}"
        raise ValueError(four_parts(operation, f"runs={str(path)!r}", rule, "give a list of rows as JSON")) from None
    rows = found.get("runs") if isinstance(found, Mapping) else found
    if not isinstance(rows, list):
        rule, way_out = "has no list of rows", "give a JSON list, or an object with the list 'runs'"
        raise ValueError(four_parts(operation, f"runs={str(path)!r}", rule, way_out))
    sources = found.get("sources") if isinstance(found, Mapping) else None
    return [_with_source(row, sources) for row in rows] if isinstance(sources, Mapping) else rows


def measured_runs(rows: Iterable[Any]) -> list[Run]:
    """The runs that have a measured step and can be predicted."""
    return [run for run in map(read_run, rows) if isinstance(run, Run) and run.step_s is not None]


@cache
def _all_rows() -> tuple[Any, ...]:
    return tuple(read_rows(_FILE, "published runs"))


@cache
def published_rows() -> tuple[Any, ...]:
    """The project's own rows, of all kinds, that constants may learn from."""
    return tuple(row for row in _all_rows() if not row.get("withheld"))


@cache
def withheld_runs() -> tuple[Run, ...]:
    """Runs that no constant has seen: of schedules without a pause, ZB-2p and ZB-V, and with products of 4 bits.

    No run of another source has these.
    """
    return tuple(measured_runs(row for row in _all_rows() if row.get("withheld")))


@cache
def memory_runs() -> tuple[Run, ...]:
    """Those whose peak of memory was measured and that can be counted."""
    return tuple(run for run in map(read_run, published_rows()) if isinstance(run, Run) and run.memory_bytes)


@cache
def published_runs() -> tuple[Run, ...]:
    """The training runs among them that have a measured step and can be predicted."""
    return tuple(measured_runs(row for row in published_rows() if row["kind"] == "training"))


def _with_source(row: Any, sources: Mapping[str, Any]) -> Any:
    """The row with the title of its source, and its own page of it."""
    if not isinstance(row, Mapping) or "source" in row:
        return row
    source = sources.get(str(row.get("source_key")))
    if not isinstance(source, Mapping) or not isinstance(source.get("refs"), list):
        return row
    page = row.get("ref") or 0
    return {**row, "source": {"title": source.get("title"), "ref": dict(enumerate(source["refs"])).get(page)}}
