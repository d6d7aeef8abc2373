"""What is said in more than one file is the same everywhere."""

from __future__ import annotations

import re
import subprocess
import tomllib

from tools.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MACHINE = re.compile(r"(?<!\w)/(?:root|work|home/[a-z]+|Users/[a-z]+)/")


def name_of(requirement):
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def conda_lines():
    """What environment.yml hands to pip."""
    text = (ROOT / "environment.yml").read_text().partition("- pip:\n")[2]
    return [line.strip().removeprefix("- ") for line in text.splitlines() if line.strip()]


def test_conda_installs_the_same_set_as_pip():
    options = [line for line in conda_lines() if line.startswith("--")]
    names = [name_of(line) for line in conda_lines() if not line.startswith("--")]
    assert options == ["--constraint constraints.txt", "--editable ."]
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["course"]]
    assert names == [name_of(line) for line in wanted]


def test_conda_asks_for_the_same_python():
    assert f"python{PROJECT['requires-python']}" in (ROOT / "environment.yml").read_text()


def test_every_requirement_is_pinned():
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(name for extra in extras for name in extra)]
    assert {name_of(line) for line in wanted} - {name_of(line) for line in pins()} == set()


def test_pins_are_versions_only_and_each_once():
    assert [line for line in pins() if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    names = [name_of(line) for line in pins()]
    assert len(names) == len(set(names)) and names == sorted(names)


def test_continuous_integration_runs_make_check_and_jobs_on_a_real_slurm():
    assert (ROOT / ".ci/run").read_text().splitlines()[-2:] == ["make check", "exec make test-slurm"]


def test_every_make_target_says_what_it_does():
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    wanted = (
        "setup lab tour test check chaos fuzz test-slurm bench trace gpu wild olmo peers matrix notebooks exercises "
        "slides site release grade grade-all gradebook project grade-project exam workshop"
    )
    assert [line.split()[1] for line in listed.splitlines()] == ["help", *wanted.split()]


def test_no_tracked_file_names_this_machine():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in tracked.stdout.split("\0") if name]
    texts = {path: path.read_text(errors="ignore") for path in paths if path.is_file()}
    assert len(texts) > 10
    found = {str(path.relative_to(ROOT)): hit[0] for path, text in texts.items() if (hit := MACHINE.search(text))}
    assert found == {}


def test_a_wheel_holds_every_file_of_the_package():
    """Python's own by the packages that setuptools finds, all others by what is listed."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["course_lib"]
    package = ROOT / "course_lib"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    listed = {path for pattern in data for path in package.glob(pattern)}
    assert {str(path) for path in files - listed if path.suffix != ".py"} == set()
    assert {str(path) for path in files if path.suffix == ".py" and not (path.parent / "__init__.py").exists()} == set()
