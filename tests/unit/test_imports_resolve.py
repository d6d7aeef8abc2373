"""What a file imports from ours is there: a name that was moved is found here, not by the step that runs last."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec

from tools.paths import ROOT

OURS = ("course_lib", "tools", "tests")
TOY = ROOT / "tests/toy_module"  # stands in a copy of the course when it runs


def missing_imports(text: str) -> list[str]:
    """Each `module.name` that the text imports from ours and that is not there."""
    missing = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module and node.module.split(".")[0] in OURS:
            for alias in node.names:
                if alias.name != "*" and not _is_there(node.module, alias.name):
                    missing.append(f"{node.module}.{alias.name}")
    return missing


def _is_there(module: str, name: str) -> bool:
    if find_spec(module) is None:
        return False
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


def test_a_name_that_was_moved_is_found() -> None:
    text = "from tools.paths import ROOT, NOT_THERE\nfrom course_lib import costs, nothing"
    assert missing_imports(text) == ["tools.paths.NOT_THERE", "course_lib.nothing"]


def test_what_tests_tools_and_library_import_is_there(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests/ranks")  # as pytest does for the conftest there
    files = [path for folder in OURS for path in sorted((ROOT / folder).rglob("*.py")) if TOY not in path.parents]
    missing = {str(path.relative_to(ROOT)): missing_imports(path.read_text()) for path in files}
    assert len(files) > 500
    assert {file: names for file, names in missing.items() if names} == {}
