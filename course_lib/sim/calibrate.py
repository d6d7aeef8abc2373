"""Fit the simulator's constants to the published runs, test them on runs that were left out, keep both as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from course_lib.sim.constants import Constants
from course_lib.sim.fit import fit
from course_lib.sim.published import memory_runs, published_rows, published_runs
from course_lib.sim.report import (
    COLUMNS,
    ablation_records,
    interval_records,
    memory_records,
    noise_record,
    order_records,
    sweep_records,
    three_row_records,
    time_records,
)
from course_lib.sim.room import spread_of_peaks
from course_lib.sim.validate import tests, unseen


def calibrate() -> tuple[Constants, list[dict[str, Any]]]:
    """The constants, with intervals from left-out configurations, sources and stacks, and the error table.

    Cost: about 350 fits of a second or less.
    """
    runs = published_runs()
    found = tests(runs)
    kinds = unseen(runs, found)
    constants = Constants(
        values=fit(runs),
        near={kind: seen.interval(is_far=False) for kind, seen in kinds.items()},
        far={kind: seen.interval(is_far=True) for kind, seen in kinds.items()},
        memory=spread_of_peaks(memory_runs()),
        fitted_on=f"{len(runs)} runs of {len({run.source for run in runs})} sources",
    )
    records = [
        *time_records(runs, found),
        *interval_records(kinds),
        *three_row_records(runs, found["sources"], "sources"),
        *three_row_records(runs, found["stacks"], "stacks"),
        *memory_records(published_rows()),
        noise_record(runs),
        *order_records(runs, found["sources"]),
        *sweep_records(runs, found["sources"]),
        *ablation_records(runs),
    ]
    return constants, records


def constants_as_json(constants: Constants) -> str:
    """The text of constants.json."""
    found = {
        "fitted_on": constants.fitted_on,
        "near": {kind: _four_digits(ends) for kind, ends in constants.near.items()},
        "far": {kind: _four_digits(ends) for kind, ends in constants.far.items()},
        "memory": _four_digits(constants.memory),
        "values": dict(zip(constants.values, _four_digits(constants.values.values()), strict=True)),
    }
    return json.dumps(found, indent=1) + "\n"


def _four_digits(numbers: Iterable[float]) -> list[float]:
    return [float(f"{number:.4g}") for number in numbers]


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
