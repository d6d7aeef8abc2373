"""The runner of all checks: one failure fails it, the others still run, and what is left out is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import check, outside, steps
from tools.grading import isolation
from tools.modules import MODULES, module_of
from tools.paths import ROOT
from tools.seconds import Result, of_modules, table
from tools.steps import Step


@pytest.fixture
def everything(monkeypatch, tmp_path):
    """Steps of a toy check, as (name, code) or with more of a step's fields."""

    def use(*made):
        found = [Step(name=name, command=(sys.executable, "-c", code), **more) for name, code, more in made]
        monkeypatch.setattr(steps, "EVERYTHING", tuple(found))

    monkeypatch.setattr(check, "REPORTS", tmp_path / "reports")
    return use


def test_all_passing_steps_pass(everything, capfd):
    everything(("first", "print('ran')", {}), ("second", "", {}))
    assert check.main("test") == 0
    told = capfd.readouterr().out
    assert "── first\nran\n" in told and told.endswith("2 passed, 0 failed\n")


def test_one_failing_step_fails_and_the_rest_still_runs(everything, capfd):
    everything(("first", "raise SystemExit(1)", {}), ("second", "print('ran')", {}))
    assert check.main("test") == 1
    told = capfd.readouterr().out
    assert "ran\n" in told and "FAILED" in told and told.endswith("1 passed, 1 failed\n")


def test_steps_beside_run_at_the_same_time_and_their_output_stays_whole(everything, capfd, tmp_path):
    meet = "import pathlib as p, time\np.Path({mine!r}).touch()\nwhile not p.Path({other!r}).exists(): time.sleep(0.01)"
    names = str(tmp_path / "a"), str(tmp_path / "b")
    beside = meet.format(mine=names[0], other=names[1]) + "\nprint('one'); print('two')"
    everything(("types", beside, {"beside": True}), ("ranks", meet.format(mine=names[1], other=names[0]), {}))
    assert check.main("test") == 0
    assert "── types (ran beside)\none\ntwo\n" in capfd.readouterr().out


def test_a_failure_beside_fails_the_check_and_shows_its_output(everything, capfd):
    everything(("types", "import sys; print('wrong', file=sys.stderr); sys.exit(1)", {"beside": True}), ("a", "", {}))
    assert check.main("test") == 1
    told = capfd.readouterr().out
    assert "── types (ran beside)\nwrong\n" in told and told.endswith("1 passed, 1 failed\n")


def test_check_adds_slides_and_browser(everything, monkeypatch, capfd):
    everything(("first", "", {}), ("browser", "print('ran')", {"outside": True}))
    monkeypatch.setattr(outside, "left_out", list)
    assert check.main("check") == 0
    assert capfd.readouterr().out.endswith("2 passed, 0 failed\n")
    assert check.main("test") == 0
    assert capfd.readouterr().out.endswith("1 passed, 0 failed\n")


def test_what_cannot_be_installed_is_left_out_in_one_line(everything, monkeypatch, capfd):
    everything(("first", "", {}), ("browser", "raise SystemExit(1)", {"outside": True}))
    monkeypatch.setattr(outside, "left_out", lambda: ["Chromium is missing"])
    assert check.main("check") == 0
    assert "left out: slides and browser (Chromium is missing)\n" in capfd.readouterr().out


def test_a_machine_without_bubblewrap_is_told_that_it_was_not_graded_in(everything, monkeypatch, capfd):
    everything(("first", "", {}), (steps.GRADING.name, "", {}))
    monkeypatch.setattr(isolation, "trouble", lambda: "bubblewrap is not installed")
    assert check.main("test") == 0
    line = "left out: grading in bubblewrap (bubblewrap is not installed; apt install bubblewrap)\n"
    assert line in capfd.readouterr().out
    monkeypatch.setattr(isolation, "trouble", lambda: "")
    assert check.main("test") == 0 and "left out" not in capfd.readouterr().out


def test_a_module_is_its_lesson_exercises_slides_and_tests():
    chosen = {step.name: step for step in steps.of_module("04")}
    assert list(chosen)[:6] == [*(step.name for step in steps.ALWAYS), "rules of the house"]
    assert chosen["slides 04"].on == ("04",)
    assert all(
        "--module=04" in chosen[name].command for name in ("unit tests", "rank tests", "stubs, mutants, grading")
    )
    assert [name[:12] for name in chosen["notebooks and solutions, strict"].on] == ["notebooks/04", "exercises/so"]
    with pytest.raises(SystemExit, match="^make check: ONLY=99 is no module; choose one of 00, 01, "):
        check.main("check", "--only=99")


def test_a_change_brings_its_tests_and_what_it_edits():
    tests = [
        "tests/ranks/module_04/test_pipeline.py",
        "tests/unit/module_04/test_stages.py",
        "tests/unit/test_style.py",
    ]
    chosen = {step.name: step for step in steps.of_change(["course_lib/parallel/pipelines/executor.py"], tests)}
    assert chosen["rank tests"].on == (tests[0],) and chosen["unit tests"].on == (tests[1],)
    assert "notebooks and solutions, strict" not in chosen and "stubs, mutants, grading" not in chosen
    chosen = {step.name: step for step in steps.of_change(["notebooks/src/02_collectives.py"], [])}
    assert chosen["notebooks and solutions, strict"].on == ("notebooks/02_collectives.ipynb",)
    assert all(name.startswith("tests/notebooks/") for name in chosen["unit tests"].on)


def test_a_second_lesson_belongs_to_its_module(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    for name in ("12_first", "12b_second", "13_other"):
        (tmp_path / f"notebooks/{name}.ipynb").touch()
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    [step] = steps.strict({"12"}, set())
    assert step.on == ("notebooks/12_first.ipynb", "notebooks/12b_second.ipynb")
    assert steps.EDITED.match("notebooks/src/12b_second.py")[2] == "12"
    assert module_of("notebooks/12b_second.ipynb", "Cell 3") == module_of("tests/x.py", "test[12b_second]") == "12"


def test_a_changed_exercise_runs_its_own_module_unless_more_has_changed():
    grading, one = "stubs, mutants, grading", "tests/grading/test_exercises.py"
    files = ["course_lib/checks/module_04/halves.py", "exercises/mutants/04_model_and_pipeline_parallelism.py"]
    narrow = {step.name: step for step in steps.of_change(files, [one])}
    assert "--module=04,shared" in narrow[grading].command
    assert narrow["notebooks and solutions, strict"].on == (
        "exercises/solutions/04_model_and_pipeline_parallelism.ipynb",
    )
    wide = {step.name: step for step in steps.of_change([*files, "course_lib/checks/engine.py"], [one])}
    assert wide[grading].command == steps.GRADING.command


def test_a_selection_without_tests_of_its_own_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REPORTS", tmp_path)
    none = Step(name="none", command=steps.PLAIN, on=(str(tmp_path),))
    assert check.run(none, dict(check.os.environ), partly=True)[0].passed
    assert not check.run(none, dict(check.os.environ), partly=False)[0].passed


def test_files_belong_to_modules_by_number_or_by_the_one_table():
    assert module_of("tests/unit/module_03/test_viz_module_03.py") == "03"
    assert (
        module_of("tests/ranks/module_04/test_museum_pipeline.py") == "04"
        and module_of("tests/ranks/module_03/test_museum.py") == "03"
    )
    assert module_of("tests/grading/test_exercises.py", "test_a_stub[02.10-values]") == "02"
    assert module_of("tests/grading/test_checks.py", "test_a_wrong_call[0.04-80.5 GB]") == "shared"
    assert module_of("notebooks/00_start_here.ipynb", "Cell 3") == "00"


def test_seconds_are_read_from_pytest_s_report_and_the_slides_lines(tmp_path):
    report = tmp_path / "report.xml"
    cases = '<testcase file="tests/ranks/module_00/test_pool.py" name="a" time="1.5"/>'
    cases += '<testcase file="x.py" name="b" time="0.5"/>'
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert of_modules(report, "") == {"00": 1.5, "shared": 0.5}
    assert of_modules(tmp_path / "none.xml", "02_collectives: .html in 9.5 s\nother\n") == {"02": 9.5}


WAITS = "import time\ndef test_a(): time.sleep(1.2)"
WORKS = """
import subprocess, sys
CHILD = "import time; all(time.process_time() < 0.6 for _ in iter(int, 1)); print(flush=True); time.sleep(60)"

def test_a():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as lives:
        lives.stdout.readline()
        lives.kill()
"""


def test_a_module_is_charged_for_work_and_not_for_waiting(tmp_path):
    report = tmp_path / "report.xml"
    for module, code in {"01": WAITS, "02": WORKS}.items():
        (tmp_path / f"test_one_{module}.py").write_text(code)
    words = [*steps.PLAIN, f"--rootdir={tmp_path}", "-n1", str(tmp_path)]
    words += [f"--junitxml={report}", "-ojunit_family=xunit1"]
    assert subprocess.run(words, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode == 0
    waited, worked = (of_modules(report, "")[module] for module in ("01", "02"))
    assert waited < 0.3 and 0.5 < worked < 1.5


def test_the_table_has_a_column_for_each_module_and_the_budget():
    shares = {MODULES[0]: 1.0, MODULES[1]: 3.0}
    told = table([Result(name="ranks", passed=True, cpu_s=8.0, wall_s=5.0, shares=shares)], wall_s=90).splitlines()
    assert told[1].startswith("CPU seconds")
    assert told[2].split() == ["ok", "8.0", "2.0", "6.0", "ranks,", "5", "s"]
    assert told[3].split() == ["8.0", "2.0", "6.0", *["0.0"] * (len(MODULES) - 1), "together"]
    assert told[4].startswith("in all 8 CPU seconds, of a budget of 2,230 (") and told[4].endswith(", in 1.5 min")


ORPHAN = """
import os, time
hears, says = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < 0.5: pass  # its parent ends at once, and nobody waits for it
    os._exit(0)
os.close(says)
os.read(hears, 1)  # until all who could speak have ended
time.sleep(1)
raise SystemExit(3)
"""


def test_cpu_seconds_count_orphans_and_no_waiting(tmp_path):
    used = tmp_path / "used"
    words = [sys.executable, "-m", "tools.cpu", str(used), sys.executable, "-c", ORPHAN]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 3
    assert 0.5 <= float(used.read_text()) < 1


def test_what_runs_alone_waits_for_what_runs_beside(everything, capfd, tmp_path):
    ended = str(tmp_path / "ended")
    beside = f"import time, pathlib; time.sleep(0.5); pathlib.Path({ended!r}).touch()"
    everything(
        ("slides", beside, {"beside": True}),
        ("browser", f"import pathlib; assert pathlib.Path({ended!r}).exists()", {"alone": True}),
    )
    assert check.main("test") == 0 and steps.BROWSER.alone and steps.SLIDES.beside


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
