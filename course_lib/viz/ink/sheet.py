"""A page for matplotlib, measured in inches: the course's look, a card with a headline, and axes on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

from course_lib.viz.ink.style import (
    BASE_SIZE,
    CARD,
    FAINT,
    GRID,
    INK,
    MARGIN,
    PAGE_WIDTH,
    PAPER,
    SMALL_SIZE,
    SOFT,
    TITLE_SIZE,
)

_FAMILY = "Course Sans"  # a subset of Inter under its own name, so that no installed font can take its place
for _file in sorted((Path(__file__).parent / "fonts").glob("*.ttf")):
    font_manager.fontManager.addfont(_file)

_RC: dict[Any, Any] = {
    "font.family": _FAMILY,
    "font.size": BASE_SIZE,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": BASE_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": SMALL_SIZE,
    "ytick.labelsize": SMALL_SIZE,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 0.8,
    "path.simplify": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "course_lib",
}


@contextmanager
def course_style() -> Iterator[None]:
    """Draw and save in the course's style; the caller's own matplotlib settings come back afterwards."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


@lru_cache(maxsize=4096)  # names come again in every picture
def text_width(text: str, size: float = BASE_SIZE, weight: int = 400) -> float:
    """Inches that a line of text takes."""
    font = font_manager.FontProperties(family=_FAMILY, weight=weight)
    return _reach(TextPath((0, 0), text, size=size, prop=font)) / 72 if text.strip() else 0.0


def _reach(outline: Outline) -> float:
    """From its leftmost point to its rightmost one. Letters are made of lines and of curves with one control each.

    matplotlib's `get_extents` says the same number, but takes one curve after the other, and nine times as long.
    """
    x, codes = np.asarray(outline.vertices)[:, 0], np.asarray(outline.codes)
    control = np.flatnonzero(codes == Outline.CURVE3)[::2]  # each has two of that code: a control and an end
    start, middle, end = x[control - 1], x[control], x[control + 1]
    beside = (middle - start) * (end - middle) < 0  # then the curve turns round on its way
    start, middle, end = start[beside], middle[beside], end[beside]
    turns = (start * end - middle**2) / (start - 2 * middle + end)
    points = np.concatenate([x[codes <= Outline.LINETO], x[control + 1], turns])
    return float(points.max() - points.min())


def new_page(height: float, title: str, subtitle: str = "", width: float = PAGE_WIDTH) -> tuple[Figure, Axes]:
    """A white card with a headline, and axes over all of it measured in inches from the top left corner."""
    figure = Figure(figsize=(width, height), facecolor="none")
    page = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), frame_on=False, zorder=-1)
    page.set_axis_off()
    edge = 0.02
    card = FancyBboxPatch(
        (edge, edge),
        width - 2 * edge,
        height - 2 * edge,
        boxstyle="round,pad=0,rounding_size=0.16",
        facecolor=(PAPER, CARD),
        edgecolor=FAINT,
        linewidth=1.0,
        zorder=-10,
    )
    page.add_artist(card)
    page.text(MARGIN, 0.5, title, size=TITLE_SIZE, weight=600, va="center")
    page.text(MARGIN, 0.84, subtitle, size=BASE_SIZE, color=SOFT, va="center")
    return figure, page


def chart_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes for a chart, placed in inches from the top left corner of the page."""
    page_width, page_height = figure.get_size_inches()
    box = (left / page_width, 1 - (top + height) / page_height, width / page_width, height / page_height)
    return figure.add_axes(box, facecolor="none")
