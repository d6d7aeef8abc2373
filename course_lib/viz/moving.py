"""A finished figure that moves by itself wherever an image is shown, and says itself in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from course_lib.errors import four_parts
from course_lib.viz.badges import Kind
from course_lib.viz.canvas import Canvas
from course_lib.viz.image import Shown


class Moving(Shown):
    """A drawing on a `Canvas`, as narrow as a telephone."""

    style = "width: 100%; max-width: 840px"  # as wide as other figures, where there is room

    def __init__(self, canvas: Canvas, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        super().__init__(title=title, description=description, kinds=kinds)
        self._canvas = canvas

    def _written(self) -> str:
        return self._canvas.written(self.title, self.description)

    @property
    def still(self) -> str:
        """The last frame alone, as SVG."""
        return self._canvas.written(self.title, self.description, moves=False)

    def save(self, path: str | Path) -> Path:
        """Write the figure to `path` and return it.

        Raises: ValueError for a suffix other than .svg.
        """
        path = Path(path)
        if path.suffix != ".svg":
            rule = "a picture that moves is an .svg"
            raise ValueError(four_parts("Moving.save", f"path={path.name!r}", rule, "choose that suffix"))
        path.write_text(self.svg, encoding="utf-8")
        return path
