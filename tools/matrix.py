"""`make matrix`: the pinned packages for every Python of the course, and its first lessons on those that are here.

What was run, what was not, and why is written into a dated file of `tests/matrix/results`.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import setup_env, steps, wheels
from tools.imports import reached
from tools.paths import CACHE, ROOT, python_of, quiet_kernels
from tools.pip import SetupError, run_pip
from tools.wheels import PYTHONS, SYSTEMS, Target

ENVIRONMENTS = CACHE / "matrix"
RESULTS = ROOT / "tests/matrix/results"
LESSONS = ("00", "02", "03")
TESTERS = ("nbclient", "nbval", "pytest", "pytest-timeout", "pytest-xdist")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
_TORCH = re.compile(r"^\s*(?:import|from) (?:torch|transformers|accelerate)\b", re.MULTILINE)
_NO_TORCH = "not run: its torch brings CUDA along, which is several GB; TORCH= names another one"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of the lessons, and of the rest, on one Python."""

    python: str
    lessons: str
    rest: str
    passed: bool = True

    def __str__(self) -> str:
        return f"| {self.python} | {self.lessons} | {self.rest} |"


def main() -> int:
    """Look for wheels, run what can be run, write the page; the exit status says whether all of it is well."""
    try:
        found = wheels.look()
    except SetupError as error:
        print(f"make matrix: {error}", file=sys.stderr)
        return 1
    rows = [row_of(python) for python in PYTHONS]
    target = RESULTS / f"{datetime.date.today():%Y-%m-%d}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(found, rows), encoding="utf-8")
    print(target.relative_to(ROOT))
    return int(any(found.values()) or not all(row.passed for row in rows))


def row_of(version: str) -> Row:
    """Run the lessons on a Python, or, where no torch for CPUs can be had, the tests that need none."""
    if version == HERE:
        return Row(python=platform.python_version(), lessons="run by `make check`", rest="run by `make check`")
    python = interpreter(version)
    if python is None:
        return Row(python=version, lessons="not run: there is no such Python here", rest="not run")
    exact = subprocess.check_output([python, "-c", "import platform; print(platform.python_version())"], text=True)
    print(f"── Python {exact.strip()}", flush=True)
    try:
        with_torch = bool(os.environ.get("TORCH")) or not wheels.brings_cuda(Target(python=version, system=system()))
        installed = install(python, version, with_torch=with_torch)
    except SetupError as error:
        return Row(python=exact.strip(), lessons=f"not run: {error}", rest="not run", passed=False)
    if with_torch:
        code = run(installed, *lessons())
        return Row(python=exact.strip(), lessons=told(code), rest="not run", passed=code == 0)
    tests = without_torch()
    code = run(installed, "-n2", *tests)
    rest = f"all packages but torch installed; {len(tests)} files of tests that need no torch: {told(code)}"
    return Row(python=exact.strip(), lessons=_NO_TORCH, rest=rest, passed=code == 0)


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's."""
    kept = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}"))
    places = [shutil.which(f"python{version}"), *map(str, kept)]
    runs = [place for place in places if place and subprocess.call([place, "-c", ""], stderr=subprocess.DEVNULL) == 0]
    return runs[0] if runs else None


def system() -> str:
    """This machine's, as in `SYSTEMS`."""
    name = f"{'macOS' if sys.platform == 'darwin' else 'Linux'} {platform.machine()}"
    if name not in SYSTEMS:
        raise SetupError(f"{name} is none of the course's systems, which are {', '.join(SYSTEMS)}")
    return name


def install(python: str, version: str, *, with_torch: bool) -> Path:
    """An environment of this Python with the learner's packages and what runs tests; return its interpreter."""
    folder = ENVIRONMENTS / version
    inside = python_of(folder)
    if not inside.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pins = ENVIRONMENTS / "constraints.txt"
    pins.write_text("\n".join(pin for pin in wheels.CONSTRAINTS.read_text().splitlines() if "torch==" not in pin))
    if with_torch:
        torch = setup_env.torch_arguments(os.environ.get("TORCH", "").strip())
        run_pip(inside, f"installing {shlex.join(torch)}", "install", *torch)
    wanted = [*setup_env.requirements(), *TESTERS]
    run_pip(inside, "installing the other packages", "install", "-c", str(pins), *wanted)
    return inside


def lessons() -> list[str]:
    """pytest's words for the first lessons, compared with what they show."""
    files = [str(path) for number in LESSONS for path in sorted((ROOT / "notebooks").glob(f"{number}_*.ipynb"))]
    return [*steps.NBVAL[len(steps.PYTEST) :], *files]


def without_torch() -> list[str]:
    """The unit tests of what stands below torch: all of the library that they load has no file which imports it."""
    tests = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/unit").rglob("test_*.py"))]
    seen = [test for test in tests if "sys.path" not in (ROOT / test).read_text()]  # who changes it may load anything
    return [test for test in seen if _stands_below_torch(reached(ROOT, test))]


def _stands_below_torch(files: set[str]) -> bool:
    parts = {path.parts[1] for path in map(Path, files) if path.parts[0] == "course_lib"}
    own = [ROOT / file for file in files if not file.startswith("course_lib/")]
    return bool(parts) and not any(map(_imports_torch, [*own, *(path for part in parts for path in _files_of(part))]))


def _files_of(part: str) -> list[Path]:
    """A file of the library, or all files of one of its folders."""
    place = ROOT / "course_lib" / part
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


@cache
def _imports_torch(file: Path) -> bool:
    return bool(_TORCH.search(file.read_text()))


def run(python: Path, *words: str) -> int:
    """Run pytest in an environment; return its exit status."""
    environment = {**quiet_kernels(), "PYTHONPATH": str(ROOT)}
    return subprocess.call([str(python), "-m", "pytest", "-q", *words], cwd=ROOT, env=environment)


def told(code: int) -> str:
    """An exit status in a word."""
    return "passed" if code == 0 else "FAILED"


def page(found: dict[str, list[str]], rows: list[Row]) -> str:
    """The dated page."""
    head = f"| | {' | '.join(PYTHONS)} |\n{'| --- ' * (len(PYTHONS) + 1)}|"
    table = [
        f"| {name} | {' | '.join(wheels.told(found[str(Target(python=one, system=name))]) for one in PYTHONS)} |"
        for name in SYSTEMS
    ]
    alone = "; ".join(f"{name} ({why})" for name, why in wheels.SOURCE_ALONE.items())
    return (
        "\n\n".join(
            [
                f"# Which Pythons, {datetime.date.today():%d %B %Y}",
                f"Written by `make matrix` on {system()}.",
                f"## Wheels of the {len(wheels.pins())} pinned packages",
                "\n".join([head, *table]),
                f"pip was asked for each as if it were there, and nothing was installed. Left out: {alone}.",
                f"## Lessons {', '.join(LESSONS)}",
                "\n".join(
                    [
                        "| Python | lessons, compared with what they show | the rest |",
                        "| --- " * 3 + "|",
                        *map(str, rows),
                    ]
                ),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    os.environ.pop("PYTHONWARNINGS", None)
    sys.exit(main())
