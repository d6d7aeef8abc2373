"""Rooms: a package's folders import downward only, no two files import each other, and names say one thing."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tools.paths import ROOT

PACKAGE = ROOT / "course_lib"
ROOMS = {  # lowest first: a room imports those before it
    # After the table lessons 04, 03, 05, 06 and the two halves of 09.
    "parallel": ("table", "pipelines", "data", "tensors", "sharding", "sequence", "experts", "lossy"),
    "viz": (
        *("ink", "widgets", "wires", "schedules", "memory", "models", "planning", "proof", "cluster", "less"),
        *("sequence", "experts", "pages"),
    ),
}
FILES = {name: path for path in sorted(PACKAGE.rglob("*.py")) for name in [".".join(path.relative_to(ROOT).parts)[:-3]]}
MOST_FILES_OF_A_STEM = 3
PLAIN_PAGES = ("course_lib.parallel.data.buckets",)  # read from top to bottom, without another file of their room
MOST_THINGS_OF_A_CLASS_NAME = 3


def imported(nodes: list[ast.stmt]) -> Iterator[str]:
    """Files of the course that are loaded when these statements run; what a function imports comes later."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from imported([*node.body, *node.orelse])
        elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
            yield from imported(node.body)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else str(node.module) for name in names)


def everything_imported(text: str) -> Iterator[str]:
    """Also what functions import, and what types alone need."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported([node])


def upward(module: str, text: str) -> list[str]:
    """What `module` imports from a room above its own."""
    _, package, room, *_ = module.split(".")
    rooms = ROOMS[package]
    others = [name.split(".") for name in everything_imported(text) if name.startswith(f"course_lib.{package}.")]
    return [".".join(parts) for parts in others if rooms.index(parts[2]) > rooms.index(room)]


@pytest.mark.parametrize("package", ROOMS)
def test_every_file_has_a_room(package):
    inside = [path.relative_to(PACKAGE / package) for path in (PACKAGE / package).rglob("*.py")]
    assert {path.parts[0] for path in inside} == {*ROOMS[package], "__init__.py"}


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_imports_one_above_it(package):
    inside = {
        name: path for name, path in FILES.items() if name.split(".")[1:3] in [[package, r] for r in ROOMS[package]]
    }
    found = {name: upward(name, path.read_text()) for name, path in inside.items()}
    assert len(found) > 20 and not any(found.values())


def test_an_arrow_up_is_found():
    assert upward("course_lib.parallel.table.layout", "def f():\n    from course_lib.parallel.data import ddp")
    assert upward("course_lib.parallel.data.ddp", "from course_lib.parallel.table import layout") == []


@pytest.mark.parametrize("page", PLAIN_PAGES)
def test_a_plain_page_needs_no_other_file_of_its_room(page):
    room, _, _ = page.rpartition(".")
    assert [name for name in everything_imported(FILES[page].read_text()) if name.startswith(room)] == []
    beside = [name for name, path in FILES.items() if page in everything_imported(path.read_text())]
    assert any(name.startswith(room) for name in beside)  # what is around it is built on it


def test_no_two_files_wait_for_each_other():
    graph = {name: {*imported(ast.parse(path.read_text()).body)} & FILES.keys() for name, path in FILES.items()}
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_no_name_within_a_room_repeats_the_room():
    rooms = [PACKAGE / package / room for package, names in ROOMS.items() for room in names]
    files = [path for room in rooms for path in room.glob("*.py")]
    repeated = [path for path in files if path.stem.startswith(path.parent.name.removesuffix("s"))]
    assert repeated == []


def test_no_stem_names_many_files():
    stems = Counter(Path(path).stem for path in FILES.values()) - Counter({"__init__": 10**6})
    assert {stem for stem, files in stems.items() if files > MOST_FILES_OF_A_STEM} == set()


def test_no_class_name_stands_for_many_things():
    classes = Counter(
        node.name
        for path in FILES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert len(classes) > 400
    assert {name for name, things in classes.items() if things > MOST_THINGS_OF_A_CLASS_NAME} == set()
