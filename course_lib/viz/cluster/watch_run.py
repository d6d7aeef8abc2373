"""A run in a notebook while it goes on: its picture in one place, drawn anew when a step has come."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from IPython.core.display_functions import DisplayHandle

from course_lib.errors import four_parts
from course_lib.gauges.run_now import RunNow, run_now
from course_lib.viz.cluster.plot_run import plot_run
from course_lib.viz.ink.picture import Picture

_REST = 10  # times as long as a look took: a long run takes long to draw, and its ranks need this machine, too


class _Look:
    """A run as it was seen once: its picture between a heading and what asks for a look."""

    def __init__(self, now: RunNow, before: _Look | None) -> None:
        self.now = now
        self.picture: Picture | None
        if before is not None and before.now.steps == now.steps:
            self.picture = before.picture  # only the heading is older
        else:
            self.picture = plot_run(now.steps) if any(isfinite(one.loss) for one in now.steps) else None

    def __repr__(self) -> str:
        picture = [] if self.picture is None else [self.picture.text]
        return "\n".join([self.now.heading, *picture, *self.now.said])

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        picture = [] if self.picture is None else [self.picture.html]
        html = [_as_typed(self.now.heading), *picture, *map(_as_typed, self.now.said)]
        return {"text/html": "\n".join(html), "text/plain": repr(self)}


class Watched:
    """What `watch_run` has shown last; as a cell's value it shows nothing, because the page has it already."""

    def __init__(self, picture: Picture | None, text: str) -> None:
        self.picture, self.text = picture, text  # without a finite loss there is no picture

    def __repr__(self) -> str:
        return self.text

    def _ipython_display_(self) -> None:
        pass


def watch_run(run: str | Path, *, every_s: float = 2.0) -> Watched:
    """Show `plot_run` of a run and what asks for a look, anew every `every_s` seconds, until the run has ended.

    The run is a folder of `train`, or a file of such lines, and may still have to begin. It has to train elsewhere: in
    a process, a terminal or a job. Interrupting the cell ends the watch and leaves its last picture.
    Raises: ValueError for what is no run, or a time that is none.
    """
    if not every_s > 0:
        raise ValueError(four_parts("watch_run", f"every_s={every_s}", "it is a time between looks", "give 2.0"))
    handle: Any = DisplayHandle()
    shown: _Look | None = None
    with suppress(KeyboardInterrupt):
        while shown is None or not shown.now.ended:
            start = time.perf_counter()
            look = _Look(run_now(run, may_come=True), shown)
            (handle.display if shown is None else handle.update)(look)
            shown = look
            if not look.now.ended:
                time.sleep(max(every_s, _REST * (time.perf_counter() - start)))
    return Watched(None, "") if shown is None else Watched(shown.picture, repr(shown))


def _as_typed(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
