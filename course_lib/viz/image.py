"""A figure as an image element: its words reach a screen reader, and it is as narrow as its page.

Names inside one SVG do not meet those of its neighbours, and a notebook that nobody has signed shows it, too.
"""

from __future__ import annotations

from base64 import b64encode
from xml.sax.saxutils import quoteattr

_NATURAL = "max-width: 100%"  # at its own size, where there is room


def as_image(svg: str, text: str, shown: str = _NATURAL) -> str:
    """The element for an SVG, with `text` as its alternative and `shown` as its style."""
    data = b64encode(svg.encode()).decode()
    return f'<img alt={quoteattr(text)} src="data:image/svg+xml;base64,{data}" style="{shown}">'
