"""What a change touches: the tests that import it, through others and through commands, and no more."""

from __future__ import annotations

import subprocess

import pytest

from tools.changed import affected_tests, changed_files, runs_the_same
from tools.code import changed_pieces
from tools.paths import ROOT
from tools.uses import Uses

FILES = {
    "course_lib/__init__.py": "",
    "course_lib/__main__.py": "from course_lib.tour import tour\ntour()\n",
    "course_lib/tour.py": "def tour(): ...\n",
    "course_lib/low.py": "def x(): ...\ndef y(): ...\nclass Kind: ...\nPRINTED = print\nPRINTED()\n",
    "course_lib/high.py": "def late():\n    from course_lib.low import x\n    return x\ndef other(a: Kind): ...\n",
    "course_lib/typed.py": "from course_lib.low import Kind\ndef typed(a: Kind) -> Kind:\n    one: Kind = a\n",
    "course_lib/parts/__init__.py": "from pkgutil import iter_modules\nALL = list(iter_modules(__path__))\n",
    "course_lib/parts/one.py": "x = 1\n",
    "course_lib/door/__init__.py": "__getattr__, __dir__ = all_names(__name__, '*.py')\n",
    "course_lib/door/one.py": "def one_s_name(): ...\ndef another(): ...\n",
    "course_lib/passes/__init__.py": "from course_lib.passes.inner import kept as handed\n",
    "course_lib/passes/inner.py": "def kept():\n    return aside\naside = 1\nunused = 2\n",
    "course_lib/presets/model/tiny.yaml": "",
    "course_lib/presets/__init__.py": "def load(): ...\n",
    "tests/conftest.py": "LOADED = 'course_lib.low'\n",
    "tests/ranks/helper.py": "from course_lib import high\ndef help():\n    return high.late()\n",
    "tests/ranks/test_helped.py": "import helper\ndef test_a(): helper.help()\ndef test_b(): ...\n",
    "tests/unit/test_low.py": "from course_lib.low import x\ndef test_a(): x()\ndef test_b(): ...\n",
    "tests/unit/test_fixture.py": (
        "from course_lib.low import x, y\n"
        "@fixture\ndef made(): x()\n@fixture(autouse=True)\ndef always(): y()\n"
        "def test_a(made): ...\ndef test_b(): ...\n"
    ),
    "tests/unit/test_typed.py": "from course_lib.typed import typed\ndef test_a(): typed(1)\n",
    "tests/unit/test_command.py": 'RUN = ["python", "-m", "course_lib", "tour"]\ndef test_a(): RUN\n',
    "tests/unit/test_chapters.py": "ALL = [load(f'course_lib.door.{name}') for name in 'ab']\ndef test_a(): ALL\n",
    "tests/unit/test_door.py": "from course_lib.door import one_s_name\ndef test_a(): one_s_name()\n",
    "tests/unit/test_passes.py": "from course_lib import passes\ndef test_a(): passes.handed()\n",
    "tests/unit/test_parts.py": "from course_lib.parts import ALL\ndef test_a(): ALL\n",
    "tests/unit/test_presets.py": '"""course_lib.low"""\nfrom course_lib.presets import load\ndef test_a(): load()\n',
    "tests/unit/test_readme.py": "TEXT = open('README.md')\ndef test_a(): ...\n",
}


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def edit(repository, file, old, new):
    path = repository / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "tests"),
    [
        # through a helper, an import in a function, a fixture that a test asks for; not by other tests of the file
        (
            "course_lib/low.py",
            "def x(): ...",
            "def x(): return 1",
            ["ranks/test_helped.py::test_a", "unit/test_fixture.py::test_a", "unit/test_low.py::test_a"],
        ),
        ("course_lib/low.py", "def y(): ...", "def y(): return 1", ["unit/test_fixture.py"]),  # a fixture for all
        ("course_lib/low.py", "class Kind: ...", "class Kind: a = 1", []),  # in annotations alone
        (  # what a file runs for itself
            "course_lib/low.py",
            "PRINTED()",
            "PRINTED(1)",
            ["ranks/test_helped.py::test_a", "unit/test_fixture.py", "unit/test_low.py", "unit/test_typed.py"],
        ),
        ("course_lib/tour.py", "def tour(): ...", "def tour(): return 1", ["unit/test_command.py"]),
        ("course_lib/parts/one.py", "x = 1", "x = 2", ["unit/test_parts.py"]),  # found by its package
        ("course_lib/door/one.py", "def one_s_name(): ...", "", ["unit/test_chapters.py", "unit/test_door.py"]),
        ("course_lib/door/one.py", "def another(): ...", "", ["unit/test_chapters.py"]),  # by names that are made up
        ("course_lib/passes/inner.py", "aside = 1", "aside = 2", ["unit/test_passes.py"]),  # used by what is handed on
        ("course_lib/passes/inner.py", "unused = 2", "unused = 3", []),
        ("course_lib/passes/__init__.py", "kept as handed", "unused as handed", ["unit/test_passes.py"]),
        ("course_lib/high.py", "low import x", "low import y as x", ["ranks/test_helped.py::test_a"]),
        ("tests/unit/test_low.py", "def test_b(): ...", "def test_b(): x", ["unit/test_low.py::test_b"]),
        ("tests/unit/test_fixture.py", "def made(): x()", "def made(): x", ["unit/test_fixture.py::test_a"]),
    ],
)
def test_a_changed_name_selects_the_tests_that_reach_it(repository, file, old, new, tests):
    edit(repository, file, old, new)
    assert affected_tests([file], repository) == [f"tests/{name}" for name in tests]


def test_other_files_select_the_code_above_them_and_who_names_them(repository):
    assert affected_tests(["course_lib/presets/model/tiny.yaml"], repository) == ["tests/unit/test_presets.py"]
    assert affected_tests(["README.md"], repository) == ["tests/unit/test_readme.py"]
    assert affected_tests(["course_lib/gone.py"], repository) == []


def test_a_conftest_reaches_every_test_of_its_folder(repository):
    edit(repository, "tests/conftest.py", "low", "high")
    assert len(affected_tests(["tests/conftest.py"], repository)) == 11


def test_comments_docstrings_and_white_space_select_nothing(repository):
    edit(repository, "course_lib/low.py", "def x(): ...", 'def x():  # why\n    """What."""\n\n    ...')
    assert changed_files(repository) == ["course_lib/low.py"] and runs_the_same("course_lib/low.py", repository)
    assert affected_tests(["course_lib/low.py"], repository) == []
    edit(repository, "course_lib/low.py", "    ...", "    return 1")
    assert not runs_the_same("course_lib/low.py", repository)
    assert not runs_the_same("README.md", repository)


def test_a_name_changes_with_what_it_imports():
    old = "from a import f\ndef g():\n    return f()\ndef h(): ...\n"
    assert changed_pieces(old, old.replace("from a", "from b")) == {"f", "g"}
    assert changed_pieces(old, old.replace("def h(): ...", "")) == {"h", "*"}
    assert changed_pieces(old, old + "@mark\ndef k(): ...\n") == {"k"}


def test_of_the_course_a_change_selects_users_and_no_others():
    uses = Uses(ROOT)
    chosen = {test.partition("::")[0] for test in uses.tests_of([("course_lib/schedules/orders.py", "gpipe")])}
    assert "tests/ranks/module_04/test_pipeline.py" in chosen and "tests/unit/module_04/test_schedules.py" in chosen
    assert "tests/ranks/test_comm_values.py" not in chosen
    every = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    assert uses.tests_of([("tests/conftest.py", "pytest_collection")]) == every


def test_changes_are_commits_since_main_edits_and_new_files(repository):
    assert changed_files(repository) == []
    git(repository, "checkout", "-b", "work")
    (repository / "course_lib/low.py").write_text("x = 1\n")
    git(repository, "commit", "-am", "second")
    (repository / "course_lib/tour.py").write_text("tour = 1\n")
    (repository / "new.txt").write_text("")
    assert changed_files(repository) == ["course_lib/low.py", "course_lib/tour.py", "new.txt"]
