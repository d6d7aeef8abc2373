"""A finished figure that moves by itself wherever an image is shown, and says itself in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from course_lib.errors import four_parts
from course_lib.viz.badges import Kind
from course_lib.viz.canvas import Canvas
from course_lib.viz.image import as_image

_SHOWN = "width: 100%; max-width: 840px"  # as wide as other figures, where there is room


class Moving:
    """A drawing on a `Canvas`, with a title and a text alternative that holds the same facts.

    In a notebook it is an image element: that is how its words reach the reader of a screen, and how it is as narrow
    as a telephone.
    """

    def __init__(self, canvas: Canvas, *, title: str, description: str, kinds: Sequence[Kind] = ()) -> None:
        self.title = f"{title} ({' and '.join(kinds)})" if kinds else title
        self.description, self.kinds = description, tuple(kinds)
        self.svg, self._canvas = canvas.written(self.title, description), canvas

    @property
    def still(self) -> str:
        """The last frame alone, as SVG."""
        return self._canvas.written(self.title, self.description, moves=False)

    @property
    def text(self) -> str:
        """The figure in words."""
        return f"{self.title}\n{self.description}"

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

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {"text/html": as_image(self.svg, self.text, _SHOWN), "text/plain": self.text}
