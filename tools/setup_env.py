"""`make setup`: the learner's environment, and with `--dev` the one for the checks. Standard library only."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from tools import torch_there
from tools.corpus import fetch_corpus
from tools.paths import CACHE, DEVELOPER, LEARNER, ROOT, python_of
from tools.pip import SetupError, run_pip

PROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = ROOT / "constraints.txt"
READY = "course-ready.json"


def main() -> int:
    """Set up what is asked for; say in one line what stands in the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also the environment for the checks")
    arguments = parser.parse_args()
    try:
        set_up_learner(os.environ.get("TORCH", "").strip())
        if arguments.dev:
            set_up_developer()
    except SetupError as error:
        print(f"make: {error}", file=sys.stderr)
        return 1
    fetch_corpus(python_of(LEARNER))
    return 0


def set_up_learner(torch: str) -> None:
    """Create `.venv` with torch first and alone, then the other packages, then the course itself.

    Raises: SetupError if the torch that is there, or that `TORCH=` has brought, is too old.
    """
    python = python_of(LEARNER)
    if is_ready(LEARNER, torch):
        tell_of_torch(torch_version(python))
        return
    create(LEARNER)
    if torch or not torch_version(python):
        wanted = torch_arguments(torch)
        run_pip(python, f"installing {' '.join(wanted)} (large, once)", "install", *wanted)
    tell_of_torch(torch_version(python))
    pins = pinned_to(torch_version(python))
    run_pip(
        python, "installing the other packages", "install", "-c", str(pins), *requirements(), *requirements("course")
    )
    make_visible(LEARNER, ROOT)
    mark_ready(LEARNER, torch)


def set_up_developer() -> None:
    """Create `.venv-dev`, which sees the learner's packages: nbgrader's buttons stay out of a learner's Lab."""
    if is_ready(DEVELOPER):
        return
    create(DEVELOPER)
    make_visible(DEVELOPER, site_packages(LEARNER), ROOT)
    pins = pinned_to(torch_version(python_of(LEARNER)))
    wanted = requirements("dev", "instructor", "slides", "site")
    run_pip(python_of(DEVELOPER), "installing the checks' packages", "install", "-c", str(pins), *wanted)
    mark_ready(DEVELOPER)


def create(environment: Path) -> None:
    """Create an empty virtual environment; one that is there is kept."""
    if not python_of(environment).exists():
        print(f"creating {environment.name}", flush=True)
        venv.create(environment, with_pip=True, symlinks=True)
    if subprocess.call([str(python_of(environment)), "-c", ""], stderr=subprocess.DEVNULL):
        raise SetupError(f"{environment.name}: its Python does not start; delete {environment.name} and try again")


def torch_arguments(torch: str) -> list[str]:
    """Turn `TORCH=` into pip's arguments: a requirement, a wheel, or only options for the pinned version."""
    words = shlex.split(torch)
    only_options = not words or words[0].startswith("-")
    return [pin_of("torch"), *words] if only_options else words


def pin_of(package: str) -> str:
    """Return the line of `constraints.txt` that pins `package`."""
    lines = CONSTRAINTS.read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def tell_of_torch(version: str) -> None:
    """Say in one line if it is another torch than the tested one. Raises: SetupError if it is too old."""
    tested = pin_of("torch").partition("==")[2]
    if old := torch_there.too_old(version, tested):
        raise SetupError(old)
    if other := torch_there.not_tested(version, tested):
        print(other, flush=True)


def pinned_to(torch: str) -> Path:
    """Write the constraints with the torch that is installed, so that the rest is chosen to fit it."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("torch==")]
    CACHE.mkdir(exist_ok=True)
    path = CACHE / "constraints.txt"
    path.write_text("\n".join([*lines, f"torch=={torch}", ""]))
    return path


def requirements(*extras: str) -> list[str]:
    """Return what `pyproject.toml` asks for: the run-time packages, or those of the named extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    if not extras:
        return [name for name in project["dependencies"] if name != "torch"]
    return [name for extra in extras for name in project["optional-dependencies"][extra]]


def torch_version(python: Path) -> str:
    """Return the version of torch that `python` sees, or an empty string."""
    code = "from importlib.metadata import version; print(version('torch'))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return found.stdout.strip()


def site_packages(environment: Path) -> Path:
    """Return the folder that pip installs into."""
    return next(environment.glob("lib/python3.*/site-packages"))


def make_visible(environment: Path, *folders: Path) -> None:
    """Let the environment import from `folders`, without a copy."""
    (site_packages(environment) / "course.pth").write_text("".join(f"{folder}\n" for folder in folders))


def fingerprint() -> str:
    """Return what an environment was made from: versions, requirements and the checkout's place."""
    parts = [CONSTRAINTS.read_bytes(), PROJECT.read_bytes(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_ready(environment: Path, torch: str = "") -> bool:
    """Whether a finished set-up stands; `TORCH=` that differs from last time starts it again."""
    try:
        ready = json.loads((environment / READY).read_text())
    except (FileNotFoundError, ValueError):
        return False
    return bool(ready["made_from"] == fingerprint() and torch in ("", ready["torch"]))


def mark_ready(environment: Path, torch: str = "") -> None:
    """Write the stamp last, so that an interrupted set-up is taken up again."""
    (environment / READY).write_text(json.dumps({"made_from": fingerprint(), "torch": torch}))


if __name__ == "__main__":
    sys.exit(main())
