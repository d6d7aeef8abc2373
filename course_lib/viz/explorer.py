"""Controls above a picture that is drawn anew when one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from html import escape
from typing import Any

import ipywidgets

from course_lib.viz.picture import Picture
from course_lib.viz.stepper import as_image

# With the margins of 2 pixels that widgets have, three controls are as wide as a picture below them.
_CONTROL = {"layout": {"width": "276px"}, "style": {"description_width": "110px"}}
_REFUSAL = "max-width: 836px; box-sizing: border-box; margin: 8px 0; padding: 8px 14px; border-left: 4px solid #B84A5E"


class Explorer:
    """A picture of what the controls say.

    `draw` gets the controls' values by name. What it refuses is said in words in the picture's place. Drawing
    needs the kernel; pages that run no widgets show the first picture.
    """

    def __init__(self, draw: Callable[..., Picture], controls: Mapping[str, ipywidgets.Widget]) -> None:
        self.controls = dict(controls)
        self._draw = draw
        self.first = draw(**self._values())
        self.text = self.first.text
        self._shown = ipywidgets.HTML(as_image(self.first))
        row = ipywidgets.Box(list(self.controls.values()), layout={"flex_flow": "row wrap"})
        self._widget = ipywidgets.VBox([row, self._shown])
        for control in self.controls.values():
            control.observe(self._redraw, names="value")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {**self._widget._repr_mimebundle_(), **self.first._repr_mimebundle_()}

    def _values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _: Any) -> None:
        try:
            picture = self._draw(**self._values())
        except ValueError as refusal:
            self.text = str(refusal)
            self._shown.value = f'<p role="alert" style="{_REFUSAL}"><b>{escape(self.text)}</b></p>'
        else:
            self.text = picture.text
            self._shown.value = as_image(picture)


def number(name: str, value: int) -> ipywidgets.IntText:
    """A field for a whole number, legal or not: what is refused says why."""
    return ipywidgets.IntText(value=value, description=name, **_CONTROL)


def decimal(name: str, value: float) -> ipywidgets.FloatText:
    """A field for a number, legal or not: what is refused says why."""
    return ipywidgets.FloatText(value=value, description=name, **_CONTROL)


def choice(name: str, value: Any, options: Collection[Any]) -> ipywidgets.Dropdown:
    """A list to choose from."""
    return ipywidgets.Dropdown(value=value, options=list(options), description=name, **_CONTROL)


def words(name: str, value: str) -> ipywidgets.Text:
    """A field for text, read when it is left or confirmed."""
    return ipywidgets.Text(value=value, description=name, continuous_update=False, **_CONTROL)
