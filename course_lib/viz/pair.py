"""Two matrices with a GELU between them on two ranks: what each rank holds, and where the ranks have to talk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.models.mlp import SIZES
from course_lib.viz import keys, marks, style
from course_lib.viz.picture import Picture

Cut = Literal["column", "row"]  # as in Megatron's Y = X A: by outputs, or by inputs
_RANKS = 2
_MEANINGS = {"column": "by outputs", "row": "by inputs"}
_CELL, _GAP, _PITCH = 0.235, 0.03, 1.92  # inches: a number, between numbers, from one rank to the next
_TALL = SIZES[0] * _CELL
_WHOLE = {"column": "all_gather", "row": "all_reduce"}  # what makes a matrix's output whole
_MADE = {"column": "finished", "row": "terms"}
_TOP = style.HEADER + 0.64  # inches: of the first rank's row
_X, _W1, _AFTER, _W2, _END = 1.3, 1.85, 5.35, 6.4, 9.25  # inches: left edges of x, W₁, what W₂ reads, W₂ and y
_PRODUCTS: Mapping[Cut, tuple[float, float]] = {"column": (4.0, 8.1), "row": (3.58, 7.68)}  # of W₁ x and W₂ h
_BIASES = (4.62, 8.74)  # where it is added to a sum, behind the bar
_TO_BAR = {"column": 0.72, "row": 0.64}  # from a product's left edge to the middle of the bar that follows it
_OUTSIDE = (-1,)  # stands for the ranks of a number that was not made by one
_Holders = Sequence[tuple[int, ...]]  # for each number of a vector the ranks whose work is in it; () if it is not here


_KEY = (
    keys.Entry("one rank's alone", style.RANK_HUES[:1]),
    keys.Entry("on both ranks", [style.SOFT]),
    keys.Entry("not used here", [style.PANEL]),
    keys.Entry("a sum over both", style.RANK_HUES[:_RANKS]),
)


class _Words(NamedTuple):
    """What a pair's parts are called."""

    formula: str
    first: str
    bent: str
    second: str
    has_biases: bool


_PERCEPTRON = _Words("y = W₂ GELU(W₁ x + b₁) + b₂", "W₁", "after GELU", "W₂", True)
_ATTENTION = _Words("one hidden number stands for one head", "q, k, v", "after softmax", "o", False)


class _Table(NamedTuple):
    """A matrix with its bias: what a rank has of it."""

    rows: range
    columns: range
    bias: range
    shape: tuple[int, int]

    @property
    def parameters(self) -> int:
        return len(self.rows) * len(self.columns) + len(self.bias)


@style.course_style()
def plot_pair(first: Cut, second: Cut, *, title: str = "") -> Picture:
    """Draw the 38 parameters of `course_lib.models.mlp.MLP` on two ranks, each of its matrices cut in one way.

    Bars stand where forward needs a collective.

    Raises: ValueError for a cut that there is not.
    """
    for cut in (first, second):
        if cut not in get_args(Cut):
            rule, way_out = "a matrix is cut by outputs or by inputs", "choose 'column' or 'row'"
            raise ValueError(four_parts("plot_pair", f"{cut!r}", rule, way_out))
    return _draw((first, second), title or f"First {_MEANINGS[first]}, then {_MEANINGS[second]}", _PERCEPTRON)


@style.course_style()
def plot_heads(*, title: str = "Attention: two heads on each rank") -> Picture:
    """The same picture of attention: four heads on two ranks, queries, keys and values by outputs, then o by inputs."""
    return _draw(("column", "row"), title, _ATTENTION)


def _draw(cuts: tuple[Cut, Cut], title: str, words: _Words) -> Picture:
    (inputs, hidden, outputs), (first, second) = SIZES, cuts
    talks = _talks(first, second)
    figure, page = style.new_page(_TOP - 0.15 + _RANKS * _PITCH, title, words.formula)
    keys.draw_key(page, _KEY, style.MARGIN)
    lines = []
    for rank in range(_RANKS):
        top = _TOP + rank * _PITCH
        tables = _table(first, rank, (hidden, inputs)), _table(second, rank, (outputs, hidden))
        if second == "row":  # which reads some of the hidden numbers, and needs no other's bias
            tables = tables[0]._replace(bias=_part(hidden, rank)), tables[1]
        parameters = sum(table.parameters for table in tables)
        held = f"{parameters} of 38" if words.has_biases else f"{hidden // _RANKS} heads"
        marks.rank_badge(page, style.MARGIN + 0.37, top + _TALL / 2 - 0.2, rank)
        marks.label(page, style.MARGIN, top + _TALL / 2 + 0.16, held, size=style.SMALL_SIZE, align="left")
        _draw_rank(page, rank, top, cuts, tables, words)
        lines.append(f"  rank {rank}: {held}" + f" parameters; {_in_words(tables)}" * words.has_biases)
    for number, (cut, operation) in enumerate(zip(cuts, talks, strict=True)):
        _draw_talk(page, _PRODUCTS[cut][number] + _TO_BAR[cut], operation)
    lines.append(f"  between them: {talks[0] or 'nothing is sent'}; at the end: {talks[1]}")
    return Picture(figure, title=title, description="\n".join([words.formula, *lines]))


def _talks(first: Cut, second: Cut) -> tuple[str, str]:
    """The collective before the GELU, if one is needed, and the one at the end."""
    if second == "row":  # it reads its rank's part alone
        return {"column": "", "row": "reduce_scatter"}[first], _WHOLE[second]
    return _WHOLE[first], _WHOLE[second]


def _part(length: int, rank: int) -> range:
    return range(rank * length // _RANKS, (rank + 1) * length // _RANKS)


def _table(cut: Cut, rank: int, shape: tuple[int, int]) -> _Table:
    out, into = shape
    if cut == "column":
        return _Table(_part(out, rank), range(into), _part(out, rank), shape)
    return _Table(range(out), _part(into, rank), range(out), shape)


def _draw_rank(
    page: Axes, rank: int, top: float, cuts: tuple[Cut, Cut], tables: tuple[_Table, _Table], words: _Words
) -> None:
    """One rank's row, from x to y."""
    inputs, hidden, outputs = SIZES
    own, both, everyone = (rank,), tuple(range(_RANKS)), [(one,) for one in range(_RANKS)]

    def made(cut: Cut, length: int) -> _Holders:
        """What this rank's product gives: finished numbers, or terms of all."""
        return [own if cut == "row" or place in _part(length, rank) else () for place in range(length)]

    def whole(cut: Cut, length: int) -> _Holders:
        """The same after the collective."""
        per_rank = length // _RANKS
        return [both if cut == "row" else everyone[place // per_rank] for place in range(length)]

    read = range(inputs) if cuts[0] == "column" else _part(inputs, rank)
    _draw_vector(page, _X, top, [_OUTSIDE if place in read else () for place in range(inputs)], "x")
    before, at_end = made(cuts[0], hidden), made(cuts[1], outputs)
    after = whole(cuts[0], hidden) if _talks(*cuts)[0] else before
    if cuts[1] == "row":
        after = [held if place in _part(hidden, rank) else () for place, held in enumerate(after)]
    _draw_table(page, _W1, top, tables[0], rank, words.first)
    _draw_vector(page, _PRODUCTS[cuts[0]][0], top, before, _MADE[cuts[0]])
    _draw_vector(page, _AFTER, top, after, words.bent)
    _draw_table(page, _W2, top, tables[1], rank, words.second)
    if words.has_biases:
        _draw_bias(page, _W1, top, tables[0], rank, "b₁", _BIASES[0] if cuts[0] == "row" else None)
        _draw_bias(page, _W2, top, tables[1], rank, "b₂", _BIASES[1] if cuts[1] == "row" else None)
    _draw_vector(page, _PRODUCTS[cuts[1]][1], top, at_end, _MADE[cuts[1]])
    _draw_vector(page, _END, top, whole(cuts[1], outputs), "y")


def _draw_vector(page: Axes, left: float, top: float, holders: _Holders, name: str) -> None:
    """A column of numbers, centred in the row."""
    y = top + (_TALL - len(holders) * _CELL) / 2
    if name:
        marks.label(page, left + _CELL / 2, y - 0.2, name, size=style.SMALL_SIZE, bold=name in "xy")
    size = _CELL - _GAP
    for place, ranks in enumerate(holders):
        at = (left, y + place * _CELL)
        if ranks == _OUTSIDE:
            marks.box(page, *at, size, size, fill=style.SOFT, corner=0.03)
        elif len(ranks) > 1:
            for slot, rank in enumerate(ranks):
                wide = size / len(ranks)
                marks.box(page, at[0] + slot * wide, at[1], wide, size, fill=style.rank_hue(rank), corner=0)
        else:
            _draw_cell(page, *at, style.rank_hue(ranks[0]) if ranks else "")


def _draw_table(page: Axes, left: float, top: float, table: _Table, rank: int, name: str) -> None:
    """A matrix, coloured where the rank has it."""
    rows, columns = table.shape
    y, hue = top + (_TALL - rows * _CELL) / 2, style.rank_hue(rank)
    for row in range(rows):
        for column in range(columns):
            mine = row in table.rows and column in table.columns
            _draw_cell(page, left + column * _CELL, y + row * _CELL, hue if mine else "")
    marks.label(page, left + columns * _CELL / 2, y - 0.2, name, bold=True)


def _draw_bias(page: Axes, left: float, top: float, table: _Table, rank: int, name: str, behind: float | None) -> None:
    """A matrix's bias: beside it, or, where its product is a term, behind the bar, so that it counts once.

    Whole, it is the same on all ranks.
    """
    rows, columns = table.shape
    y, hue = top + (_TALL - rows * _CELL) / 2, style.rank_hue(rank) if len(table.bias) < rows else style.SOFT
    x = left + columns * _CELL + 0.12 if behind is None else behind
    for row in range(rows):
        _draw_cell(page, x, y + row * _CELL, hue if row in table.bias else "")
    marks.label(page, x + _CELL / 2, y - 0.2, name, bold=True)


def _draw_cell(page: Axes, x: float, y: float, hue: str) -> None:
    size = _CELL - _GAP
    marks.box(page, x, y, size, size, fill=hue or style.PANEL, edge="none" if hue else style.FAINT, corner=0.03)


def _draw_talk(page: Axes, x: float, operation: str) -> None:
    """A bar over all ranks where they talk; an arrow in each row where they need not."""
    top = _TOP
    for rank in range(_RANKS):
        y = top + rank * _PITCH + _TALL / 2
        marks.arrow(page, (x - 0.3, y), (x + 0.32, y), line=1.6)
    if operation:
        middle, tall = top + (_PITCH + _TALL) / 2, _PITCH + 0.5
        marks.box(page, x - 0.15, middle - tall / 2, 0.3, tall, fill=style.COMMUNICATION, zorder=4)
        page.text(
            x,
            middle,
            operation,
            rotation=90,
            size=style.SMALL_SIZE,
            weight=600,
            color=style.PAPER,
            ha="center",
            va="center",
            zorder=6,
        )


def _in_words(tables: tuple[_Table, _Table]) -> str:
    """Which rows and columns of the two weights."""
    return "; ".join(
        f"{name} rows {table.rows.start} to {table.rows.stop - 1}, columns {table.columns.start} to "
        f"{table.columns.stop - 1}, {len(table.bias)} of its biases"
        for name, table in zip(("W₁", "W₂"), tables, strict=True)
    )
