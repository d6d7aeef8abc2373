"""The perceptron's 38 parameters in one row on two ranks: what each rank has when backward is through."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from course_lib.errors import four_parts
from course_lib.models.mlp import SIZES
from course_lib.split import split_sizes
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.keys import LINE, draw_key, lines_of
from course_lib.viz.ink.picture import Picture

_RANKS = 2
_CELL, _TALL, _ROW, _PITCH = 0.166, 0.25, 0.36, 2.0  # inches: a number across and down, a row, a rank
_APART = 0.06  # inches: more before the next parameter
_LEFT = style.MARGIN + 1.42
_ROWS = ("weights", "gradients", "Adam's m", "Adam's v")
_SHARED_FROM = (3, 2, 1, 1)  # the stage of ZeRO from which a row is shared out
_BY_LAYER = 2  # the stage from which each layer is cut, since each is summed up as soon as it is there
_FOR_A_MOMENT = {(2, "gradients"), (3, "gradients"), (3, "weights")}  # whole for a layer, and gone before the next
_UNSUMMED = (1, "gradients")  # the stage and row in which a rank has all numbers, found in its own samples alone
_NAMES = ("data parallelism", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")
_SUBTITLES = ("the 38 parameters in one row", "the 38 parameters in one row; each layer is cut in two")
_HUES = [style.rank_hue(rank) for rank in range(_RANKS)]
_KEY = (  # with the stages in which there is any such number
    (Entry("both ranks have the same", [style.SOFT]), (0, 1, 2)),
    (Entry("only this rank has it", _HUES), (1, 2, 3)),
    (Entry("not there", [style.FAINT]), (1, 2, 3)),
    (Entry("was there for a moment", [style.SOFT], dashed=True), (2, 3)),
    (Entry("of this rank's own samples, not yet summed", _HUES, striped=True), (1,)),
)


@sheet.course_style()
def plot_kept(stage: int, *, title: str = "") -> Picture:
    """Weights, gradients and Adam's two states of `course_lib.models.mlp.MLP` as rows of 38 numbers, for each rank.

    `stage` is that of ZeRO; 0 shares nothing. From stage 2 on each layer is cut, before it the whole row. Stage 1
    still has the gradients of each rank's own samples, since it sums them up after backward. What a rank had while a
    layer was computed and has given away since is dashed.
    Raises: ValueError for a stage that ZeRO does not have.
    """
    if stage not in range(4):
        rule, way_out = "ZeRO has the stages 1 to 3", "choose 0 (nothing is shared), 1, 2 or 3"
        raise ValueError(four_parts("plot_kept", f"stage={stage}", rule, way_out))
    lengths = _lengths()
    numbers = sum(lengths.values())
    title = title or f"In memory when backward is through: {_NAMES[stage]}"
    key = [entry for entry, stages in _KEY if stage in stages]
    top = style.HEADER + 0.42 + LINE * len(lines_of(key, style.MARGIN))
    figure, page = sheet.new_page(top + _RANKS * _PITCH - 0.1, title, _SUBTITLES[stage >= _BY_LAYER])
    draw_key(page, key, style.MARGIN)
    lines = []
    for rank in range(_RANKS):
        y = top + rank * _PITCH
        _name_parameters(page, y, lengths)
        marks.rank_badge(page, style.MARGIN + 0.37, y - 0.03, rank)
        own = _piece(lengths, rank, by_layer=stage >= _BY_LAYER)
        parts = [own if stage >= since else set(range(numbers)) for since in _SHARED_FROM]
        for row, (name, part) in enumerate(zip(_ROWS, parts, strict=True)):
            at = y + 0.25 + row * _ROW
            marks.label(page, style.MARGIN, at + _TALL / 2, name, size=style.SMALL_SIZE, align="left")
            unsummed = (stage, name) == _UNSUMMED
            hue = style.rank_hue(rank) if unsummed or len(part) < numbers else style.SOFT
            dashed = (stage, name) in _FOR_A_MOMENT
            _draw_row(page, at, part, hue, lengths, striped=unsummed, dashed=dashed)
            _count(page, at, str(len(part)))
        total = sum(map(len, parts))
        _count(page, y - 0.1, f"{total} of {len(_ROWS) * numbers}", bold=True)
        kept = ", ".join(f"{name} {len(part)}{_how(stage, name)}" for name, part in zip(_ROWS, parts, strict=True))
        lines.append(f"  rank {rank} has {total} numbers of {len(_ROWS) * numbers}: {kept}")
    names = ", ".join(f"{name} {length}" for name, length in lengths.items())
    return Picture(figure, title=title, description="\n".join([f"in one row: {names}", *lines]), kinds=["formula"])


def _lengths() -> dict[str, int]:
    """How many numbers each parameter has, in their order."""
    inputs, hidden, outputs = SIZES
    return {"W₁": hidden * inputs, "b₁": hidden, "W₂": outputs * hidden, "b₂": outputs}


def _piece(lengths: dict[str, int], rank: int, *, by_layer: bool) -> set[int]:
    """What a rank has of the row that is cut in two; or of its two layers, each of which is cut."""
    w1, b1, w2, b2 = lengths.values()
    rows, found, start = ([w1 + b1, w2 + b2] if by_layer else [w1 + b1 + w2 + b2]), set(), 0
    for row in rows:
        sizes = split_sizes(row, _RANKS)
        first = start + sum(sizes[:rank])
        found |= set(range(first, first + sizes[rank]))
        start += row
    return found


def _how(stage: int, row: str) -> str:
    """What the picture says of a row by stripes and by dashes, in words."""
    words = {_UNSUMMED: " (of its own samples)"} | dict.fromkeys(_FOR_A_MOMENT, " (for a moment more, layer by layer)")
    return words.get((stage, row), "")


def _name_parameters(page: Axes, y: float, lengths: dict[str, int]) -> None:
    """Above the rows, each over its numbers."""
    x = _LEFT
    for name, length in lengths.items():
        marks.label(page, x + length * _CELL / 2, y + 0.04, name, size=style.SMALL_SIZE, bold=True, colour=style.SOFT)
        x += length * _CELL + _APART


def _draw_row(
    page: Axes, y: float, part: set[int], hue: str, lengths: dict[str, int], *, striped: bool, dashed: bool
) -> None:
    """One number after the other, with a little more room before the next parameter."""
    number = 0
    for before, length in enumerate(lengths.values()):
        for _ in range(length):
            look: dict[str, Any] = {"fill": hue if number in part else style.FAINT}
            if dashed and number not in part:
                look = {"fill": "none", "edge": style.SOFT, "dashed": True, "line": 0.75}
            if striped:
                look = {"fill": "none", "edge": hue, "striped": True}
            marks.box(page, _LEFT + number * _CELL + before * _APART, y, _CELL - 0.02, _TALL, corner=0.02, **look)
            number += 1


def _count(page: Axes, y: float, words: str, *, bold: bool = False) -> None:
    """At the right edge."""
    x = style.PAGE_WIDTH - style.MARGIN
    marks.label(page, x, y + _TALL / 2, words, bold=bold, size=style.SMALL_SIZE, align="right")
