"""`python -m course_lib predict`: step time, memory and fit of every run in a file, beside what was measured."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from course_lib.cli.commands import PREDICT
from course_lib.cli.compose import parse_overrides, path_given, refuse
from course_lib.cli.model_given import model_folder, shape_given
from course_lib.cli.settings import names
from course_lib.sim.predict import COLUMNS, factor_of, predict_rows
from course_lib.sim.published import measured_runs, read_rows

_COMMAND = "predict"


def predict_command(overrides: Sequence[str]) -> int:
    """Predict the rows of `runs`, write them to `out`, and say how many there are and how far off they are.

    Raises: ValueError for an unknown name, a file that cannot be read or written, or own runs without a measured step.
    """
    parsed = parse_overrides(_COMMAND, "a prediction", overrides, keys=names(PREDICT), groups=())
    asked = {override.key_or_group: str(override.value()) for override in parsed}
    for key, example in (("runs", "runs=FILE.json"), ("out", "out=FILE.csv")):
        if key not in asked:
            refuse(_COMMAND, f"without {key}", "runs are read from a file and predictions written to one", example)
    rows = [*map(_with_shape, read_rows(path_given(_COMMAND, "runs", asked["runs"]), _COMMAND))]
    factor = _own_factor(path_given(_COMMAND, "calibrate", asked["calibrate"])) if "calibrate" in asked else 1.0
    records = predict_rows(rows, factor=factor)
    _write(path_given(_COMMAND, "out", asked["out"]), records)
    print(*_summary(records), sep="\n")
    print(f"written: {asked['out']}")
    return 0


def _with_shape(row: Any) -> Any:
    """The row, with the shape of a folder of Hugging Face if its model is one; torch is loaded for such rows alone."""
    if not isinstance(row, Mapping) or not isinstance(given := row.get("model"), Mapping) or "folder" not in given:
        return row
    name = str(given["folder"])
    folder = model_folder(_COMMAND, name, ())
    return {**row, "model": {"shape": shape_given(folder, {})} if folder is not None else {"preset": name}}


def _own_factor(path: Path) -> float:
    """What the user's own measured runs ask for."""
    runs = measured_runs(read_rows(path, _COMMAND))
    if not runs:
        rule = "none of its rows has a measured step and can be predicted"
        refuse(_COMMAND, f"calibrate={str(path)!r}", rule, "give rows of your cluster with measured.step_time_s")
    factor = factor_of(runs)
    print(f"{len(runs)} measured runs of your own: every predicted step x {factor:.3f}")
    return factor


def _write(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """One line for each row, in their order.

    Raises: ValueError if the system refuses.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({key: _text(value) for key, value in record.items()} for record in records)
    except OSError as error:
        refuse(_COMMAND, f"out={str(path)!r}", f"cannot be written: {error.strerror}", "name another file")


def _text(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def _summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Counts, and the error where a step was measured."""
    done = [record for record in records if record["step_s"] is not None]
    lines = [f"{len(done)} of {len(records)} rows predicted; the column `reason` says why others are not"]
    off = [abs(one["step_s"] / one["measured_step_s"] - 1) for one in done if one["measured_step_s"]]
    if off:
        lines.append(f"{len(off)} of them have a measured step: median error {median(off):.1%}")
    return lines
