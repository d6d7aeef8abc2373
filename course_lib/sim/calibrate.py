"""Fit the simulator's constants to the published runs, test them on runs that were left out, keep both as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from course_lib.sim.constants import Constants
from course_lib.sim.fit import fit
from course_lib.sim.published import published_rows, published_runs
from course_lib.sim.report import (
    COLUMNS,
    ablation_records,
    memory_records,
    noise_record,
    order_records,
    three_row_records,
    time_records,
)
from course_lib.sim.validate import interval, tests


def calibrate() -> tuple[Constants, list[dict[str, Any]]]:
    """The constants, with intervals from left-out sources and stacks, and the error table.

    Cost: about 200 fits of a second or less.
    """
    runs = published_runs()
    found = tests(runs)
    sources, stacks = [run.source for run in runs], [run.software.stack for run in runs]
    constants = Constants(
        values=fit(runs),
        known=interval(found["sources"], sources),
        unknown=interval(found["stacks"], stacks),
        fitted_on=f"{len(runs)} runs of {len(set(sources))} sources",
    )
    records = [
        *time_records(runs, found),
        *three_row_records(runs, found["sources"]),
        *memory_records(published_rows()),
        noise_record(runs),
        *order_records(runs, found["sources"]),
        *ablation_records(runs),
    ]
    return constants, records


def constants_as_json(constants: Constants) -> str:
    """The text of constants.json."""
    values = {name: float(f"{value:.4g}") for name, value in constants.values.items()}
    known, unknown = ([float(f"{end:.4g}") for end in ends] for ends in (constants.known, constants.unknown))
    found = {"fitted_on": constants.fitted_on, "known": known, "unknown": unknown, "values": values}
    return json.dumps(found, indent=1) + "\n"


def records_as_csv(records: Sequence[dict[str, Any]]) -> str:
    """The text of errors.csv: shares with four digits behind the point."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in record.items()}
        for record in records
    )
    return text.getvalue()
