"""What a change touches: the tests that import it, through others and through commands, and no more."""

from __future__ import annotations

import subprocess

import pytest

from tools.changed import affected_tests, changed_files
from tools.paths import ROOT

FILES = {
    "course_lib/__init__.py": "",
    "course_lib/__main__.py": "from course_lib.tour import tour\n",
    "course_lib/tour.py": "def tour(): ...\n",
    "course_lib/low.py": "",
    "course_lib/high.py": "def late():\n    from course_lib.low import x\n",
    "course_lib/parts/__init__.py": "from pkgutil import iter_modules\nALL = list(iter_modules(__path__))\n",
    "course_lib/parts/one.py": "",
    "course_lib/door/__init__.py": "__getattr__, __dir__ = all_names(__name__, '*.py')\n",
    "course_lib/door/one.py": "",
    "course_lib/presets/model/tiny.yaml": "",
    "course_lib/presets/__init__.py": "",
    "tests/conftest.py": "LOADED = 'course_lib.low'\n",
    "tests/ranks/helper.py": "from course_lib import high\n",
    "tests/ranks/test_helped.py": "import helper\n",
    "tests/unit/test_low.py": "from course_lib.low import x\n",
    "tests/unit/test_command.py": "RUN = ['python', '-m', 'course_lib', 'tour']\n".replace("'", '"'),
    "tests/unit/test_chapters.py": "ALL = [load(f'course_lib.door.{name}') for name in 'ab']\n",
    "tests/unit/test_door.py": "from course_lib.door import one_s_name\n",
    "tests/unit/test_parts.py": "from course_lib.parts import ALL\n",
    "tests/unit/test_presets.py": '"""About course_lib.low."""\nfrom course_lib.presets import load\n',
    "tests/unit/test_readme.py": "TEXT = open('README.md')\n",
}


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("course_lib/low.py", ["ranks/test_helped", "unit/test_low"]),  # through a helper and an import in a function
        ("course_lib/tour.py", ["unit/test_command"]),  # python -m course_lib
        ("course_lib/parts/one.py", ["unit/test_parts"]),  # found by its package
        ("course_lib/door/one.py", ["unit/test_chapters", "unit/test_door"]),  # by names that are made up, by a door
        ("course_lib/presets/model/tiny.yaml", ["unit/test_presets"]),  # for the code above it
        ("README.md", ["unit/test_readme"]),  # by its name
        ("tests/unit/test_low.py", ["unit/test_low"]),
        ("course_lib/gone.py", []),
    ],
)
def test_a_change_selects_the_tests_that_it_can_reach(repository, changed, tests):
    assert affected_tests([changed], repository) == [f"tests/{name}.py" for name in tests]


def test_a_conftest_reaches_every_test_of_its_folder(repository):
    assert len(affected_tests(["tests/conftest.py"], repository)) == 8


def test_every_test_of_the_course_reaches_itself():
    chosen = affected_tests(["course_lib/schedules/orders.py"])
    assert "tests/ranks/test_pipeline.py" in chosen and "tests/unit/test_schedules.py" in chosen
    assert "tests/ranks/test_comm_values.py" not in chosen
    assert affected_tests(["tests/conftest.py"]) == sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
    )


def test_changes_are_commits_since_main_edits_and_new_files(repository):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "first")
    assert changed_files(repository) == []
    git("checkout", "-b", "work")
    (repository / "course_lib/low.py").write_text("x = 1\n")
    git("commit", "-am", "second")
    (repository / "course_lib/tour.py").write_text("tour = 1\n")
    (repository / "new.txt").write_text("")
    assert changed_files(repository) == ["course_lib/low.py", "course_lib/tour.py", "new.txt"]
