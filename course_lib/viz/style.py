"""One look for every figure: what each colour means, one bundled typeface, and a page measured in inches.

Colours. The first four ranks and what happens on a rank (compute, waiting, messages) share Okabe and Ito's hues between
them, told apart by colour-blind readers; further ranks, and which algorithm ran, have colours of their own, so that no
colour means two things. Slate always means communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import TextPath

from course_lib.units import format_seconds

INK, SOFT, FAINT, PANEL, PAPER = "#1B2630", "#55636F", "#D5DCE2", "#F2F5F7", "#FFFFFF"
RANK_HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#8C5A3C", "#A8C93A", "#8FA0E8", "#9AA5AE")
COMMUNICATION = "#3E5568"
IDLE = "#C9D1D8"
COMPUTE = {
    "forward": "#56B4E9",
    "backward": "#D55E00",
    "backward input": "#FBB161",  # the two parts of backward: lighter and darker than the whole
    "backward weight": "#93290B",
    "optimizer": "#F0E442",
}
OTHER_COMPUTE = "#B8A9D9"
ALGORITHM_HUES = {
    "naive": "#B84A5E",
    "ring": "#332288",
    "tree": "#77771A",
    "recursive_doubling": "#1B8073",
    "halving_doubling": "#882255",
    "hierarchical": "#117733",
    "pairwise": "#AA4499",
    "dissemination": "#6B5B3E",
    "native": "#000000",
}
RUN_HUES = (INK, "#B84A5E", "#332288", "#1B8073", "#77771A", "#AA4499")  # ways of running one task; the first is plain

PAGE_WIDTH, MARGIN = 10.0, 0.42  # inches
SHOWN_WIDTH = 8.75  # inches, 840 pixels: fits JupyterLab, which does not scale SVG, beside its file browser
TITLE_SIZE, BASE_SIZE, SMALL_SIZE = 19.0, 14.2, 13.75  # points on the page; all at least 12 as shown
HALF_CAP = 0.3636 / 72  # inches per point: half of a capital letter's height, which centres a line of text
HEADER = 1.12  # inches from the top edge to the content, below title and subtitle

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
    "grid.color": "#E6EBEF",
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


def rank_hue(rank: int) -> str:
    """The colour of a rank; it repeats after eight."""
    return RANK_HUES[rank % len(RANK_HUES)]


def text_on(colour: str) -> str:
    """White or ink, whichever reads better on `colour` (WCAG contrast)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in mpl.colors.to_rgb(colour))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return PAPER if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.07 else INK


def tint(colour: str, strength: float) -> str:
    """`colour` mixed with white; strength 1 is the colour itself."""
    red, green, blue = (1 - strength * (1 - c) for c in mpl.colors.to_rgb(colour))
    return mpl.colors.to_hex((red, green, blue))


def seconds(duration: float) -> str:
    """A duration as `units` writes it, with the sign for micro."""
    return format_seconds(duration).replace(" us", " µs")


@lru_cache(maxsize=4096)  # outlines are slow to measure, and names come again in every picture
def text_width(text: str, size: float = BASE_SIZE, weight: int = 400) -> float:
    """Inches that a line of text takes."""
    font = font_manager.FontProperties(family=_FAMILY, weight=weight)
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().width) / 72 if text.strip() else 0.0


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
        facecolor=PAPER,
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
