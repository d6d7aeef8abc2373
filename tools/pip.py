"""Runs pip and turns its failures into one line."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from tools.paths import CACHE

LOG = CACHE / "setup.log"
NO_NETWORK = re.compile(r"NewConnectionError|NameResolutionError|Failed to establish|Read timed out|Retrying \(")


class SetupError(Exception):
    """One line that says what is missing and what to do."""


def run_pip(python: Path, what: str, *arguments: str) -> None:
    """Run `pip` of `python`; everything it prints goes to the log, one line of ours to the screen.

    Raises: SetupError saying whether the network or a package was the trouble.
    """
    print(f"{what} … ", end="", flush=True)
    started = time.monotonic()
    LOG.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environment.pop("PYTHONWARNINGS", None)
    command = [str(python), "-m", "pip", *arguments]
    with LOG.open("w") as log:
        code = subprocess.call(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    if code:
        print("failed")
        raise SetupError(explain(what, LOG.read_text(errors="replace")))
    print(f"{time.monotonic() - started:.0f} s", flush=True)


def explain(what: str, log: str) -> str:
    """Name the cause that pip's output shows, in one line."""
    if NO_NETWORK.search(log):
        return f"{what}: no package index could be reached; connect to the network and run the same command again"
    errors = [line.strip() for line in log.splitlines() if line.startswith("ERROR:")]
    cause = errors[0] if errors else "pip stopped without saying why"
    return f"{what}: {cause}; pip's own words are in {LOG.relative_to(CACHE.parent)}"
