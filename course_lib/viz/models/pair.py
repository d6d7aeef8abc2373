"""Two matrices with a GELU between them on two ranks: what each rank holds, and where the ranks have to talk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from matplotlib.axes import Axes

from course_lib.costs.comm.chain import chain_partition
from course_lib.errors import four_parts
from course_lib.models.mlp import SIZES
from course_lib.split import MatrixCut
from course_lib.viz.ink import keys, marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.models.shared_matrices import (
    CELL,
    KEY,
    KEY_WITH_SUMS,
    OF_UNREAD,
    OUTSIDE,
    RANKS,
    UNREAD,
    Holders,
    draw_arrows,
    draw_bar,
    draw_table,
    draw_vector,
    part,
)

Cut = Literal["column", "row"]  # as in Megatron's Y = X A: by outputs, or by inputs
_MEANINGS = {"column": "by outputs", "row": "by inputs"}
_OF_CHAIN: Mapping[Cut, MatrixCut] = {"column": "out", "row": "in"}
_MADE = {"column": "finished", "row": "terms"}
_FORMULA = "y = W₂ GELU(W₁ x + b₁) + b₂"
_ITEMSIZE = 4
_TALL, _PITCH = SIZES[0] * CELL, 1.92  # inches: of x, from one rank to the next
_X, _W1, _AFTER, _W2, _END = 1.54, 1.86, 5.35, 6.4, 9.25  # inches: left edges of x, W₁, what W₂ reads, W₂ and y
_BESIDE, _BEHIND = (4.0, 8.1), (3.58, 7.68)  # of W₁ x and W₂ h: with the bias beside the matrix, or behind the bar
_BIASES = (4.62, 8.74)  # where it is added to a sum, behind the bar
_TO_BAR = (0.72, 0.64)  # from a product's left edge to the middle of the bar that follows it, in the same two cases


class _Table(NamedTuple):
    """A matrix with its bias: what a rank has of it."""

    rows: range
    columns: range
    bias: range
    shape: tuple[int, int]

    @property
    def parameters(self) -> int:
        return len(self.rows) * len(self.columns) + len(self.bias)


class _Pair(NamedTuple):
    """How both matrices are cut, and whether the terms of the first are added only after the second."""

    first: Cut
    second: Cut
    late: bool = False

    @property
    def cuts(self) -> tuple[Cut, Cut]:
        return self.first, self.second

    def talks(self) -> list[tuple[str, int]]:
        """Before the GELU and at the end: the collective, "" for none, and the numbers that each rank sends."""
        cuts: list[MatrixCut] = [_OF_CHAIN[cut] for cut in self.cuts]
        passages = chain_partition(SIZES, cuts, tp=RANKS, itemsize=_ITEMSIZE).passages[1:]
        found = [(one.forward, one.forward_cost.sent_bytes[0] // _ITEMSIZE) for one in passages]
        found[0] = ("nothing", 0) if self.late else found[0]
        return [(name.replace("nothing", ""), sent) for name, sent in found]

    def tables(self, rank: int) -> tuple[_Table, _Table]:
        """What a rank has of both matrices."""
        inputs, hidden, outputs = SIZES
        first, second = _table(self.first, rank, (hidden, inputs)), _table(self.second, rank, (outputs, hidden))
        if self.late:  # its terms of all hidden numbers go through the whole second matrix
            return first, second._replace(columns=range(hidden))
        if self.second == "row":  # which reads some of the hidden numbers, and needs no other's bias
            return first._replace(bias=part(hidden, rank)), second
        return first, second

    def adds_behind(self, number: int) -> bool:
        """Whether a bias is added to a sum, behind the bar."""
        return self.cuts[number] == "row" and not self.late

    def left_of(self, number: int) -> float:
        """Where a matrix's product is drawn."""
        return (_BEHIND if self.adds_behind(number) else _BESIDE)[number]

    def bar_of(self, number: int) -> float:
        """Where the ranks talk after that."""
        return self.left_of(number) + _TO_BAR[self.adds_behind(number)]


@sheet.course_style()
def plot_pair(first: Cut, second: Cut, *, title: str = "") -> Picture:
    """Draw the 38 parameters of `course_lib.models.mlp.MLP` on two ranks, each of its matrices cut in one way.

    Bars stand where forward needs a collective; below each, how many numbers a rank sends for one sample.
    Raises: ValueError for a cut that there is not.
    """
    for cut in (first, second):
        if cut not in get_args(Cut):
            rule, way_out = "a matrix is cut by outputs or by inputs", "choose 'column' or 'row'"
            raise ValueError(four_parts("plot_pair", f"{cut!r}", rule, way_out))
    return _draw(_Pair(first, second), title or f"First {_MEANINGS[first]}, then {_MEANINGS[second]}")


@sheet.course_style()
def plot_late_sum(*, title: str = "Terms through the GELU: wrong") -> Picture:
    """The pair that puts its sum off too long: each rank bends its terms, and they are added only at the very end.

    It is right without the GELU. Each rank adds half of each bias, so that the sum has it once.
    """
    return _draw(_Pair("row", "row", late=True), title)


def _draw(pair: _Pair, title: str) -> Picture:
    talks = [(name, f"each sends {sent} number{'s' * (sent > 1)} a sample") for name, sent in pair.talks()]
    sums = any(name in ("reduce_scatter", "all_reduce") for name, _ in talks)
    key = (*(KEY_WITH_SUMS if sums else KEY), *[OF_UNREAD] * (pair.first == "row"))
    first = style.HEADER + 0.64 + keys.LINE * (len(keys.lines_of(key, style.MARGIN)) - 1) + _TALL / 2
    middles = [first + rank * _PITCH for rank in range(RANKS)]
    figure, page = sheet.new_page(middles[-1] + _TALL / 2 + 0.4, title, _FORMULA)
    keys.draw_key(page, key, style.MARGIN)
    lines = []
    for rank, middle in enumerate(middles):
        tables = pair.tables(rank)
        held = f"{sum(table.parameters for table in tables)} of 38"
        marks.rank_badge(page, style.MARGIN + 0.37, middle - 0.2, rank)
        for below, words in ((0.16, held), (0.43, "parameters")):
            marks.label(page, style.MARGIN, middle + below, words, size=style.SMALL_SIZE, align="left")
        _draw_rank(page, rank, middle, pair, tables)
        lines.append(f"  rank {rank}: {held} parameters; {_in_words(tables)}")
    for number, (operation, sent) in enumerate(talks):
        if operation:
            draw_bar(page, pair.bar_of(number), middles, operation, sent)
        else:
            draw_arrows(page, pair.bar_of(number), middles)
    for middle in middles if pair.late else ():
        _draw_cross(page, pair.bar_of(0), middle)
    said = [f"{name}, {sent}" if name else "nothing is sent" for name, sent in talks]
    lines.append(f"  between them: {said[0]}; at the end: {said[1]}")
    return Picture(figure, title=title, description="\n".join([_FORMULA, *lines]))


def _table(cut: Cut, rank: int, shape: tuple[int, int]) -> _Table:
    out, into = shape
    if cut == "column":
        return _Table(part(out, rank), range(into), part(out, rank), shape)
    return _Table(range(out), part(into, rank), range(out), shape)


def _made(cut: Cut, rank: int, length: int) -> Holders:
    """What a rank's product gives: finished numbers, or terms of all."""
    return [(rank,) if cut == "row" or place in part(length, rank) else () for place in range(length)]


def _whole(cut: Cut, length: int) -> Holders:
    """The same after the collective."""
    return [tuple(range(RANKS)) if cut == "row" else (place // (length // RANKS),) for place in range(length)]


def _draw_rank(page: Axes, rank: int, middle: float, pair: _Pair, tables: tuple[_Table, _Table]) -> None:
    """One rank's half, from x to y."""
    inputs, hidden, outputs = SIZES
    read = range(inputs) if pair.first == "column" else part(inputs, rank)
    draw_vector(page, _X, middle, [OUTSIDE if place in read else UNREAD for place in range(inputs)], "x")
    before, at_end = _made(pair.first, rank, hidden), _made(pair.second, rank, outputs)
    after = _whole(pair.first, hidden) if pair.talks()[0][0] else before
    if pair.second == "row" and not pair.late:
        after = [held if place in part(hidden, rank) else () for place, held in enumerate(after)]
    for number, (left, name) in enumerate(((_W1, "W₁"), (_W2, "W₂"))):
        table = tables[number]
        everywhere = len(table.rows) * len(table.columns) == table.shape[0] * table.shape[1]
        hue = style.SOFT if everywhere else style.rank_hue(rank)
        draw_table(page, left, middle, table.shape, table.rows, table.columns, hue=hue, name=name)
        x = _BIASES[number] if pair.adds_behind(number) else left + table.shape[1] * CELL + 0.12
        _draw_bias(page, x, middle, table, rank, "½ " * pair.late + "b₁b₂"[2 * number : 2 * number + 2])
    draw_vector(page, pair.left_of(0), middle, before, _MADE[pair.first])
    draw_vector(page, _AFTER, middle, after, "after GELU")
    draw_vector(page, pair.left_of(1), middle, at_end, _MADE[pair.second])
    draw_vector(page, _END, middle, _whole(pair.second, outputs), "y")


def _draw_bias(page: Axes, x: float, middle: float, table: _Table, rank: int, name: str) -> None:
    """Beside its matrix, or, where its product is a term, behind the bar; whole, it is the same on all ranks."""
    rows = table.shape[0]
    hue = style.rank_hue(rank) if len(table.bias) < rows else style.SOFT
    draw_table(page, x, middle, (rows, 1), table.bias, range(1), hue=hue, name=name)


def _draw_cross(page: Axes, x: float, middle: float) -> None:
    """Here something is missing."""
    for slope in (1, -1):
        reach = 0.14
        across, down = [x - reach, x + reach], [middle - slope * reach, middle + slope * reach]
        page.plot(across, down, color=style.WRONG, linewidth=3.4, solid_capstyle="round", zorder=6)


def _in_words(tables: tuple[_Table, _Table]) -> str:
    """Which rows and columns of the two weights."""
    return "; ".join(
        f"{name} rows {table.rows.start} to {table.rows.stop - 1}, columns {table.columns.start} to "
        f"{table.columns.stop - 1}, {len(table.bias)} of its biases"
        for name, table in zip(("W₁", "W₂"), tables, strict=True)
    )
