"""`python -m course_lib verify` on the page's own example: report, files, exit status, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from torchrun import started

from course_lib.cli import verify_torchrun
from course_lib.cli.main import main
from course_lib.cli.verify_report import say
from course_lib.verify import NotEqual
from tools.paths import ROOT

PAGE = (ROOT / "CHECK_YOUR_TRAINER.md").read_text()
EXAMPLE = re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
COMMAND = re.search(r"^\.venv/bin/python -m course_lib (verify .*)$", PAGE, re.MULTILINE)[1].split()
LONGEST = 25


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The page's file, and the one that it tells the reader to make of it; each test imports its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in (("my_file", EXAMPLE), ("seven", EXAMPLE.replace("rows=8", "rows=7"))):
        Path(f"{name}.py").write_text(text)
        sys.modules.pop(name, None)


def test_the_example_is_short_and_equal(capsys):
    assert len([line for line in EXAMPLE.splitlines() if line]) <= LONGEST
    assert main([*COMMAND, "out=found"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 ranks against one device, float64, tolerance 1e-11\n  gradients  ")
    assert "  output        left out: neither side has output(inputs)\n" in out
    facts = json.loads(Path("found/report.json").read_text())
    assert facts["equal"] and facts["ranks"] == 2 and list(facts["deviations"]) == ["gradients", "parameters", "AdamW"]
    assert Path("found/report.txt").read_text() in out
    assert Path("found/ladder.svg").read_text().startswith("<")


def test_seven_rows_are_not_equal_and_the_cause_is_named(capsys):
    assert main(["verify", "seven.py:reference", "seven:parallel", "ranks=2", "out=found"]) == 1
    assert "each share counts the same, however many targets it has" in capsys.readouterr().out
    facts = json.loads(Path("found/report.json").read_text())
    assert (facts["equal"], facts["rung"], facts["causes"]) == (False, "gradients", ["mean of means"])
    assert facts["deviations"].keys() == {"gradients"} and Path("found/ladder.svg").exists()
    assert facts["loss_apart"] is None


def test_a_copy_that_is_off_by_one_bit_is_drawn_as_not_equal(capsys):
    def climb():
        raise NotEqual(
            "bits", rung="AdamW", name="w", rank=1, ratio=None, kind="", climbed={"AdamW": 1e-17}, tolerance=1
        )

    assert say(climb, "found") == 1 and capsys.readouterr().out.startswith("bits\n")
    assert "The ranks are not one device" in Path("found/ladder.svg").read_text()


def test_under_torchrun_each_process_is_a_rank(tmp_path):
    arguments = ["-m", "course_lib", "verify", "seven:reference", "seven:parallel"]
    with started(2, *arguments, cwd=tmp_path, PYTHONPATH=str(ROOT)) as process:
        assert process.wait(timeout=500) == 1
    assert "each share counts the same, however many targets it has" in (tmp_path / "out").read_text()


@pytest.mark.parametrize(("is_read", "said"), [(True, "rank 1 alone\n"), (False, "")])
def test_under_torchrun_a_later_rank_says_what_it_alone_can_know(is_read, said, monkeypatch, capsys):
    def refuse(*_):
        raise ValueError("rank 1 alone")

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(verify_torchrun, "_other_rank", refuse)
    monkeypatch.setattr(verify_torchrun.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        verify_torchrun.verify_under_torchrun(object if is_read else refuse)
    assert (ended.value.code, capsys.readouterr().err) == (2, said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("my_file:reference ranks=2", "1 functions are named; two functions make the trainers"),
        ("my_file:reference parallel ranks=2", "parallel; a function is named by its file and its name; write: "),
        ("my_file:reference nowhere:parallel ranks=2", "nowhere:parallel; No module named 'nowhere'; start the comm"),
        ("my_file:reference my_file:other ranks=2", "my_file:other; my_file has no function other; name one"),
        ("my_file:reference my_file:parallel", "without ranks; the parallel side runs on a whole number of ranks"),
        ("my_file:reference my_file:parallel ranks=two", "ranks=two; the parallel side runs on a whole number of ra"),
        ("my_file:reference my_file:parallel ranks=2 dtype=int8", "dtype=int8; a precision needs a known tolerance; "),
        ("my_file:reference my_file:parallel ranks=2 steps=9", "steps=9; there is no steps; take ranks, batches, dty"),
        ("bare:reference bare:parallel ranks=2", "there are no batches; both sides train on batches.* in bare.py, or"),
        ("broken:reference my_file:parallel ranks=2", "ZeroDivisionError"),
        ("unclosed:reference my_file:parallel ranks=2", "its file raises SyntaxError: .* line 1.; see where: pyth"),
        ("lonely:reference my_file:parallel ranks=2", "ModuleNotFoundError: No module named 'nowhere'; see where: "),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(arguments, message, capsys):
    Path("bare.py").write_text(EXAMPLE.replace("def batches", "def other_batches"))
    Path("broken.py").write_text(f"{EXAMPLE}\ndef reference(config):\n    return 1 / 0\n")
    Path("unclosed.py").write_text("def reference(config:\n")
    Path("lonely.py").write_text("import nowhere\n")
    for name in ("bare", "broken"):
        sys.modules.pop(name, None)
    assert main(["verify", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert re.search(message, err) and out == ""
