"""The folders of a run's checkpoints, `step-N`: which there are, which is the last, and which may be removed.

A folder is removed only if it proves that this run wrote it: it has just such a name, a mark inside says this name and
this run, and there is nothing else in it but a checkpoint's files. So a copy, a backup, and whatever somebody has put
there stay.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NoReturn

from course_lib.errors import four_parts
from course_lib.training import checkpoint
from course_lib.training.checksums import SUMS, check_sums

POINTER = "LATEST"
MARK = "written_by.json"
UNFINISHED = ".unfinished"
_NAME = re.compile(r"step-(0|[1-9]\d*)")
_FILES = (checkpoint.FILE, SUMS, MARK, ".metadata", ".metadata.tmp", "*.distcp", f"*{UNFINISHED}")


def step_of(folder: Path) -> int:
    """After how many steps it was written."""
    return int(folder.name.removesuffix(UNFINISHED).removeprefix("step-"))


def whole_folders(run_folder: Path) -> list[Path]:
    """All whole checkpoints, whoever wrote them; the oldest step first."""
    return sorted(filter(_is_whole, _named(run_folder)), key=step_of)


def latest(run_folder: Path) -> Path | None:
    """The last whole checkpoint's folder, if there is one; without a pointer, that of the last step.

    Raises: ValueError if the pointer names none.
    """
    pointer, whole = run_folder / POINTER, whole_folders(run_folder)
    if not os.path.lexists(pointer):
        return whole[-1] if whole else None
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        _refuse_pointer(f"{pointer} cannot be read ({type(error).__name__})", whole)
    if run_folder / name not in whole:
        _refuse_pointer(f"{pointer} names {name[:40]!r}", whole)
    return run_folder / name


def _refuse_pointer(values: str, whole: list[Path]) -> NoReturn:
    way_out = f"write {whole[-1].name} into it" if whole else "remove it, and train anew"
    raise ValueError(four_parts("train", values, "it names a folder with a whole checkpoint", way_out))


def damage(folder: Path) -> str:
    """What is wrong with the files of a whole checkpoint, read by this process alone; empty if nothing is."""
    try:
        if (folder / checkpoint.FILE).is_file():
            checkpoint.read(folder)
        else:
            from course_lib.training import dcp_table  # its import takes a second

            check_sums("train", folder, None)
            dcp_table.Reader(folder).read_metadata()
    except Exception as error:  # what is no table fails in as many ways as there are bytes
        return str(error) or type(error).__name__
    return ""


def undamaged(run_folder: Path, but: Path) -> Path | None:
    """The last checkpoint beside `but` that can be read."""
    others = [folder for folder in reversed(whole_folders(run_folder)) if folder != but]
    return next((folder for folder in others if not damage(folder)), None)


def mark(folder: Path, run: str) -> None:
    """Make a folder, and say in it whose it is, before anything else is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = folder.name.removesuffix(UNFINISHED)
    (folder / MARK).write_text(json.dumps({"folder": name, "run": run}) + "\n", encoding="utf-8")


def run_of(folder: Path) -> str | None:
    """The run that wrote this folder under this name; None if nothing proves one."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("folder") == folder.name.removesuffix(UNFINISHED):
            return str(found["run"]) if "run" in found else None
    return None


def make_room(folder: Path, run: str) -> None:
    """Remove a checkpoint of the same step, which a run that went on from an earlier one has come to again.

    Raises: OSError if something else is in its place.
    """
    unfinished = folder.with_name(folder.name + UNFINISHED)
    for place in (folder, unfinished):
        if not os.path.lexists(place):
            continue
        if not _remove(place, run):
            raise FileExistsError(f"{place} is there, and this run did not write it: move it away, then go on")


def point_to(folder: Path, run: str, keep: int) -> None:
    """It is whole now; of those before some stay, and what this run left unfinished goes."""
    with checkpoint.replaced(folder.parent / POINTER) as file:
        file.write(folder.name.encode())
    mine = [other for other in _named(folder.parent) if run_of(other) == run and step_of(other) <= step_of(folder)]
    kept = sorted(filter(_is_whole, mine), key=step_of)[-keep:]
    for other in (*mine, *_unfinished(folder.parent)):
        if other not in kept:
            _remove(other, run)


def remove_unfinished(run_folder: Path) -> None:
    """Remove what runs of this folder began to write and never finished."""
    for folder in (*_named(run_folder), *_unfinished(run_folder)):
        if not _is_whole(folder):
            _remove(folder, "")


def _named(run_folder: Path) -> Iterable[Path]:
    """Real folders of just such a name: a link leads to somebody else's."""
    return [path for path in run_folder.glob("step-*") if _NAME.fullmatch(path.name) and _is_folder(path)]


def _unfinished(run_folder: Path) -> Iterable[Path]:
    found = run_folder.glob(f"step-*{UNFINISHED}")
    return [path for path in found if _NAME.fullmatch(path.name.removesuffix(UNFINISHED)) and _is_folder(path)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_whole(folder: Path) -> bool:
    """Under its last name: a run that was killed before it could give that may have written every file."""
    has_all = any((folder / name).is_file() for name in (checkpoint.FILE, SUMS))
    return _is_folder(folder) and has_all and not folder.name.endswith(UNFINISHED)


def _remove(folder: Path, run: str) -> bool:
    """Remove a folder that is proven this run's, or any run's unfinished one, or empty; return whether it is gone."""
    if not _is_folder(folder):
        return False
    files = sorted(folder.iterdir(), key=_last_that_proves)
    wrote_it = run_of(folder)
    is_mine = wrote_it == run or (wrote_it is not None and not _is_whole(folder))  # a run that was killed left it
    if files and not (is_mine and all(map(_is_a_checkpoint_s, files))):
        return False
    for path in files:
        path.unlink()
    folder.rmdir()
    return True


def _last_that_proves(path: Path) -> tuple[bool, bool]:
    """Killed in between, the folder is no longer whole, and still says whose it is."""
    return path.name == MARK, path.name not in (checkpoint.FILE, SUMS)


def _is_a_checkpoint_s(path: Path) -> bool:
    return path.is_file() and any(fnmatch(path.name, pattern) for pattern in _FILES)
