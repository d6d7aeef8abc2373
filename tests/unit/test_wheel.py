"""A wheel is the whole course library: installed away from the checkout, it draws, trains and answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from course_lib import __version__
from tools.paths import ROOT

FIGURES = """
import course_lib
from course_lib import viz
print(course_lib.__file__)
print(viz.plot_ranks(4).save("ranks.svg"), viz.plot_calibration().save("calibration.svg"))
"""
_PIP = {"PYTHONWARNINGS": ""}  # pip warns of what it brings along itself
TRAIN = ("train", "steps=2", "batch=2", "sequence=16", "text=text.txt")


def called(*words, cwd, **env):
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel in it, unpacked by pip; what it depends on is the environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = called("git", "ls-files", "-z", "course_lib", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT)
    for name in filter(None, tracked.split("\0")):  # a build leaves files beside its source
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
    called(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", "./source", cwd=folder, **_PIP)
    (wheel,) = folder.glob("*.whl")
    called(*pip, "install", "--no-deps", "--no-index", "--target", "site", wheel.name, cwd=folder, **_PIP)
    return folder / "site"


def test_from_the_wheel_alone_it_draws_and_trains(installed, tmp_path):
    alone = {"PYTHONPATH": str(installed)}
    said = called(sys.executable, "-c", FIGURES, cwd=tmp_path, **alone)
    assert said.splitlines() == [str(installed / "course_lib/__init__.py"), "ranks.svg calibration.svg"]
    assert all("</svg>" in (tmp_path / name).read_text() for name in ("ranks.svg", "calibration.svg"))
    (tmp_path / "text.txt").write_text("so it goes on, word after word. " * 40)
    course = str(installed / "bin/course")  # the console script
    assert called(course, "--version", cwd=tmp_path, **alone) == f"course {__version__}\n"
    assert "loss " in called(course, *TRAIN, cwd=tmp_path, **alone).splitlines()[-1]
