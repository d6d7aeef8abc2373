"""A sheet's cell, run once more with other given numbers: formulas follow these, and typed numbers do not."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from IPython.core.getipython import get_ipython

_SEEDS = 20
_NO_CELL = "right, but the cell that computes these numbers was not found: compute them in the cell of the check"
_QUIET = ("check", "grade", "hint", "print")  # what a cell calls besides computing


class Again(NamedTuple):
    """Other given numbers and the same cell's answers to them; or why there are none."""

    runs: tuple[tuple[Any, Mapping[str, Any]], ...] = ()
    trouble: str = ""


def answered_again(
    answers: Mapping[str, Any], given: Callable[[int], Any], record: Callable[[int], tuple[Any, ...]], seed: int
) -> Again | None:
    """Run the cell that made `answers` with the given numbers of other seeds; None outside of a notebook.

    `record` is what a learner gets of what is `given`: wherever the notebook has the one of this seed, the cell finds
    another one in its place.
    """
    shell = get_ipython()
    if shell is None:
        return None
    found = _cell_of(answers, shell.user_ns)
    if found is None:
        return Again(trouble=_NO_CELL)
    name, cell = found
    runs = []
    for other in _other_seeds(given, seed):
        with _in_place(shell.user_ns, record(seed), record(other), other):
            try:
                exec(cell, shell.user_ns)
            except Exception as error:
                return Again(trouble=f"right here, but with other given numbers this cell fails: {error!r}")
            result = shell.user_ns[name]
        runs.append((given(other), result if isinstance(result, Mapping) else {}))
    return Again(tuple(runs))


def _cell_of(answers: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The answers' name, and the code of the last cell that gave it to them."""
    own = {name for name, value in names.items() if value is answers and not name.startswith("_")}
    for text in reversed(names.get("In", [])):
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in own:
                    return node.id, compile(tree, "<the cell once more>", "exec")
    return None


def _other_seeds(given: Callable[[int], Any], seed: int) -> list[int]:
    """Those of the next ones at which something else is given, each of it once."""
    found = {given(other): other for other in range(seed + 1, seed + 1 + _SEEDS)}
    found.pop(given(seed), None)
    return list(found.values())


@contextlib.contextmanager
def _in_place(names: dict[str, Any], mine: Any, other: Any, seed: int) -> Iterator[None]:
    """Meanwhile the notebook has another record and seed, and nothing is shown; then all its names are as before."""
    before = dict(names)
    names.update({name: other for name, value in before.items() if type(value) is type(mine)})
    names.update(dict.fromkeys(_QUIET, lambda *arguments, **options: None), GRADE_SEED=seed)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for name in names.keys() - before.keys():
            del names[name]
        names.update(before)
