"""A run as it is now, for whoever watches it: how far it is, whether it has ended, and what asks for a look."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from course_lib.gauges.run_log import CONFIG, METRICS, Alarm, LoggedStep, alarms, read_run
from course_lib.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """What one look at a run's files has found."""

    heading: str  # a line
    steps: list[LoggedStep]
    ended: bool  # all steps are there that `train` shall make
    alarms: list[Alarm]

    @property
    def said(self) -> list[str]:
        """What asks for a look, a line each."""
        return [f"! {one.said}" for one in self.alarms]


def run_now(run: str | Path, *, may_come: bool = False) -> RunNow:
    """Look at a run's folder, or at one file; with `may_come` it need not be there yet, as it is before its first step.

    Raises: ValueError for what is no run.
    """
    path = Path(run).expanduser()
    file = path / METRICS if path.is_dir() else path
    if may_come and not file.exists():
        return RunNow(heading=f"{file.absolute()}: not there yet", steps=[], ended=False, alarms=[])
    steps, wanted = read_run(file), _steps_wanted(file.parent)
    name = file.parent.resolve().name
    if not steps:
        return RunNow(heading=f"{name}: no step yet", steps=[], ended=False, alarms=[])
    idle_s = max(0.0, time.time() - file.stat().st_mtime)
    ended = wanted is not None and steps[-1].step >= wanted
    step = f"step {steps[-1].step}{f' of {wanted}' if wanted is not None else ''}"
    when = "ended" if ended else f"{format_seconds(round(idle_s, 1))} ago"
    found = alarms(steps, idle_s=0.0 if ended else idle_s)
    return RunNow(heading=f"{name}: {step}, {when}", steps=steps, ended=ended, alarms=found)


def _steps_wanted(folder: Path) -> int | None:
    """How many the run shall have, if `train` wrote it."""
    try:
        said = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
        return int(said["steps"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None
