"""What a docstring says that comes out comes out."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from tools.paths import ROOT

FILES = [path for folder in ("course_lib", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES if ">>> " in path.read_text()]


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of(name):
    failed, tried = doctest.testmod(import_module(name))
    assert tried and not failed
