"""`make lab`: the learner's own copies of notebooks and scripts, opened in JupyterLab on this machine only."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat.sign import NotebookNotary

from tools.paths import LEARNER, ROOT, python_of

WORK = ROOT / "work"
SOURCES = ("notebooks", "exercises/release")
SCRIPTS = "notebooks/scripts"
FIRST = "notebooks/00_start_here.ipynb"
COPIED = ".copied.json"  # what was copied when, so that an untouched copy is told from an edited one
HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Copies:
    """What became of each course notebook."""

    added: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = [f"{len(self.added)} added"]
        if self.renewed:
            told.append(f"{len(self.renewed)} that you had not touched renewed")
        if self.kept:
            told.append(f"yours kept although the course has newer ones: {', '.join(self.kept)}")
        return f"your copies in work/: {'; '.join(told)}"


def main() -> int:
    """Copy what is new, then become JupyterLab."""
    port = os.environ.get("PORT") or "8888"
    trouble = port_trouble(port)
    if trouble:
        print(f"make lab: {trouble}", file=sys.stderr)
        return 1
    print(copy_notebooks(ROOT, WORK), flush=True)
    command = lab_command(port, WORK, *shlex.split(os.environ.get("LAB_ARGS", "")))
    os.execv(command[0], command)


def port_trouble(port: str) -> str:
    """Say in one line why JupyterLab cannot listen on `port`; an empty string if it can."""
    if not port.isdigit() or not 0 < int(port) < 65536:
        return f"PORT={port} is not a port; give a number from 1 to 65535, for instance: make lab PORT=8889"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, int(port)))
        except OSError as error:
            reason = error.strerror or str(error)
            return f"port {port} on {HOST} cannot be had ({reason}); choose another one: make lab PORT={other(port)}"
    return ""


def other(port: str) -> int:
    """Suggest the next port, above those that only root may use."""
    return min(max(int(port), 8887) + 1, 65535)


def lab_command(port: str, folder: Path, *extra: str) -> list[str]:
    """Return the command line: this machine only, with a token, and no silent move to another port."""
    options = [
        f"--ServerApp.ip={HOST}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{FIRST}",
    ]
    if os.geteuid() == 0:
        options.append("--allow-root")  # in containers there is nobody else
    return [str(python_of(LEARNER)), "-m", "jupyterlab", *options, *extra]


def copy_notebooks(course: Path, work: Path) -> Copies:
    """Copy the course's notebooks into `work`, without outputs; a copy that the learner changed is never overwritten.

    A fresh copy is signed as trusted, or JupyterLab would warn of it.
    """
    work.mkdir(exist_ok=True)
    record = work / COPIED
    copied = json.loads(record.read_text()) if record.exists() else {}
    copies, notary = Copies(), NotebookNotary()
    for name in names_of(course):
        fresh, target = for_learners(course / name), work / name
        there = target.read_text(encoding="utf-8") if target.exists() else None
        if there == fresh:
            continue
        if there is not None and digest(there) != copied.get(name):
            if copied.get(name) != digest(fresh):
                copies.kept.append(name)
            continue
        (copies.added if there is None else copies.renewed).append(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(fresh, encoding="utf-8")
        if target.suffix == ".ipynb":
            notary.sign(nbformat.reads(fresh, as_version=4))
        copied[name] = digest(fresh)
    record.write_text(json.dumps(copied, indent=1))
    return copies


def names_of(course: Path) -> list[str]:
    """Return the notebooks and take-home scripts that learners get, relative to the course's folder."""
    found = [path for folder in SOURCES for path in sorted((course / folder).rglob("*.ipynb"))]
    found += sorted((course / SCRIPTS).glob("*.py"))
    return [str(path.relative_to(course)) for path in found if ".ipynb_checkpoints" not in path.parts]


def for_learners(path: Path) -> str:
    """Return a script as it is, and a notebook without what its cells showed, which would answer what they ask."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.get("jupyter", {}).pop("outputs_hidden", None)  # the published copies fold answers away
    return nbformat.writes(notebook)


def digest(text: str) -> str:
    """Return the SHA-256 of a notebook's text."""
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
