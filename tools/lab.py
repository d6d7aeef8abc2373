"""`make lab`: the learner's own copies of notebooks and scripts, opened in JupyterLab on this machine only."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

from tools.copies import CONTENTS, copy_course
from tools.paths import LEARNER, ROOT, python_of

WORK = ROOT / "work"
JUPYTER = ROOT / "tools/jupyterlab"  # its settings, and the kernel with the sentence for a cell that was passed over
HOST = "127.0.0.1"


def main() -> int:
    """Copy what is new, then become JupyterLab."""
    port = os.environ.get("PORT") or "8888"
    trouble = port_trouble(port)
    if trouble:
        print(f"make lab: {trouble}", file=sys.stderr)
        return 1
    print(copy_course(ROOT, WORK), flush=True)
    command = lab_command(port, WORK, *shlex.split(os.environ.get("LAB_ARGS", "")))
    os.execve(command[0], command, lab_environment())


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
        f"--LabApp.app_settings_dir={JUPYTER / 'settings'}",
        f"--LabApp.default_url=/lab/tree/{CONTENTS}",
    ]
    if os.geteuid() == 0:
        options.append("--allow-root")  # in containers there is nobody else
    return [str(python_of(LEARNER)), "-m", "jupyterlab", *options, *extra]


def lab_environment() -> dict[str, str]:
    """Return the environment in which JupyterLab finds the course's kernel before others of the same name."""
    folders = filter(None, [str(JUPYTER), os.environ.get("JUPYTER_PATH")])
    return {**os.environ, "JUPYTER_PATH": os.pathsep.join(folders)}


if __name__ == "__main__":
    sys.exit(main())
