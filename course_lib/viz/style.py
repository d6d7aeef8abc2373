"""One look for every figure: what each colour means, one bundled typeface, and sizes.

Colours. The first four ranks and what happens on a rank (compute, waiting, messages) share Okabe and Ito's hues between
them, told apart by colour-blind readers; further ranks, and which algorithm ran, have colours of their own, so that no
colour means two things. Slate always means communication.

On a dark page a card is less than white, so what is pale is a shadow on it: pale on both, and never a light.
"""

from __future__ import annotations

from course_lib.units import format_seconds


def shadow(colour: str) -> str:
    """What looks like `colour` on white, and darkens every other ground as much; #RRGGBBAA."""
    lacking = [255 - int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    darkest = max(lacking)
    return "#" + "".join(f"{round(255 - 255 * lack / darkest):02X}" for lack in lacking) + f"{darkest:02X}"


INK, SOFT, PAPER = "#1B2630", "#55636F", "#FFFFFF"
FAINT, GRID, PANEL = shadow("#D5DCE2"), shadow("#E6EBEF"), shadow("#F2F5F7")
CARD = 0.86  # how much of a card's white covers the page: all on a white page, and nothing glares on a dark one
RANK_HUES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#8C5A3C", "#A8C93A", "#8FA0E8", "#9AA5AE")
COMMUNICATION = "#3E5568"
IDLE = shadow("#C9D1D8")
COMPUTE = {
    "forward": "#56B4E9",
    "backward": "#D55E00",
    "backward input": "#FFD166",  # the two parts of backward: no tint of the whole, which a rank's later stage has
    "backward weight": "#93290B",
    "optimizer": "#F0E442",
}
OTHER_COMPUTE = "#B8A9D9"
ALGORITHM_HUES = {
    "naive": "#A85A00",
    "ring": "#332288",
    "tree": "#77771A",
    "recursive_doubling": "#1B8073",
    "halving_doubling": "#882255",
    "hierarchical": "#117733",
    "pairwise": "#AA4499",
    "dissemination": "#6B5B3E",
    "native": "#000000",
}
RUN_HUES = (INK, "#332288", "#1B8073", "#77771A", "#AA4499", "#6B5B3E")  # ways of running one task; the first is plain
WRONG = "#B84A5E"  # too much, refused, apart, missing: what is wrong, or where it would begin

PAGE_WIDTH, MARGIN = 10.0, 0.42  # inches
SHOWN_WIDTH = 8.75  # inches, 840 pixels: fits JupyterLab, which does not scale SVG, beside its file browser
TITLE_SIZE, BASE_SIZE, SMALL_SIZE = 19.0, 14.2, 13.75  # points on the page; all at least 12 as shown
HALF_CAP = 0.3636 / 72  # inches per point: half of a capital letter's height, which centres a line of text
HEADER = 1.12  # inches from the top edge to the content, below title and subtitle


def rank_hue(rank: int) -> str:
    """The colour of a rank; it repeats after eight."""
    return RANK_HUES[rank % len(RANK_HUES)]


def text_on(colour: str) -> str:
    """White or ink, whichever reads better on `colour` (WCAG contrast)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _rgb(colour))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return PAPER if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.07 else INK


def tint(colour: str, strength: float) -> str:
    """`colour` mixed with white; strength 1 is the colour itself."""
    return "#" + "".join(f"{round(255 * (1 - strength * (1 - c))):02x}" for c in _rgb(colour))


def _rgb(colour: str) -> list[float]:
    """Red, green and blue from 0 to 1, of a shadow as it is on white."""
    red, green, blue, share = (int(f"{colour}FF"[place : place + 2], 16) / 255 for place in (1, 3, 5, 7))
    return [1 - share * (1 - part) for part in (red, green, blue)]


def seconds(duration: float) -> str:
    """A duration as `units` writes it, with the sign for micro."""
    return format_seconds(duration).replace(" us", " µs")
