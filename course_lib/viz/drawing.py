"""A finished drawing on a canvas: it shows itself wherever an image is shown, and says itself in words.

Inside an image nothing can be clicked, so no movement is stopped by hand. Each rests at its end, which is the still,
for two seconds or more, and does not begin for readers who ask their system for less motion.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from course_lib.errors import four_parts
from course_lib.viz.canvas import Canvas
from course_lib.viz.image import Shown
from course_lib.viz.kinds import Kind


class Drawing(Shown):
    """What is drawn on a `Canvas`; it moves if the canvas does."""

    style = "width: 100%; max-width: 840px"  # as wide as other figures, where there is room

    def __init__(self, canvas: Canvas, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        super().__init__(title=title, description=description, kinds=kinds)
        self._canvas = canvas

    def _written(self) -> str:
        return self._canvas.written(self.title, self.description)

    @property
    def live(self) -> str:
        """Inline, so that its text can be selected; without a title, which a browser shows wherever the mouse rests."""
        return f'<div style="{self.style}">{self._canvas.written("", self.text)}</div>'

    @property
    def still(self) -> str:
        """The last frame alone."""
        return self._canvas.written(self.title, self.description, moves=False)

    def save(self, path: str | Path) -> Path:
        """Write the drawing to `path` and return it.

        Raises: ValueError for a suffix other than .svg.
        """
        path = Path(path)
        if path.suffix != ".svg":
            rule = "a drawing is an .svg"
            raise ValueError(four_parts("Drawing.save", f"path={path.name!r}", rule, "choose that suffix"))
        path.write_text(self.svg, encoding="utf-8")
        return path
