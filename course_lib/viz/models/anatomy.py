"""What a decoder is made of, and how many parameters each part has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from course_lib.config import ModelConfig
from course_lib.costs.model.parameters import Part, model_parameters, parameters_by_part
from course_lib.units import format_count
from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.memory.parts import WEIGHTS

_STRENGTH: dict[Part, float] = {  # of the colour of weights; embedding and head have the same shape
    "embedding": 0.4,
    "positions": 0.25,
    "attention": 0.55,
    "ffn": 1.0,
    "router": 0.5,
    "norm": 0.25,
    "head": 0.4,
}
_LEFT, _RIGHT, _BYPASS = 0.78, 4.36, 4.56  # inches: the boxes' sides, and the way around a block
_PANEL_RIGHT, _COUNT, _BAR, _BAR_END = 4.74, 6.82, 7.08, 8.72
_TALL, _LOW, _GAP, _JOIN = 0.56, 0.34, 0.14, 0.24


@dataclass(frozen=True, kw_only=True)
class _Box:
    """One box of the decoder, from top to bottom of the page."""

    part: Part
    name: str
    detail: str = ""
    height: float = _TALL
    borrowed: bool = False  # its weights are counted elsewhere


@sheet.course_style()
def plot_anatomy(config: ModelConfig) -> Picture:
    """A decoder from tokens to logits, with the exact number of parameters of every part."""
    counts = parameters_by_part(config)
    total = model_parameters(config)
    title = f"{config.name}: {format_count(total)} parameters"
    inside = _layer_blocks(config)
    if "norm" in counts:
        inside[0][0] = replace(inside[0][0], detail=f"{_norms(config)} in all")
    height = style.HEADER + 0.9 + _height(_before(config)) + _layer_height(inside) + _height(_after(config)) + 0.42
    figure, page = sheet.new_page(height, title, _subtitle(config, total))
    top = style.HEADER + 0.14
    marks.label(page, _middle(), top, "tokens", colour=style.SOFT)
    marks.label(page, _COUNT, top, "parameters", colour=style.SOFT, align="right")
    marks.label(page, _BAR, top, "share", colour=style.SOFT, align="left")
    shown: set[Part] = set()
    y = _draw_boxes(page, _before(config), top + 0.42, counts, shown)
    y = _draw_layer(page, config, inside, y, counts, shown)
    y = _draw_boxes(page, _after(config), y, counts, shown)
    marks.arrow(page, (_middle(), top + 0.17), (_middle(), y + 0.16), line=1.6, zorder=0.6)
    marks.label(page, _middle(), y + 0.32, "logits: a score for each token", colour=style.SOFT)
    return Picture(figure, title=title, description=_in_words(config, counts, total), kinds=["formula"])


def _middle() -> float:
    return (_LEFT + _RIGHT) / 2


def _before(config: ModelConfig) -> list[_Box]:
    table = f"{config.vocab_size:,} × {config.hidden_size:,}"
    boxes = [_Box(part="embedding", name="embedding", detail=table)]
    if config.positions == "learned":
        boxes.append(_Box(part="positions", name="positions", detail=f"{config.max_sequence:,} learned"))
    return boxes


def _after(config: ModelConfig) -> list[_Box]:
    table = f"{config.vocab_size:,} × {config.hidden_size:,}"
    head = _Box(part="head", name="head", detail="the embedding again" if config.tied else table, borrowed=config.tied)
    return [_norm(config), head]


def _norm(config: ModelConfig) -> _Box:
    weighted = config.norm != "layer_unweighted"
    return _Box(part="norm", name="norm", detail="" if weighted else "no weights", height=_LOW, borrowed=not weighted)


def _layer_blocks(config: ModelConfig) -> list[list[_Box]]:
    """Attention and feed-forward with their norms: each is a block that the residual stream goes around."""
    heads = f"{config.n_heads} heads" + (f", {config.n_kv_heads} of keys" * (config.n_kv_heads < config.n_heads))
    attention = [_Box(part="attention", name="attention", detail=heads)]
    inner = f"inner {config.ffn_size:,}"
    if config.n_experts > 1:
        choice = f"{config.experts_per_token} of {config.n_experts} experts"
        router = _Box(part="router", name="router", detail=choice, height=_LOW)
        blocks = f"{config.n_experts} × {inner}"
        if config.shared_ffn_size:
            blocks = f"{config.n_experts} × {config.ffn_size:,} + {config.shared_ffn_size:,}"
        feed = [router, _Box(part="ffn", name="feed-forward", detail=blocks)]
    else:
        feed = [_Box(part="ffn", name="feed-forward", detail=inner)]
    norms = ((config.norms_per_layer + 1) // 2, config.norms_per_layer // 2)
    return [
        [_norm(config)] * min(n, 1) + block + [_norm(config)] * (n - 1)
        for n, block in zip(norms, (attention, feed), strict=True)
    ]


def _subtitle(config: ModelConfig, total: int) -> str:
    dense = config.dense_layers
    before = f"; before the others {dense} layer{'s' * (dense > 1)} without experts" if dense else ""
    return f"hidden size H = {config.hidden_size:,}; together exactly {total:,}{before}"


def _norms(config: ModelConfig) -> int:
    """How many there are."""
    of_heads = 0 if config.qk_norm == "none" else 2
    if config.latent is not None:
        of_heads = 1 if config.latent.query_rank is None else 2
    return config.n_layers * (config.norms_per_layer + of_heads) + 1


def _height(boxes: list[_Box]) -> float:
    return sum(box.height + _GAP for box in boxes)


def _layer_height(blocks: list[list[_Box]]) -> float:
    return 0.42 + sum(_height(block) + 2 * _JOIN - _GAP for block in blocks) + 0.26


def _draw_layer(
    page: Axes, config: ModelConfig, blocks: list[list[_Box]], y: float, counts: dict[Part, int], shown: set[Part]
) -> float:
    """The panel of one layer; returns where the next box begins."""
    tall = _layer_height(blocks) - 0.26
    marks.box(page, style.MARGIN, y, _PANEL_RIGHT - style.MARGIN, tall, fill=style.PANEL, corner=0.12, zorder=0.1)
    alike, _ = config.layer_kinds[-1]
    words = f"{alike} layers like this" if alike > 1 else "1 layer"
    marks.label(page, style.MARGIN + 0.16, y + 0.24, words, bold=True, align="left")
    bottom, y = y + tall, y + 0.42
    for block in blocks:
        start, y = y, _draw_boxes(page, block, y + _JOIN, counts, shown) - _GAP + _JOIN
        around = [(_middle(), start + 0.08), (_BYPASS, start + 0.08), (_BYPASS, y - 0.1), (_middle() + 0.02, y - 0.1)]
        marks.arrow_along(page, around, line=1.6, zorder=0.6)
    return bottom + 0.26


def _draw_boxes(page: Axes, boxes: list[_Box], y: float, counts: dict[Part, int], shown: set[Part]) -> float:
    """Boxes below each other, and beside the first of each part its count; returns where the next one begins."""
    for box in boxes:
        fill = style.PAPER if box.borrowed else style.tint(WEIGHTS, _STRENGTH[box.part])
        colour, edge = style.text_on(fill), style.FAINT if box.borrowed else "none"
        marks.box(page, _LEFT, y, _RIGHT - _LEFT, box.height, fill=fill, edge=edge, dashed=box.borrowed)
        middle = y + box.height / 2
        marks.label(page, _LEFT + 0.14, middle, box.name, bold=True, align="left", colour=colour)
        marks.label(page, _RIGHT - 0.14, middle, box.detail, size=style.SMALL_SIZE, align="right", colour=colour)
        if box.part in counts and box.part not in shown:
            _draw_count(page, middle, box.part, counts)
            shown.add(box.part)
        y += box.height + _GAP
    return y


def _draw_count(page: Axes, y: float, part: Part, counts: dict[Part, int]) -> None:
    share = counts[part] / sum(counts.values())
    words = f"{counts[part]:,}"
    marks.label(page, _COUNT, y, words, align="right")
    marks.box(page, _BAR, y - 0.15, _BAR_END - _BAR, 0.3, fill=style.PANEL, corner=0.0)
    marks.box(page, _BAR, y - 0.15, share * (_BAR_END - _BAR), 0.3, fill=WEIGHTS, corner=0.0, zorder=1.1)
    marks.label(page, style.PAGE_WIDTH - style.MARGIN, y, _percent(share), align="right")


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 else "< 0.1%"


def _in_words(config: ModelConfig, counts: dict[Part, int], total: int) -> str:
    blocks = " | ".join(", ".join(_words(block)) for block in _layer_blocks(config))
    names = {"ffn": "feed-forward", "norm": f"norms, {_norms(config)} together"}
    rows = [
        f"  {names.get(part, part)}: {count:,} parameters, {_percent(count / total)}" for part, count in counts.items()
    ]

    return "\n".join(
        [
            _subtitle(config, total),
            f"tokens, {', '.join(_words(_before(config)))}",
            f"{config.n_layers} × layer, residual around each block: {blocks}",
            f"{', '.join(_words(_after(config)))}, logits",
            *rows,
        ]
    )


def _words(boxes: list[_Box]) -> Iterator[str]:
    for box in boxes:
        yield f"{box.name} ({box.detail})" if box.detail else box.name
