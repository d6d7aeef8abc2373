"""`python -m course_lib watch FOLDER`: a run's lines of JSON as curves in a terminal, and what asks for a look."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import fmean

from course_lib.cli import settings
from course_lib.cli.commands import WATCH
from course_lib.cli.compose import parse_overrides, path_given, refuse
from course_lib.gauges.run_log import columns
from course_lib.gauges.run_now import RunNow, run_now

COMMAND = "watch"
_BLOCKS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "×"
_WIDTH, _EVERY_S = 48, 2.0
_SAME = 1e-9  # of a value, what rounding makes of means of the same
_CLEAR = "\x1b[H\x1b[2J"
_EXAMPLE = "write: watch FOLDER once=true"


def watch_command(arguments: Sequence[str]) -> int:
    """Draw until the run has ended, or once where no terminal is; 1 if something asks for a look, else 0.

    Raises: ValueError for what is no run.
    """
    named = [word for word in arguments if "=" not in word]
    given = [word for word in arguments if "=" in word]
    if len(named) != 1:
        refuse(COMMAND, f"{len(named)} folders are named", "one run is watched", _EXAMPLE)
    parsed = parse_overrides(COMMAND, "a watch", given, keys=settings.names(WATCH), groups=())
    values = settings.defaults(WATCH) | {one.key_or_group: one.value() for one in parsed}
    settings.check_kinds(COMMAND, WATCH, values)
    run = path_given(COMMAND, "FOLDER", named[0])
    again = not values["once"] and sys.stdout.isatty()
    while True:
        now = run_now(run, may_come=again)
        text = "\n".join([now.heading, *_curves(now), *now.said])
        print(f"{_CLEAR}{text}" if again else text, flush=True)
        if now.ended or not again:
            return int(bool(now.alarms))
        time.sleep(_EVERY_S)


def _curves(now: RunNow) -> Iterator[str]:
    told = columns(now.steps)
    widest = max(map(len, told), default=0)
    for name, values in told.items():
        finite = [value for value in values.values() if isfinite(value)]
        last = [*values.values()][-1]
        ends = f"{_number(name, finite[0])} -> {_number(name, last)}" if finite else "never finite"
        slow = [f", rank {one.rank}" for one in now.alarms if one.column == name and one.rank is not None]
        line = _sparkline([values.get(one.step) for one in now.steps])
        yield f"{name:<{widest}}  {line}  {ends}{''.join(slow)}"


def _number(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "MFU" else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _sparkline(values: Sequence[float | None], width: int = _WIDTH) -> str:
    """A line of blocks from the least to the largest value, each of them a mean; × has a value that is not finite.

    Where no step says it (None), the line goes on as high as before, from the first one that does to the last.

    >>> _sparkline([1, 2, 3, 4, float("nan"), 8])
    '▁▂▃▄×█'
    >>> _sparkline([None, 1, None, None, 2, None])
    ' ▁▁▁█ '
    """
    count = min(width, len(values))
    cut = [values[k * len(values) // count : (k + 1) * len(values) // count] for k in range(count)]
    parts = [[value for value in part if value is not None] for part in cut]
    means = [fmean(part) if part and all(map(isfinite, part)) else None for part in parts]
    drawn = [mean for mean in means if mean is not None]
    low, span = min(drawn, default=0.0), max(drawn, default=0.0) - min(drawn, default=0.0)
    scale = (len(_BLOCKS) - 1) / span if span > _SAME * abs(low) else 0.0
    last = max((k for k, part in enumerate(parts) if part), default=-1)
    line, before = "", " "
    for k, (part, mean) in enumerate(zip(parts, means, strict=True)):
        if mean is not None:
            before = _BLOCKS[round((mean - low) * scale)]
        line += " " if k > last else _NOT_FINITE if part and mean is None else before
    return line
