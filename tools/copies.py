"""The learner's own copies of notebooks and scripts, and what becomes of them when the course is updated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from ipykernel.ipkernel import IPythonKernel
from nbformat.sign import NotebookNotary

from tools.work_contents import for_work

SOURCES = ("notebooks", "exercises/release")
SCRIPTS = "notebooks/scripts"
PUBLISHED_CONTENTS, CONTENTS = "notebooks/README.md", "Contents.md"
PAGES = "notebooks/[A-Z]*.md"  # the words, the routes, the placement test
LIBRARY = "course_lib"
COPIED = ".copied.json"  # by name, the newest version that its learner was given: a digest
KERNEL = Path(__file__).parent / "jupyterlab/kernels/python3/kernel.json"


@dataclass(frozen=True, kw_only=True)
class Copies:
    """What became of each file of the course."""

    added: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = [f"{len(self.added)} added"]
        if self.renewed:
            told.append(f"{len(self.renewed)} that you had not edited renewed")
        if self.beside:
            told.append(f"newer ones laid beside those that you have edited: {', '.join(self.beside)}")
        return f"your copies in work/: {'; '.join(told)}"


def copy_course(course: Path, work: Path) -> Copies:
    """Copy the course's files into `work`, notebooks without outputs; what the learner has edited is never overwritten.

    A copy counts as edited by what its cells say: JupyterLab writes a page that was only opened or run as well. A newer
    version of an edited one is laid beside it, once.
    """
    work.mkdir(exist_ok=True)
    _show_library(course, work)
    record = work / COPIED
    given = json.loads(record.read_text()) if record.exists() else {}
    copies = Copies()
    for name, fresh in files_for_learners(course):
        _give(work, name, fresh, given, copies)
    written = [*copies.added, *copies.renewed, *copies.beside]
    _sign(work / name for name in written if name.endswith(".ipynb"))
    record.write_text(json.dumps(given, indent=1))
    return copies


def _show_library(course: Path, work: Path) -> None:
    """Each lesson ends with a link to the file behind it; JupyterLab shows only what lies below `work`."""
    library = work / LIBRARY
    if not library.is_symlink() and not library.exists():
        with suppress(OSError):  # a disk or a system without links: then these pages' links lead nowhere, and no more
            library.symlink_to(Path("..") / LIBRARY if work.parent == course else course / LIBRARY)


def _give(work: Path, name: str, fresh: str, given: dict[str, str], copies: Copies) -> None:
    """Write one file under its own name, or beside an edited one; note it as given."""
    newest, before = digest(name, fresh), given.get(name)
    given[name] = newest
    there = digest_of(work / name)
    if there == newest:
        return
    if there in (None, before) or _as_noted_at_first(work / name) == before:
        (copies.added if there is None else copies.renewed).append(name)
        _write(work / name, fresh)
    elif before != newest:
        beside = next(other for other in _beside(name) if digest_of(work / other) in (None, newest, given.get(other)))
        given[beside] = newest
        if digest_of(work / beside) != newest:
            copies.beside.append(beside)
            _write(work / beside, fresh)


def _as_noted_at_first(path: Path) -> str:
    """The digest of all of a file: what the course's first versions noted of a copy."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _beside(name: str) -> Iterator[str]:
    """Names for newer versions: `NAME (new).ipynb`, and if that one is edited too, `NAME (new 2).ipynb`."""
    path = PurePosixPath(name)
    yield str(path.with_stem(f"{path.stem} (new)"))
    yield from (str(path.with_stem(f"{path.stem} (new {number})")) for number in count(2))


def _write(target: Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _sign(notebooks: Iterable[Path]) -> None:
    """Mark fresh notebooks as trusted, or JupyterLab would warn of them."""
    notary = NotebookNotary()
    for path in notebooks:
        notary.sign(nbformat.read(path, as_version=4))
    notary.store.close()


def files_for_learners(course: Path) -> Iterator[tuple[str, str]]:
    """The name, relative to `work`, and the text of all that learners get: contents, words, notebooks, scripts."""
    if (course / PUBLISHED_CONTENTS).exists():
        yield CONTENTS, for_work((course / PUBLISHED_CONTENTS).read_text(encoding="utf-8"))
    found = [path for folder in SOURCES for path in sorted((course / folder).rglob("*.ipynb"))]
    found += [
        *sorted((course / SCRIPTS).glob("*.py")),
        *(page for page in sorted(course.glob(PAGES)) if page != course / PUBLISHED_CONTENTS),
    ]
    for path in found:
        if ".ipynb_checkpoints" not in path.parts:
            yield path.relative_to(course).as_posix(), for_learners(path)


def for_learners(path: Path) -> str:
    """Return a script as it is, and a notebook without what its cells showed, which would answer what they ask.

    Its kernel is described as JupyterLab would describe it, so that opening the page does not change it.
    """
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.get("jupyter", {}).pop("outputs_hidden", None)  # the published copies fold answers away
    notebook.metadata = nbformat.from_dict(kernel_metadata())
    return nbformat.writes(notebook) + "\n"


def kernel_metadata() -> dict[str, Any]:
    """What JupyterLab writes into a notebook that runs on this Python."""
    spec = json.loads(KERNEL.read_text())
    kernel = {"display_name": spec["display_name"], "language": spec["language"], "name": KERNEL.parent.name}
    return {"kernelspec": kernel, "language_info": dict(IPythonKernel.language_info)}


def digest_of(path: Path) -> str | None:
    """The digest of a file; none if it is not there."""
    return digest(path.name, path.read_text(encoding="utf-8")) if path.exists() else None


def digest(name: str, text: str) -> str:
    """Return the SHA-256 of what a learner edits: of a notebook its cells' kinds and texts, else all of it."""
    if name.endswith(".ipynb"):
        with suppress(ValueError, KeyError, TypeError):  # no notebook any more: edited, whatever it says
            text = json.dumps([(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]])
    return hashlib.sha256(text.encode()).hexdigest()
