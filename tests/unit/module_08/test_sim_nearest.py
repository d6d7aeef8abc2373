"""The published run that is nearest to a layout, and intervals that are wider where none is near."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import course_lib
from course_lib.config import load_model
from course_lib.sim.constants import load_constants
from course_lib.sim.fit import errors
from course_lib.sim.nearest import FAR, far_from_others, layouts_as_csv, neighbours, places_of
from course_lib.sim.policies import Policies
from course_lib.sim.published import published_runs, withheld_runs
from course_lib.sim.report import SOURCE_NAMES
from course_lib.sim.table import table_of
from course_lib.sim.validate import Seen

LAYOUTS = Path(course_lib.__file__).parent / "sim" / "data" / "layouts.csv"


def test_the_carried_layouts_are_those_of_the_fitted_runs():
    assert LAYOUTS.read_text() == layouts_as_csv(published_runs(), SOURCE_NAMES)
    for run in published_runs()[::50]:
        (found,) = neighbours(run.model, run.policies)
        assert (found.distance, found.differences, found.is_far) == (0, (), False)
        assert found.in_words.endswith(", the same layout")


def test_a_distance_is_in_doublings_and_the_largest_difference_comes_first():
    run = next(run for run in published_runs() if run.source == "llama3" and run.policy["cp"] == 1)
    p = run.policy
    own = places_of(run.model, run.policies)[0]
    other = Policies(**p | {"tp": 2 * p["tp"], "dp": p["dp"] / 4, "zero_stage": 3})
    assert np.abs(places_of(run.model, other)[0] - own).sum() == 1 + 2 + (p["zero_stage"] != 3)
    (found,) = neighbours(run.model, Policies(**p | {"sequence": 2**40, "tp": 2**10}))
    assert found.is_far and found.distance > FAR and found.differences[0].startswith("sequence ")
    two = ", ".join(found.differences[:2])
    assert f"{found.distance:.1f} doublings away; unlike yours it had {two}" in found.in_words


def test_a_larger_model_is_farther_and_its_size_is_said():
    (found,) = neighbours(load_model("llama3_1_405b"), Policies(micro_batch=64, sequence=256, n_microbatches=3))
    assert found.is_far and any("billion parameters" in one for one in found.differences)


def test_runs_are_far_from_those_of_other_groups_alone():
    runs = published_runs()[:6]
    assert far_from_others(runs, [0] * 6).all(), "a group has nobody but itself"
    assert not far_from_others([*runs, *runs], [0] * 6 + [1] * 6).any(), "each has a twin in the other group"


def test_an_interval_for_those_far_off_is_made_of_their_errors_alone():
    far = np.array([False, True] * 8)
    seen = Seen(np.where(far, 0.5, 0.1), [*"aabbccddeeffgghh"], far)
    for is_far, log in ((False, 0.1), (True, 0.5)):
        assert seen.interval(is_far=is_far) == pytest.approx((np.exp(-log), np.exp(-log)))
    changed = Seen(np.where(np.array(seen.groups) == "a", 9.0, seen.logs), seen.groups, far)
    assert changed.interval(is_far=True, without="a") == pytest.approx(seen.interval(is_far=True, without="a"))


def test_intervals_hold_runs_that_no_constant_has_seen():
    """The withheld ones: of schedules and products that no other run has, so that none of them made an interval."""
    runs = withheld_runs()
    logs = errors(table_of(runs), load_constants().values)
    inside = []
    for run, log in zip(runs, logs, strict=True):
        is_far = neighbours(run.model, run.policies)[0].is_far
        low, high = load_constants().interval(run.software.stack, is_far=is_far)
        inside.append(low <= np.exp(-log) <= high)
    assert len(inside) == 37 and np.mean(inside) >= 0.8
