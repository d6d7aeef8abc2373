"""Who computes which part of causal attention when a sequence is cut over ranks, and how uneven that is."""

from __future__ import annotations

from typing import Any

from course_lib.errors import four_parts
from course_lib.sequence_cut import SequenceCut
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.sequence.triangle import BESIDE, Triangle
from course_lib.viz.sequence.work import ABOVE, BELOW, PITCH, draw_work, percent, shares, slowest
from course_lib.viz.wires.holdings import check_picture_size

_TOP, _HEADING, _BOTTOM, _APART = 84.0, 28.0, 22.0, 32.0
_SIDE, _LARGE = 316.0, 350.0  # of a triangle beside another, and of one alone
_MOST = 128


def plot_causal(
    *cuts: SequenceCut,
    title: str = "Who computes which part of causal attention?",
    before: SequenceCut | None = None,
) -> Drawing:
    """The triangle of queries and keys, coloured by the queries' ranks, with each rank's share of the work.

    Two cuts of one sequence stand side by side. `before` outlines what the ranks of a single one had before.
    Raises: ValueError for no cut or more than 2, of different sizes, of more than 8 ranks or 128 positions.
    """
    _check(cuts)
    length, size = cuts[0].length, cuts[0].size
    subtitle = f"{length} positions on {size} rank{'s' * (size > 1)}; a row's colour is the rank that has the query"
    draw = _draw_alone if len(cuts) == 1 else _draw_two
    canvas = draw(cuts, title, subtitle, before)
    words = [subtitle, *(line for cut in cuts for line in _in_words(cut))]
    if before:
        words.append(f"  before: {_said(before)}")
    return Drawing(canvas, title=title, description="\n".join(words), kinds=["formula"])


def _check(cuts: tuple[SequenceCut, ...]) -> None:
    operation = "plot_causal"
    if not 1 <= len(cuts) <= 2 or len({(cut.length, cut.size) for cut in cuts}) > 1:
        values = ", ".join(f"{cut.length} positions on {cut.size} ranks" for cut in cuts) or "no cut"
        rule = "this picture holds one cut, or two of the same length and size"
        raise ValueError(four_parts(operation, values, rule, "pass SequenceCut(16, 4), SequenceCut(16, 4, 'zigzag')"))
    check_picture_size(operation, cuts[0].size)
    if cuts[0].length > _MOST:
        rule, way_out = f"this picture holds 1 to {_MOST} positions", "draw fewer: the pattern is the same"
        raise ValueError(four_parts(operation, f"length={cuts[0].length}", rule, way_out))


def _draw_alone(cuts: tuple[SequenceCut, ...], title: str, subtitle: str, before: SequenceCut | None) -> Canvas:
    """The triangle on the left, the work on the right."""
    top = _TOP + _HEADING
    canvas = Canvas(top + BESIDE + _LARGE + _BOTTOM, title, subtitle, width=WIDE, kinds=["formula"])
    _write_heading(canvas, cuts[0], WIDE_EDGE, BESIDE + _LARGE)
    Triangle(cuts[0], WIDE_EDGE + BESIDE, top + BESIDE, _LARGE).draw(canvas)
    left = WIDE_EDGE + BESIDE + _LARGE + _APART
    draw_work(canvas, cuts[0], left, top + BESIDE - ABOVE, WIDE - WIDE_EDGE - left, before)
    return canvas


def _draw_two(cuts: tuple[SequenceCut, ...], title: str, subtitle: str, before: SequenceCut | None) -> Canvas:
    """Two triangles, each above its work."""
    top = _TOP + _HEADING
    foot = top + BESIDE + _SIDE + 14
    height = foot + ABOVE + cuts[0].size * PITCH + BELOW + _BOTTOM / 2
    canvas = Canvas(height, title, subtitle, width=WIDE, kinds=["formula"])
    for number, cut in enumerate(cuts):
        left = WIDE_EDGE + number * (BESIDE + _SIDE + _APART - 2)
        _write_heading(canvas, cut, left, BESIDE + _SIDE)
        Triangle(cut, left + BESIDE, top + BESIDE, _SIDE).draw(canvas)
        draw_work(canvas, cut, left, foot, BESIDE + _SIDE)
    return canvas


def _write_heading(canvas: Canvas, cut: SequenceCut, left: float, width: float) -> None:
    canvas.text(left, _TOP + _HEADING / 2, cut.order, bold=True)
    look: dict[str, Any] = {"size": SMALL, "colour": style.SOFT, "align": "end"}
    canvas.text(left + width, _TOP + _HEADING / 2, "queries down, keys across", **look)


def _in_words(cut: SequenceCut) -> list[str]:
    """Each rank's positions and work."""
    lines = [f"{_said(cut)}; the slowest rank has {slowest(cut)} × a fair share of 1/{cut.size}"]
    for rank in range(cut.size):
        runs = " and ".join(f"{run.start} to {run.stop - 1}" for run in cut.runs(rank))
        lines.append(f"  rank {rank}: positions {runs}; {cut.work(rank):,} pairs")
    return lines


def _said(cut: SequenceCut) -> str:
    parts = ", ".join(f"rank {rank} {percent(share, cut.size)}" for rank, share in enumerate(shares(cut)))
    return f"{cut.order}, {cut.length} positions: {parts}"
