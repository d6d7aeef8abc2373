"""The course's typeface as a part of a figure: the letters that it uses and no others, so that its text stays text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from functools import lru_cache
from io import BytesIO

from course_lib.viz.ink.letters import FILES, FOLDER

_NOT_DRAWN = ("GDEF", "GPOS", "GSUB", "STAT", "gasp")


def font_face(family: str, weight: int, letters: Collection[str]) -> str:
    """The CSS rule that brings a weight of the typeface along under the name `family`."""
    data = _subset(weight, "".join(sorted({*letters})))
    return f"@font-face{{font-family:{family};font-weight:{weight};src:url(data:font/ttf;base64,{data})}}"


@lru_cache(maxsize=64)
def _subset(weight: int, letters: str) -> str:
    """A font of these letters in base64: the same bytes on every machine, which compression would not give."""
    from fontTools.subset import Options, Subsetter  # a page that has the typeface itself embeds none
    from fontTools.ttLib import TTFont

    font = TTFont(FOLDER / FILES[weight], recalcTimestamp=False)
    for table in _NOT_DRAWN:  # before the subsetter reads them, which takes ten times as long as all the rest
        del font[table]
    options = Options(hinting=False, layout_features=[], name_IDs=[], glyph_names=False, notdef_outline=False)
    subsetter = Subsetter(options)
    subsetter.populate(text=letters)
    subsetter.subset(font)
    buffer = BytesIO()
    font.save(buffer)
    return b64encode(buffer.getvalue()).decode()
