"""What fills a GPU in training, against the memory that it has; by hand, or turned by its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from course_lib.costs.sweep.gpu_memory import GpuMemory
from course_lib.errors import four_parts
from course_lib.hardware import Device
from course_lib.units import GiB
from course_lib.viz import marks, style
from course_lib.viz.keys import broken
from course_lib.viz.memory_parts import MEMORY_PARTS
from course_lib.viz.picture import Picture

_BAR, _STEP = 0.46, 0.98  # inches
_LEFT = style.MARGIN + 0.06
_RIGHT = 2.75  # inches right of the chart, for the sums
_MOST_ROWS = 8
_SWATCH, _SPACE = 0.28, 0.24  # inches: of a legend's entry, before its word and behind it
_LINE = "#B84A5E"
_CUT, _BROKEN = 0.07, 0.035  # inches: from the end of the axis to where a longer bar is broken; how broad that is


@style.course_style()
def plot_gpu_memory(
    rows: Mapping[str, GpuMemory],
    device: Device,
    *,
    title: str = "What fills one GPU",
    subtitle: str = "",
    reach_bytes: float = 0,
    before: Sequence[GpuMemory] = (),
) -> Picture:
    """A stacked bar for each row against the device's memory; `rows` maps what a bar is called to what it holds.

    The axis ends behind the longest bar, or at `reach_bytes`, where a longer bar is cut; `before` outlines what the
    bars were before, in their order. Units: GiB. The device's printed memory is read as GB, the cautious way.
    Raises: ValueError for no rows or more than a page holds, or a name that is too long for it.
    """
    _check_rows(rows)
    parts = [name for name in MEMORY_PARTS if any(getattr(memory, name) for memory in rows.values())]
    subtitle = subtitle or "all parts added up: the peak of a step is at most this"
    lines = broken(parts, _legend_width, style.PAGE_WIDTH - 2 * style.MARGIN + _SPACE)
    top = style.HEADER + 0.12 + 0.36 * len(lines)
    tall = _STEP * len(rows) + 0.12
    figure, page = style.new_page(top + 0.42 + tall + 0.56, title, subtitle)
    _draw_legend(page, lines, style.HEADER + 0.1)
    width = style.PAGE_WIDTH - _LEFT - _RIGHT
    chart = style.chart_axes(figure, _LEFT, top + 0.36, width, tall)
    longest = max(device.memory_bytes(), *(memory.total for memory in rows.values()))
    reach = (reach_bytes or 1.03 * longest) / GiB
    _draw_bars(chart, rows, device, reach)
    _name_line(page, width * device.memory_bytes() / GiB / reach, top + 0.12, device)
    for number, (name, memory) in enumerate(rows.items()):
        y = top + 0.36 + 0.3 + number * _STEP
        _name_bar(chart, number, name)
        verdict, share = _verdict(memory, device)
        x = style.PAGE_WIDTH - _RIGHT + 0.24
        hue = style.INK if memory.total <= device.memory_bytes() else _LINE
        marks.label(page, x, y + 0.3, verdict, bold=True, align="left", colour=hue)
        marks.label(page, x, y + 0.56, share, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
    for number, old in enumerate(before[: len(rows)]):
        _outline(chart, number, old.total / GiB, reach)
        y = top + 0.36 + 0.3 + number * _STEP + 0.79
        was = f"before: {_gib(old.total)} GiB"
        marks.label(page, style.PAGE_WIDTH - _RIGHT + 0.24, y, was, size=style.SMALL_SIZE, align="left")
    return Picture(figure, title=title, description=_in_words(rows, device, subtitle), kinds=["formula"])


def _check_rows(rows: Mapping[str, GpuMemory]) -> None:
    if not 1 <= len(rows) <= _MOST_ROWS:
        rule, way_out = f"this picture holds 1 to {_MOST_ROWS} bars", "draw fewer, or several pictures"
        raise ValueError(four_parts("plot_gpu_memory", f"{len(rows)} rows", rule, way_out))
    room = style.PAGE_WIDTH - 2 * style.MARGIN - 0.1
    for name in rows:
        if style.text_width(name) > room:
            rule = "a bar's name fits on one line"
            raise ValueError(four_parts("plot_gpu_memory", f"row {name!r}", rule, "shorten it"))


def _device_words(device: Device) -> str:
    return f"{device.name} = {device.memory_bytes() / GiB:.1f} GiB"


def _verdict(memory: GpuMemory, device: Device) -> tuple[str, str]:
    """The sum and whether it fits, and the part of the device that it takes."""
    share = memory.total / device.memory_bytes()
    if share <= 1:
        return f"{_gib(memory.total)} GiB, fits", f"{share:.0%} of what it has"
    return f"{_gib(memory.total)} GiB, too much", f"{_times(share)} × what it has"


def _times(share: float) -> str:
    return f"{share:.3g}" if share >= 1.005 else "just over 1"


def _gib(nbytes: int) -> str:
    """Three digits, never in powers of ten."""
    gib = nbytes / GiB
    return f"{gib:,.0f}" if gib >= 100 else f"{gib:.1f}" if gib >= 10 else f"{gib:.2f}"


def _legend_width(part: str) -> float:
    return _SWATCH + style.text_width(MEMORY_PARTS[part][0]) + _SPACE


def _draw_legend(page: Axes, lines: list[list[str]], y: float) -> None:
    for number, line in enumerate(lines):
        x = style.MARGIN
        for part in line:
            name, hue = MEMORY_PARTS[part]
            marks.box(page, x, y + 0.36 * number - 0.1, 0.2, 0.2, fill=hue, corner=0.03)
            marks.label(page, x + _SWATCH, y + 0.36 * number, name, align="left")
            x += _legend_width(part)


def _draw_bars(chart: Axes, rows: Mapping[str, GpuMemory], device: Device, reach: float) -> None:
    for number, memory in enumerate(rows.values()):
        left = 0.0
        for part, (_, hue) in MEMORY_PARTS.items():
            gib = getattr(memory, part) / GiB
            chart.barh(_top_of(number) + _BAR / 2, gib, left=left, height=_BAR, color=hue)
            left += gib
        if left > reach:
            _break(chart, number, reach)
    chart.axvline(device.memory_bytes() / GiB, color=style.PAPER, linewidth=5, zorder=3)
    chart.axvline(device.memory_bytes() / GiB, color=_LINE, linewidth=2.2, linestyle=(0, (4, 2)), zorder=3)
    chart.set(xlim=(0, reach), ylim=(_STEP * len(rows) + 0.12, 0), yticks=[])
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g} GiB" if value else "0")
    chart.xaxis.set_major_locator(MaxNLocator(4))
    chart.grid(visible=False, axis="y")
    chart.tick_params(length=0, pad=6)


def _top_of(number: int) -> float:
    return number * _STEP + 0.3 + 0.2


def _break(chart: Axes, number: int, reach: float) -> None:
    """Two gaps near its end: the bar goes on."""
    inch = reach / (style.PAGE_WIDTH - _LEFT - _RIGHT)
    for gap in (1, 2):
        x, y = reach - gap * _CUT * inch, _top_of(number)
        chart.add_patch(Rectangle((x, y), _BROKEN * inch, _BAR, facecolor=style.PAPER, linewidth=0, zorder=2))


def _outline(chart: Axes, number: int, total: float, reach: float) -> None:
    """What the bar was before, as far as the axis goes."""
    place, size = (0, _top_of(number) - 0.06), (min(total, 1.2 * reach), _BAR + 0.12)
    box = Rectangle(place, *size, facecolor="none", edgecolor=style.INK, linewidth=1.2, linestyle=(0, (2, 2)), zorder=4)
    chart.add_patch(box)


def _name_bar(chart: Axes, number: int, name: str) -> None:
    """What a bar is called, above it; its ground hides the grid and the device's line."""
    ground = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
    y = number * _STEP + 0.3 + style.HALF_CAP * style.BASE_SIZE
    beside = chart.get_yaxis_transform() + ScaledTranslation(0.05, 0, chart.figure.dpi_scale_trans)
    chart.text(0, y, name, va="baseline", bbox=ground, transform=beside, zorder=5)


def _name_line(page: Axes, x: float, y: float, device: Device) -> None:
    """The device's name above its line, kept on the page."""
    half = style.text_width(_device_words(device), weight=600) / 2
    centre = min(max(_LEFT + x, _LEFT + half), style.PAGE_WIDTH - style.MARGIN - half)
    marks.label(page, centre, y, _device_words(device), colour=_LINE, bold=True)


def _in_words(rows: Mapping[str, GpuMemory], device: Device, subtitle: str) -> str:
    lines = [subtitle, f"memory: {_device_words(device)}"]
    for name, memory in rows.items():
        held = {words: getattr(memory, part) for part, (words, _) in MEMORY_PARTS.items()}
        parts = ", ".join(f"{words} {_gib(nbytes)}" for words, nbytes in held.items() if nbytes)
        verdict, share = _verdict(memory, device)
        lines.append(f"  {name}: {parts}; together {verdict}, {share}")
    return "\n".join(lines)
