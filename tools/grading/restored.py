"""A submission with the marks of the release: whatever was done to its cells, what it answers is found and tested.

nbgrader knows cells by metadata that students can change, and stops at what it does not expect. Here each cell gets its
marks from the release. A graded cell that is there several times counts where it passes.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any

import nbformat

from tools.grading.execute import COPY_OF


def restored(notebook: Any, release: Any) -> Any:
    """A copy of a submission in which each cell has its marks, and what was deleted or moved is there to be run.

    Raises: ValueError if no cell can be told.
    """
    known = {mark_of(cell): cell for cell in release.cells if mark_of(cell)}
    cells = [new for cell in notebook.cells for new in marked(cell, known)]
    if not any(map(mark_of, cells)):
        raise ValueError(
            "its cells have lost nbgrader's metadata and their ids; ask for the notebook as it was handed out"
        )
    for name in known:
        add_where_missing(cells, name, known)
    return nbformat.from_dict({**release, "cells": cells})


def marked(cell: Any, known: dict[str, Any]) -> list[Any]:
    """A cell's own text with the type and the marks of the release, or without marks if it is the student's own.

    What students write into a locked cell, such as one more import, becomes a cell in front of it.
    """
    own = fresh({"cell_type": cell.cell_type, "metadata": {}, "source": cell.source})
    name = next((name for name in (mark_of(cell), cell.get("id")) if name in known), None)
    if name is None:
        return [own]
    new = fresh(known[name])
    if not is_locked(new):
        new.source = cell.source
    changed = new.source.split() != cell.source.split() and not is_graded(new)
    return [own, new] if changed else [new]


def fresh(cell: dict[str, Any]) -> Any:
    """A copy with an id of its own and without outputs."""
    new = nbformat.from_dict({**copy.deepcopy(cell), "id": uuid.uuid4().hex})
    if new.cell_type == "code":
        new.update({"outputs": [], "execution_count": None})
    return new


def add_where_missing(cells: list[Any], name: str, known: dict[str, Any]) -> None:
    """Put in a locked cell that stands nowhere, or only where it is of no use.

    It is needed in front of what follows it in the release, and a graded cell behind the answer, at the end of its
    exercise. An answer that was deleted stays away: its stub would undo what is in a cell of the student's own.
    """
    if not is_locked(known[name]):
        return
    names = list(known)
    before, after = names[: names.index(name)], names[names.index(name) + 1 :]
    places = [place for place, cell in enumerate(cells) if mark_of(cell) == name]
    next_one = places_of(cells, [other for other in after if not is_graded(known[other])])[:1] or [len(cells)]
    earlier = places_of(cells, [other for other in before if not is_graded(known[other])])
    if is_graded(known[name]):
        answer = next(other for other in reversed(before) if not is_locked(known[other]))
        answers = places_of(cells, [answer])
        wanted = not places or (answers and places[-1] < answers[0])
        place = max([*next_one, *(number + 1 for number in answers or earlier)])
    else:
        wanted = not places or next_one[0] < places[0]
        place = min([*next_one, *(number + 1 for number in earlier[-1:] or [-1])])
    if wanted:
        cells.insert(place, fresh(known[name]))


def places_of(cells: list[Any], names: list[str]) -> list[int]:
    """Where cells of these names stand."""
    return [place for place, cell in enumerate(cells) if mark_of(cell) in names]


def with_one_of_each(cells: list[Any]) -> None:
    """Leave the marks to the last of several cells: nbgrader wants each once. Graded copies are run all the same."""
    last = {mark_of(cell): cell for cell in cells}
    for cell in cells:
        name = mark_of(cell)
        if name and cell is not last[name]:
            cell.metadata = nbformat.from_dict({COPY_OF: name} if is_graded(cell) else {})


def count_the_best(cells: list[Any]) -> None:
    """Give a graded cell that failed the outputs of a copy that passed; one that passed shows no error.

    nbgrader takes a line on standard error for a failure and a number that a cell returns for its points. Here a
    graded cell passes if it does not raise.
    """
    passed = {cell.metadata[COPY_OF]: cell.outputs for cell in cells if COPY_OF in cell.metadata and passes(cell)}
    for cell in cells:
        if is_graded(cell):
            if not passes(cell):
                cell.outputs = passed.get(mark_of(cell), cell.outputs)
            for output in cell.outputs:
                if output.output_type == "stream":
                    output.name = "stdout"
            cell.outputs = [output for output in cell.outputs if output.output_type in ("stream", "error")]


def passes(cell: Any) -> bool:
    return all(output.output_type != "error" for output in cell.outputs)


def mark_of(cell: Any) -> str:
    """nbgrader's name of a cell; empty if it has none."""
    mark = cell.metadata.get("nbgrader")
    name = mark.get("grade_id") if isinstance(mark, dict) else None
    return name if isinstance(name, str) else ""


def is_graded(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def is_locked(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("locked"))
