"""What an exhibit says of itself: read without importing it, since its library is in another environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from course_lib.errors import four_parts
from tools.paths import ROOT

FOLDER = ROOT / "wild"
PIN = re.compile(r"[\w.-]+==[\w.+]+")
LINK = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A bug of a release: what must be installed to see it, where it was told, on which rung it falls."""

    name: str
    story: str  # the file's docstring
    library: str  # by its name for pip
    links: tuple[str, ...]  # OWNER/REPOSITORY#NUMBER
    old: tuple[str, ...]  # exact pins
    mended: tuple[str, ...]
    ranks: int
    rung: str
    cause: str  # one of those that the ladder names
    dtype: str = "float64"  # in which the ladder is climbed
    open: bool = False  # no release has mended it: the file's `workaround` stands beside it

    def release(self, pins: Iterable[str]) -> str:
        """The library's version among `pins`."""
        return next((pin.split("==")[1] for pin in pins if pin.split("==")[0] == self.library), "")


def all_exhibits(only: str = "", folder: Path = FOLDER) -> list[Exhibit]:
    """Every exhibit, or the one of that name.

    Raises: ValueError if there is none.
    """
    found = [read(path) for path in sorted(folder.glob("*.py")) if only in ("", path.stem)]
    if not found:
        names = ", ".join(path.stem for path in sorted(folder.glob("*.py")))
        raise ValueError(four_parts("make wild", f"ONLY={only}", "no exhibit has this name", f"choose from {names}"))
    return found


def read(path: Path) -> Exhibit:
    """The exhibit that a file holds.

    Raises: ValueError if it does not say all of it, or pins loosely.
    """
    module = ast.parse(path.read_text())
    said = next((ast.literal_eval(node.value) for node in module.body if _names(node) == ["EXHIBIT"]), {})
    given = {"name": path.stem, "story": " ".join((ast.get_docstring(module) or "").split()), **said}
    if missing := [field.name for field in fields(Exhibit) if given.get(field.name, field.default) in ("", MISSING)]:
        raise _refusal(path, f"it lacks {', '.join(missing)}", "an exhibit says all of it", "add it to EXHIBIT")
    if strange := given.keys() - {field.name for field in fields(Exhibit)}:
        raise _refusal(path, f"it has {', '.join(sorted(strange))}", "an exhibit says nothing else", "leave it out")
    pins = {"old": tuple(given["old"].split()), "mended": tuple(given["mended"].split())}
    exhibit = Exhibit(**{**given, **pins, "links": tuple(given["links"])})
    _check(path, exhibit)
    return exhibit


def _check(path: Path, exhibit: Exhibit) -> None:
    if loose := [pin for pin in (*exhibit.old, *exhibit.mended) if not PIN.fullmatch(pin)]:
        raise _refusal(path, ", ".join(loose), "a release is pinned exactly", "write package==version")
    if wrong := [link for link in exhibit.links if not LINK.fullmatch(link)]:
        raise _refusal(path, ", ".join(wrong), "an issue is OWNER/REPOSITORY#NUMBER", "write it so")
    old, mended = exhibit.release(exhibit.old), exhibit.release(exhibit.mended)
    if not old or not mended or (old == mended) != exhibit.open:
        values = f"{exhibit.library} {old or 'nowhere'} and {mended or 'nowhere'}"
        rule = "old and mended are two releases of the library, and one if the bug is open"
        raise _refusal(path, values, rule, "pin it in both")


def _names(node: ast.stmt) -> list[str]:
    """What a statement assigns to."""
    return (
        [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Assign) else []
    )


def _refusal(path: Path, values: str, rule: str, way_out: str) -> ValueError:
    return ValueError(four_parts(f"wild/{path.name}", values, rule, way_out))
