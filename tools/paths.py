"""Where things lie in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
LEARNER = ROOT / ".venv"  # what a learner runs
DEVELOPER = ROOT / ".venv-dev"  # the checks; sees the learner's packages too


def python_of(environment: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return environment / "bin" / "python"


def unhurried() -> dict[str, str]:
    """Return the environment variable that gives honest work on ranks more time, for a machine that is busy."""
    return {"COURSE_LIB_UNHURRIED": "1"}


def quiet_kernels(home: Path = CACHE / "ipython") -> dict[str, str]:
    """Return environment variables for notebooks that run without a person watching.

    Kernels read a configuration of their own, in `home`: no start-up files of the user, no notice about TCP at each
    start. Nobody is there to guess, so predictions show their answers, as in the published copies.
    """
    profile = home / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
    templates = LEARNER / "share" / "jupyter"
    return {**os.environ, "IPYTHONDIR": str(home), "JUPYTER_PATH": str(templates), "COURSE_LIB_PUBLISHED": "1"}
