"""What fills a GPU in training, against the memory that it has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.errors import four_parts
from course_lib.hardware import Device
from course_lib.units import GB, GiB
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis, draw_axis
from course_lib.viz.ink.bars import draw_outline, draw_parts
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, rectangles, text_width
from course_lib.viz.ink.canvas_key import KEY_LINE, draw_key, key_lines
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.style import WRONG
from course_lib.viz.memory.parts import MEMORY_PARTS

_KEY = 92.0  # the first line of the key
_LEFT, _RIGHT = WIDE_EDGE + 5, 610.0  # where bars begin, so that the 0 below keeps to the edge; and where the axis ends
_NAME, _BAR, _STEP = 22.0, 38.0, 82.0  # from a row's top to its name's middle; a bar, from one row to the next
_ABOVE, _AXIS = 18.0, 56.0  # above the bars, for the device's name; below them
_BESIDE = 22.0  # from the chart to the sums
_MOST_ROWS = 8
_CLEAR = 11.0  # above and below the middle of a name, where no line passes
_BEFORE = 15.0  # from a bar up to what it was before
_SEEN = 2.5  # narrower than this in every bar, a part's hue finds no entry of the key

Unit = Literal["GiB", "GB"]
_Parts = Mapping[tuple[str, ...], tuple[str, str]]  # fields of GpuMemory that are drawn as one -> words, hue


@dataclass(frozen=True)
class _Scale:
    """What bytes are told in."""

    unit: Unit

    def of(self, nbytes: float) -> float:
        return nbytes / (GiB if self.unit == "GiB" else GB)

    def words(self, nbytes: int) -> str:
        """Three digits, never in powers of ten."""
        size = self.of(nbytes)
        return f"{size:,.0f}" if size >= 100 else f"{size:.1f}" if size >= 10 else f"{size:.2f}"


def plot_gpu_memory(
    rows: Mapping[str, GpuMemory],
    device: Device,
    *,
    title: str = "What fills one GPU",
    subtitle: str = "",
    reach_bytes: float = 0,
    before: Sequence[GpuMemory] = (),
    unit: Unit = "GiB",
) -> Drawing:
    """A stacked bar for each row against the device's memory; `rows` maps what a bar is called to what it holds.

    The axis ends behind the longest bar, or at `reach_bytes`, where a longer bar is cut; `before` outlines what the
    bars were before, in their order. Units: `unit`. The device's printed memory is read as GB, the cautious way.
    Raises: ValueError for no rows or more than a page holds, or a name that is too long for it.
    """
    _check_rows(rows)
    scale = _Scale(unit)
    longest = max(device.memory_bytes(), *(memory.total for memory in rows.values()))
    axis = Axis(_LEFT, _RIGHT, scale.of(reach_bytes or 1.03 * longest))
    parts = _parts(rows.values(), axis, scale)
    key = [Entry(words, [hue]) for words, hue in parts.values()]
    subtitle = subtitle or "all parts added up: the peak of a step is at most this"
    top = _KEY + KEY_LINE * len(key_lines(key, WIDE - 2 * WIDE_EDGE)) + _ABOVE
    foot = top + _STEP * len(rows) + 4
    canvas = Canvas(foot + _AXIS, title, subtitle, width=WIDE, kinds=["formula"])
    draw_key(canvas, key, _KEY)
    places = map(axis.x, axis.ticks())
    ticks = [(x, start, 1.0, end - start) for x in places for start, end in _beside_names(x, top, foot, rows)]
    canvas.path(rectangles(ticks), fill=style.GRID)
    draw_axis(canvas, axis, foot + 16, unit)
    for number, memory in enumerate(rows.values()):
        _draw_bar(canvas, axis, scale, top + number * _STEP, memory, parts)
    _draw_device(canvas, axis, scale, top, foot, device, rows)
    for number, (name, memory) in enumerate(rows.items()):
        _write_row(canvas, scale, top + number * _STEP, name, memory, device)
    for number, old in enumerate(before[: len(rows)]):
        _draw_ghost(canvas, axis, scale, top + number * _STEP, old)
    return Drawing(canvas, title=title, description=_in_words(rows, scale, device, subtitle), kinds=["formula"])


def _check_rows(rows: Mapping[str, GpuMemory]) -> None:
    if not 1 <= len(rows) <= _MOST_ROWS:
        rule, way_out = f"this picture holds 1 to {_MOST_ROWS} bars", "draw fewer, or several pictures"
        raise ValueError(four_parts("plot_gpu_memory", f"{len(rows)} rows", rule, way_out))
    for name in rows:
        if text_width(name) > WIDE - 2 * WIDE_EDGE:
            rule = "a bar's name fits on one line"
            raise ValueError(four_parts("plot_gpu_memory", f"row {name!r}", rule, "shorten it"))


def _device_words(device: Device, scale: _Scale) -> str:
    """Its name has the GB."""
    return device.name if scale.unit == "GB" else f"{device.name} = {scale.of(device.memory_bytes()):.1f} GiB"


def _verdict(memory: GpuMemory, device: Device, scale: _Scale) -> tuple[str, str]:
    """The sum and whether it fits, and the part of the device that it takes."""
    share = memory.total / device.memory_bytes()
    if share <= 1:
        return f"{scale.words(memory.total)} {scale.unit}, fits", f"{share:.0%} of what it has"
    return f"{scale.words(memory.total)} {scale.unit}, too much", f"{_times(share)} × what it has"


def _times(share: float) -> str:
    return f"{share:.3g}" if share >= 1.005 else "just over 1"


def _parts(rows: Collection[GpuMemory], axis: Axis, scale: _Scale) -> _Parts:
    """What a bar is made of, with words and hue: fields that are slivers in every bar are one part, the first."""
    most = {part: max(getattr(memory, part) for memory in rows) for part in MEMORY_PARTS}
    held = [part for part, nbytes in most.items() if nbytes]
    slivers = tuple(part for part in held if axis.x(scale.of(most[part])) - axis.x(0) < _SEEN)
    if len(slivers) < 2:  # a single one has a neighbour of another hue
        slivers = ()
    thin = ", ".join(MEMORY_PARTS[part][0] for part in slivers)
    first = {slivers: (thin, style.INK)} if slivers else {}
    return first | {(part,): MEMORY_PARTS[part] for part in held if part not in slivers}


def _draw_bar(canvas: Canvas, axis: Axis, scale: _Scale, top: float, memory: GpuMemory, parts: _Parts) -> None:
    """One part after the other."""
    sizes = [(scale.of(sum(getattr(memory, part) for part in fields)), hue) for fields, (_, hue) in parts.items()]
    draw_parts(canvas, axis, top + _STEP - _BAR, _BAR, sizes)


def _beside_names(x: float, top: float, foot: float, names: Collection[str]) -> Iterator[tuple[float, float]]:
    """From where to where a line goes down the chart: it stops at a name, and goes on below it."""
    reached = top
    for number, name in enumerate(names):
        middle = top + number * _STEP + _NAME
        if x < WIDE_EDGE + text_width(name) + 6:
            yield reached, middle - _CLEAR
            reached = middle + _CLEAR
    yield reached, foot


def _draw_device(
    canvas: Canvas, axis: Axis, scale: _Scale, top: float, foot: float, device: Device, names: Collection[str]
) -> None:
    """A line at its memory, set off from the bars, and its name above, kept on the card."""
    x, words = axis.x(scale.of(device.memory_bytes())), _device_words(device, scale)
    bars = "".join(f"M{x:.5g} {top + number * _STEP - _BAR:g}v{_BAR:g}" for number in range(1, len(names) + 1))
    canvas.path(bars, stroke=style.PAPER, stroke_width=5, fill="none")
    d = "".join(f"M{x:.5g} {start:g}V{end:g}" for start, end in _beside_names(x, top, foot, names))
    canvas.path(d, stroke=WRONG, stroke_width=2.2, stroke_dasharray="9 4", fill="none")
    half = text_width(words, bold=True) / 2
    middle = min(max(x, WIDE_EDGE + half), WIDE - WIDE_EDGE - half)
    canvas.text(middle, top - 12, words, bold=True, colour=WRONG, align="middle")


def _write_row(canvas: Canvas, scale: _Scale, top: float, name: str, memory: GpuMemory, device: Device) -> None:
    """What a bar is called, and beside it the sum."""
    canvas.text(WIDE_EDGE, top + _NAME, name)
    verdict, share = _verdict(memory, device, scale)
    hue = style.INK if memory.total <= device.memory_bytes() else WRONG
    x, y = _RIGHT + _BESIDE, top + _STEP - _BAR
    canvas.text(x, y + 6, verdict, bold=True, colour=hue)
    canvas.text(x, y + 28, share, size=SMALL, colour=style.SOFT)


def _draw_ghost(canvas: Canvas, axis: Axis, scale: _Scale, top: float, old: GpuMemory) -> None:
    """What the bar was before, and beside it the sum."""
    y = top + _STEP - _BAR
    draw_outline(canvas, axis, y, _BAR, scale.of(old.total))
    canvas.text(_RIGHT + _BESIDE, y - _BEFORE, f"before: {scale.words(old.total)} {scale.unit}", size=SMALL)


def _in_words(rows: Mapping[str, GpuMemory], scale: _Scale, device: Device, subtitle: str) -> str:
    lines = [subtitle, f"memory: {_device_words(device, scale)}"]
    for name, memory in rows.items():
        held = {words: getattr(memory, part) for part, (words, _) in MEMORY_PARTS.items()}
        parts = ", ".join(f"{words} {scale.words(nbytes)}" for words, nbytes in held.items() if nbytes)
        verdict, share = _verdict(memory, device, scale)
        lines.append(f"  {name}: {parts}; together {verdict}, {share}")
    return "\n".join(lines)
