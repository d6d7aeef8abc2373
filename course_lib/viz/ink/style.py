"""One look for every figure: what each colour means, one bundled typeface, and sizes.

Colours. The first four ranks and what happens on a rank (compute, waiting, messages) share Okabe and Ito's hues between
them, told apart by colour-blind readers; further ranks, and which algorithm ran, have colours of their own, so that no
colour means two things. Slate always means communication.

Every colour has a partner for a dark page, `on_dark`: hues keep their meaning there and are lightened where they would
drown, paper and ink change places, and a tint is mixed with the dark ground. `dark` writes the partners into a figure.
Where a page shows the light figure alone on a dark ground, its card is less than white, and what is pale is a shadow.
"""

from __future__ import annotations

from course_lib.units import format_seconds
from course_lib.viz.ink.colours import contrast, lightened, mixed


def shadow(colour: str) -> str:
    """What looks like `colour` on white, and darkens every other ground as much; #RRGGBBAA."""
    lacking = [255 - int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    darkest = max(lacking)
    return "#" + "".join(f"{round(255 - 255 * lack / darkest):02X}" for lack in lacking) + f"{darkest:02X}"


INK, SOFT, PAPER = "#1B2630", "#55636F", "#FFFFFF"
# Letters on a coloured ground, a trifle beside ink and paper, so that a value tells whether it changes on a dark page.
DARK_LETTERS, WHITE_LETTERS, DARKENED_LETTERS = "#1B2631", "#FFFFFE", "#FFFFFD"  # the last: white, there dark
BLACK_LETTERS = "#000001"  # for drawings: on backward's colour their contrast is 5.4, that of ink 3.9
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

DARK_PAPER = "#171c21"
_LIGHT = "#dce6ee"  # where a shadow fell
_PARTNERS = {
    **dict.fromkeys((one[:7].lower() for one in (FAINT, GRID, PANEL, IDLE)), _LIGHT),
    **{INK.lower(): "#e8edf1", "#000000": "#ffffff", SOFT.lower(): "#a9b6c1", PAPER.lower(): DARK_PAPER},
    **{one.lower(): one.lower() for one in (DARK_LETTERS, WHITE_LETTERS, BLACK_LETTERS)},
    DARKENED_LETTERS.lower(): DARK_LETTERS.lower(),
}
_TINTS: dict[str, str] = {}  # what each tint that was mixed is on a dark page


def rank_hue(rank: int) -> str:
    """The colour of a rank; it repeats after eight."""
    return RANK_HUES[rank % len(RANK_HUES)]


def text_on(colour: str) -> str:
    """White or dark letters, whichever read better on `colour`, on a light page and on a dark one (WCAG contrast)."""
    here = contrast(colour, PAPER) > contrast(colour, "#000000") / 1.4
    partner = on_dark(colour)
    if len(colour) > 7:  # a shadow is no more than its ground
        there = True
    elif partner == colour.lower():
        there = here
    else:
        there = contrast(partner, PAPER if here else on_dark(INK)) > contrast(partner, DARK_LETTERS)
    letters = {(True, True): WHITE_LETTERS, (True, False): DARKENED_LETTERS, (False, False): DARK_LETTERS}
    return letters.get((here, there), INK)


def tint(colour: str, strength: float) -> str:
    """`colour` mixed with white, on a dark page with the ground; strength 1 is the colour itself."""
    found = mixed(colour, PAPER, strength)
    _TINTS[found] = mixed(on_dark(colour), DARK_PAPER, strength)
    return found


def on_dark(colour: str) -> str:
    """The partner of a colour on a dark page: a shadow becomes as much light, and a hue is never darker than it was."""
    plain = colour[:7].lower()
    partner = _PARTNERS.get(plain) or _TINTS.get(plain) or lightened(plain, DARK_PAPER, 3.6)
    return partner + colour[7:]


def seconds(duration: float) -> str:
    """A duration as `units` writes it, with the sign for micro."""
    return format_seconds(duration).replace(" us", " µs")
