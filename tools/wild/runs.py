"""One release before the ladder, in its own environment and process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.paths import ROOT, python_of
from tools.wild.environments import environment_for, version_in
from tools.wild.exhibits import Exhibit

LIMIT_S = 900
EQUAL, FELL, BROKE = "equal", "fell", "broke"
OF_EXIT_STATUS = {0: EQUAL, 1: FELL}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one release; `said` is the ladder's message, or the last line of a run that broke."""

    version: str
    ended: str  # equal, fell, broke
    rung: str = ""
    causes: tuple[str, ...] = ()
    deviation: float = 0.0
    loss_apart: float | None = None  # the most that the two loss curves are apart, over the curve
    said: str = ""
    seconds: int = 0


def climb(exhibit: Exhibit, *, mended: bool) -> Outcome:
    """Install a release of the exhibit and let it climb the ladder.

    Raises: SetupError if pip cannot install it.
    """
    pins = exhibit.mended if mended else exhibit.old
    environment = environment_for(pins)
    wanted, found = exhibit.release(pins), version_in(environment, exhibit.library)
    if found != wanted:
        said = f"{environment.name} has {exhibit.library} {found}; delete the folder and try again"
        return Outcome(version=wanted, ended=BROKE, said=said)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        try:
            run = subprocess.run(
                [str(python_of(environment)), "-m", "course_lib", "verify", *arguments(exhibit, folder)],
                cwd=ROOT,
                env=variables(),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return Outcome(version=wanted, ended=BROKE, said=f"it took longer than {LIMIT_S} s", seconds=LIMIT_S)
        return outcome(wanted, run, Path(folder) / "report.json", round(time.monotonic() - begin))


def arguments(exhibit: Exhibit, folder: str) -> list[str]:
    """What the command is given."""
    file = f"wild/{exhibit.name}.py"
    batches = [f"batches={file}:batches"] if exhibit.with_batches else []
    return [f"{file}:reference", f"{file}:parallel", f"ranks={exhibit.ranks}", *batches, f"out={folder}"]


def variables() -> dict[str, str]:
    """The course is importable, nothing is fetched while it runs, and ranks do not fight for the cores."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def outcome(version: str, run: subprocess.CompletedProcess[str], report: Path, seconds: int) -> Outcome:
    """What a finished process left behind; without a report it broke, whatever its exit status."""
    ended = OF_EXIT_STATUS.get(run.returncode, BROKE)
    if ended == BROKE or not report.exists():
        lines = [line.strip() for line in (run.stderr or run.stdout).splitlines() if line.strip()]
        said = lines[-1] if lines else f"it ended with exit status {run.returncode} and without a word"
        return Outcome(version=version, ended=BROKE, said=said, seconds=seconds)
    found = json.loads(report.read_text())
    return Outcome(
        version=version,
        ended=ended,
        rung=found["rung"] or "",
        causes=tuple(found["causes"]),
        deviation=found["deviation"],
        loss_apart=found["loss_apart"],
        said=found["message"] or "",
        seconds=seconds,
    )
