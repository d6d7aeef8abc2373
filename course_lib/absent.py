"""An IPython extension for the kernels of `make lab`: says so when a cell fails because an earlier one has not run.

The folded Setup cell is easily passed over, and a restarted kernel has forgotten it. All that Python says then is that
a name is not defined.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)
_NO_RANKS = re.compile(r"Cell magic `%%ranks` not found")
_SETUP = "# Setup"
_RUN_SETUP = "Run the cell called Setup, near the top of this page, once: it loads what the page needs."
_RUN_ABOVE = "`{name}` comes from a cell that this kernel has not run: choose Run > Run All Above Selected Cell."


def load_ipython_extension(shell: Any) -> None:
    """Add a sentence to the errors of cells that lack what another cell of their notebook defines."""
    shell.events.register("post_run_cell", lambda result: _explain(result.error_before_exec or result.error_in_exec))


def _explain(error: BaseException | None) -> None:
    cells = _code_of(Path(os.environ.get("JPY_SESSION_NAME", ""))) if isinstance(error, Exception) else []
    sentence = why_absent(error, cells) if cells and isinstance(error, Exception) else ""
    if sentence:
        print(sentence, file=sys.stderr)


def why_absent(error: Exception, cells: list[str]) -> str:
    """Which cell to run, of those of the notebook, if it is one of them that defines what is missing; else nothing."""
    setup = next((text for text in cells if text.startswith(_SETUP)), "")
    if setup and _NO_RANKS.search(str(error)):
        return _RUN_SETUP
    if not isinstance(error, NameError) or not error.name:
        return ""
    if error.name in _defined_in(setup):
        return _RUN_SETUP
    return _RUN_ABOVE.format(name=error.name) if any(error.name in _defined_in(text) for text in cells) else ""


def _defined_in(text: str) -> set[str]:
    """The names that a cell binds at its top.

    >>> sorted(_defined_in("%load_ext course_lib\\nimport torch.nn as nn\\na, b = 1, 2\\ndef f(x): y = x"))
    ['a', 'b', 'f', 'nn']
    """
    if text.startswith("%%"):
        return set()  # the ranks', not the notebook's
    try:
        tree = ast.parse(_MAGIC.sub("", text))
    except SyntaxError:
        return set()
    return {name for node in tree.body for name in _bound_by(node)}


def _bound_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    else:
        names = (found for found in ast.walk(node) if isinstance(found, ast.Name))
        yield from (found.id for found in names if isinstance(found.ctx, ast.Store))


def _code_of(notebook: Path) -> list[str]:
    """The code cells of a notebook, as they were last saved; none if there is no such file."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError):
        return []
