"""The proof table: what fails a row, how it is written, what the exit status says. No ranks here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.cli import plan_rows
from course_lib.cli import tour as tours
from course_lib.cli.machine import describe_machine
from course_lib.cli.main import main
from course_lib.cli.proof import COLUMNS, Row, Rows, header, written
from course_lib.comm.traces import Traffic
from course_lib.config import load_model
from course_lib.hardware import load_cluster
from course_lib.planner import Job, Space, search
from course_lib.ranks import RankError

TRAFFIC = Traffic(sent_bytes=(4, 8), received_bytes=(8, 4), messages=(1, 2))
GOOD = Row(
    technique="broadcast, tree",
    world_size=2,
    deviation=1e-7,
    tolerance=1e-6,
    traffic=TRAFFIC,
    predicted=TRAFFIC,
    step_s=0.0123,
    state_bytes=(2048, 2048),
    predicted_state_bytes=(2048, 2048),
    note="loss fell",
)


def test_a_good_row_has_no_fault():
    assert GOOD.faults == []
    assert " ".join(written(GOOD).split()) == "broadcast, tree 2 1.0e-07 4 to 8 equal 2 KiB equal 12.3 ms ok"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"deviation": 1e-5}, "deviation above 1e-06"),
        ({"deviation": float("nan")}, "deviation above 1e-06"),
        ({"traffic": replace(TRAFFIC, sent_bytes=(4, 9))}, "the formula says"),
        ({"traffic": replace(TRAFFIC, received_bytes=(8, 5))}, "the formula says"),
        ({"traffic": replace(TRAFFIC, messages=(1, 3))}, "the formula says"),
        ({"state_bytes": (2048, 4096)}, r"states are \(2048, 4096\) bytes, the formula says \(2048, 2048\)"),
        ({"state_bytes": (2048, 2099), "states_within": 0.02}, r"states are \(2048, 2099\) bytes"),
    ],
)
def test_each_fault_fails_a_row(change, fault):
    bad = replace(GOOD, **change)
    assert len(bad.faults) == 1
    with pytest.raises(AssertionError, match=fault):
        raise AssertionError(bad.faults[0])
    first, second = written(bad).splitlines()
    assert first.endswith("FAILED") and second.strip() == bad.faults[0]


def test_a_formula_of_memory_may_leave_out_something_small():
    near = replace(GOOD, state_bytes=(2048, 2058), states_within=0.01)
    assert near.faults == []
    assert " 2.01 KiB 0.49% 12.3 ms ok" in " ".join(written(near).split())


def test_a_row_without_ranks_has_no_bytes():
    plan = replace(GOOD, world_size=0, traffic=None, predicted=None, state_bytes=(), predicted_state_bytes=())
    assert plan.faults == []
    assert " ".join(written(plan).split()) == "broadcast, tree - 1.0e-07 - - - - 12.3 ms ok"


SMALL_JOB = Job(model=load_model("llama3_1_8b"), cluster=load_cluster("dgx_h100"), batch=16, sequence=8192)


def test_a_plan_that_loses_layouts_fails_its_row():
    found = search(SMALL_JOB, Space(cp=(1,)))
    lossy = replace(found, rejected={**found.rejected, "memory": 0})
    tried, lost = found.n_tried, found.rejected["memory"]
    with pytest.raises(AssertionError, match=f"plan: {tried:,} layouts tried, and {tried - lost:,} kept or rejected"):
        plan_rows.plan_row(lossy, found)


@pytest.mark.parametrize(
    ("degrees", "words"),
    [({"tp": 3}, "no layout has"), ({"tp": 8}, r"\d+ other sets of degrees are faster than")],
)
def test_a_plan_whose_fastest_layout_is_not_the_published_one_fails_its_row(monkeypatch, degrees, words):
    found = search(SMALL_JOB, Space(cp=(1,)))
    monkeypatch.setattr(plan_rows, "_PUBLISHED", degrees)
    with pytest.raises(AssertionError, match=f"^plan: {words} the degrees that Meta published$"):
        plan_rows.plan_row(found, found)


def test_a_formula_far_from_the_lists_fails_the_plan_s_row(monkeypatch):
    monkeypatch.setattr(plan_rows, "_TOLERANCE", 0.001)
    (row,) = plan_rows.ROWS.prove(4, b"")
    assert row.technique == "plan, 972,000 layouts" and row.faults == ["deviation above 0.001"]
    assert 0.001 < row.deviation < 0.02 and "has Meta's degrees, dp=128 tp=8 pp=16 " in row.note


def test_columns_line_up():
    names, rule = header().splitlines()
    assert rule.split() == ["-" * int(spec[1:]) for spec in COLUMNS.values()]
    assert names.index("ranks") + len("ranks") == written(GOOD).index(" 2 ") + 2


def test_every_file_of_rows_is_found_in_the_order_of_lessons():
    assert [found.lesson for found in tours.discover()] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12]


def broken(world_size, text):
    yield GOOD
    raise AssertionError("the ranks differ")


def lost(world_size, text):
    raise RankError("rank 1 died", kind="died", rank=1)
    yield


@pytest.mark.parametrize(
    ("rows", "status", "last"),
    [
        ([lambda world_size, text: iter([GOOD, GOOD])], 0, "2 rows measured in .* every one equals one device"),
        ([lambda world_size, text: iter([GOOD, replace(GOOD, deviation=1.0)])], 1, "2 rows measured in .*: 1 FAILED"),
        ([broken], 1, "1 rows measured in .*: 1 FAILED"),
        ([lost, lambda world_size, text: iter([GOOD])], 1, "1 rows measured in .*: 1 FAILED"),
    ],
    ids=["all good", "a bad row", "not equal", "a lost rank does not stop the others"],
)
def test_the_exit_status_says_whether_every_row_holds(monkeypatch, capsys, rows, status, last):
    monkeypatch.setattr(tours, "discover", lambda: [Rows(lesson=0, prove=prove) for prove in rows])
    assert main(["tour", "--ranks", "2"]) == status
    printed = capsys.readouterr().out
    assert describe_machine() in printed and "loss fell" in printed
    with pytest.raises(AssertionError, match=last):
        raise AssertionError(printed.splitlines()[-1])


@pytest.mark.parametrize("ranks", ["0", "33"])
def test_an_impossible_number_of_ranks_is_one_line(capsys, ranks):
    assert main(["tour", "--ranks", ranks]) == 2
    assert (
        capsys.readouterr().err
        == f"ranks: world_size={ranks}; a pool has 1 to 32 ranks; choose a number in that range\n"
    )
