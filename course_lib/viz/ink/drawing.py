"""A finished drawing on a canvas: it shows itself wherever an image is shown, and says itself in words.

Inside an image nothing can be clicked, and scripts and inline SVG are taken out of a notebook that nobody has signed,
on GitHub from every one. A fold is left. So what moves is shown as its still, the end, and moves in a fold above that:
it begins when the fold is opened, goes when it is closed, and comes to rest by itself. Where a page opens all folds,
the movement still ends, and never begins for readers who ask their system for less motion.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from course_lib.errors import four_parts
from course_lib.viz.ink.canvas import Canvas
from course_lib.viz.ink.dark import inline_dark_variant
from course_lib.viz.ink.image import Shown, as_image, image
from course_lib.viz.ink.kinds import Kind

_FOLD = "<details><summary><small>Let it move; fold this to stop it</small></summary>{}</details>"
_TYPEFACE = "Course Sans"
_LIVE = "course-figure"  # the class of what stands in the page itself


class Drawing(Shown):
    """What is drawn on a `Canvas`; it moves if the canvas does."""

    style = "width: 100%; max-width: 840px"  # as wide as other figures, where there is room

    def __init__(self, canvas: Canvas, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        super().__init__(title=title, description=description, kinds=kinds)
        self._canvas = canvas

    def _written(self) -> str:
        return self._canvas.written(self.title, self.description)

    @property
    def html(self) -> str:
        """As a notebook keeps it: with a fold in which it moves, if it does."""
        if not self._canvas.moves:
            return super().html
        moving = image(self.svg, f"{self.title}, in motion", self.style)
        return _FOLD.format(moving) + as_image(self.still, self.text, self.style)

    @property
    def live(self) -> str:
        """Inline, so that its text can be selected; without a title, which a browser shows wherever the mouse rests."""
        return self._inline(self._canvas.written("", self.text, name=self.title))

    @property
    def on_page(self) -> str:
        """The same on a page that has the course's typeface under its own name."""
        return self._inline(self._canvas.written("", self.text, name=self.title, typeface=_TYPEFACE))

    def _inline(self, svg: str) -> str:
        return f'{inline_dark_variant(svg, _LIVE)}<div class="{_LIVE}" style="{self.style}">{svg}</div>'

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
