"""A finished figure that shows itself in a notebook, saves itself for a slide, and says itself in words."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from course_lib.errors import four_parts
from course_lib.viz.ink import svg
from course_lib.viz.ink.badges import draw_badges
from course_lib.viz.ink.image import Shown
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.sheet import course_style
from course_lib.viz.ink.style import PAGE_WIDTH, SHOWN_WIDTH

_PNG_DPI = 192  # a 10 inch page fills a 1920 pixel projector


class Picture(Shown):
    """What matplotlib has drawn."""

    def __init__(self, figure: Figure, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        super().__init__(title=title, description=description, kinds=kinds)
        self.figure = figure
        with course_style():
            draw_badges(figure.axes[0], title, kinds)

    def _written(self) -> str:
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
