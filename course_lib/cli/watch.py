"""`python -m course_lib watch FOLDER`: a run's lines of JSON as curves in a terminal, and what asks for a look."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean

import yaml

from course_lib.cli import settings
from course_lib.cli.commands import WATCH
from course_lib.cli.compose import parse_overrides, path_given, refuse
from course_lib.gauges.run_log import CONFIG, METRICS, LoggedStep, alarms, columns, read_run
from course_lib.units import format_seconds

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
    file = run / METRICS if run.is_dir() else run
    again = not values["once"] and sys.stdout.isatty()
    while True:
        text, ended, flagged = _look(file)
        print(f"{_CLEAR}{text}" if again else text, flush=True)
        if ended or not again:
            return int(flagged)
        time.sleep(_EVERY_S)


def _look(file: Path) -> tuple[str, bool, bool]:
    """What is shown now, whether the run has ended, and whether something asks for a look."""
    steps, wanted = read_run(file), _steps_wanted(file.parent)
    idle_s = max(0.0, time.time() - file.stat().st_mtime)
    ended = bool(steps) and wanted is not None and steps[-1].step >= wanted
    found = alarms(steps, idle_s=0.0 if ended else idle_s)
    lines = [
        _heading(
            file.parent.resolve().name, steps, wanted, "ended" if ended else f"{format_seconds(round(idle_s, 1))} ago"
        )
    ]
    lines += _curves(steps)
    lines += [f"! {one.said}" for one in found]
    return "\n".join(lines), ended, bool(found)


def _heading(name: str, steps: Sequence[LoggedStep], wanted: int | None, when: str) -> str:
    if not steps:
        return f"{name}: no step yet"
    return f"{name}: step {steps[-1].step}{f' of {wanted}' if wanted is not None else ''}, {when}"


def _steps_wanted(folder: Path) -> int | None:
    """How many the run shall have, if `train` wrote it."""
    try:
        said = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
        return int(said["steps"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None


def _curves(steps: Sequence[LoggedStep]) -> Iterator[str]:
    told = columns(steps)
    widest = max(map(len, told), default=0)
    for name, values in told.items():
        finite = [value for value in values if isfinite(value)]
        ends = f"{_number(name, finite[0])} -> {_number(name, values[-1])}" if finite else "never finite"
        yield f"{name:<{widest}}  {_sparkline(values):<{min(_WIDTH, len(values))}}  {ends}"


def _number(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "MFU" else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A line of blocks from the least to the largest value, each of them a mean; × has a value that is not finite.

    >>> _sparkline([1, 2, 3, 4, float("nan"), 8])
    '▁▂▃▄×█'
    """
    count = min(width, len(values))
    parts = [values[k * len(values) // count : (k + 1) * len(values) // count] for k in range(count)]
    means = [fmean(part) if all(map(isfinite, part)) else None for part in parts]
    drawn = [mean for mean in means if mean is not None]
    low, span = min(drawn, default=0.0), max(drawn, default=0.0) - min(drawn, default=0.0)
    scale = (len(_BLOCKS) - 1) / span if span > _SAME * abs(low) else 0.0
    return "".join(_NOT_FINITE if mean is None else _BLOCKS[round((mean - low) * scale)] for mean in means)
