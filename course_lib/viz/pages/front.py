"""A panel on a page without a kernel: what the reader turns comes in as words, and all that is to be shown goes out.

Words are what a link carries and what a page's elements hold: the value of an option, or what stands in a field. So the
page knows nothing of models, bytes or schedules, and what it shows is what a notebook shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from course_lib.errors import four_parts
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.pages.catalog import PANELS
from course_lib.viz.widgets.controls import Control, Panel, Values

_READS = {"whole number": int, "number": float}  # by a control's kind, what reads its field; others keep the words


class Front:
    """A panel with the values that are chosen now; what it refuses leaves the last picture as it is."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self._chosen = {name: control.value for name, control in panel.controls.items()}
        self._drawn: Values | None = None  # the values of the picture that is shown
        self._shown: dict[str, Any] = {}  # the picture in words, in bytes and drawn
        self._refused = ""
        self._draw()

    def turn(self, changes: Mapping[str, str]) -> None:
        """Take new values, in words, by the names of their controls; names that are none are left out."""
        known = {name: words for name, words in changes.items() if name in self.panel.controls}
        try:
            found = {name: value_of(self.panel.controls[name], words) for name, words in known.items()}
        except ValueError as refusal:
            self._refused = str(refusal)
            return
        self._chosen |= found
        self._draw()

    def press(self, preset: str) -> None:
        """Take the values of a button."""
        self._chosen |= self.panel.presets[preset]
        self._draw()

    def state(self) -> dict[str, Any]:
        """All that the page shows, as what JSON can say."""
        words = {name: str(value) for name, value in self._chosen.items()}
        off = sorted(self.panel.off(self._chosen))
        return {**self._shown, "values": words, "off": off, "refused": self._refused}

    def _draw(self) -> None:
        values = dict(self._chosen)
        try:
            picture = self.panel.picture(values, self._drawn)
            table = [list(row) for row in self.panel.table(**values)] if self.panel.table else []
        except ValueError as refusal:
            self._refused = str(refusal)
            return
        self._drawn, self._refused = values, ""
        drawn = picture.on_page if isinstance(picture, Drawing) else picture.live
        self._shown = {"picture": drawn, "text": picture.text, "table": table}


def value_of(control: Control, words: str) -> Any:
    """What the words of a field or of an option stand for.

    Raises: ValueError for an option that there is not, or a field that holds no number.
    """
    if control.options:
        found = {str(value): value for _, value in control.options}
        if words not in found:
            rule, way_out = "there is no such option", f"choose one of {', '.join(found)}"
            raise ValueError(four_parts(control.label, repr(words), rule, way_out))
        return found[words]
    reads = _READS.get(control.kind, str)
    try:
        return reads(words)
    except ValueError:
        rule, way_out = f"this field takes a {control.kind}", f"type one such as {control.value}"
        raise ValueError(four_parts(control.label, repr(words), rule, way_out)) from None


_open: dict[str, Front] = {}  # what a page's Python keeps from one call to the next


def answer(panel: str, asked: str) -> str:
    """What a page's worker calls: `asked` is JSON, `{"turn": {…}}` or `{"press": "…"}`; the answer is the state."""
    front = _open.setdefault(panel, Front(PANELS[panel]()))
    question = json.loads(asked)
    if "press" in question:
        front.press(question["press"])
    else:
        front.turn(question["turn"])
    return json.dumps(front.state())
