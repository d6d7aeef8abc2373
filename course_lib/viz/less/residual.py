"""One number of a gradient under error feedback: what came, what was kept, and what was sent, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.errors import four_parts
from course_lib.less.error_memory import Followed
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, rectangles
from course_lib.viz.ink.drawing import Drawing

_LEFT, _RIGHT, _TOP, _FOOT, _GAP = 150.0, WIDE - WIDE_EDGE, 78.0, 352.0, 30.0
_MOST = 60  # steps: more would be hairs


class _Lane(NamedTuple):
    """What is drawn in one lane."""

    name: str
    hue: str
    values: Sequence[float]

    @property
    def high(self) -> float:
        """Above zero, at least 0."""
        return max(0.0, *self.values)

    @property
    def low(self) -> float:
        """Below zero, at most 0."""
        return min(0.0, *self.values)


def plot_residual(followed: Followed) -> Drawing:
    """A lane for each of the three, all on one scale, a bar for each step.

    Raises: ValueError for no steps or too many.
    """
    steps = len(followed.gradients)
    if not 1 <= steps <= _MOST:
        rule = f"this picture holds 1 to {_MOST} steps"
        raise ValueError(four_parts("plot_residual", f"{steps} steps", rule, "follow fewer"))
    title = "One number, sent when enough has gathered"
    subtitle = "all that came = all that was sent + what is kept, after every step"
    lanes = [
        _Lane("gradient", style.COMPUTE["backward"], followed.gradients),
        _Lane("kept", style.OTHER_COMPUTE, followed.kept),
        _Lane("sent", style.COMMUNICATION, followed.sent),
    ]
    canvas = Canvas(_FOOT + 52, title, subtitle, width=WIDE, kinds=["measured"])
    scale = (_FOOT - _TOP - _GAP * len(lanes)) / (sum(lane.high - lane.low for lane in lanes) or 1.0)
    top = _TOP
    for lane in lanes:
        _draw_lane(canvas, lane, top + _GAP + lane.high * scale, scale)
        top += _GAP + (lane.high - lane.low) * scale
    for number in sorted({1, *range(5, steps + 1, 5)}):
        at = _LEFT + (number - 0.5) * (_RIGHT - _LEFT) / steps
        canvas.text(at, _FOOT + 26, str(number), size=SMALL, colour=style.SOFT, align="middle")
    canvas.text(WIDE_EDGE, _FOOT + 26, "step", size=SMALL, colour=style.SOFT)
    return Drawing(canvas, title=title, description=f"{subtitle}\n{_in_words(followed)}", kinds=["measured"])


def _draw_lane(canvas: Canvas, lane: _Lane, zero: float, scale: float) -> None:
    """Bars up and down from a line at zero; beside it the lane's name and its largest value."""
    pitch = (_RIGHT - _LEFT) / len(lane.values)
    canvas.text(WIDE_EDGE, zero - 20, lane.name, bold=True)
    largest = max(lane.values, key=abs)
    canvas.text(WIDE_EDGE, zero, f"up to {largest:.2g}", size=SMALL, colour=style.SOFT)
    bars = [
        (_LEFT + (number + 0.12) * pitch, zero - max(value, 0) * scale, 0.76 * pitch, abs(value) * scale)
        for number, value in enumerate(lane.values)
        if value
    ]
    canvas.path(rectangles(bars), fill=lane.hue)
    canvas.path(f"M{_LEFT:g} {zero:.5g}H{_RIGHT:g}", stroke=style.FAINT, stroke_width=1.5)


def _in_words(followed: Followed) -> str:
    steps, came, gone = len(followed.gradients), sum(followed.gradients), sum(followed.sent)
    times = sum(value != 0 for value in followed.sent)
    whole = f"  of {came:.3g} that came in {steps} steps {gone:.3g} were sent and {followed.kept[-1]:.3g} are kept"
    return f"{whole}\n  sent in {times} of {steps} steps"
