"""Bugs that no ladder sees, since a run dies, hangs, or reads other rows: a script each, as released and mended."""

from __future__ import annotations

import ast
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.paths import ROOT, python_of
from tools.wild.environments import environment_for
from tools.wild.exhibits import FOLDER
from tools.wild.runs import variables

SCRIPTS = FOLDER / "scripts"
RESULTS = ROOT / "course_lib/presets/wild/scripts.yaml"
WAYS = ("released", "mended")
LIMIT_S = 90
FINE = "fine: "  # how the line begins that says that nothing is wrong
_WORDS = 160  # characters that are kept of an error's first sentence
_PLACE = re.compile(r"\[[^\]\n]*\.(?:cc|cpp|h):\d+\] ?|\[rank\d+\]: ?")  # where it was said, which is not what was said
_COMPLAINT = re.compile(r"^ *(.*(?:what\(\):|(?<!ChildFailed)Error:|failed with).*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a file says of itself; without ranks it is one process."""

    name: str
    story: str
    library: str
    links: tuple[str, ...]
    pins: str
    ranks: int
    torchrun: str = ""  # options beside the number of ranks

    @property
    def release(self) -> str:
        """Library and version."""
        return self.pins.split()[0].replace("==", " ")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended, what it said, and after how many seconds."""

    fine: bool
    said: str
    seconds: int


def all_scripts(folder: Path = SCRIPTS) -> list[Script]:
    """Every one, read without being imported."""
    found = []
    for path in sorted(folder.glob("*.py")):
        module = ast.parse(path.read_text())
        said = next(ast.literal_eval(x.value) for x in module.body if isinstance(x, ast.Assign) and _is_said(x))
        story = " ".join((ast.get_docstring(module) or "").split())
        found.append(Script(name=path.stem, story=story, **{**said, "links": tuple(said["links"])}))
    return found


def run(script: Script, way: str, limit_s: int = LIMIT_S) -> Ended:
    """Start it in its environment, and end it if it does not end.

    Raises: SetupError if pip cannot install its library.
    """
    python = str(python_of(environment_for(script.pins.split())))
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={script.ranks}"]
    start = [*torchrun, *script.torchrun.split()] if script.ranks else []
    with tempfile.TemporaryDirectory() as folder:
        words = [python, *start, str(SCRIPTS / f"{script.name}.py"), way, folder]
        begin = time.monotonic()
        process = subprocess.Popen(
            words, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks
            process.communicate()
            return Ended(fine=False, said="it hangs", seconds=limit_s)
    return ended(process.returncode, out, err, round(time.monotonic() - begin))


def ended(code: int, out: str, err: str, seconds: int) -> Ended:
    """What a finished run said: its line that all is fine, or its last complaint."""
    fine = [line.removeprefix(FINE) for line in out.splitlines() if line.startswith(FINE)]
    if code == 0 and fine:
        return Ended(fine=True, said=fine[-1], seconds=seconds)
    said = [*_COMPLAINT.findall(_PLACE.sub("", err)), *out.splitlines()]
    return Ended(
        fine=False, said=said[-1].partition(". ")[0][:_WORDS] if said else f"exit status {code}", seconds=seconds
    )


def row(as_released: Ended, mended: Ended, today: str) -> dict[str, Any]:
    """How both ended, as it is kept."""
    return {"date": today, "released": asdict(as_released), "mended": asdict(mended)}


def is_as_told(kept: Mapping[str, Any]) -> bool:
    """Whether the release goes wrong, and the mended way does not."""
    return not kept["released"]["fine"] and bool(kept["mended"]["fine"])


def keep(rows: Mapping[str, Any], file: Path = RESULTS) -> dict[str, Any]:
    """Write new rows beside those that are there, and return all of them."""
    kept = {**(yaml.safe_load(file.read_text()) if file.exists() else {}), **rows}
    file.write_text("# Written by `make wild`.\n" + yaml.safe_dump(kept, width=100))
    return kept


def lines(scripts: Sequence[Script], rows: Mapping[str, Any]) -> list[str]:
    """Their table."""
    found = ["| bug | release | what happens | s | mended by hand | s | run on |", "| --- " * 7 + "|"]
    for script in scripts:
        if kept := rows.get(script.name):
            cells = [script.name, script.release]
            for way in WAYS:
                cells += [kept[way]["said"].replace("|", "/"), str(kept[way]["seconds"])]
            found.append(f"| {' | '.join([*cells, kept['date']])} |")
    return found


def _is_said(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SCRIPT"
