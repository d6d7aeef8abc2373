"""The small perceptron as matrices: every number that it holds, in a cell whose colour says its sign and size."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.models.mlp import SIZES
from course_lib.viz import cells, marks, style
from course_lib.viz.picture import Picture

_CELL, _ROW, _GAP = 0.635, 0.48, 0.05  # inches: a number, a row, between cells
_LAYOUT = (  # parameter, its name in y = W₂ f(W₁ x + b₁) + b₂, what is written after it, inches for that
    ("layer1.weight", "W₁", "x +", 0.45),
    ("layer1.bias", "b₁", "→ f →", 0.75),
    ("layer2.weight", "W₂", "+", 0.3),
    ("layer2.bias", "b₂", "", 0.0),
)
_SUBTITLE = "y = W₂ f(W₁ x + b₁) + b₂.  torch stores W as (out, in): a row makes one output"


@style.course_style()
def plot_mlp(numbers: Mapping[str, Tensor], *, title: str = "The 38 parameters of the perceptron") -> Picture:
    """Draw the weights and biases of `course_lib.models.mlp.MLP`, or their gradients, by the names of its parameters.

    Raises: ValueError unless there are the four tensors of its shapes.
    """
    tables = _tables(numbers)
    top, rows = style.HEADER + 0.72, SIZES[1]
    figure, page = style.new_page(top + rows * _ROW + 0.62, title, _SUBTITLE)
    largest = cells.largest_of(tables.values())
    unit = 1.0 if largest == 0 or 0.1 <= largest < 10 else 10.0 ** math.floor(math.log10(largest))
    middle, x = top + rows * _ROW / 2, style.MARGIN
    for name, symbol, after, room in _LAYOUT:
        _draw_table(page, x, middle, symbol, tables[name], largest=largest, unit=unit)
        x += len(tables[name][0]) * _CELL
        marks.label(page, x - _GAP / 2 + room / 2, middle, after, colour=style.SOFT)
        x += room
    key = cells.KEY + ("" if unit == 1 else f"   numbers in units of {unit:.0e}")
    marks.label(page, style.MARGIN, top + rows * _ROW + 0.28, key, colour=style.SOFT, align="left")
    return Picture(figure, title=title, description=_in_words(tables))


def _tables(numbers: Mapping[str, Tensor]) -> dict[str, list[list[float]]]:
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
    page: Axes, left: float, middle: float, symbol: str, table: list[list[float]], *, largest: float, unit: float
) -> None:
    """One matrix, or a bias as a column, centred on `middle`, with its name and its two sizes above."""
    top, columns = middle - len(table) * _ROW / 2, len(table[0])
    centre = left + (columns * _CELL - _GAP) / 2
    sizes = f"{len(table)} out" if columns == 1 else f"{len(table)} out × {columns} in"
    marks.label(page, centre, top - 0.46, symbol, bold=True)
    marks.label(page, centre, top - 0.18, sizes, size=style.SMALL_SIZE, colour=style.SOFT)
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


def _in_words(tables: Mapping[str, list[list[float]]]) -> str:
    """Every matrix row by row."""
    lines = [_SUBTITLE]
    for name, symbol, _, _ in _LAYOUT:
        table = tables[name]
        lines.append(f"{symbol}, {name} ({len(table)}" + (f", {len(table[0])}):" if len(table[0]) > 1 else "):"))
        lines += ["  " + "  ".join(f"{number:.3g}" for number in row) for row in table]
    return "\n".join(lines)
