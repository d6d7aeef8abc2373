"""The wild wing's machinery: what an exhibit says of itself, what a run leaves behind, and the page of it."""

from __future__ import annotations

import json
import subprocess
import zipfile
from dataclasses import replace

import pytest
import yaml

from course_lib import presets
from course_lib.verify import RUNGS
from tools.paths import ROOT
from tools.pip import SetupError
from tools.wild import __main__ as command
from tools.wild import environments, exhibits, runs, scripts, table
from tools.wild.runs import BROKE, EQUAL, FELL, Outcome

MOST_LINES = 80
PLAIN = '''"""A story."""
EXHIBIT = {
    "library": "toy", "links": ["a/b#1"], "old": "toy==1.0 other==2.0", "mended": "toy==1.1",
    "ranks": 2, "rung": "gradients", "cause": "rows twice",
}
def reference(config): ...
'''
CAUGHT = Outcome(version="1.0", ended=FELL, rung="gradients", causes=("rows twice",), deviation=0.5, said="rows")
PASSED = Outcome(version="1.1", ended=EQUAL, deviation=1e-15)


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy_rows.py"
    path.write_text(PLAIN)
    return exhibits.read(path)


@pytest.mark.parametrize("path", sorted(exhibits.FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_exhibit_is_short_and_says_all_of_itself(path):
    found = exhibits.read(path)
    assert found.rung in RUNGS and len(path.read_text().splitlines()) <= MOST_LINES
    assert (found.release(found.old) == found.release(found.mended)) == found.open


def test_an_exhibit_is_read_without_being_imported(toy):
    assert (toy.name, toy.story, toy.old, toy.links) == ("toy_rows", "A story.", ("toy==1.0", "other==2.0"), ("a/b#1",))
    assert toy.release(toy.mended) == "1.1"
    file = "wild.toy_rows"
    sides = [f"{file}:reference", f"{file}:parallel"]
    rest = ["ranks=2", "dtype=float64", "out=here"]
    assert runs.arguments(toy, "here", mended=False) == runs.arguments(toy, "here", mended=True) == [*sides, *rest]
    still_open = replace(toy, mended=toy.old, open=True)
    assert runs.arguments(still_open, "here", mended=False) == [*sides, *rest]
    assert runs.arguments(still_open, "here", mended=True) == [sides[0], f"{file}:workaround", *rest]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"rung": "gradients", ', "", "toy_rows.py: it lacks rung; an exhibit says all of it; add it to EXHIBIT"),
        ('"ranks": 2', '"ranks": 2, "rank": 2', "it has rank; an exhibit says nothing else; leave it out"),
        ("other==2.0", "other>=2.0", "other>=2.0; a release is pinned exactly; write package==version"),
        ("a/b#1", "b#1", "b#1; an issue is OWNER/REPOSITORY#NUMBER; write it so"),
        ("toy==1.1", "toy==1.0", "toy 1.0 and 1.0; old and mended are two releases of the library, and one if the bug"),
        ("toy==1.1", "boy==1.1", "toy 1.0 and nowhere; old and mended are two releases"),
    ],
)
def test_what_an_exhibit_must_say(tmp_path, old, new, message):
    path = tmp_path / "toy_rows.py"
    path.write_text(PLAIN.replace(old, new))
    with pytest.raises(ValueError, match="wild/toy_rows") as caught:
        exhibits.read(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_name_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["wild", "--only=no_such"])
    monkeypatch.setattr(command.os, "nice", int)
    assert command.main() == 2
    assert "make wild: ONLY=no_such; no exhibit has this name; choose from " in capsys.readouterr().err


def finished(tmp_path, status, report=None, stderr=""):
    file = tmp_path / "report.json"
    if report:
        file.write_text(json.dumps(report))
    return runs.outcome("1.0", subprocess.CompletedProcess([], status, "", stderr), file, 3)


def test_a_run_that_fell_tells_rung_cause_and_how_far_the_losses_are_apart(tmp_path):
    report = {"rung": "gradients", "causes": ["rows twice"], "message": "rows", "loss_apart": 0.2}
    found = finished(tmp_path, 1, {**report, "deviations": {"output": 0.0, "gradients": 0.5}})
    assert found == Outcome(
        version="1.0",
        ended=FELL,
        rung="gradients",
        causes=("rows twice",),
        deviation=0.5,
        loss_apart=0.2,
        said="rows",
        seconds=3,
    )


def test_a_run_that_passed_tells_its_largest_deviation(tmp_path):
    found = finished(tmp_path, 0, {"deviations": {"output": 1e-16, "gradients": 2e-15}})
    assert (found.ended, found.deviation, found.loss_apart, found.rung) == (EQUAL, 2e-15, None, "")


@pytest.mark.parametrize(
    ("status", "stderr", "said"),
    [
        (2, "noise\nverify: no such file\n", "verify: no such file"),
        (1, "Traceback\nImportError: x\n", "ImportError: x"),
        (-9, "", "it ended with exit status -9 and without a word"),
    ],
)
def test_a_run_without_a_report_broke(tmp_path, status, stderr, said):
    found = finished(tmp_path, status, stderr=stderr)
    assert (found.ended, found.said) == (BROKE, said)


def test_what_is_otherwise_than_the_exhibit_says_is_said(toy):
    assert table.verdict(toy, CAUGHT, PASSED) == table.CAUGHT
    elsewhere = Outcome(version="1.0", ended=FELL, rung="output", causes=("other",), said="x")
    broke = Outcome(version="1.1", ended=BROKE, said="ImportError")
    assert table.verdict(toy, PASSED, PASSED) == "the old release passed, 1e-15 apart"
    assert table.verdict(toy, elsewhere, PASSED) == (
        "the old release fell on output, not on gradients; the ladder did not name 'rows twice': x"
    )
    assert table.verdict(toy, CAUGHT, CAUGHT) == "the mended release fell on gradients: rows"
    assert table.verdict(toy, CAUGHT, broke) == "the mended release broke: ImportError"


def test_the_exit_status_is_loud_and_the_table_keeps_other_rows(toy, tmp_path, monkeypatch, capsys):
    (tmp_path / table.NOT_HERE).write_text("[]\n")
    results = tmp_path / "results.yaml"
    results.write_text(yaml.safe_dump({"older": {"date": "2026-01-01"}}))
    monkeypatch.setattr("sys.argv", ["wild"])
    monkeypatch.setattr(command.os, "nice", int)
    monkeypatch.setattr(exhibits, "all_exhibits", lambda only="": [toy])
    monkeypatch.setattr(scripts, "all_scripts", list)
    monkeypatch.setattr(table.keep, "__defaults__", (results,))
    monkeypatch.setattr(table.write_page, "__defaults__", (tmp_path,))

    def no_network(exhibit, *, mended):
        if mended:
            raise SetupError(f"{ROOT}/toy: no package index could be reached")
        return CAUGHT

    monkeypatch.setattr(command, "climb", no_network)
    assert command.main() == 1
    assert "NOT AS THEY SHOULD BE: toy_rows" in capsys.readouterr().err
    kept = yaml.safe_load(results.read_text())
    assert kept["older"] == {"date": "2026-01-01"} and kept["toy_rows"]["mended"]["ended"] == BROKE
    assert "**the mended release broke: toy: no package" in (tmp_path / table.PAGE).read_text()


def wheel(folder, version):
    """A package of one module, as pip takes it."""
    info = f"toywild-{version}.dist-info"
    with zipfile.ZipFile(folder / f"toywild-{version}-py3-none-any.whl", "w") as file:
        file.writestr("toywild.py", f"version = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toywild\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_an_environment_has_the_pinned_release_and_the_learner_s_torch(tmp_path, monkeypatch):
    wheel(tmp_path, "1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    made = environments.environment_for(["toywild==1.0"], tmp_path)
    assert environments.version_in(made, "toywild") == "1.0" and environments.version_in(made, "torch")
    before = (made / environments.READY).stat().st_mtime_ns
    assert environments.environment_for(["toywild==1.0"], tmp_path) == made
    assert (made / environments.READY).stat().st_mtime_ns == before
    with pytest.raises(SetupError, match="there is no nothing; delete the folder and try again"):
        environments.version_in(made, "nothing")


def test_the_committed_page_is_what_the_kept_rows_say():
    rows = presets.read("wild", "results")
    not_here = yaml.safe_load((exhibits.FOLDER / table.NOT_HERE).read_text())
    alone = scripts.all_scripts(), presets.read("wild", "scripts")
    assert (exhibits.FOLDER / table.PAGE).read_text() == table.page(exhibits.all_exhibits(), rows, not_here, *alone)
    verdicts = {one.name: table.verdict(one, *table.outcomes(rows[one.name])) for one in exhibits.all_exhibits()}
    assert set(verdicts.values()) == {table.CAUGHT} and set(rows) == set(verdicts)
