"""Every pinned package is there for every Python of the course; the linter refuses what one of them lacks."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tools import matrix, wheels
from tools.paths import ROOT
from tools.pip import SetupError
from tools.prerequisites import NEEDED
from tools.wheels import PYTHONS, RECORD, SYSTEMS, Target

FOLDERS = ("course_lib", "tools", "tests", "slides", "wild", "notebooks", "exercises")
SOMEWHERE = Target(python="3.14", system="Linux x86_64")


def test_all_pins_were_found_for_all_pythons_and_systems():
    """As `make matrix` wrote down, which asks a package index."""
    record = json.loads(RECORD.read_text())
    assert record["asked"] == wheels.fingerprint(), "constraints.txt has changed since: run make matrix"
    assert record["lacking"] == {str(target): [] for target in wheels.TARGETS}
    assert len(wheels.TARGETS) == len(PYTHONS) * len(SYSTEMS)


def test_all_files_say_the_same_oldest_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = ".".join(map(str, NEEDED))
    assert project["project"]["requires-python"] == f">={oldest}" and PYTHONS[0] == oldest
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_in_the_oldest_python_s_grammar(folder):
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if "node_modules" not in path.parts]
    assert files
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=NEEDED)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from itertools import batched", "new in Python 3.12"),
        ("import typing\ntyping.override", "new in Python 3.12"),
        ("from warnings import deprecated", "new in Python 3.13"),
        ("import string.templatelib", "new in Python 3.14"),
        ("import imp", "gone in Python 3.12"),
        ("from distutils.version import LooseVersion", "gone in Python 3.12"),
        ("import cgi", "gone in Python 3.13"),
        ("import ast\nast.Num", "gone in Python 3.14"),
        ("type Name = int", "py311"),
    ],
)
def test_the_linter_refuses_what_one_of_the_pythons_lacks(text, told):
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--output-format=concise",
        "--stdin-filename=course_lib/x.py",
        "-",
    ]
    run = subprocess.run(command, input=text + "\n", capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 1
    assert told in run.stdout.replace("Python 3.11 (syntax", "py311 (syntax").replace("on Python 3.11", "on py311")


# how pip is asked ----------------------------------------------------------------------------------------------------


def test_each_missing_wheel_is_named(monkeypatch):
    """pip stops at the first one."""
    gone = ["numpy==2.4.6", "torch==2.13.0"]

    def refusal(wanted, target, *options):
        return next((f"ERROR: No matching distribution found for {pin}" for pin in wanted if pin in gone), "")

    monkeypatch.setattr(wheels, "_refusal", refusal)
    assert wheels.lacking(wheels.pins(), SOMEWHERE) == gone
    assert wheels.told(gone) == "no wheel of numpy==2.4.6, torch==2.13.0"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "WARNING: Retrying (Retry()) after NewConnectionError\nERROR: No matching distribution found for a==1",
            "looking for wheels of Python 3.14 on Linux x86_64: no package index could be reached; connect",
        ),
        ("ERROR: what pip says", "looking for wheels of Python 3.14 on Linux x86_64: ERROR: what pip says"),
    ],
)
def test_without_a_network_it_says_so(tmp_path, monkeypatch, log, line):
    monkeypatch.setattr(wheels, "_refusal", lambda *asked: log)
    monkeypatch.setattr(wheels, "LOG", tmp_path / "pip.log")
    with pytest.raises(SetupError) as stopped:
        wheels.lacking(["a==1"], SOMEWHERE)
    assert str(stopped.value).startswith(line)


def test_pip_itself_is_asked_for_another_python(tmp_path, monkeypatch):
    """With a folder as its only index: a wheel of one Python is there for that one alone."""
    for name, tags in (("anywhere", "py3-none-any"), ("older", "cp312-cp312-manylinux_2_28_x86_64")):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-{tags}.whl", "w") as wheel:
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tags}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert wheels.lacking(["anywhere==1.0", "older==1.0"], SOMEWHERE) == ["older==1.0"]


# what is run, and what is said ---------------------------------------------------------------------------------------


def test_only_tests_below_torch_run_where_there_is_no_torch():
    tests = matrix.without_torch()
    assert {"tests/unit/module_04/test_schedules.py", "tests/unit/module_02/test_costs_comm_time.py"} <= set(tests)
    assert not {"tests/unit/module_01/test_decoder.py", "tests/unit/test_bench.py", "tests/unit/test_causes.py"} & set(
        tests
    )


def test_a_python_that_is_not_here_is_told(monkeypatch):
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)
    version = next(version for version in PYTHONS if version != matrix.HERE)
    assert str(matrix.row_of(version)) == f"| {version} | not run: there is no such Python here | not run |"
    assert "run by `make check`" in str(matrix.row_of(matrix.HERE))


@pytest.mark.parametrize("cuda", [True, False])
def test_lessons_are_run_only_with_a_torch_that_needs_no_cuda(monkeypatch, cuda):
    ran = []
    monkeypatch.delenv("TORCH", raising=False)
    monkeypatch.setattr(matrix, "interpreter", lambda version: sys.executable)
    monkeypatch.setattr(wheels, "brings_cuda", lambda target: cuda)
    monkeypatch.setattr(matrix, "install", lambda python, version, with_torch: sys.executable)
    monkeypatch.setattr(matrix, "run", lambda python, *words: ran.append(words) or 0)
    row = matrix.row_of(next(version for version in PYTHONS if version != matrix.HERE))
    if cuda:
        assert row.lessons.startswith("not run: its torch brings CUDA along") and ran[0][1:] == (
            *matrix.without_torch(),
        )
    else:
        assert row.lessons == "passed" and "--nbval" in ran[0]
        assert [word for word in ran[0] if word.endswith("00_start_here.ipynb")]


def test_a_failure_is_told_and_fails(monkeypatch):
    monkeypatch.setattr(matrix, "interpreter", lambda version: sys.executable)

    def no_network(target):
        raise SetupError("no package index could be reached")

    monkeypatch.setattr(wheels, "brings_cuda", no_network)
    row = matrix.row_of(next(version for version in PYTHONS if version != matrix.HERE))
    assert row.lessons == "not run: no package index could be reached" and not row.passed


def test_the_page_says_of_each_system_and_python_what_was_found_and_what_was_not_run():
    found = {str(target): [] for target in wheels.TARGETS} | {str(SOMEWHERE): ["numpy==2.4.6"]}
    page = matrix.page(found, [matrix.Row(python="3.13.0", lessons="not run: why", rest="passed")])
    assert "| Linux x86_64 | all wheels | all wheels | all wheels | no wheel of numpy==2.4.6 |" in page
    assert "| macOS arm64 | all wheels | all wheels | all wheels | all wheels |" in page
    assert "| 3.13.0 | not run: why | passed |" in page
    assert "antlr4-python3-runtime (published as source" in page
