"""Controls above a picture that is drawn anew when one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import ipywidgets

from course_lib.config import load_model, model_names
from course_lib.costs.model.parameters import model_parameters
from course_lib.viz.ink.image import Shown
from course_lib.viz.ink.style import WRONG

# With the margins of 2 pixels that widgets have, three controls are as wide as a picture below them.
_CONTROL = {"layout": {"width": "276px", "margin": "2px"}, "style": {"description_width": "110px"}}
_PRESET = {"layout": {"width": "auto"}}
_REFUSAL = f"max-width: 836px; box-sizing: border-box; margin: 8px 0; padding: 8px 14px; border-left: 4px solid {WRONG}"

Values = Mapping[str, Any]  # by the controls' names


class Explorer:
    """A picture of what the controls say, and buttons that set several of them at once.

    `draw` gets the controls' values by name. One that `compares` also gets `before`, the values of the picture before
    it, or None. What it refuses is said in words below the last picture, which stays. Drawing needs the kernel; pages
    that run no widgets show the first picture.
    """

    def __init__(
        self,
        draw: Callable[..., Shown],
        controls: Mapping[str, ipywidgets.Widget],
        *,
        presets: Mapping[str, Values] | None = None,
        compares: bool = False,
    ) -> None:
        self.controls = dict(controls)
        self.presets = {name: ipywidgets.Button(description=name, **_PRESET) for name in presets or {}}
        self._draw, self._compares = draw, compares
        self._drawn: Values | None = None  # the values of the picture that is shown
        self._choosing = False
        self.first = self._picture()
        self.text = self.first.text
        self._shown, self._refused = ipywidgets.HTML(self.first.live), ipywidgets.HTML()
        rows = [list(self.presets.values()), list(self.controls.values())]
        boxes = [ipywidgets.Box(row, layout={"flex_flow": "row wrap"}) for row in rows if row]
        self._widget = ipywidgets.VBox([*boxes, self._shown, self._refused])
        for control in self.controls.values():
            control.observe(self._redraw, names="value")
        for name, values in (presets or {}).items():
            self.presets[name].on_click(partial(self._choose, values))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {**self._widget._repr_mimebundle_(), **self.first._repr_mimebundle_()}

    def _picture(self) -> Shown:
        """Of what the controls say now; it is what the next one is compared with."""
        values = {name: control.value for name, control in self.controls.items()}
        picture = self._draw(**values, **({"before": self._drawn} if self._compares else {}))
        self._drawn = values
        return picture

    def _choose(self, values: Values, _: Any) -> None:
        """Set several controls, and draw once."""
        self._choosing = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._choosing = False
        self._redraw()

    def _redraw(self, _: Any = None) -> None:
        if self._choosing:
            return
        try:
            picture = self._picture()
        except ValueError as refusal:
            self.text = str(refusal)
            self._refused.value = f'<p role="alert" style="{_REFUSAL}"><b>{escape(self.text)}</b></p>'
        else:
            self.text, self._refused.value = picture.text, ""
            self._shown.value = picture.live


def number(name: str, value: int) -> ipywidgets.IntText:
    """A field for a whole number, legal or not: what is refused says why."""
    return ipywidgets.IntText(value=value, description=name, **_CONTROL)


def decimal(name: str, value: float) -> ipywidgets.FloatText:
    """A field for a number, legal or not: what is refused says why."""
    return ipywidgets.FloatText(value=value, description=name, **_CONTROL)


def slider(name: str, value: Any, options: Sequence[Any]) -> ipywidgets.SelectionSlider:
    """A slider through values that follow each other, such as the powers of two."""
    named = [(f"{option:,}", option) for option in options]
    return ipywidgets.SelectionSlider(value=value, options=named, description=name, continuous_update=False, **_CONTROL)


def powers_of_two(least: int, most: int) -> list[int]:
    """From `least`, which is one, to `most`.

    >>> powers_of_two(1, 8)
    [1, 2, 4, 8]
    """
    return [least << step for step in range((most // least).bit_length())]


def choice(name: str, value: Any, options: Collection[Any] | Mapping[str, Any]) -> ipywidgets.Dropdown:
    """A list to choose from; of a mapping, the reader sees its names."""
    shown = list(options.items()) if isinstance(options, Mapping) else list(options)
    return ipywidgets.Dropdown(value=value, options=shown, description=name, **_CONTROL)


def model_choice(value: str) -> ipywidgets.Dropdown:
    """The published models, the smallest first."""
    models = sorted(((load_model(name), name) for name in model_names()), key=lambda one: model_parameters(one[0]))
    return choice("model", value, {model.name: name for model, name in models})


def words(name: str, value: str) -> ipywidgets.Text:
    """A field for text, read when it is left or confirmed."""
    return ipywidgets.Text(value=value, description=name, continuous_update=False, **_CONTROL)
