"""A slider through pictures that needs no kernel, with its first picture as what a static page shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import ipywidgets

from course_lib.viz.ink.image import as_image
from course_lib.viz.ink.picture import Picture


class Stepper:
    """Pictures behind a slider.

    All pictures travel to the browser at once and the slider is linked to them there, so that it works in a
    saved notebook too. Pages that run no widgets show the first picture.
    """

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = list(pictures)
        self.slider = ipywidgets.IntSlider(
            value=0,
            min=0,
            max=len(self.pictures) - 1,
            description="step",
            layout=ipywidgets.Layout(width="60%"),
        )
        self._stack = ipywidgets.Stack(
            [ipywidgets.HTML(as_image(picture.svg, picture.text)) for picture in self.pictures], selected_index=0
        )
        self._link = ipywidgets.jslink((self.slider, "value"), (self._stack, "selected_index"))
        self._widget = ipywidgets.VBox([self.slider, self._stack])

    def __repr__(self) -> str:
        return self.pictures[0].text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        still = self.pictures[0]._repr_mimebundle_()
        return {**self._widget._repr_mimebundle_(), **still}
