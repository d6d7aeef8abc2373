"""Whether each pinned package has a wheel for every Python and system of the course; pip looks, and installs none."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.paths import ROOT
from tools.pip import LOG, NO_NETWORK, SetupError, explain

CONSTRAINTS = ROOT / "constraints.txt"
RECORD = ROOT / "tests/matrix/wheels.json"  # what was found for which pins, so that the check needs no network
PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # to pip, 3.11 is 3.11.0: some packages ask for a later one
SYSTEMS = {
    "Linux x86_64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "Linux aarch64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "macOS arm64": ("macosx_14_0_arm64", "macosx_12_0_arm64", "macosx_11_0_arm64", "macosx_10_9_universal2"),
}
SOURCE_ALONE = {"antlr4-python3-runtime": "published as source, in Python alone; hydra-core asks for it"}
_MISSING = re.compile(r"No matching distribution found for (\S+)")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A Python on a system."""

    python: str
    system: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.system}"


TARGETS = tuple(Target(python=python, system=system) for system in SYSTEMS for python in PYTHONS)


def pins() -> list[str]:
    """The lines of constraints.txt that must have a wheel everywhere."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    return [line for line in lines if line.partition("==")[0] not in SOURCE_ALONE]


def fingerprint() -> str:
    """Of what was asked for."""
    return hashlib.sha256("\n".join([*pins(), *map(str, TARGETS)]).encode()).hexdigest()


def lacking(wanted: list[str], target: Target) -> list[str]:
    """The pins that have no wheel for a target; pip stops at the first one, so it is asked again without it.

    Raises: SetupError with one line if no package index could be reached, or pip stopped for another reason.
    """
    left, missing = list(wanted), []
    while left and (log := _refusal(left, target)):
        found = _MISSING.findall(log)
        if NO_NETWORK.search(log) or not found:
            raise _trouble(f"looking for wheels of {target}", log)
        missing += found
        left = [pin for pin in left if pin not in missing]
    return missing


def _trouble(what: str, log: str) -> SetupError:
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text(log)
    return SetupError(explain(what, log))


def brings_cuda(target: Target) -> bool:
    """Whether the torch that pip would take asks for CUDA: gigabytes, which nobody downloads for a test."""
    torch = [pin for pin in pins() if pin.startswith("torch==")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        if log := _refusal(torch, target, "--report", str(report)):
            raise _trouble(f"looking for torch of {target}", log)
        (found,) = json.loads(report.read_text())["install"]
    asks = " ".join(found["metadata"].get("requires_dist", []))
    return target.system.startswith("Linux") and "nvidia" in asks and "+cpu" not in found["metadata"]["version"]


def _refusal(wanted: list[str], target: Target, *options: str) -> str:
    """Let pip look for wheels as if it were on `target`; return what it says if it does not find them all."""
    tags = [word for tag in SYSTEMS[target.system] for word in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "pins.txt"
        listed.write_text("\n".join(wanted))
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary=:all:", f"--python-version={target.python}", "--implementation=cp", *tags]
        command += [f"--target={folder}", "--requirement", str(listed), *options]
        environment = {**os.environ, "PIP_NO_INPUT": "1"}
        environment.pop("PYTHONWARNINGS", None)
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
    return run.stdout + run.stderr if run.returncode else ""


def look(targets: Iterable[Target] = TARGETS) -> dict[str, list[str]]:
    """Ask for all targets and keep what was found; return for each the pins that it lacks."""
    found = {}
    for target in targets:
        found[str(target)] = lacking(pins(), target)
        print(f"{target}: {told(found[str(target)])}", flush=True)
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps({"asked": fingerprint(), "lacking": found}, indent=1) + "\n")
    return found


def told(missing: list[str]) -> str:
    """What was found, in words.

    >>> told(["torch==2.13.0"])
    'no wheel of torch==2.13.0'
    """
    return f"no wheel of {', '.join(missing)}" if missing else "all wheels"
