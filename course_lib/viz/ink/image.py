"""A figure as an image element, as narrow as its page, above its words, which unfold, are found and can be copied.

Inside an image no text can be selected, whatever its letters are made of. Inline SVG could be, but a notebook that
nobody has signed does not show it, and neither does GitHub; names inside one would meet those of its neighbours, too.
So the image says what it is, and all that is drawn in it stands below, folded, as text.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

from course_lib.viz.ink.dark import with_dark_variant
from course_lib.viz.ink.kinds import Kind

_NATURAL = "max-width: 100%"  # at its own size, where there is room
_WRAPPED = "white-space: pre-wrap"


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
    def still(self) -> str:
        """The figure without any motion, as SVG."""
        return self.svg

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"{self.title}\n{self.description}"

    @property
    def html(self) -> str:
        """As a notebook keeps it."""
        return as_image(self.svg, self.text, self.style)

    @property
    def live(self) -> str:
        """As a widget shows it."""
        return as_image(self.svg, self.text, self.style)

    def _written(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {"text/html": self.html, "text/plain": self.text}


def as_image(svg: str, text: str, shown: str = _NATURAL) -> str:
    """The element for an SVG with `shown` as its style, named by the first line of `text`, which unfolds below it."""
    words = f'<details><summary><small>In words</small></summary><pre style="{_WRAPPED}">{escape(text)}</pre></details>'
    return image(svg, text.partition("\n")[0], shown) + words


def image(svg: str, name: str, shown: str) -> str:
    """The element for an SVG alone, light or dark as the page is."""
    data = b64encode(with_dark_variant(svg).encode()).decode()
    return f'<img alt={quoteattr(name)} src="data:image/svg+xml;base64,{data}" style="{shown}">'
