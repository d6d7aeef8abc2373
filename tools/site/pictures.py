"""Figures of a notebook as files of their own: they compress to a fifth, load when they are near, and keep their place.

A notebook carries each figure inside itself as base64. On a page its size stands beside it, so that nothing moves when
it arrives.
"""

from __future__ import annotations

import re
from base64 import b64decode
from hashlib import sha256

from tools.site.places import SOURCES

FOLDER = "figures"
_IMAGE = re.compile(
    r'<img alt="(?P<alt>[^"]*)" src="data:image/svg\+xml;base64,(?P<data>[^"]*)" style="(?P<style>[^"]*)">'
)
_VIEW = re.compile(r'<svg[^>]*? viewBox="[\d.-]+ [\d.-]+ (?P<width>[\d.]+) (?P<height>[\d.]+)"')
_SIZE = re.compile(r'<svg[^>]*? width="(?P<width>[\d.]+)pt"')
_PIXELS_A_POINT = 96 / 72


def with_files(html: str, up: str) -> str:
    """What a cell shows, with its figures as files; `up` leads from its page to the site's root."""
    return _IMAGE.sub(lambda hit: _element(hit, up), html)


def _element(hit: re.Match[str], up: str) -> str:
    svg = b64decode(hit["data"]).decode()
    name = f"{sha256(svg.encode()).hexdigest()[:12]}.svg"
    target = SOURCES / "_extra" / FOLDER / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(svg, encoding="utf-8")
    width, height = size(svg)
    sides = f'width="{width}" height="{height}" loading="lazy"'
    return f'<img alt="{hit["alt"]}" src="{up}{FOLDER}/{name}" {sides} style="{hit["style"]}">'


def size(svg: str) -> tuple[int, int]:
    """Width and height of a figure in pixels, as wide as it wants to be."""
    view = _VIEW.search(svg)
    if view is None:
        raise ValueError(
            "site: a figure without a viewBox; its place on a page is kept by its shape; write one into it"
        )
    wide, high = float(view["width"]), float(view["height"])
    own = _SIZE.search(svg)
    shown = _PIXELS_A_POINT * float(own["width"]) if own else wide
    return round(shown), round(shown * high / wide)
