"""`make test-slurm`: install Debian's Slurm where that may be, then run jobs on it; where it may not, say so aloud."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.slurm.cluster import missing, missing_programs
from tools.paths import CACHE, ROOT

_LOG = CACHE / "slurm.log"
_INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm", "munge", "iproute2")


def main(*options: str) -> int:
    """Return pytest's exit status; 0 if this machine cannot have a Slurm. The options are pytest's."""
    if missing_programs():
        _install()
    if why := missing():
        print(f"left out: jobs on a real Slurm ({why})")
        return 0
    words = [sys.executable, "-m", "pytest", "-q", "--durations=3", "tests/slurm", *options]
    return subprocess.run(words, cwd=ROOT).returncode


def _install() -> None:
    """What comes of it is seen by who looks for the programs."""
    if os.getuid() or not shutil.which("apt-get"):
        return
    print("installing Slurm …", flush=True)
    _LOG.parent.mkdir(parents=True, exist_ok=True)
    with open(_LOG, "wb") as log:
        for words in (("apt-get", "update"), _INSTALL):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(words, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
