"""The small perceptron as matrices: every number that it holds, in a cell whose colour says its sign and size."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.models.mlp import SIZES
from course_lib.viz.ink import cells, marks, sheet, style
from course_lib.viz.ink.picture import Picture

_CELL, _ROW, _GAP = 0.635, 0.48, 0.05  # inches: a number, a row, between cells
_LAYOUT = (  # parameter, its name in the formula, what is written after it, inches for that
    ("layer1.weight", "W₁", "x +", 0.45),
    ("layer1.bias", "b₁", "→ {} →", 0.75),
    ("layer2.weight", "W₂", "+", 0.3),
    ("layer2.bias", "b₂", "", 0.0),
)
_FRAME, _CUT = 0.045, 0.11  # inches outside a table's cells: its owner's frame, and a cut before it
_Table = list[list[float]]  # rows of numbers
_SUBTITLE = "y = W₂ {}(W₁ x + b₁) + b₂.  torch stores W as (out, in): a row makes one output"


@sheet.course_style()
def plot_mlp(
    numbers: Mapping[str, Tensor],
    *,
    owners: Mapping[str, int] | None = None,
    bend: str = "f",
    title: str = "The 38 parameters of the perceptron",
) -> Picture:
    """Draw the weights and biases of `course_lib.models.mlp.MLP`, or their gradients, by the names of its parameters.

    `owners` says which rank stores each: a frame in the rank's hue, and a dashed line where the model is cut. `bend` is
    what the formula calls the function in the middle.
    Raises: ValueError unless there are the four tensors of its shapes, and owners of all or none.
    """
    tables = _tables(numbers)
    stored = _stored(tables, owners)
    top, rows = style.HEADER + 0.72, SIZES[1]
    below = top + rows * _ROW + (0.64 if stored else 0.28)
    figure, page = sheet.new_page(below + 0.34, title, _SUBTITLE.format(bend))
    largest = cells.largest_of(tables.values())
    unit = 1.0 if largest == 0 or 0.1 <= largest < 10 else 10.0 ** math.floor(math.log10(largest))
    middle, x, frame = top + rows * _ROW / 2, style.MARGIN, _FRAME if owners else 0.0
    for (name, symbol, after, room), (following, *_) in zip(_LAYOUT, [*_LAYOUT[1:], _LAYOUT[-1]], strict=True):
        _draw_table(page, x, middle, symbol, tables[name], largest=largest, unit=unit, lift=frame)
        is_cut = owners is not None and owners[name] != owners[following]
        if owners:
            _draw_frame(page, x, middle, tables[name], style.rank_hue(owners[name]))
        x += len(tables[name][0]) * _CELL
        words = after.format(bend)
        free = (-_GAP + frame, room - (_CUT if is_cut else frame))  # between one table and what comes next
        lines = [words] if sheet.text_width(words) <= room else [bend, "→"]
        for line, y in zip(lines, (middle,) if len(lines) == 1 else (middle - 0.14, middle + 0.14), strict=True):
            marks.label(page, x + sum(free) / 2, y, line, colour=style.SOFT)
        x += room
        if is_cut:
            _draw_cut(page, x - _CUT, middle)
    key = cells.KEY + ("" if unit == 1 else f"   numbers in units of {unit:.0e}")
    marks.label(page, style.MARGIN, below, key, colour=style.SOFT, align="left")
    _name_owners(page, below - 0.35, stored, tables)
    return Picture(figure, title=title, description=_in_words(tables, stored, bend))


def _tables(numbers: Mapping[str, Tensor]) -> dict[str, _Table]:
    """Rows of numbers by parameter; a bias is one column."""
    inputs, hidden, outputs = SIZES
    shapes = {"layer1.weight": (hidden, inputs), "layer1.bias": (hidden,)}
    shapes |= {"layer2.weight": (outputs, hidden), "layer2.bias": (outputs,)}
    found = {name: tuple(tensor.shape) for name, tensor in numbers.items()}
    if found != shapes:
        rule, way_out = (
            f"the picture is that of {shapes}",
            "give MLP().state_dict(), or its gradients by the same names",
        )
        raise ValueError(four_parts("plot_mlp", f"{found}", rule, way_out))
    return {name: tensor.detach().reshape(len(tensor), -1).tolist() for name, tensor in numbers.items()}


def _draw_table(
    page: Axes, left: float, middle: float, symbol: str, table: _Table, *, largest: float, unit: float, lift: float
) -> None:
    """One matrix, or a bias as a column, centred on `middle`, with its name and its two sizes above."""
    top, columns = middle - len(table) * _ROW / 2, len(table[0])
    centre = left + (columns * _CELL - _GAP) / 2
    sizes = f"{len(table)} out" if columns == 1 else f"{len(table)} out × {columns} in"
    marks.label(page, centre, top - 0.46 - lift, symbol, bold=True)
    marks.label(page, centre, top - 0.18 - lift, sizes, size=style.SMALL_SIZE, colour=style.SOFT)
    cells.draw_table(
        page,
        left,
        top,
        table,
        cell=(_CELL, _ROW),
        gap=_GAP,
        largest=largest,
        text=lambda number: cells.written(number / unit),
    )


def _stored(tables: Mapping[str, _Table], owners: Mapping[str, int] | None) -> dict[int, list[str]]:
    """The parameters of each rank that has some."""
    if not owners:
        return {}
    if set(owners) != set(tables) or min(owners.values()) < 0:
        rule, way_out = "each parameter lies on one rank, 0 or later", f"say it for {', '.join(tables)}"
        raise ValueError(four_parts("plot_mlp", f"owners={dict(owners)}", rule, way_out))
    return {rank: [name for name in tables if owners[name] == rank] for rank in sorted(set(owners.values()))}


def _draw_frame(page: Axes, left: float, middle: float, table: _Table, hue: str) -> None:
    across, down = len(table[0]) * _CELL - _GAP, len(table) * _ROW - _GAP
    frame = (left - _FRAME, middle - len(table) * _ROW / 2 - _FRAME, across + 2 * _FRAME, down + 2 * _FRAME)
    marks.box(page, *frame, edge=hue, line=2.6, corner=0.09, zorder=0.5)


def _draw_cut(page: Axes, x: float, middle: float) -> None:
    """As high as the largest table with its frame."""
    half = SIZES[1] * _ROW / 2
    reach = [middle - half - 0.1, middle + half + 0.06]
    page.plot([x, x], reach, color=style.INK, linewidth=1.8, linestyle=(0, (3, 2)))
    marks.label(page, x, reach[0] - 0.13, "cut", size=style.SMALL_SIZE, colour=style.SOFT)


def _name_owners(page: Axes, y: float, stored: Mapping[int, list[str]], tables: Mapping[str, _Table]) -> None:
    x = style.MARGIN
    for rank, names in stored.items():
        marks.rank_badge(page, x + 0.37, y, rank)
        words = _count(names, tables)
        marks.label(page, x + 0.84, y, words, align="left")
        x += 0.84 + sheet.text_width(words) + 0.4


def _count(names: list[str], tables: Mapping[str, _Table]) -> str:
    return f"{sum(len(tables[name]) * len(tables[name][0]) for name in names)} numbers"


def _in_words(tables: Mapping[str, _Table], stored: Mapping[int, list[str]], bend: str) -> str:
    """Every matrix row by row, and who stores it."""
    lines = [_SUBTITLE.format(bend)]
    for name, symbol, _, _ in _LAYOUT:
        table = tables[name]
        lines.append(f"{symbol}, {name} ({len(table)}" + (f", {len(table[0])}):" if len(table[0]) > 1 else "):"))
        lines += ["  " + "  ".join(f"{number:.3g}" for number in row) for row in table]
    lines += [f"rank {rank} stores {_count(names, tables)}: {', '.join(names)}" for rank, names in stored.items()]
    return "\n".join(lines)
