"""The ladder's verdict as text, as JSON and as a figure, and the exit status that it has for others."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from course_lib.cli.compose import refuse
from course_lib.ranks import RankError
from course_lib.verify.diagnosis import NotEqual
from course_lib.verify.equality import name_of
from course_lib.verify.ladder import Report
from course_lib.viz.proof.ladder import plot_ladder

BAD_INPUT = 2  # 0: equal, 1: not equal
_AS_LARGE = 1.0  # where a tensor is missing, none of it is right


def say(climb: Callable[[], Report], out: str | None) -> int:
    """Climb, print what came out and write it to the folder `out`; return the exit status.

    Raises: ValueError for bad input, which `main` says in a line.
    """
    try:
        report = climb()
    except NotEqual as error:
        return _told(out, str(error), _of_error(error), error.climbed, error.tolerance)
    except RankError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except ValueError:
        raise
    except Exception:  # of the user's own code: Python's own status would be that of ranks that are not equal
        traceback.print_exc()
        return BAD_INPUT
    return _told(out, str(report), _of_report(report), report.deviations, report.tolerance)


def _told(out: str | None, text: str, facts: dict[str, Any], rungs: Mapping[str, float], tolerance: float) -> int:
    print(text)
    if out is not None:
        folder = Path(out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "report.txt").write_text(f"{text}\n", encoding="utf-8")
            (folder / "report.json").write_text(f"{json.dumps(facts, indent=1)}\n", encoding="utf-8")
            drawn = {rung: off if math.isfinite(off) else _AS_LARGE for rung, off in rungs.items()}
            title = "" if facts["equal"] else "The ranks are not one device"  # also where they are off by one bit
            plot_ladder(drawn, tolerance=tolerance, title=title).save(folder / "ladder.svg")
        except OSError as error:
            refuse("verify", f"out={out!r}", f"cannot be written: {error.strerror}", "name another folder")
        print(f"written: {folder / 'report.json'}, report.txt and ladder.svg")
    return 0 if facts["equal"] else 1


def _of_report(report: Report) -> dict[str, Any]:
    return {
        "equal": True,
        "ranks": report.world_size,
        "dtype": name_of(report.dtype),
        "narrow": report.narrow and name_of(report.narrow),
        "tolerance": report.tolerance,
        "deviations": report.deviations,
        "left_out": report.left_out,
        "notes": report.notes,
    }


def _of_error(error: NotEqual) -> dict[str, Any]:
    return {
        "equal": False,
        "rung": error.rung,
        "name": error.name,
        "rank": error.rank,
        "ratio": error.ratio,
        "kind": error.kind,
        "causes": error.causes,
        "message": str(error),
        "tolerance": error.tolerance,
        "deviations": {rung: _finite(off) for rung, off in error.climbed.items()},
        "loss_apart": _finite(error.loss_apart),
    }


def _finite(off: float | None) -> float | None:
    return off if off is not None and math.isfinite(off) else None
