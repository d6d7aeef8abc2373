"""`python -m course_lib calibrate`: fit the simulator's constants again, and test them on runs that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.cli.commands import CALIBRATE
from course_lib.cli.compose import parse_overrides, path_given, refuse
from course_lib.cli.settings import names
from course_lib.sim.calibrate import calibrate, constants_as_json, records_as_csv
from course_lib.sim.nearest import layouts_as_csv
from course_lib.sim.published import published_runs
from course_lib.sim.report import SOURCE_NAMES

_COMMAND = "calibrate"


def calibrate_command(overrides: Sequence[str]) -> int:
    """Print the error table; with `out` write it, constants and layouts. The package's own lie in course_lib/sim/data.

    Raises: ValueError for an unknown name, or files that cannot be written.
    """
    parsed = parse_overrides(_COMMAND, "a calibration", overrides, keys=names(CALIBRATE), groups=())
    folders = [path_given(_COMMAND, "out", override.value()) for override in parsed]
    constants, records = calibrate()
    print(*map(_line, records), sep="\n")
    for folder in folders:
        texts = {
            "constants.json": constants_as_json(constants),
            "errors.csv": records_as_csv(records),
            "layouts.csv": layouts_as_csv(published_runs(), SOURCE_NAMES),
        }
        print(f"written: {_write({folder / name: text for name, text in texts.items()})}")
    return 0


def _write(files: Mapping[Path, str]) -> str:
    folder = next(iter(files)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(_COMMAND, f"out={str(folder)!r}", f"cannot be written: {error.strerror}", "name another folder")
    return " and ".join(map(str, files))


def _line(record: Mapping[str, Any]) -> str:
    """A record as text: shares in percent."""
    shares = [f"{key} {record[key]:.1%}" for key in ("median", "p90", "covered") if record[key] is not None]
    return (
        f"{record['test']:<44}{record['group']:<24}{record['rows']:>4}  {'  '.join(shares)}  {record['note']}".rstrip()
    )
