"""No script that we hand out has a DDP that outlives its group: over gloo it may hang as it leaves (PyTorch 2.13)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.paths import ROOT

EXERCISES, SCRIPTS = sorted((ROOT / "exercises/src").glob("*.py")), sorted((ROOT / "notebooks/scripts").glob("*.py"))
WRAPS = "DistributedDataParallel("


def own_files(path: Path) -> list[str]:
    """The scripts that an exercise gives, which stand in it as strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if WRAPS in text and "__main__" in text]


HANDED_OUT = [(path.stem, text) for path in EXERCISES for text in own_files(path)]
HANDED_OUT += [(path.stem, text) for path in SCRIPTS if WRAPS in (text := path.read_text(encoding="utf-8"))]


def outlived(code: str) -> list[str]:
    """The functions that leave the group while they still hold a DDP."""
    return [
        function.name
        for function in ast.walk(ast.parse(code))
        if isinstance(function, ast.FunctionDef)
        and {"DistributedDataParallel", "destroy_process_group"} <= set(_called(function))
        and not any(isinstance(node, ast.Delete) for node in ast.walk(function))
    ]


def _called(function: ast.FunctionDef) -> list[str]:
    called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [getattr(name, "attr", getattr(name, "id", "")) for name in called]


def test_there_are_such_scripts():
    assert len(HANDED_OUT) >= 6


@pytest.mark.parametrize("code", [code for _, code in HANDED_OUT], ids=[name for name, _ in HANDED_OUT])
def test_the_model_has_gone_before_the_group(code):
    assert outlived(code) == []


def test_one_that_outlives_it_is_found():
    assert outlived("def main():\n    model = DistributedDataParallel(x)\n    dist.destroy_process_group()") == ["main"]
