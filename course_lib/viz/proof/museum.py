"""The ladder's own figure: on which rung each bug breaks it, beside a loss that hardly moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from course_lib.errors import four_parts
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_width
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.proof.ladder import APART, EQUAL

_LEFT, _PITCH, _ROW, _TOP = 268.0, 60.0, 42.0, 162.0
_NAME_LINE, _LINES, _BELOW = 17.0, 2, 66.0
_MOST, _NUMBER = 16, 12.0
_DIFFERS = "≠"


class Fall(Protocol):
    """A climb and the curves of the same training, as `verify.museum.fall` makes them."""

    @property
    def rung(self) -> str | None: ...
    @property
    def deviation(self) -> float | None: ...
    @property
    def losses(self) -> Sequence[float]: ...
    @property
    def reference(self) -> Sequence[float]: ...
    @property
    def rungs(self) -> Sequence[str]: ...
    @property
    def off(self) -> float: ...


def plot_museum(
    falls: Mapping[str, Fall],
    *,
    title: str = "Where each bug breaks the ladder",
    subtitle: str = "and how far its mean loss of the last quarter is from one device's",
) -> Drawing:
    """A row for each run by its name, a column for each rung from the foot up, and how far its loss is off.

    The first rung that breaks bears its deviation: the largest difference over one device's largest number.
    Raises: ValueError for no runs or more than 16, a name that needs more than two lines, or a rung that is not there.
    """
    names = {name: _lines(name) for name in falls}
    if not 1 <= len(falls) <= _MOST:
        values, rule = f"{len(falls)} runs", f"this picture holds 1 to {_MOST}"
        raise ValueError(four_parts("plot_museum", values, rule, "draw two pictures"))
    rungs = next(iter(falls.values())).rungs
    canvas = Canvas(_TOP + _ROW * len(falls) + _BELOW, title, subtitle, width=WIDE, kinds=["measured"])
    for number, rung in enumerate(rungs):
        place = f"translate({_column(number):g},{_TOP - 12:g}) rotate(-38)"
        canvas.text(-4, 0, f"{number + 1} {rung}", size=SMALL, colour=style.SOFT, parent=canvas.group(transform=place))
    canvas.text(WIDE - WIDE_EDGE, _TOP - 16, "loss off by", size=SMALL, colour=style.SOFT, align="end")
    for row, (name, fall) in enumerate(falls.items()):
        _draw_row(canvas, _TOP + row * _ROW, names[name], fall)
    _draw_key(canvas, _TOP + _ROW * len(falls) + 26)
    lines = [f"  {name}: {fall_words(fall)}" for name, fall in falls.items()]
    return Drawing(canvas, title=title, description="\n".join([subtitle, *lines]), kinds=["measured"])


def fall_words(fall: Fall) -> str:
    """The climb and the loss in words."""
    climb = "every rung is passed"
    if fall.rung:
        by = share(fall.deviation)
        climb = f"breaks rung {broken_at(fall) + 1}, {fall.rung}" + (f", by {by}" if by != _DIFFERS else "")
    return f"{climb}; its loss is off by {share(fall.off)}"


def broken_at(fall: Fall) -> int:
    """How many rungs were passed."""
    rungs = [*fall.rungs]
    if fall.rung is None:
        return len(rungs)
    if fall.rung not in rungs:
        rule = "a fall is from one of the ladder's rungs"
        raise ValueError(four_parts("broken_at", f"rung={fall.rung!r}", rule, f"choose from {', '.join(rungs)}"))
    return rungs.index(fall.rung)


def share(part: float | None) -> str:
    """A share of one device's number, in percent; where there is nothing to compare, that it differs."""
    if part is None or part == float("inf"):
        return _DIFFERS
    percent = 100 * part
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2g}%"


def _column(number: int) -> float:
    return _LEFT + (number + 0.5) * _PITCH


def _lines(name: str) -> list[str]:
    """A name in lines that fit beside the rungs."""
    lines = [""]
    for word in name.split():
        if lines[-1] and text_width(f"{lines[-1]} {word}", SMALL) > _LEFT - WIDE_EDGE - 8:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    if len(lines) > _LINES or any(text_width(line, SMALL) > _LEFT - WIDE_EDGE - 8 for line in lines):
        rule = "a run's name fits beside the rungs in two lines"
        raise ValueError(four_parts("plot_museum", f"run {name!r}", rule, "shorten it"))
    return lines


def _draw_row(canvas: Canvas, top: float, name: Sequence[str], fall: Fall) -> None:
    """Equal up to the first rung that breaks, which bears its deviation; nobody climbs beyond it."""
    y = top + _ROW / 2
    canvas.path(f"M{WIDE_EDGE:g} {top:g}H{WIDE - WIDE_EDGE:g}", stroke=style.FAINT)
    for number, line in enumerate(name):
        canvas.text(WIDE_EDGE, y + (number - (len(name) - 1) / 2) * _NAME_LINE, line, size=SMALL)
    broken = broken_at(fall)
    for number in range(len(fall.rungs)):
        _draw_mark(canvas, _column(number), y, "=" if number < broken else "·" if number > broken else "", fall)
    canvas.text(WIDE - WIDE_EDGE, y, share(fall.off), align="end", bold=True)


def _draw_mark(canvas: Canvas, x: float, y: float, sign: str, fall: Fall) -> None:
    if sign:
        canvas.text(x, y, sign, bold=True, align="middle", colour=EQUAL if sign == "=" else style.SOFT)
        return
    canvas.box(x - 21.5, y - 13, 43, 26, fill=APART, corner=6)
    canvas.text(x, y, share(fall.deviation), size=_NUMBER, bold=True, align="middle", colour=style.WHITE_LETTERS)


def _draw_key(canvas: Canvas, y: float) -> None:
    canvas.path(f"M{WIDE_EDGE:g} {y - 26:g}H{WIDE - WIDE_EDGE:g}", stroke=style.FAINT)
    canvas.text(WIDE_EDGE, y, "=", bold=True, colour=EQUAL)
    canvas.text(WIDE_EDGE + 16, y, "equal to one device", size=SMALL, colour=style.SOFT)
    canvas.box(WIDE_EDGE + 172, y - 9, 24, 18, fill=APART, corner=5)
    canvas.text(WIDE_EDGE + 204, y, "the first rung to break, and by how much", size=SMALL, colour=style.SOFT)
    canvas.text(WIDE_EDGE + 510, y, "·", bold=True, colour=style.SOFT)
    canvas.text(WIDE_EDGE + 522, y, "not tried", size=SMALL, colour=style.SOFT)
