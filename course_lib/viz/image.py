"""A figure as an image element: its words reach a screen reader, and it is as narrow as its page.

Names inside one SVG do not meet those of its neighbours, and a notebook that nobody has signed shows it, too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar
from xml.sax.saxutils import quoteattr

from course_lib.viz.badges import Kind

_NATURAL = "max-width: 100%"  # at its own size, where there is room


class Shown:
    """A finished figure with a title, and a text alternative that holds the same facts.

    It wears, drawn and in words, the `kinds` of its numbers; a diagram that has none wears nothing.
    """

    style: ClassVar[str] = _NATURAL

    def __init__(self, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        self.title = f"{title} ({' and '.join(kinds)})" if kinds else title
        self.description, self.kinds = description, tuple(kinds)

    @cached_property
    def svg(self) -> str:
        """The figure as SVG: the same bytes for the same facts, readable by a screen reader."""
        return self._written()

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"{self.title}\n{self.description}"

    def _written(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {"text/html": as_image(self.svg, self.text, self.style), "text/plain": self.text}


def as_image(svg: str, text: str, shown: str = _NATURAL) -> str:
    """The element for an SVG, with `text` as its alternative and `shown` as its style."""
    data = b64encode(svg.encode()).decode()
    return f'<img alt={quoteattr(text)} src="data:image/svg+xml;base64,{data}" style="{shown}">'
