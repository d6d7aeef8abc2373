"""What the files of a folder should be: their sizes and checksums; they come last, so a folder without is not whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from course_lib.training.checkpoint import replaced

SUMS = "checksums.json"
Sums = Mapping[str, tuple[int, str]]  # by file, its bytes and their SHA-256


def sums_of(paths: Iterable[Path]) -> dict[str, tuple[int, str]]:
    """Read the files once."""
    return {path.name: (path.stat().st_size, _digest(path)) for path in paths}


def write_sums(folder: Path, sums: Sums) -> None:
    """Say what all other files of the folder are.

    Raises: OSError if the system refuses.
    """
    with replaced(folder / SUMS) as file:
        file.write(json.dumps(dict(sorted(sums.items())), indent=1).encode())


def read_sums(folder: Path) -> dict[str, tuple[int, str]]:
    """What `write_sums` wrote.

    Raises: ValueError if it is damaged.
    """
    try:
        found = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        return {name: (int(size), str(digest)) for name, (size, digest) in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{folder / SUMS} is truncated or altered") from None


def wrong(folder: Path, sums: Sums) -> str:
    """The first of the files that is not as it was written, and what is wrong with it."""
    for name, (size, digest) in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if (found := path.stat().st_size) != size:
            return f"{path} has {found} bytes of {size}"
        if _digest(path) != digest:
            return f"{path} was altered: its checksum is another"
    return ""


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
