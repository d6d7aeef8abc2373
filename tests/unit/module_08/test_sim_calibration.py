"""The committed constants and error table: they follow from the carried runs, and keep what they promise."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from course_lib.costs.sweep.software import UNKNOWN, Software
from course_lib.sim.ablation import ablations
from course_lib.sim.boundaries import cases, recall
from course_lib.sim.calibrate import constants_as_json, records_as_csv
from course_lib.sim.constants import load_constants, rates_of
from course_lib.sim.fit import errors, fit
from course_lib.sim.gpus import in_four_bits, machine_called, network_of
from course_lib.sim.policies import EVERY_SCHEDULE
from course_lib.sim.priors import PRIORS, STACKS
from course_lib.sim.published import memory_runs, published_rows, published_runs, withheld_runs
from course_lib.sim.report import (
    COLUMNS,
    ORDER,
    SUMMARIES,
    SWEEP,
    SWEEP_OF_THREE,
    committed_records,
    memory_records,
    noise_record,
    order_records,
    sweep_records,
    three_row_records,
    time_records,
)
from course_lib.sim.room import LIKELY, chance_of, chance_to_fit, spread_of_peaks
from course_lib.sim.runs import Run, read_run
from course_lib.sim.table import table_of
from course_lib.sim.validate import Seen, coverage, held_out, interval, off_by, own_factor, score


@pytest.fixture(scope="module")
def committed():
    return {(row["test"], row["group"]): row for row in committed_records()}


@pytest.fixture(scope="module")
def logs():
    return errors(table_of(published_runs()), load_constants().values)


def test_another_fit_finds_the_committed_constants():
    """From the committed values a fit moves by a third of what they are known to, and rows stay as far off."""
    table, start = table_of(published_runs()), load_constants().values
    again = fit(table.runs, start=start)
    assert set(again) == set(PRIORS) == set(start)
    moved = {name: abs(np.log(again[name] / start[name])) for name in start}
    assert all(moved[name] < max(0.1, PRIORS[name][1] / 3) for name in start)
    before, after = (np.median(off_by(errors(table, values))) for values in (start, again))
    assert after == pytest.approx(before, abs=0.002)


def test_constants_are_physical_shares_of_peaks_below_one():
    values = load_constants().values
    assert all(0.2 < value < 1 for name, value in values.items() if name.startswith("matmul"))
    assert values["matmul_fp8.H100"] > 0.5 and 0.5 < values["inside"] < 1 and 0.5 < values["between"] < 1.1
    assert all(0.8 < value < 1.3 for name, value in values.items() if name.startswith("stack."))
    assert {run.software.stack for run in published_runs()} - {UNKNOWN} == set(STACKS)  # no constant without a run


@pytest.mark.parametrize(
    ("test", "group", "limit"),
    [
        ("random rows", "all rows", 0.06),
        ("configurations", "all rows", 0.08),
        ("sources", "all rows", 0.10),
        ("sources", "median of groups", 0.10),
        ("kinds", "all rows", 0.17),
        ("stacks", "all rows", 0.17),
        ("stacks", "median of groups", 0.12),
        ("memory", "titan2412", 0.10),
        ("noise floor", "all rows", 0.08),
    ],
)
def test_the_table_keeps_its_targets(committed, test, group, limit):
    assert float(committed[test, group]["median"]) <= limit


def test_rows_of_left_out_sources_intervals_and_recall_keep_their_targets(committed):
    assert float(committed["sources", "all rows"]["p90"]) <= 0.30
    assert float(committed["fits", "ran and is said to fit"]["covered"]) >= 0.9
    assert float(committed["fits", "did not and is said not to fit"]["covered"]) >= 0.88
    for kind in ("known", "kind", "unknown"):
        for where in ("", ", near", ", far"):
            for group in ("all rows", "median of groups"):  # the latter: the mean share of a source's runs
                assert 0.73 <= float(committed[f"intervals, {kind}{where}", group]["covered"]) <= 0.87
    own, without = (float(committed[f"sources, {what}", "median of groups"]["median"]) for what in OWN)
    assert own < without


OWN = ("three own rows", "without")


def test_a_source_left_out_is_as_far_off_as_the_table_says(committed):
    """One fit instead of all: the source with the most telling stack."""
    runs = published_runs()
    left_out = [run for run in runs if run.source == "kort"]
    values = fit([run for run in runs if run.source != "kort"], start=load_constants().values)
    own = off_by(errors(table_of(left_out), values))
    assert len(own) == int(committed["sources", "kort"]["rows"])
    assert np.median(own) == pytest.approx(float(committed["sources", "kort"]["median"]), abs=0.01)


@pytest.mark.parametrize(("schedule", "rows", "median", "p90"), [("zb-2p", 21, 0.07, 0.11), ("zb-v", 9, 0.04, 0.07)])
def test_schedules_of_which_no_constant_has_seen_a_run_are_met(schedule, rows, median, p90):
    """What a schedule without a pause takes follows from its stages alone; with 1F1B's bubble all would be far off."""
    runs = [run for run in withheld_runs() if EVERY_SCHEDULE[run.policy["schedule"]] == schedule]
    assert len(runs) == rows and not {run.name for run in runs} & {run.name for run in published_runs()}
    values = load_constants().values
    off = off_by(errors(table_of(runs), values))
    assert np.median(off) <= median and np.quantile(off, 0.9) <= p90
    plain = [replace(run, policy=run.policy | {"schedule": EVERY_SCHEDULE.index("1f1b")}) for run in runs]
    assert np.median(off_by(errors(table_of(plain), values))) > 2 * median
    measured = [run.seen() / run.memory_bytes - 1 for run in runs]
    assert min(measured) > -0.05 and max(measured) < 0.12


def test_products_of_4_bits_reach_the_share_that_those_of_8_do():
    """Seven runs of one source, which no constant has seen; of four of them stages per rank are not known."""
    runs = [run for run in withheld_runs() if any("4 bits" in one for one in run.assumed)]
    assert len(runs) == 7 and not {run.name for run in runs} & {run.name for run in published_runs()}
    values = load_constants().values
    off = off_by(errors(table_of(runs), values))
    assert np.median(off) <= 0.1 and off.max() <= 0.4
    as_fp8 = [replace(run, machine=machine_called(run.gpu, 8, "")[0]) for run in runs]
    assert np.median(off_by(errors(table_of(as_fp8), values))) > 2 * np.median(off)
    with pytest.raises(ValueError, match="the GPU 'H100' multiplies no numbers of 4 bits"):
        in_four_bits(machine_called("H100", 8, "")[0], "H100")


def test_memory_fit_and_noise_of_the_table_are_those_of_today(committed):
    for record in [*memory_records(published_rows()), noise_record(published_runs())]:
        row = committed[record["test"], record["group"]]
        assert (int(row["rows"]), row["note"]) == (record["rows"], record["note"])
        for column in ("median", "covered"):
            assert row[column] == ("" if record[column] is None else f"{record[column]:.4f}")


def test_the_chance_to_fit_is_what_it_says_on_layouts_that_went_out_of_memory():
    """It is made from measured peaks alone; one sweep says of every layout that it tried whether it ran."""
    assert load_constants().memory == pytest.approx(spread_of_peaks(memory_runs()), abs=1e-4)
    rows = [run for run in map(read_run, published_rows()) if isinstance(run, Run) and run.source == "aleph"]
    chances, ran = np.array([chance_of(run) for run in rows]), np.array([not run.out_of_memory for run in rows])
    assert (len(rows), int(ran.sum())) == (361, 138)
    shares = [float(ran[(low <= chances) & (chances < high)].mean()) for low, high in ((0, 0.2), (0.2, 0.8), (0.8, 1))]
    assert shares[0] < 0.05 < 0.15 < shares[1] < 0.5 < 0.9 < shares[2]
    assert np.mean((chances - ran) ** 2) < 0.1  # Brier; 0.24 for who says of each what share of all ran


def test_half_of_the_room_fits_and_twice_does_not():
    room = 80e9
    assert chance_to_fit(room / 2, room) > 0.99 and chance_to_fit(2 * room, room) < 0.01
    assert chance_to_fit(room * np.exp(-load_constants().memory[0]), room) == pytest.approx(LIKELY)


def test_the_less_is_known_the_wider_is_the_interval():
    found = load_constants()
    stacks = {"known": "nemo", "kind": None, "unknown": UNKNOWN}
    width = {}
    for is_far, by_kind in ((False, found.near), (True, found.far)):
        for kind, (low, high) in by_kind.items():
            assert low < 1 < high and found.interval(stacks[kind], is_far=is_far) == (low, high)
            width[kind, is_far] = np.log(high / low)
        assert width["known", is_far] < min(width["kind", is_far], width["unknown", is_far])
    assert all(width[kind, False] < width[kind, True] for kind in stacks)


def test_the_order_of_two_layouts_is_right_where_they_are_predicted_to_differ(committed):
    """Exact predictions have every order right; those of left-out sources all but a few, and a coin's below 2 %."""
    runs = published_runs()
    exact = list(order_records(runs, np.zeros(len(runs))))
    shares = [row["covered"] for row in exact]
    assert shares[1:] == [1.0, 1.0] and shares[0] > 0.98  # of the closest some took equally long
    rows = [committed[ORDER, row["group"]] for row in exact]
    assert sum(int(row["rows"]) for row in rows) == sum(row["rows"] for row in exact) > 2000
    close, middle, far = (float(row["covered"]) for row in rows)
    assert close < 0.65 < middle < far and far > 0.85


def test_sweeps_are_ordered_as_the_table_says(committed):
    """Exact predictions have every sweep in order and choose its fastest layout; those that were left out nearly."""
    runs = published_runs()
    *exact, three = sweep_records(runs, np.zeros(len(runs)))
    assert (three["median"], three["p90"]) == (0, 0) and three["note"].endswith("26 are the sweep's fastest")
    assert float(committed[SWEEP_OF_THREE, "all rows"]["p90"]) < 0.1
    assert all((row["covered"], row["median"]) == (pytest.approx(1), 0) for row in exact) and len(exact) > 25
    rows = [row for (test, _), row in committed.items() if test == SWEEP]
    assert [row["group"].partition(", ")[2] for row in rows] == [row["group"].partition(", ")[2] for row in exact]
    whole = committed[SWEEP, "median of groups"]
    assert float(whole["median"]) <= 0.01  # of half the sweeps the favourite is as good as the fastest
    assert float(whole["covered"]) >= 0.68


def test_three_own_rows_help_most_where_nothing_was_known(committed):
    gains = {}
    for test in ("sources", "stacks"):
        own, without = (float(committed[f"{test}, {what}", "median of groups"]["median"]) for what in OWN)
        gains[test] = without - own
    assert 0 < gains["sources"] < gains["stacks"]


def test_every_group_with_a_large_error_has_a_reason(committed):
    off = [
        row
        for (test, _), row in committed.items()
        if test in ("sources", "kinds", "stacks") and float(row["median"]) > 0.1
    ]
    assert off and all(row["note"] for row in off if row["group"] not in SUMMARIES)


def test_held_out_rows_are_predicted_by_the_others():
    """Two sources, of which each is left out once: what has not been seen is farther off."""
    runs = [run for run in published_runs() if run.source in ("fms", "ptblog2403")]
    found = held_out(runs, [run.source for run in runs])
    inside = errors(table_of(runs), fit(runs))
    assert score(runs, inside).median < score(runs, found).median < 0.25


def test_an_interval_holds_what_it_promises_and_an_own_factor_mends_a_common_error():
    rng = np.random.default_rng(0)
    groups = [f"group {number}" for number in range(40) for _ in range(25)]
    drawn = rng.normal(0.0, 0.1, 1000)
    low, high = interval(drawn, groups)
    assert low < 1 < high and np.mean((np.exp(-drawn) >= low) & (np.exp(-drawn) <= high)) == pytest.approx(
        0.81, abs=0.02
    )
    far = np.arange(1000) % 2 == 0  # those far off err twice as much, and are held by intervals of their own
    seen = Seen(np.where(far, 2 * drawn, drawn), groups, far)
    for among in (None, far, ~far):
        assert coverage(seen, among) == pytest.approx((0.81, 0.81), abs=0.03)
    assert own_factor([]) == 1 and own_factor([-0.2, -0.2, -0.2]) == pytest.approx(np.exp(0.2), rel=0.02)
    assert 1 < own_factor([-0.5, 0.4, -0.5]) < np.exp(0.2)  # rows that disagree say little


def test_ablations_hold_constants_that_exist_and_change_predictions(logs):
    runs = published_runs()
    for one in ablations():
        assert set(one.held) <= set(PRIORS), one.name
        changed = errors(table_of(one.runs(runs)), load_constants().values | one.held)
        assert np.abs(changed - logs).max() > 0.005, one.name


def test_limits_of_memory_have_both_sides():
    found = cases([], published_rows())
    assert recall(found, ran=True) == recall(found, ran=False) == (14, 14)
    failed = [run for run in map(read_run, published_rows()) if isinstance(run, Run) and run.out_of_memory]
    said, of = recall(cases(failed, []), ran=False)
    assert of == 231 + 4 and said / of > 0.9  # four are Korthikanti's


def test_tables_are_written_as_they_are_read(logs):
    runs = published_runs()
    records = [*time_records(runs, {"random rows": logs}), *three_row_records(runs, logs, "sources")]
    lines = list(csv.DictReader(records_as_csv(records).splitlines()))
    assert len(lines) == len(records) and tuple(lines[0]) == COLUMNS
    constants = replace(load_constants(), values={"matmul.A100": 0.123456})
    assert '"matmul.A100": 0.1235' in constants_as_json(constants)


def test_a_machine_is_read_from_names_and_networks():
    h100, assumed = machine_called("NVIDIA H100 80GB HBM3", 8, "8x400 Gb/s NDR")
    assert (h100.generation, h100.between_bytes_per_s, assumed) == ("H100", 50e9, [])
    a100, assumed = machine_called("A100-SXM4-40GB", None, "")
    assert a100.memory_bytes < 43e9 and a100.memory_bytes_per_s == 1.555e12
    assert assumed == ["network of 200 Gb/s per GPU", "8 GPUs per node"]
    known = {name: machine_called(name, None, "")[0] for name in ("GB200", "GB300", "H200 141GB", "H100 PCIe")}
    assert [round(one.bf16_flops_per_s / 1e12) for one in known.values()] == [2450, 2500, 989, 756]
    assert network_of("H100", "3.2 Tbps per node", 8) == network_of("H100", "400 Gb/s per GPU", 8) == 50e9
    assert network_of("GB200", "H100 8x400 Gb/s; GB200 NVL72", 4) is None
    with pytest.raises(ValueError, match="no data sheet for the GPU 'TPU v4'"):
        machine_called("TPU v4", 4, "")


def test_a_stack_s_factor_is_on_all_that_runs_and_on_no_peak():
    machine, _ = machine_called("H100-80GB", 8, "")
    known, unknown = (rates_of(machine, Software(stack=stack)) for stack in ("nemo", UNKNOWN))
    values = load_constants().values
    slower = values[f"stack.{UNKNOWN}"] / values["stack.nemo"]
    for name in ("matmul_flops_per_s", "pointwise_bytes_per_s", "between_bytes_per_s"):
        assert getattr(known, name) / getattr(unknown, name) == pytest.approx(slower)
    assert unknown.step_s / known.step_s == pytest.approx(slower)
    assert known.peak_flops_per_s == unknown.peak_flops_per_s


def test_fp8_is_timed_only_where_a_published_run_used_it():
    machine, _ = machine_called("A100-80GB", 8, "")
    with pytest.raises(ValueError, match="sim: FP8 on A100; no published run has computed so there; choose bf16"):
        rates_of(machine, Software(fp8=True))
