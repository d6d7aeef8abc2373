"""The sweep that the slides show: measured on real ranks, kept with machine and date, and read back."""

from __future__ import annotations

from datetime import date

from slides import measured


def test_a_sweep_is_measured_kept_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "FILE", tmp_path / "measured.json")
    monkeypatch.setattr(measured, "SIZES", [1024, 4096])
    monkeypatch.setattr(measured, "SWEEPS", 2)
    measured.measure()
    sweep = measured.load()
    assert [(point.nbytes, point.algorithm) for point in sweep.points] == [
        (size, algorithm) for size in (1024, 4096) for algorithm in measured.ALGORITHMS
    ]
    assert all(point.seconds > 0 and point.world_size == measured.RANKS for point in sweep.points)
    assert sweep.date == date.today().isoformat() and "cores" in sweep.machine


def test_the_kept_sweep_says_where_and_when():
    sweep = measured.load()
    assert {point.algorithm for point in sweep.points} == set(measured.ALGORITHMS)
    assert sweep.machine and date.fromisoformat(sweep.date) <= date.today()
