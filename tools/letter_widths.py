"""Writes the widths of the typeface's letters as a table, for figures that are drawn where no font can be read."""

from __future__ import annotations

import json

from fontTools.ttLib import TTFont

from course_lib.viz.ink.letters import FILES, FOLDER, WIDTHS


def table() -> dict[str, tuple[dict[str, int], int, int]]:
    """By weight: each letter's width, the units of a letter, and the width of letters that the typeface lacks."""
    found = {}
    for weight, name in FILES.items():
        font = TTFont(FOLDER / name)
        metrics = font["hmtx"].metrics
        advances = {chr(code): metrics[glyph][0] for code, glyph in sorted(font.getBestCmap().items())}
        found[str(weight)] = (advances, font["head"].unitsPerEm, metrics[".notdef"][0])
    return found


def written() -> str:
    """The table as its file has it."""
    return json.dumps(table(), ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    WIDTHS.write_text(written(), encoding="utf-8")
    print(WIDTHS)
