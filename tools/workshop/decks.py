"""The route's slides: each deck cut to the slides that are shown, and built as HTML and PDF with its notes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from slides import build
from tools.routes import Part, joined, split_deck, title_of

_KINDS = (".html", ".pdf")


def cut(part: Part) -> str:
    """A part's deck with the chosen slides alone, as text."""
    front, slides = split_deck(part.deck)
    return joined(front, [slide for slide in slides if title_of(slide) in part.slides])


def build_slides(parts: Iterable[Part], folder: Path) -> dict[str, list[str]]:
    """Build the deck of each part that shows slides; return the titles by deck, as they are shown."""
    titles = {}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for part in (part for part in parts if part.slides):
            source = Path(place) / part.deck.name
            source.write_text(cut(part), encoding="utf-8")
            page = build.build(source, Path(place) / "built", _KINDS)
            for kind in _KINDS:
                shutil.copy(page.with_suffix(kind), folder)
            titles[part.deck.stem] = [title_of(slide) for slide in split_deck(page.with_suffix(".md"))[1]]
    return titles
