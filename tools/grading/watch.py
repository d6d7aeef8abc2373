"""Whether anything has changed that submissions are run from, for a grader whose files a submission can write.

Contents are not read: the system dates each change of a file, its rights or a folder, and no program can set that date.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.paths import LEARNER, ROOT

Facts = tuple[int, ...]
NAMED = 3  # changed files in a message


@dataclass
class Watch:
    """What files and folders below some places were like at first."""

    places: Iterable[Path]
    first: dict[str, Facts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = dict(self._now())

    def changed(self) -> str:
        """The names of what is new, other or gone; empty if nothing is. A file stands for its folder."""
        now = dict(self._now())
        found = {name for name in now.keys() | self.first.keys() if now.get(name) != self.first.get(name)}
        names = sorted(found - {os.path.dirname(name) for name in found})
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def _now(self) -> Iterator[tuple[str, Facts]]:
        for place in self.places:
            yield from facts_below(str(place))


def facts_below(path: str) -> Iterator[tuple[str, Facts]]:
    """Each path from here on with what tells a change of it; links are not followed."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    yield path, (found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if os.path.isdir(path) and not os.path.islink(path):
        with os.scandir(path) as entries:
            for entry in entries:
                yield from facts_below(entry.path)


def of_course_and_python() -> list[Path]:
    """What a submission, its executor and the grader itself import."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), LEARNER}
    pythons = {(prefix / part).resolve() for prefix in prefixes for part in ("bin", f"lib/{version}")}
    return [ROOT / "course_lib", ROOT / "tools", ROOT / "exercises" / "src", *sorted(pythons)]
