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
BY_HAND = "by hand"  # stands for the release that mended a bug, where there is none yet


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one release; `said` is the ladder's message, or the last line of a run that broke."""

    version: str
    ended: str  # equal, fell, broke
    rung: str = ""
    causes: tuple[str, ...] = ()
    deviation: float | None = 0.0  # on its rung, or the largest of all; None where a tensor is missing
    loss_apart: float | None = None  # that of the loss curve, where the trainer tells its losses
    said: str = ""
    seconds: int = 0


def climb(exhibit: Exhibit, *, mended: bool) -> Outcome:
    """Install a release of the exhibit and let it climb the ladder.

    Raises: SetupError if pip cannot install it.
    """
    pins = exhibit.mended if mended else exhibit.old
    environment = environment_for(pins)
    wanted, found = exhibit.release(pins), version_in(environment, exhibit.library).partition("+")[0]
    if found != wanted:
        said = f"{environment.name} has {exhibit.library} {found}; delete the folder and try again"
        return Outcome(version=wanted, ended=BROKE, said=said)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        try:
            run = subprocess.run(
                [str(python_of(environment)), "-m", "course_lib", "verify", *arguments(exhibit, folder, mended=mended)],
                cwd=ROOT,
                env=variables(),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return Outcome(version=wanted, ended=BROKE, said=f"it took longer than {LIMIT_S} s", seconds=LIMIT_S)
        return outcome(
            BY_HAND if mended and exhibit.open else wanted,
            run,
            Path(folder) / "report.json",
            round(time.monotonic() - begin),
        )


def arguments(exhibit: Exhibit, folder: str, *, mended: bool) -> list[str]:
    """What the command is given."""
    file, parallel = f"wild.{exhibit.name}", "workaround" if mended and exhibit.open else "parallel"
    return [
        f"{file}:reference",
        f"{file}:{parallel}",
        f"ranks={exhibit.ranks}",
        f"dtype={exhibit.dtype}",
        f"out={folder}",
    ]


def variables() -> dict[str, str]:
    """The course is importable, nothing is fetched, libraries choose the CPU, and ranks do not fight for its cores."""
    ours = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours}


def outcome(version: str, run: subprocess.CompletedProcess[str], report: Path, seconds: int) -> Outcome:
    """What a finished process left behind; without a report it broke, whatever its exit status."""
    ended = OF_EXIT_STATUS.get(run.returncode, BROKE)
    if ended == BROKE or not report.exists():
        lines = [line.strip() for line in (run.stderr or run.stdout).splitlines() if line.strip()]
        said = lines[-1] if lines else f"it ended with exit status {run.returncode} and without a word"
        return Outcome(version=version, ended=BROKE, said=said, seconds=seconds)
    found = json.loads(report.read_text())
    deviations, rung = found["deviations"], found.get("rung", "")
    return Outcome(
        version=version,
        ended=ended,
        rung=rung,
        causes=tuple(found.get("causes", ())),
        deviation=deviations.get(rung) if rung else max(deviations.values()),
        loss_apart=found["loss_apart"] if rung else deviations.get("loss curve"),
        said=found.get("message", ""),
        seconds=seconds,
    )
