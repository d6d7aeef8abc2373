"""A slider through pictures that needs no kernel, with its first picture as what a static page shows."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

import ipywidgets

from course_lib.viz.picture import Picture
from course_lib.viz.ring import ring_all_reduce_step
from course_lib.viz.ring_steps import ring_steps


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
            [ipywidgets.HTML(as_image(picture)) for picture in self.pictures], selected_index=0
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


def as_image(picture: Picture) -> str:
    """An image element of its own: names inside an SVG must not meet those of its hidden neighbours."""
    data = b64encode(picture.svg.encode()).decode()
    return f'<img alt={quoteattr(picture.text)} src="data:image/svg+xml;base64,{data}" style="max-width: 100%">'


def ring_stepper(world_size: int = 4) -> Stepper:
    """The ring all-reduce behind a slider, from the start to the last step.

    Raises: ValueError for more than 8 ranks.
    """
    return Stepper([ring_all_reduce_step(world_size, state.number) for state in ring_steps(world_size)])
