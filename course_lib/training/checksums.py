"""What the files of a folder should be: their sizes and checksums; they come last, so a folder without is not whole.

The ranks share out the files, so that each is read once.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypeVar

from torch.distributed import ProcessGroup

from course_lib.parallel.table import agreement
from course_lib.training.checkpoint import on_first_rank, replaced

_T = TypeVar("_T")
SUMS = "checksums.json"
_Sums = dict[str, tuple[int, str]]  # by file, its bytes and their SHA-256


def write_sums(folder: Path, group: ProcessGroup | None) -> None:
    """Say what the files of a folder are. All ranks of the group call it, when all of them have written.

    Raises: OSError, on all ranks, if the system refuses.
    """
    sums, problem = _Sums(), ""
    try:
        sums = {path.name: (path.stat().st_size, _digest(path)) for path in _share(sorted(folder.iterdir()), group)}
    except OSError as error:
        problem = str(error)
    everyones = agreement.gathered((sums, problem), group)
    if problems := [text for _, text in everyones if text]:
        raise OSError(problems[0])
    whole = dict(sorted(item for found, _ in everyones for item in found.items()))
    on_first_rank(lambda: _write(folder / SUMS, whole), group)


def check_sums(operation: str, folder: Path, group: ProcessGroup | None) -> None:
    """Raise the same ValueError on all ranks for a file that is not as it was written."""
    try:
        sums = _read(folder / SUMS)
        problem = next(filter(None, (_wrong(folder / name, *sums[name]) for name in _share(sorted(sums), group))), "")
    except (ValueError, OSError) as error:
        problem = str(error)
    rule, way_out = "a checkpoint is read as it was written", "take another checkpoint, or train anew"
    agreement.no_problem(operation, problem, rule, way_out, group, compare=True)


def _share(everything: list[_T], group: ProcessGroup | None) -> list[_T]:
    return everything if group is None else everything[group.rank() :: group.size()]


def _write(path: Path, sums: _Sums) -> None:
    with replaced(path) as file:
        file.write(json.dumps(sums, indent=1).encode())


def _read(path: Path) -> _Sums:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: (int(size), str(digest)) for name, (size, digest) in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{path} is truncated or altered") from None


def _wrong(path: Path, size: int, digest: str) -> str:
    """What is wrong with a file, if anything."""
    if not path.is_file():
        return f"{path} is missing"
    if (found := path.stat().st_size) != size:
        return f"{path} is truncated or altered: it has {found} bytes of {size}"
    return "" if _digest(path) == digest else f"{path} was altered: its checksum is another"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
