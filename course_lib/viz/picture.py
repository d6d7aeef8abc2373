"""A finished figure that shows itself in a notebook, saves itself for a slide, and says itself in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from course_lib.errors import four_parts
from course_lib.viz import svg
from course_lib.viz.badges import Kind, draw_badges
from course_lib.viz.image import as_image
from course_lib.viz.style import PAGE_WIDTH, SHOWN_WIDTH, course_style

_PNG_DPI = 192  # a 10 inch page fills a 1920 pixel projector


class Picture:
    """A figure with a title and a text alternative that holds the same facts.

    It wears, drawn and in words, the `kinds` of its numbers; a diagram that has none wears nothing.
    """

    def __init__(self, figure: Figure, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        self.figure = figure
        self.title = f"{title} ({' and '.join(kinds)})" if kinds else title
        self.description = description
        self.kinds = tuple(kinds)
        with course_style():
            draw_badges(figure.axes[0], title, kinds)

    @cached_property
    def svg(self) -> str:
        """The figure as SVG: the same bytes for the same facts, readable by a screen reader."""
        buffer = StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with course_style():
            self.figure.savefig(buffer, format="svg", metadata=metadata)
        root = svg.parsed(buffer.getvalue())
        for side in ("width", "height"):
            points = float(root.attrib[side].removesuffix("pt"))
            root.set(side, f"{points * SHOWN_WIDTH / PAGE_WIDTH:g}pt")
        root.set("role", "img")
        for number, (tag, words) in enumerate((("title", self.title), ("desc", self.description))):
            spoken = Element(tag)
            spoken.text = words
            root.insert(number, spoken)
        return svg.written(root)

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"{self.title}\n{self.description}"

    def save(self, path: str | Path) -> Path:
        """Write the figure to `path`, as its suffix says, and return the path.

        Raises: ValueError for a suffix other than .svg and .png.
        """
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg, encoding="utf-8")
        elif path.suffix == ".png":
            with course_style():
                self.figure.savefig(path, dpi=_PNG_DPI, metadata={"Software": None, "Description": self.text})
        else:
            raise ValueError(
                four_parts(
                    "Picture.save", f"path={path.name!r}", "the suffix must be .svg or .png", "choose one of the two"
                )
            )
        return path

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {"text/html": as_image(self.svg, self.text), "text/plain": self.text}
