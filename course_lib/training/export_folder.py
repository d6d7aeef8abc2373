"""The folder of a trained model in `transformers`' names, or of its adapters: it goes only if a run wrote it.

A mark inside says so, and there is nothing else in it but what an export has. Which run wrote it is not asked: who
goes on in a run's folder has its values, and nobody else writes there meanwhile.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path

from course_lib.training import step_folders
from course_lib.training.checksums import SUMS
from course_lib.training.folder_check import INDEX
from course_lib.training.peft_folder import CONFIG
from course_lib.training.pretrained import BESIDE
from course_lib.training.step_folders import MARK, UNFINISHED

_FILES = (MARK, SUMS, INDEX, "*.safetensors", "config.json", CONFIG, *BESIDE)


def in_the_way(folder: Path) -> Path | None:
    """What is there, or where it is begun, and no run wrote it."""
    return next((place for place in _places(folder) if os.path.lexists(place) and not _is_an_export(place)), None)


def remove(folder: Path) -> None:
    """Remove what a run has exported, or begun to; what somebody else has put there stays."""
    for place in _places(folder):
        if _is_an_export(place):
            for path in sorted(place.iterdir(), key=lambda path: path.name == MARK):  # last: what proves who wrote it
                path.unlink()
            place.rmdir()


def make_room(folder: Path) -> None:
    """The same, before another export.

    Raises: OSError if something else is in its place.
    """
    if (place := in_the_way(folder)) is not None:
        raise FileExistsError(f"{place} is there, and no run wrote it: move it away, then go on")
    remove(folder)


def _places(folder: Path) -> tuple[Path, Path]:
    return folder, folder.with_name(folder.name + UNFINISHED)


def _is_an_export(place: Path) -> bool:
    if place.is_symlink() or not place.is_dir() or step_folders.run_of(place) is None:
        return False
    return all(path.is_file() and any(fnmatch(path.name, name) for name in _FILES) for path in place.iterdir())
