"""A panel in a notebook: its controls as widgets above the picture, which is drawn anew when one of them changes."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from html import escape
from typing import Any

from course_lib.viz.ink.image import Shown
from course_lib.viz.ink.style import WRONG
from course_lib.viz.widgets.controls import Control, Panel, Values

# With the margins of 2 pixels that widgets have, three controls are as wide as a picture below them.
_CONTROL = {"layout": {"width": "276px", "margin": "2px"}, "style": {"description_width": "110px"}}
_PRESET = {"layout": {"width": "auto"}}
_REFUSAL = f"max-width: 836px; box-sizing: border-box; margin: 8px 0; padding: 8px 14px; border-left: 4px solid {WRONG}"
_WIDGETS: dict[str, tuple[str, dict[str, Any]]] = {  # by a control's kind, a class of ipywidgets and what it is told
    "whole number": ("IntText", {}),
    "number": ("FloatText", {}),
    "slider": ("SelectionSlider", {"continuous_update": False}),
    "choice": ("Dropdown", {}),
    "line": ("Text", {"continuous_update": False}),
    "lines": ("Textarea", {"continuous_update": False}),
}


class Explorer:
    """A panel's controls and buttons, above its picture.

    What the panel refuses is said in words below the last picture, which stays. Drawing needs the kernel; pages that
    run no widgets show the first picture.
    """

    def __init__(self, panel: Panel) -> None:
        kit = _kit()
        self.controls = {name: _widget(control) for name, control in panel.controls.items()}
        self.presets = {name: kit.Button(description=name, **_PRESET) for name in panel.presets}
        self._panel = panel
        self._drawn: Values | None = None  # the values of the picture that is shown
        self._choosing = False
        self._switch()
        self.first = self._picture()
        self.text = self.first.text
        self._shown, self._refused = kit.HTML(self.first.live), kit.HTML()
        rows = [list(self.presets.values()), list(self.controls.values())]
        boxes = [kit.Box(row, layout={"flex_flow": "row wrap"}) for row in rows if row]
        self._widget = kit.VBox([*boxes, self._shown, self._refused])
        for control in self.controls.values():
            control.observe(self._redraw, names="value")
        for name, values in panel.presets.items():
            self.presets[name].on_click(partial(self._choose, values))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, Any]:
        return {**self._widget._repr_mimebundle_(), **self.first._repr_mimebundle_()}

    def _values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def _picture(self) -> Shown:
        """Of what the controls say now; it is what the next one is compared with."""
        values = self._values()
        picture = self._panel.picture(values, self._drawn)
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

    def _switch(self) -> None:
        """Turn off what has nothing to say under the other controls' values."""
        off = self._panel.off(self._values())
        for name, control in self.controls.items():
            control.disabled = name in off

    def _redraw(self, _: Any = None) -> None:
        if self._choosing:
            return
        self._switch()
        try:
            picture = self._picture()
        except ValueError as refusal:
            self.text = str(refusal)
            self._refused.value = f'<p role="alert" style="{_REFUSAL}"><b>{escape(self.text)}</b></p>'
        else:
            self.text, self._refused.value = picture.text, ""
            self._shown.value = picture.live


def _widget(control: Control) -> Any:
    name, told = _WIDGETS[control.kind]
    options = {"options": list(control.options)} if control.options else {}
    return getattr(_kit(), name)(value=control.value, description=control.label, **options, **told, **_CONTROL)


def _kit() -> Any:
    """ipywidgets: a page without a kernel has none, and reads the panels alone."""
    import ipywidgets

    return ipywidgets
