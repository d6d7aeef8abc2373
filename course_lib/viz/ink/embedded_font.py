"""The course's typeface as a part of a figure: the letters that it uses and no others, so that its text stays text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

FILES = {400: "CourseSans-Regular.ttf", 600: "CourseSans-SemiBold.ttf"}  # by weight
_FOLDER = Path(__file__).parent / "fonts"
_NOT_DRAWN = ("GDEF", "GPOS", "GSUB", "STAT", "gasp")


def font_face(family: str, weight: int, letters: Collection[str]) -> str:
    """The CSS rule that brings a weight of the typeface along under the name `family`."""
    data = _subset(weight, "".join(sorted({*letters})))
    return f"@font-face{{font-family:{family};font-weight:{weight};src:url(data:font/ttf;base64,{data})}}"


def width_in_ems(words: str, weight: int) -> float:
    """How long a line of text is, in letter sizes: embedded letters stand side by side without kerning."""
    advances, standard = _advances(weight)
    return sum(advances.get(letter, standard) for letter in words)


@cache
def _advances(weight: int) -> tuple[dict[str, float], float]:
    """By letter its width; and that of letters that the typeface lacks."""
    font = TTFont(_FOLDER / FILES[weight])
    em, widths = font["head"].unitsPerEm, font["hmtx"].metrics
    return {chr(code): widths[name][0] / em for code, name in font.getBestCmap().items()}, widths[".notdef"][0] / em


@lru_cache(maxsize=64)
def _subset(weight: int, letters: str) -> str:
    """A font of these letters in base64: the same bytes on every machine, which compression would not give."""
    font = TTFont(_FOLDER / FILES[weight], recalcTimestamp=False)
    for table in _NOT_DRAWN:  # before the subsetter reads them, which takes ten times as long as all the rest
        del font[table]
    options = Options(hinting=False, layout_features=[], name_IDs=[], glyph_names=False, notdef_outline=False)
    subsetter = Subsetter(options)
    subsetter.populate(text=letters)
    subsetter.subset(font)
    buffer = BytesIO()
    font.save(buffer)
    return b64encode(buffer.getvalue()).decode()
