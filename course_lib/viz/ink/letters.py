"""How wide the typeface's letters are, as a table: to place a line of text, nobody has to read the font.

`python -m tools.letter_widths` writes the table from the fonts, and a test finds what differs.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "fonts"
FILES = {400: "CourseSans-Regular.ttf", 600: "CourseSans-SemiBold.ttf"}  # by weight
WIDTHS = FOLDER / "widths.json"


def width_in_ems(words: str, weight: int) -> float:
    """How long a line of text is, in letter sizes: embedded letters stand side by side without kerning."""
    advances, standard = _advances(weight)
    return sum(advances.get(letter, standard) for letter in words)


@cache
def _advances(weight: int) -> tuple[dict[str, float], float]:
    """By letter its width; and that of letters that the typeface lacks."""
    units, em, standard = json.loads(WIDTHS.read_text(encoding="utf-8"))[str(weight)]
    return {letter: width / em for letter, width in units.items()}, standard / em
