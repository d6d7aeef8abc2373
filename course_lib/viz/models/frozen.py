"""What backward needs of a linear map that is trained, of a frozen one, and of one with an adapter beside it."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.errors import four_parts
from course_lib.units import format_bytes
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_on
from course_lib.viz.ink.canvas_key import draw_key
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.entries import Entry
from course_lib.viz.memory.parts import WEIGHTS

_KEY, _TOP = 92.0, 124.0  # pixels: the key, the first row
_ROW, _LAST = 104.0, 160.0  # heights of a row, and of the one with an adapter
_X, _W, _Y = 206.0, 356.0, 510.0  # middles of what is multiplied, of the matrix and of its output
_A, _BETWEEN, _B, _BELOW = 286.0, 356.0, 426.0, 74.0  # middles of the adapter's parts, and how far below W they lie
_SAID, _LINE = 574.0, 24.0  # where the words begin, from one line to the next
_KEPT, _PASSES = style.COMPUTE["forward"], style.COMPUTE["backward"]
_HALF = 2  # bytes of a number in sixteen bits


@dataclass(frozen=True)
class _Row:
    """One map: what it is called, what is trained of it, what its gradients ask for, and what waits for them."""

    name: str
    trained: str  # letters of matrices
    kept: str  # letters of activations
    needs: tuple[str, ...]
    keeps: tuple[str, ...]
    adapter: bool = False

    @property
    def height(self) -> float:
        return _LAST if self.adapter else _ROW


def plot_frozen(inputs: int = 4096, *, rank: int = 16, tokens: int = 2048) -> Drawing:
    """Three ways of one map, y = W x: what each gradient is made of, and which activations wait for that.

    Gradients pass a frozen matrix as they pass any other, and need the matrix alone; its input is needed for its own
    gradient only. An adapter's A reads the same input. Bytes are for sixteen bits and `tokens` rows of `inputs`.
    Raises: ValueError for sizes below 1.
    """
    if min(inputs, rank, tokens) < 1:
        values = f"inputs={inputs}, rank={rank}, tokens={tokens}"
        raise ValueError(four_parts("plot_frozen", values, "a map has numbers and rows", "give each at least 1"))
    title = "What backward needs of a linear map"
    subtitle = f"y = W x for {tokens:,} tokens of {inputs:,} numbers in sixteen bits; the adapter has rank {rank}"
    rows = _rows(_size(inputs * tokens), _size(rank * tokens))
    canvas = Canvas(_TOP + sum(row.height for row in rows) + 8, title, subtitle, width=WIDE, kinds=["formula"])
    entries = [Entry("trained", [WEIGHTS]), Entry("frozen", [WEIGHTS], striped=True)]
    entries += [Entry("kept for backward", [_KEPT]), Entry("let go of", [style.SOFT], dashed=True)]
    draw_key(canvas, [*entries, Entry("gradients", [_PASSES])], _KEY)
    top, lines = _TOP, [subtitle]
    for row in rows:
        _draw_row(canvas, row, top)
        lines.append(f"  {row.name}: {'; '.join(row.needs)}; {' '.join(row.keeps)}")
        top += row.height
    return Drawing(canvas, title=title, description="\n".join(lines), kinds=["formula"])


def _rows(of_x: str, of_a: str) -> list[_Row]:
    """The three, with the bytes of what is kept."""
    passes = "gradient of x: needs W"
    both = ("gradient of x: needs W, A and B", "gradient of A: needs x", "gradient of B: needs a = A x")
    return [
        _Row("W is trained", "W", "x", (passes, "gradient of W: needs x"), (f"keeps x, {of_x}",)),
        _Row("W is frozen", "", "", (passes, "gradient of W: nobody asks"), ("keeps nothing",)),
        _Row("… and an adapter", "AB", "xa", both, (f"keeps x, {of_x},", f"and a, {of_a}"), adapter=True),
    ]


def _size(numbers: int) -> str:
    """Three digits are enough."""
    number, unit = format_bytes(_HALF * numbers, binary=False).split()
    return f"{float(number):.3g} {unit}"


def _draw_row(canvas: Canvas, row: _Row, top: float) -> None:
    """The map at the left, and in words at the right what its gradients need."""
    middle = top + 42
    canvas.path(f"M{WIDE_EDGE:g} {top - 8:g}H{WIDE - WIDE_EDGE:g}", stroke=style.GRID, stroke_width=1.2)
    canvas.text(WIDE_EDGE, middle, row.name, bold=True)
    ends = [(_X, 22.0), (_W, 40.0), (_Y, 22.0)]
    for (left, before), (right, after) in zip(ends, ends[1:], strict=False):
        _both_ways(canvas, left + before, right - after, middle)
    if row.adapter:
        _draw_adapter(canvas, middle)
    _activation(canvas, _X, middle, "x", kept="x" in row.kept)
    _matrix(canvas, _W, middle, "W", wide=80, trained="W" in row.trained)
    canvas.text(_Y, middle, "y", bold=True, align="middle")
    for number, words in enumerate((*row.needs, *row.keeps)):
        said = number < len(row.needs)
        y, colour = middle + (number - 1) * _LINE, style.SOFT if said else style.INK
        canvas.text(_SAID, y, words, size=SMALL, colour=colour, bold=not said)


def _draw_adapter(canvas: Canvas, middle: float) -> None:
    """Down from x, through A and B, and up to y."""
    lane = middle + _BELOW
    for colour, aside in ((style.SOFT, -6.0), (_PASSES, 6.0)):
        side = f"M{_X + aside:g} {middle + 24:g}V{lane - aside:g}H{_A - 30:g}"
        other = f"M{_B + 30:g} {lane + aside:g}H{_Y + aside:g}V{middle + 20:g}"
        canvas.path(side + other, stroke=colour, stroke_width=2, fill="none")
    _head(canvas, _A - 30, lane + 6, 1, style.SOFT)
    _head(canvas, _X + 6, middle + 24, 0, _PASSES)
    _head(canvas, _Y - 6, middle + 20, 0, style.SOFT)
    _head(canvas, _B + 30, lane + 6, -1, _PASSES)
    _both_ways(canvas, _A + 28, _BETWEEN - 18, lane)
    _both_ways(canvas, _BETWEEN + 18, _B - 28, lane)
    _matrix(canvas, _A, lane, "A", wide=52, trained=True)
    _activation(canvas, _BETWEEN, lane, "a", kept=True, side=30)
    _matrix(canvas, _B, lane, "B", wide=52, trained=True)


def _both_ways(canvas: Canvas, left: float, right: float, y: float) -> None:
    """Forward above, and the gradients' way back below it."""
    for colour, at, head in ((style.SOFT, y - 6, 1), (_PASSES, y + 6, -1)):
        canvas.path(f"M{left:g} {at:g}H{right:g}", stroke=colour, stroke_width=2, fill="none")
        _head(canvas, right if head > 0 else left, at, head, colour)


def _head(canvas: Canvas, x: float, y: float, towards: int, colour: str) -> None:
    """The tip of an arrow: to the right, to the left, or up for 0."""
    d = f"M{x:g} {y:g}l{-8 * towards:g}-5v10z" if towards else f"M{x:g} {y:g}l-5 8h10z"
    canvas.path(d, fill=colour)


def _activation(canvas: Canvas, x: float, y: float, words: str, *, kept: bool, side: float = 40.0) -> None:
    gone = {"fill": "none", "stroke": style.SOFT, "stroke_width": 1.4, "stroke_dasharray": "4 3"}
    look = {"fill": _KEPT} if kept else gone
    canvas.box(x - side / 2, y - side / 2, side, side, corner=5, **look)
    canvas.text(x, y, words, bold=True, align="middle", colour=text_on(_KEPT) if kept else style.INK)


def _matrix(canvas: Canvas, x: float, y: float, words: str, *, wide: float, trained: bool) -> None:
    look = {"fill": WEIGHTS} if trained else {"fill": "none", "stroke": WEIGHTS, "stroke_width": 2}
    canvas.box(x - wide / 2, y - 22, wide, 44, **look)
    canvas.text(x, y, words, bold=True, align="middle", colour=text_on(WEIGHTS) if trained else style.INK)
