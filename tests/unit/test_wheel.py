"""A wheel is the whole course library: installed into a fresh environment, it draws, trains and answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from course_lib import __version__
from tools.paths import LEARNER, ROOT
from tools.setup_env import site_packages

FIGURES = """
import course_lib
from course_lib import viz
print(course_lib.__file__)
print(viz.plot_ranks(4).save("ranks.svg"), viz.plot_calibration().save("calibration.svg"))
"""
_QUIET = {"PYTHONWARNINGS": ""}  # pip and twine warn of what they bring along themselves
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
TRAIN = ("train", "steps=2", "batch=2", "sequence=16", "text=text.txt")


def called(*words, cwd, **env):
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the tracked files."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = called("git", "ls-files", "-z", "course_lib", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT)
    for name in filter(None, tracked.split("\0")):  # a build leaves files beside its source
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    called(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", ".", "./source", cwd=folder, **_QUIET)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A fresh environment with the wheel in it; what the wheel depends on is found in the learner's."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    called(*PIP, f"--python={folder}/bin/python", "install", "--no-deps", "--no-index", wheel, cwd=folder, **_QUIET)
    (site_packages(folder) / "others.pth").write_text(f"{site_packages(LEARNER).resolve()}\n")
    return folder


def test_the_wheel_holds_every_tracked_file_and_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = Parser().parsestr(archive.read(metadata).decode())
        licences = [name for name in archive.namelist() if "/licenses/" in name]
    tracked = called("git", "ls-files", "-z", "course_lib", cwd=ROOT).split("\0")
    assert names == {name for name in tracked if name} and len(names) > 300
    assert (said["Name"], said["Version"]) == ("distributed-llm-course", __version__)
    assert {"course", "instructor"} <= {*said.get_all("Provides-Extra")}
    assert {Path(name).name for name in licences} == {"LICENSE", "OFL.txt"}


def test_an_index_would_take_it(wheel):
    twine = (sys.executable, "-m", "twine", "--no-color", "check", "--strict")
    said = called(*twine, wheel.name, cwd=wheel.parent, COLUMNS="200", **_QUIET)
    assert said == f"Checking {wheel.name}: PASSED\n"


def test_from_the_wheel_alone_it_draws_and_trains(environment, tmp_path):
    alone = {"PYTHONPATH": ""}
    python, course = environment / "bin/python", environment / "bin/course"  # the console script
    said = called(python, "-c", FIGURES, cwd=tmp_path, **alone)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(environment)})) / "course_lib/__init__.py"
    assert said.splitlines() == [str(place), "ranks.svg calibration.svg"]
    assert all("</svg>" in (tmp_path / name).read_text() for name in ("ranks.svg", "calibration.svg"))
    (tmp_path / "text.txt").write_text("so it goes on, word after word. " * 40)
    assert called(course, "--version", cwd=tmp_path, **alone) == f"course {__version__}\n"
    assert "loss " in called(course, *TRAIN, cwd=tmp_path, **alone).splitlines()[-1]
