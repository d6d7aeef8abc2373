"""The runner of all checks: one failure fails it, the others still run, and what is left out is said."""

from __future__ import annotations

import sys

import pytest

from tools import check, outside
from tools.check import Step


@pytest.fixture
def steps(monkeypatch, tmp_path):
    def use(alone, beside=()):
        made = [
            tuple(Step(name=name, command=(sys.executable, "-c", code)) for name, code in group.items())
            for group in (alone, beside or {})
        ]
        monkeypatch.setattr(check, "PYTHON_ALONE", made[0])
        monkeypatch.setattr(check, "OUTSIDE", made[1])

    return use


def test_all_passing_steps_pass(steps, capfd):
    steps({"first": "print('ran')", "second": ""})
    assert check.main("test") == 0
    told = capfd.readouterr().out
    assert "── first\nran\n" in told and told.endswith("2 passed, 0 failed\n")


def test_one_failing_step_fails_and_the_rest_still_runs(steps, capfd):
    steps({"first": "raise SystemExit(1)", "second": "print('ran')"})
    assert check.main("test") == 1
    told = capfd.readouterr().out
    assert "ran\n" in told and "FAILED" in told and told.endswith("1 passed, 1 failed\n")


def test_check_adds_slides_and_browser(steps, monkeypatch, capfd):
    steps({"first": ""}, {"browser": "print('ran')"})
    monkeypatch.setattr(outside, "left_out", list)
    assert check.main("check") == 0
    assert capfd.readouterr().out.endswith("2 passed, 0 failed\n")


def test_what_cannot_be_installed_is_left_out_in_one_line(steps, monkeypatch, capfd):
    steps({"first": ""}, {"browser": "raise SystemExit(1)"})
    monkeypatch.setattr(outside, "left_out", lambda: ["Chromium is missing"])
    assert check.main("check") == 0
    assert "left out: slides and browser (Chromium is missing)\n" in capfd.readouterr().out


def test_without_root_chromium_is_asked_for_in_one_line(monkeypatch):
    monkeypatch.setattr(outside, "find_chromium", lambda: None)
    monkeypatch.setattr(outside.os, "geteuid", lambda: 1000)
    line = outside.install_chromium()
    assert "only root on Debian or Ubuntu gets it installed; apt install chromium" in line and "\n" not in line


def test_node_packages_are_installed_once(monkeypatch, tmp_path):
    (tmp_path / "package-lock.json").write_text("{}")
    (tmp_path / "node_modules").mkdir()
    calls = []
    monkeypatch.setattr(outside, "_logged", lambda *arguments: calls.append(arguments) or 0)
    assert outside.install_node_packages(tmp_path) == outside.install_node_packages(tmp_path) == ""
    assert len(calls) == 1
    (tmp_path / "package-lock.json").write_text('{"changed": 1}')
    monkeypatch.setattr(outside, "_logged", lambda *arguments: 1)
    assert "could not be installed; see .cache/outside.log" in outside.install_node_packages(tmp_path)
