"""Bugs that no ladder sees: what a script says of itself, what is kept of a run, and the committed table."""

from __future__ import annotations

import subprocess

import pytest

from course_lib import presets
from tools.pip import SetupError
from tools.wild import __main__ as command
from tools.wild import scripts, table
from tools.wild.exhibits import LINK, PIN
from tools.wild.scripts import Ended

MOST_LINES = 80
GONE = Ended(fine=False, said="it hangs", seconds=90)
FINE = Ended(fine=True, said="12 steps", seconds=9)


@pytest.mark.parametrize("script", scripts.all_scripts(), ids=lambda script: script.name)
def test_a_script_is_short_and_says_all_of_itself(script):
    assert script.story and all(LINK.fullmatch(link) for link in script.links)
    assert all(PIN.fullmatch(pin) for pin in script.pins.split()) and script.pins.startswith(f"{script.library}==")
    assert len((scripts.SCRIPTS / f"{script.name}.py").read_text().splitlines()) <= MOST_LINES


def test_the_committed_rows_are_of_all_scripts_and_as_told():
    rows = presets.read("wild", "scripts")
    assert set(rows) == {script.name for script in scripts.all_scripts()}
    assert all(map(scripts.is_as_told, rows.values()))


@pytest.mark.parametrize(
    ("code", "out", "err", "fine", "said"),
    [
        (0, "noise\nfine: 96 rows\n", "", True, "96 rows"),
        (1, "fine: 96 rows\n", "", False, "fine: 96 rows"),
        (1, "40 of 96 rows never seen\n", "", False, "40 of 96 rows never seen"),
        (
            1,
            "",
            "[rank0]: RuntimeError: [/a/b.cc:1] refused. Why?\nChildFailedError: \n",
            False,
            "RuntimeError: refused",
        ),
        (1, "", "[E1 G.cpp:67] Gloo failed with timeout\n", False, "Gloo failed with timeout"),
        (-9, "", "", False, "exit status -9"),
    ],
)
def test_a_run_is_told_by_its_last_complaint_without_the_place_where_it_was_said(code, out, err, fine, said):
    assert scripts.ended(code, out, err, 3) == Ended(fine=fine, said=said, seconds=3)


def test_a_run_without_an_end_is_ended(monkeypatch):
    monkeypatch.setattr(scripts, "environment_for", lambda pins: None)
    monkeypatch.setattr(scripts, "python_of", lambda environment: "bash")
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: start(["sleep", "30"], **options))
    script = scripts.all_scripts()[0]
    assert scripts.run(script, "released", limit_s=0.2) == Ended(fine=False, said="it hangs", seconds=0.2)


@pytest.mark.parametrize(("ways", "status"), [((GONE, FINE), 0), ((FINE, FINE), 1), ((GONE, GONE), 1)])
def test_one_script_alone_is_run_both_ways_and_the_exit_status_is_loud(tmp_path, monkeypatch, ways, status):
    script, results = scripts.all_scripts()[0], tmp_path / "scripts.yaml"
    monkeypatch.setattr("sys.argv", ["wild", f"--only={script.name}"])
    monkeypatch.setattr(command.os, "nice", int)
    monkeypatch.setattr(scripts.keep, "__defaults__", (results,))
    monkeypatch.setattr(table.keep, "__defaults__", (tmp_path / "results.yaml",))
    monkeypatch.setattr(table.write_page, "__defaults__", (tmp_path,))
    (tmp_path / table.NOT_HERE).write_text("[]\n")
    monkeypatch.setattr(scripts, "run", lambda one, way: dict(zip(scripts.WAYS, ways, strict=True))[way])
    assert command.main() == status
    assert f"| {script.name} | {script.release} | {ways[0].said} | " in (tmp_path / table.PAGE).read_text()


def test_a_library_that_cannot_be_had_is_told(monkeypatch, capsys):
    def no_network(script, way):
        raise SetupError("no package index could be reached")

    monkeypatch.setattr(scripts, "run", no_network)
    script = scripts.all_scripts()[0]
    assert not command.show_alone(script)
    assert capsys.readouterr().err == f"{script.name}: no package index could be reached\n"
