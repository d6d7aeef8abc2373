"""Fit the simulator's constants to the published runs, test them on runs that were left out, keep both as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.sim.constants import Constants
from course_lib.sim.fit import errors, fit
from course_lib.sim.published import later_rows, later_runs, published_rows, published_runs
from course_lib.sim.report import (
    COLUMNS,
    LATER,
    ablation_records,
    later_fits_records,
    later_records,
    memory_records,
    noise_record,
    order_records,
    sweep_records,
    three_row_records,
    time_records,
)
from course_lib.sim.table import table_of
from course_lib.sim.validate import interval, tests, unseen


def calibrate() -> tuple[Constants, list[dict[str, Any]]]:
    """The constants, with intervals from left-out sources and stacks and from later sources, and the error table.

    Cost: about 200 fits of a second or less.
    """
    runs = published_runs()
    found = tests(runs)
    values, later = fit(runs), later_runs()
    of_later = errors(table_of(later), values)
    kinds = unseen(runs, found, later, of_later)
    constants = Constants(
        values=values,
        known=interval(*kinds["known stacks"]),
        unknown=interval(*kinds["unknown stacks"]),
        fitted_on=f"{len(runs)} runs of {len({run.source for run in runs})} sources",
    )
    records = [
        *time_records(runs, found),
        *later_records(later, of_later, kinds),
        *three_row_records(runs, found["sources"]),
        *three_row_records(later, of_later, LATER),
        *memory_records(published_rows()),
        *later_fits_records(later_rows()),
        noise_record(runs),
        *order_records(runs, found["sources"]),
        *sweep_records([*runs, *later], np.concatenate([found["sources"], of_later])),
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
