"""A decoder from left to right, for a slide: under each part stands a bar with the number of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from course_lib.config import ModelConfig
from course_lib.costs.model.activations import is_llama
from course_lib.costs.model.parameters import Part, model_parameters, parameters_by_part
from course_lib.errors import four_parts
from course_lib.units import format_count
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.memory.parts import WEIGHTS

_NAMES: dict[Part, str] = {"embedding": "embedding", "attention": "attention", "ffn": "feed-forward", "head": "head"}
_FORMULAS: dict[Part, str] = {"embedding": "V H", "attention": "L (2 H² + 2 H K)", "ffn": "L (3 H F)", "head": "V H"}
_STRENGTH: dict[Part, float] = {"embedding": 0.4, "attention": 0.7, "ffn": 1.0, "norm": 0.25, "head": 0.4}
_TOP, _TALL, _PANEL_TOP, _PANEL_BOTTOM, _AROUND = 1.92, 0.8, 1.16, 3.16, 1.7  # inches down the page
_FLOOR, TALLEST = 5.24, 1.7  # where the bars stand, and how high one of all parameters would be
_NORM, BAR = 0.36, 1.3  # widths


@dataclass(frozen=True, kw_only=True)
class _Box:
    part: Part
    x: float  # inches
    width: float


_EMBEDDING = _Box(part="embedding", x=1.26, width=1.32)
_BLOCKS = (  # norm and what follows it: the residual stream goes around both
    (_Box(part="norm", x=3.04, width=_NORM), _Box(part="attention", x=3.48, width=1.42)),
    (_Box(part="norm", x=5.28, width=_NORM), _Box(part="ffn", x=5.72, width=1.5)),
)
_AFTER = (_Box(part="norm", x=7.78, width=_NORM), _Box(part="head", x=8.22, width=0.66))
_PANEL = (2.76, 7.58)  # inches: the sides of what is repeated


@sheet.course_style()
def plot_anatomy_row(config: ModelConfig) -> Picture:
    """A Llama from tokens to logits in one row, each part above its share of the parameters.

    Raises: ValueError for a decoder of another shape.
    """
    if not is_llama(config) or config.tied:
        rule = "the row has the boxes of a Llama with its own head"
        raise ValueError(four_parts("plot_anatomy_row", config.name, rule, "draw it with plot_anatomy"))
    counts, total = parameters_by_part(config), model_parameters(config)
    title = f"{config.name}: {format_count(total)} parameters"
    figure, page = sheet.new_page(_FLOOR + 0.6, title, f"together exactly {total:,}")
    _draw_stream(page)
    _draw_panel(page, config, counts["norm"])
    parts = [_EMBEDDING, *(box for block in _BLOCKS for box in block), *_AFTER]
    for box in parts:
        _draw_box(page, box, config)
        if box.part != "norm":
            _draw_share(page, box, counts[box.part], total)
    page.plot(
        [_EMBEDDING.x, _AFTER[1].x + (_AFTER[1].width + BAR) / 2],
        [_FLOOR, _FLOOR],
        color=style.FAINT,
        linewidth=1.2,
        zorder=0.5,
    )
    return Picture(figure, title=title, description=_in_words(config, counts, total), kinds=["formula"])


def _draw_stream(page: Axes) -> None:
    """From the tokens through all boxes to the logits, and around each block."""
    middle = _TOP + _TALL / 2
    marks.label(page, style.MARGIN, middle, "tokens", colour=style.SOFT, align="left")
    marks.arrow(page, (style.MARGIN + 0.68, middle), (9.03, middle), line=1.6, zorder=0.6)
    marks.label(page, style.PAGE_WIDTH - style.MARGIN, middle, "logits", colour=style.SOFT, align="right")
    for norm, block in _BLOCKS:
        start, end = norm.x - 0.14, block.x + block.width + 0.16
        around = [(start, middle), (start, _AROUND), (end, _AROUND), (end, middle - 0.02)]
        marks.arrow_along(page, around, line=1.6, zorder=0.6)


def _draw_panel(page: Axes, config: ModelConfig, norms: int) -> None:
    left, right = _PANEL
    size = (right - left, _PANEL_BOTTOM - _PANEL_TOP)
    marks.box(page, left, _PANEL_TOP, *size, fill=style.PANEL, corner=0.12, zorder=0.1)
    marks.label(
        page, left + 0.16, _PANEL_TOP + 0.26, f"L = {config.n_layers} layers like this", bold=True, align="left"
    )
    words = f"all norms: {format_count(norms)}"
    marks.label(page, right - 0.16, _PANEL_TOP + 0.26, words, colour=style.SOFT, align="right")
    stream = f"on the line: H = {config.hidden_size:,} numbers for each token"
    marks.label(page, (left + right) / 2, _PANEL_BOTTOM - 0.21, stream, colour=style.SOFT)


def _draw_box(page: Axes, box: _Box, config: ModelConfig) -> None:
    fill = style.tint(WEIGHTS, _STRENGTH[box.part])
    marks.box(page, box.x, _TOP, box.width, _TALL, fill=fill)
    colour, centre, middle = style.text_on(fill), box.x + box.width / 2, _TOP + _TALL / 2
    if box.part == "norm":
        look: dict[str, Any] = {
            "rotation": 90,
            "weight": 600,
            "color": colour,
            "ha": "center",
            "va": "center",
            "zorder": 5,
        }
        page.text(centre, middle, "norm", **look)
        return
    detail = _detail(box.part, config)
    marks.label(page, centre, middle - 0.14 * bool(detail), _NAMES[box.part], bold=True, colour=colour)
    marks.label(page, centre, middle + 0.16, detail, size=style.SMALL_SIZE, colour=colour)


def _detail(part: Part, config: ModelConfig) -> str:
    sizes: dict[Part, str] = {
        "embedding": f"V = {config.vocab_size:,}",
        "attention": f"K = {config.kv_size:,}",
        "ffn": f"F = {config.ffn_size:,}",
    }
    return sizes.get(part, "")


def _draw_share(page: Axes, box: _Box, count: int, total: int) -> None:
    """A bar that stands on the floor, what it amounts to above it, and the formula below."""
    centre, high = box.x + box.width / 2, TALLEST * count / total
    marks.box(page, centre - BAR / 2, _FLOOR - high, BAR, high, fill=WEIGHTS, corner=0.0)
    marks.label(page, centre, _FLOOR - high - 0.2, f"{count / total:.1%}", colour=style.SOFT)
    marks.label(page, centre, _FLOOR - high - 0.5, format_count(count), size=style.TITLE_SIZE, bold=True)
    marks.label(page, centre, _FLOOR + 0.26, _FORMULAS[box.part])


def _in_words(config: ModelConfig, counts: dict[Part, int], total: int) -> str:
    rows = [
        f"  {name}: {counts[part]:,} parameters, {counts[part] / total:.1%} = {_FORMULAS[part]}"
        for part, name in _NAMES.items()
    ]
    return "\n".join(
        [
            f"together exactly {total:,}",
            f"tokens, embedding, {config.n_layers} × (norm, attention | norm, feed-forward), norm, head, logits",
            "in each layer the residual goes around both blocks",
            f"V = {config.vocab_size:,}, H = {config.hidden_size:,}, K = {config.kv_size:,}, F = {config.ffn_size:,}",
            *rows,
            f"  all norms: {counts['norm']:,} parameters",
        ]
    )
