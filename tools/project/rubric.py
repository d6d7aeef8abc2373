"""The rubric: points for each rung of each trainer, and for each planted bug that is named by its function."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from course_lib.checks.project.ladder import RUNGS, TRAINERS, Climbed
from tools.grading.isolation import IsolationError, Runs
from tools.project.planted import DIAGNOSIS, plant

POINTS = {"replicas": 20, "shards": 28, "mesh": 32}
NAMED = 20  # for the diagnosis: all bugs named, and nothing else
LIMIT_S = 900.0
ALONE = Path(__file__).with_name("alone.py")
_LINE = re.compile(r"^(\w+)\.(?:\w+\.)?(\w+)\s*:\s*\S", re.MULTILINE)  # a method with its class, or without


class Row(NamedTuple):
    """One line of a project's rubric."""

    name: str
    points: float
    possible: float
    remark: str


def grade(folder: Path, seed: int, runs: Runs) -> list[Row]:
    """All rows of one project. Its trainers climb on numbers that nobody has seen, each run fenced off."""
    texts = {name: text for name in TRAINERS if (text := text_of(folder / f"{name}.py"))}
    rows = of_trainers(texts, climbed(texts, seed + 1, runs))
    return [*rows, of_diagnosis(text_of(folder / DIAGNOSIS), seed)]


def text_of(path: Path) -> str:
    """A file's text; none of a link, which may lead to somebody else's."""
    return path.read_text("utf-8", "replace") if path.is_file() and not path.is_symlink() else ""


def climbed(texts: Mapping[str, str], seed: int, runs: Runs) -> list[Climbed]:
    """What `alone.py` found beside a copy of the library; what it did not get to is missing."""
    found = []
    try:
        for line in runs.alone(ALONE, given=json.dumps({"texts": texts, "seed": seed}), limit_s=LIMIT_S):
            found.append(Climbed(*json.loads(line)))
    except (IsolationError, ValueError, TypeError) as error:
        found.append(Climbed("", "", str(error)))
    return found


def of_trainers(texts: Mapping[str, str], climbed: Iterable[Climbed]) -> list[Row]:
    """A row for each rung; a rung that was never reached has no points."""
    said = {(one.trainer, one.rung): one.reason for one in climbed}
    stopped = said.get(("", ""), "not reached")
    rows = []
    for trainer in TRAINERS:
        missing = stopped if trainer in texts else f"there is no {trainer}.py"
        for rung in RUNGS:
            reason = said.get((trainer, rung.name), missing)
            possible = round(rung.share * POINTS[trainer], 1)
            rows.append(Row(f"{trainer}: {rung.name}", 0.0 if reason else possible, possible, reason))
    return rows


def of_diagnosis(text: str, seed: int) -> Row:
    """A share for each function that had a bug, half a share less for each that had none: naming all does not pay."""
    planted = {(trainer, function) for trainer in TRAINERS for function in plant(trainer, seed).functions}
    named = set(_LINE.findall(text))
    share = NAMED / len(planted)
    points = max(0.0, share * len(named & planted) - share / 2 * len(named - planted))
    remark = f"{len(named & planted)} of {len(planted)} bugs named, {len(named - planted)} functions without one"
    return Row("diagnosis", round(points, 1), NAMED, remark)


def table(rows: Iterable[Row]) -> str:
    """The rubric as one reads it, with its sum."""
    rows = list(rows)
    width = max(len(row.name) for row in rows)
    lines = [f"{row.points:5.1f} of {row.possible:4.1f}  {row.name:<{width}}  {row.remark}".rstrip() for row in rows]
    total = f"{sum(row.points for row in rows):5.1f} of {sum(row.possible for row in rows):4.0f}  together"
    return "\n".join([*lines, total])
