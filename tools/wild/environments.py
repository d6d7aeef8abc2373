"""Throw-away environments: each sees the learner's packages, and before them what an exhibit pins."""

from __future__ import annotations

import hashlib
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from tools.paths import CACHE, LEARNER, python_of
from tools.pip import SetupError, run_pip
from tools.setup_env import make_visible, site_packages

FOLDER = CACHE / "wild"
READY = "pins.txt"
_NAMED = 6  # pins in the line that says what is installed


def environment_for(pins: Sequence[str], folder: Path = FOLDER) -> Path:
    """The environment that has these releases, made if need be; equal pins share one.

    Nothing is installed beside the pins, so that torch and what else fits comes from the learner's environment.

    Raises: SetupError if pip cannot.
    """
    environment = folder / name_of(pins)
    if not _is_ready(environment, pins):
        venv.create(environment, symlinks=True)  # pip is the learner's
        make_visible(environment, site_packages(LEARNER).resolve())
        named = ", ".join(pins[:_NAMED]) + ", …" * (len(pins) > _NAMED)
        run_pip(python_of(environment), f"installing {named}", "install", "--no-deps", *pins)
        (environment / READY).write_text("\n".join(pins))
    return environment


def name_of(pins: Sequence[str]) -> str:
    """A folder's name: the first pin, and what tells its companions apart.

    >>> name_of(["accelerate==1.0.1", "numpy==2.0.0"])
    'accelerate-1.0.1-1e6cc7'
    """
    return pins[0].replace("==", "-") + "-" + hashlib.sha256(" ".join(pins).encode()).hexdigest()[:6]


def version_in(environment: Path, library: str) -> str:
    """The release that an environment really has.

    Raises: SetupError if its Python finds none.
    """
    code = f"from importlib.metadata import version; print(version({library!r}))"
    found = subprocess.run([str(python_of(environment)), "-c", code], capture_output=True, text=True)
    if found.returncode:
        raise SetupError(f"{environment.name}: there is no {library}; delete the folder and try again")
    return found.stdout.strip()


def _is_ready(environment: Path, pins: Sequence[str]) -> bool:
    """Whether pip had finished."""
    ready = environment / READY
    return ready.exists() and ready.read_text().splitlines() == list(pins)
