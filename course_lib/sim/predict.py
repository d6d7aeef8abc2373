"""Predictions for rows of a file of runs: one record of plain values for each row, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from course_lib.costs.sweep.assembly import CATEGORIES
from course_lib.costs.sweep.software import UNKNOWN
from course_lib.sim.constants import constant_names, load_constants, rates_of
from course_lib.sim.fit import errors
from course_lib.sim.nearest import neighbours
from course_lib.sim.room import LIKELY, chance_of
from course_lib.sim.runs import EVER_MORE, ROOM_OF_UNKNOWN, Run, Unreadable, read_run
from course_lib.sim.simulate import bottleneck_in_words, step_times, utilisation
from course_lib.sim.step import CAUSES
from course_lib.sim.table import table_of
from course_lib.sim.validate import own_factor
from course_lib.units import GB

_UNKNOWN_STACK = (
    "an unknown stack: published runs are mostly tuned ones, ordinary ones are slower;"
    f" its tensors may fill {ROOM_OF_UNKNOWN:g} of a GPU"
)
_MEMORY = {f"memory_{name}_gb": name for name in (*CATEGORIES, "total")}  # column -> field
COLUMNS = (
    "id",
    "source_key",
    "step_s",
    "low_s",
    "high_s",
    "nearest",
    "tokens_per_s_per_gpu",
    "mfu",
    "hfu",
    *_MEMORY,
    "fits",
    "fit_chance",
    "bottleneck",
    *(f"{cause}_s" for cause in CAUSES),
    "constants",
    "assumed",
    "measured_step_s",
    "reason",
)


def predict_rows(rows: Iterable[Any], *, factor: float = 1.0) -> list[dict[str, Any]]:
    """A record with COLUMNS for each row; what is not known is None, and `reason` says why a row has no prediction.

    `factor` multiplies every step time: what a user's own measured rows ask for (`factor_of`).
    """
    return [_record(read_run(row), factor) for row in rows]


def factor_of(runs: Sequence[Run]) -> float:
    """What measured runs say all predictions for their cluster should be multiplied by."""
    return own_factor(errors(table_of(runs), load_constants().values).tolist())


def _record(run: Run | Unreadable, factor: float) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    if isinstance(run, Unreadable):
        return empty | {"id": run.name, "source_key": run.source, "reason": run.reason}
    named = {"id": run.name, "source_key": run.source, "measured_step_s": run.step_s}
    try:
        return empty | named | _predicted(run, factor)
    except (ValueError, ArithmeticError, TypeError) as error:  # costs refuse what does not divide the model
        return empty | named | {"reason": str(error).replace("\n", " ")}


def _predicted(run: Run, factor: float) -> dict[str, Any]:
    constants, rates = load_constants(), rates_of(run.machine, run.software, fused_norms=run.job.fused_norms)
    times = step_times(run.model, rates, run.policies)
    step = float(np.asarray(times.total)[0]) * factor
    if not 0 < step < float("inf"):
        raise ValueError(f"the formulas give a step of {step} s")
    nearest = neighbours(run.model, run.policies)[0]
    low, high = constants.interval(run.software.stack, is_far=nearest.is_far)
    per_gpu, mfu, hfu = utilisation(run.model, run.policies, np.array([step]), rates)
    unknown = (_UNKNOWN_STACK,) if run.software.stack == UNKNOWN else ()
    return {
        "step_s": step,
        "low_s": step * low,
        "high_s": step * high,
        "nearest": nearest.in_words,
        "tokens_per_s_per_gpu": float(per_gpu[0]),
        "mfu": float(mfu[0]),
        "hfu": float(hfu[0]),
        **_memory(run),
        "bottleneck": bottleneck_in_words(times, 0),
        **{f"{cause}_s": float(getattr(times, cause)[0]) * factor for cause in CAUSES},
        "constants": " ".join(sorted(set(constant_names(run.machine.generation, run.software).values()))),
        "assumed": "; ".join([*run.assumed, *unknown, *run.assumptions]),
    }


def _memory(run: Run) -> dict[str, Any]:
    """By category, and whether it fits; where a row does not state its recompute, also with how much it would."""
    found, chance = run.memory(), chance_of(run)
    sizes = {column: float(getattr(found, name)[0]) / GB for column, name in _MEMORY.items()}
    fits = "yes" if chance >= LIKELY else "no"
    if fits == "no" and not run.recompute_stated:
        enough = [name for name in EVER_MORE if chance_of(run, name) >= LIKELY]
        fits = f"with recompute of {enough[0]}" if enough else "no"
    return sizes | {"fits": fits, "fit_chance": chance}
