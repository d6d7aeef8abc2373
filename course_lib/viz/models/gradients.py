"""Each rank's gradients, their average, and the gradients of one device on the whole batch: the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from course_lib.errors import four_parts
from course_lib.viz.ink import cells, marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.ink.style import WRONG
from course_lib.viz.wires.holdings import check_picture_size

Gradients = Mapping[str, Tensor]
_MOST_RANKS = 4
_NAMES, _BETWEEN, _GAP = 1.3, 0.22, 0.04  # inches: names of the rows, between matrices, between cells
_CELL = (0.48, 0.31)
_TOLERANCE = {torch.float64: 1e-11}  # of the largest number, as where the verification ladder compares
_OTHER_TOLERANCE = 1e-5


@sheet.course_style()
def plot_gradients(per_rank: Sequence[Gradients], whole: Gradients, *, title: str = "") -> Picture:
    """A row of matrices for each rank, below them their average and `whole`, one device's gradient of the whole batch.

    The average is taken here; where it misses `whole`, the picture says so and frames the cells.
    Shapes: torch's (out, in), a bias as a column.
    Raises: ValueError for more than 4 ranks, gradients that differ in names or shapes, or more than a page holds.
    """
    check_picture_size("plot_gradients", len(per_rank), _MOST_RANKS)
    _check_equal_shapes(per_rank, whole)
    average = {name: torch.stack([gradients[name] for gradients in per_rank]).mean(0) for name in whole}
    blocks = {f"rank {rank}": gradients for rank, gradients in enumerate(per_rank)}
    blocks |= {"average": average, "one device": whole}
    wrong = {name: _differs(average[name], whole[name]) for name in whole}
    title = title or f"The average is {'not ' if _any(wrong) else ''}the whole batch's gradient"
    largest = cells.largest_of(_table(tensor) for gradients in blocks.values() for tensor in gradients.values())
    unit = _unit(largest)
    columns = _columns(whole)
    tall = max(len(tensor) for tensor in whole.values()) * _CELL[1] - _GAP
    top = style.HEADER + 0.74
    tops = [top + rank * (tall + 0.22) for rank in range(len(per_rank))]
    line = tops[-1] + tall + 0.17
    tops += [line + 0.17, line + 0.61 + tall]
    figure, page = sheet.new_page(tops[-1] + tall + 0.4, title, f"{cells.KEY}   numbers rounded, in units of {unit:g}")
    _name_columns(page, columns, whole, top)
    for (words, gradients), y in zip(blocks.items(), tops, strict=True):
        _name_row(page, y + tall / 2, words, len(per_rank))
        _draw_row(page, y, gradients, columns, largest=largest, framed=wrong if words == "average" else {})
    page.plot([style.MARGIN, style.PAGE_WIDTH - style.MARGIN], [line, line], color=style.INK, linewidth=1.2)
    hue = WRONG if _any(wrong) else style.INK
    marks.label(page, style.MARGIN, tops[-1] - 0.22, _verdict(wrong), bold=True, align="left", colour=hue)
    return Picture(figure, title=title, description=_in_words(blocks, wrong, unit), kinds=["measured"])


def _check_equal_shapes(per_rank: Sequence[Gradients], whole: Gradients) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in whole.items()}
    for rank, gradients in enumerate(per_rank):
        found = {name: tuple(tensor.shape) for name, tensor in gradients.items()}
        if found != expected:
            values, rule = f"rank {rank} has {found}", f"one device has {expected}"
            raise ValueError(four_parts("plot_gradients", values, rule, "give gradients of the same model"))
    if not expected or any(len(shape) not in (1, 2) or 0 in shape for shape in expected.values()):
        rule = "a matrix or a vector for each parameter, none of them empty"
        raise ValueError(four_parts("plot_gradients", f"{expected}", rule, "draw only such parameters"))


def _columns(whole: Gradients) -> dict[str, tuple[float, float]]:
    """Left edge and width, in inches, of every parameter's column."""
    columns, x = {}, style.MARGIN + _NAMES
    for name, tensor in whole.items():
        width = len(_table(tensor)[0]) * _CELL[0] - _GAP
        width = max(width, sheet.text_width(name, style.SMALL_SIZE, 600), sheet.text_width(_sizes(tensor)))
        columns[name] = (x, width)
        x += width + _BETWEEN
    if x - _BETWEEN > style.PAGE_WIDTH - style.MARGIN + 0.01:
        values, rule = ", ".join(f"{name} {tuple(t.shape)}" for name, t in whole.items()), "they fit on one line"
        raise ValueError(four_parts("plot_gradients", values, rule, "draw the gradients of fewer parameters"))
    return columns


def _table(tensor: Tensor) -> list[list[float]]:
    """Rows of numbers; a vector as a column."""
    table: list[list[float]] = tensor.detach().reshape(len(tensor), -1).tolist()
    return table


def _sizes(tensor: Tensor) -> str:
    return f"{len(tensor)} out" + (f" × {tensor.shape[1]} in" if tensor.dim() == 2 else "")


def _unit(largest: float) -> float:
    """The power of ten in which the largest number has two digits."""
    return 10.0 ** (math.floor(math.log10(largest)) - 1) if largest else 1.0


def _tolerance(tensor: Tensor) -> float:
    return _TOLERANCE.get(tensor.dtype, _OTHER_TOLERANCE)


def _differs(average: Tensor, whole: Tensor) -> Tensor:
    """Where two tensors differ by more than rounding; what is no number differs."""
    return ~((average - whole).abs() <= _tolerance(whole) * whole.abs().max())


def _name_columns(page: Axes, columns: Mapping[str, tuple[float, float]], whole: Gradients, top: float) -> None:
    for name, (left, width) in columns.items():
        middle, size = left + width / 2, style.SMALL_SIZE
        marks.label(page, middle, top - 0.46, name, bold=True, size=size)
        marks.label(page, middle, top - 0.2, _sizes(whole[name]), colour=style.SOFT, size=size)


def _name_row(page: Axes, y: float, words: str, ranks: int) -> None:
    if words.startswith("rank"):
        marks.rank_badge(page, style.MARGIN + 0.37, y, int(words.removeprefix("rank ")))
        return
    below = "whole batch" if words == "one device" else f"of {ranks} rank{'s' * (ranks > 1)}"
    marks.label(page, style.MARGIN, y - 0.13, words, bold=True, align="left")
    marks.label(page, style.MARGIN, y + 0.13, below, size=style.SMALL_SIZE, colour=style.SOFT, align="left")


def _draw_row(
    page: Axes,
    y: float,
    gradients: Gradients,
    columns: Mapping[str, tuple[float, float]],
    *,
    largest: float,
    framed: Mapping[str, Tensor],
) -> None:
    """Every matrix centred in its column; cells that are true in `framed` get a frame."""
    unit = _unit(largest)
    for name, (left, width) in columns.items():
        table = _table(gradients[name])
        x = left + (width - len(table[0]) * _CELL[0] + _GAP) / 2
        cells.draw_table(
            page, x, y, table, cell=_CELL, gap=_GAP, largest=largest, text=lambda n: cells.written(n / unit, 0)
        )
        if name in framed:
            _frame(page, x, y, _table(framed[name]))


def _frame(page: Axes, left: float, top: float, wrong: list[list[float]]) -> None:
    """Around each cell of the average that is not what one device has."""
    for y, row in enumerate(wrong):
        for x, cell in enumerate(row):
            if cell:
                place = (left + x * _CELL[0], top + y * _CELL[1])
                marks.box(page, *place, _CELL[0] - _GAP, _CELL[1] - _GAP, fill="none", edge=WRONG, line=2.2, zorder=4)


def _any(wrong: Mapping[str, Tensor]) -> bool:
    return any(bool(cell.any()) for cell in wrong.values())


def _verdict(wrong: Mapping[str, Tensor]) -> str:
    count, total = (sum(int(n) for n in ns) for ns in zip(*((w.sum(), w.numel()) for w in wrong.values()), strict=True))
    return (
        f"≠   {count} of {total} numbers differ{'s' * (count == 1)}"
        if count
        else f"=   all {total} numbers are equal, up to rounding"
    )


def _in_words(blocks: Mapping[str, Gradients], wrong: Mapping[str, Tensor], unit: float) -> str:
    """Every matrix row by row."""
    lines = [f"numbers in units of {unit:g}"]
    for who, gradients in blocks.items():
        lines.append(f"{who}:")
        for name, tensor in gradients.items():
            rows = "; ".join(" ".join(cells.written(number / unit, 0) for number in row) for row in _table(tensor))
            lines.append(f"  {name} ({_sizes(tensor)}): {rows}")
    return "\n".join([*lines, f"average {_verdict(wrong)}"])
