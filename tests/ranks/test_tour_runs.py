"""The tour as one starts it, and rows that must fail."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib.cli import collective_rows as rows
from course_lib.cli import killed_rows, sharded_tensor_rows
from course_lib.cli.killed_rows import train_on
from course_lib.cli.sharded_tensor_rows import hand_on
from course_lib.cli.training_rows import PRECISIONS
from course_lib.comm import ALGORITHMS
from course_lib.config import ParallelConfig
from course_lib.ranks import run_ranks
from course_lib.schedules import SCHEDULES
from course_lib.training.batches import Batches
from tools.paths import ROOT

MEMORY = 4 + 2  # stages of ZeRO; activations kept and recomputed
PIPELINES = 2 * len(SCHEDULES)  # on one axis and on two
TENSOR = 3  # alone, with replicas, in stages
SHARDED = 4  # ZeRO-1, ZeRO-2, all weights, runs of neighbours
SHARDED_TENSOR = 2  # the ladder, and a checkpoint at several layouts
ON_FOUR = sum([*map(len, ALGORITHMS.values()), len(PRECISIONS), MEMORY, PIPELINES, TENSOR, SHARDED, SHARDED_TENSOR])
SHARED = 4  # sequences in three ways, experts
LESS = ["top-k of all, with memory", "both ways by top-k of all", "factors of full rank"]
LESS += ["local, a meeting each step", "gossip of all with all"]
SAVERS = ["LoRA, data parallel", "LoRA, FULL_SHARD", "LoRA, tensor"]
SAVERS += ["recompute, loss in 4, FULL_SHARD", "recompute, loss in 4, tensor"]
EXPECTED = ON_FOUR + 2 + SHARED + 1 + len(LESS) + len(SAVERS) + 1  # the plan; three axes and all shared, on 8; killed


def test_every_row_of_the_tour_is_measured_and_holds():
    command = [sys.executable, "-m", "course_lib", "tour"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    good = [line for line in done.stdout.splitlines() if line.endswith("  ok")]
    assert len(good) == EXPECTED
    assert all(re.search(r"\s4\s", line) for line in good[:ON_FOUR])
    assert f"{EXPECTED} rows measured in" in done.stdout
    losses = re.findall(r"loss ([\d.]+) -> ([\d.]+) nats", done.stdout)
    *_, both, handed_on, plan, three_axes = good[: ON_FOUR + 2]
    assert both.startswith("FULL_SHARD x tensor, dp=2 x tp=2 ")
    assert handed_on.startswith("checkpoint, 2 x 2, 4 x 1, 2 x 2 ")
    assert plan.startswith("plan, 972,000 layouts  ")
    assert re.match(r"tensor, pp=2 x dp=2 x tp=2, float64\s+8\s", three_axes)
    *shared, last = good[ON_FOUR + 2 :][: SHARED + 1]
    *rest, killed = good[ON_FOUR + 2 + SHARED + 1 :]
    assert [line.split("  ")[0] for line in rest] == [*LESS, *SAVERS]
    names = [line.split("  ")[0] for line in shared]
    assert names == ["all_gather, cp=4", "ring, cp=4", "ulysses, cp=4", "experts, ep=4"]
    assert all(re.search(r"\s4\s", line) for line in shared)
    assert re.match(r"ring, dp=2 x ep=2 x cp=2\s+8\s", last)
    assert re.match(r"killed on 4, goes on with 3\s+3\s", killed)
    assert len(losses) == len(PRECISIONS) + 1 and all(float(last) < float(first) for first, last in losses)
    assert ("Shakespeare's works" in done.stdout) != ("standard library" in done.stdout)


def doubled():
    case = rows.CASES["all_reduce"]
    rows.CASES["all_reduce"] = replace(case, call=lambda inputs, algorithm: 2 * case.call(inputs, algorithm))
    try:
        return rows.run_collective("all_reduce", "ring")
    finally:
        rows.CASES["all_reduce"] = case


def test_wrong_values_show_as_a_deviation():
    assert [round(deviation, 3) for deviation, _ in run_ranks(doubled, 2)] == [1.0, 1.0]


def kept_everywhere():
    case = rows.CASES["reduce"]
    rows.CASES["reduce"] = replace(case, call=lambda inputs, algorithm: rows.mine(inputs))
    try:
        return rows.run_collective("reduce", "tree")
    finally:
        rows.CASES["reduce"] = case


def test_a_result_where_none_belongs_shows_as_a_deviation():
    assert run_ranks(kept_everywhere, 2)[0][0] == float("inf")


def test_other_bytes_than_the_formula_s_fail_a_row(monkeypatch):
    ring = rows.comm_time
    monkeypatch.setattr(rows, "comm_time", lambda operation, algorithm, **sizes: ring(operation, "naive", **sizes))
    found = rows.collective_row("all_reduce", "ring", 3)
    assert found.deviation <= rows.TOLERANCE
    assert len(found.faults) == 1 and "the formula says" in found.faults[0]


def no_barrier():
    class Silent:
        def __getattr__(self, name):
            return lambda **options: None

    rows.comm, kept = Silent(), rows.comm
    try:
        return rows.run_barrier("dissemination")
    finally:
        rows.comm = kept


def test_a_barrier_that_does_not_wait_shows():
    came, left, _ = zip(*run_ranks(no_barrier, 2), strict=True)
    assert max(came) - min(left) > rows.LATE_S / 2


def forgetful(*args):
    """The same with ranks that take nothing over."""
    sharded_tensor_rows.load_pieces, kept = lambda trainer, folder: None, sharded_tensor_rows.load_pieces
    try:
        return hand_on(*args)
    finally:
        sharded_tensor_rows.load_pieces = kept


def test_a_checkpoint_that_nobody_takes_over_fails_its_row(monkeypatch):
    layouts, text = [ParallelConfig(tp=2), ParallelConfig(dp=2)], bytes(range(256)) * 8
    monkeypatch.setattr(sharded_tensor_rows, "hand_on", forgetful)
    row = sharded_tensor_rows.handed_on_row(layouts, Batches(text=text, batch_size=4, sequence=32))
    assert len(row.faults) == 1 and row.faults[0].startswith("deviation above")


def beginning_anew(*args):
    """Ranks that read no checkpoint, also where there is one."""
    killed_rows.series.resume, kept = lambda trainer, folder: None, killed_rows.series.resume
    try:
        return train_on(*args)
    finally:
        killed_rows.series.resume = kept


def test_a_run_that_does_not_go_on_where_it_was_killed_fails_its_row(monkeypatch):
    monkeypatch.setattr(killed_rows, "train_on", beginning_anew)
    row = killed_rows.killed_row(2, 1, bytes(range(256)) * 8)
    assert [fault for fault in row.faults if fault.startswith("deviation above")]


def test_a_run_that_nobody_kills_proves_nothing(monkeypatch):
    monkeypatch.setattr(killed_rows, "train_on", go_on_unharmed)
    with pytest.raises(AssertionError, match="^killed: no rank died"):
        killed_rows.killed_row(2, 1, bytes(range(256)) * 8)


def go_on_unharmed(batches, folder, killed_in=0):
    return train_on(batches, folder)
