"""The ring all-reduce, drawn step by step: what travels round the ring, and what every rank then holds."""

from __future__ import annotations

from math import cos, pi, sin

from matplotlib.axes import Axes

from course_lib.viz.ink import marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.wires.holdings import check_picture_size
from course_lib.viz.wires.ring_steps import Parts, RingStep, Transfer, ring_step, ring_steps

_HEIGHT = 5.625
_CENTRE, _RADIUS = (2.8, 3.28), 1.4
_TABLE_LEFT, _TABLE_WIDTH, _TABLE_HEIGHT = 6.14, 3.44, 3.2
_FRAMES_ACROSS, _FRAME = 4, 1.66
_GAP = 0.08
_LARGE = 4  # ranks; larger rings are drawn tighter


@sheet.course_style()
def ring_all_reduce_step(world_size: int, step: int) -> Picture:
    """Step `step` of a ring all-reduce: on the left the chunks that travel, on the right all buffers after it.

    Raises: ValueError for more than 8 ranks and for a step that the ring does not have.
    """
    state = ring_step(world_size, step)
    title = _headline(state, world_size)
    figure, page = sheet.new_page(_HEIGHT, title, _explanation(state, world_size))
    spots = [_on_circle(rank / world_size) for rank in range(world_size)]
    for rank, (x, y) in enumerate(spots):
        marks.rank_badge(page, x, y, rank, width=_badge_width(world_size), word=world_size <= _LARGE)
    for rank in range(world_size) if world_size > 1 else ():
        _draw_way(page, rank, world_size)
    for transfer in state.transfers:
        _draw_transfer(page, transfer, world_size)
    _draw_buffers(page, state, world_size)
    return Picture(figure, title=title, description=_in_words(state, world_size))


@sheet.course_style()
def ring_all_reduce_story(world_size: int = 4) -> Picture:
    """All steps of a ring all-reduce on one page, as a strip of buffers: for print, and where no slider runs.

    Raises: ValueError for more than 4 ranks.
    """
    check_picture_size("ring_all_reduce_story", world_size, largest=_LARGE)
    steps = ring_steps(world_size)
    rows = -(-(len(steps) + 1) // _FRAMES_ACROSS)
    title = f"Ring all-reduce on {world_size} ranks: {len(steps) - 1} steps, one chunk each"
    subtitle = "row = rank;  column = chunk;  colours = whose parts are in the sum;  framed = just received"
    figure, page = sheet.new_page(style.HEADER + rows * (_FRAME + 0.75) + 0.12, title, subtitle)
    cell = (_FRAME + _GAP) / world_size
    for state in steps:
        x, y = _frame(state.number)
        name = "start" if state.number == 0 else f"{state.number} · {state.phase}"
        marks.label(page, x, y - 0.22, name, align="left", bold=True)
        _draw_table(page, state, x, y, cell, cell)
    x, y = _frame(len(steps))
    marks.label(page, x, y - 0.22, "each rank has sent", align="left", bold=True)
    total = [f"{len(steps) - 1} × 1/{world_size} tensor", "= 2(p − 1)/p", f"= {2 - 2 / world_size:.3g} tensors"]
    for line, text in enumerate(total):
        marks.label(page, x, y + 0.16 + 0.34 * line, text, align="left")
    description = "\n".join(f"{_headline(s, world_size)}\n{_in_words(s, world_size)}" for s in steps)
    description = "\n".join([description, " ".join(["each rank has sent", *total])])
    return Picture(figure, title=title, description=description)


def _frame(number: int) -> tuple[float, float]:
    """Top left corner of the table in one frame of the story."""
    row, column = divmod(number, _FRAMES_ACROSS)
    gap = (style.PAGE_WIDTH - 2 * style.MARGIN - _FRAMES_ACROSS * _FRAME) / (_FRAMES_ACROSS - 1)
    return style.MARGIN + column * (_FRAME + gap), style.HEADER + 0.45 + row * (_FRAME + 0.75)


def _draw_way(page: Axes, rank: int, world_size: int) -> None:
    """The arrow from a rank to its right neighbour, there before anything travels on it."""
    start, end = rank / world_size, (rank + 1) / world_size
    reach = _badge_width(world_size) / 2 + 0.07
    path = [_on_circle(start + (end - start) * i / 100) for i in range(101)]
    (x0, y0), (x1, y1) = path[0], path[-1]
    marks.arrow_along(
        page,
        [(x, y) for x, y in path if all(abs(x - a) > reach or abs(y - b) > 0.24 for a, b in ((x0, y0), (x1, y1)))],
    )


def _draw_transfer(page: Axes, transfer: Transfer, world_size: int) -> None:
    """A chunk half-way along its arrow, and its number outside the ring."""
    middle = (transfer.source + 0.5) / world_size
    if world_size > _LARGE:  # no room on the arrow: outside the ring, with its number below
        _draw_parcel(page, _on_circle(middle, 1.26), (0.42, 0.48), transfer, world_size, str(transfer.chunk))
        return
    x, y = _on_circle(middle)
    _draw_parcel(page, (x, y), (0.56, 0.42), transfer, world_size)
    side = 1 if sin(2 * pi * middle) > 0 else -1
    side = -side if world_size == 2 else side  # its chunks lie at the ring's very edges: name them inside
    align = "left" if side > 0 else "right"
    marks.label(page, x + 0.4 * side, y - 0.16 * cos(2 * pi * middle), f"chunk {transfer.chunk}", align=align)


def _draw_parcel(
    page: Axes, at: tuple[float, float], size: tuple[float, float], transfer: Transfer, slots: int, text: str = ""
) -> None:
    """A travelling chunk, centred on a point, with a white margin that interrupts its arrow."""
    (x, y), (width, height), margin = at, size, 0.05
    x, y = x - width / 2, y - height / 2
    marks.box(page, x - margin, y - margin, width + 2 * margin, height + 2 * margin, zorder=3.5)
    marks.chunk(
        page,
        x,
        y,
        width,
        height,
        sources=transfer.parts,
        slots=slots,
        text=text,
        edge=style.COMMUNICATION,
        zorder=4,
    )


def _draw_buffers(page: Axes, state: RingStep, world_size: int) -> None:
    """The buffers of all ranks as one table, with headings, and the traffic so far."""
    cell, row = (_TABLE_WIDTH + _GAP) / max(world_size, 3), _TABLE_HEIGHT / max(world_size, 3)
    top = _CENTRE[1] - world_size * row / 2
    for c in range(world_size):
        name = f"chunk {c}" if world_size <= _LARGE else str(c)
        marks.label(page, _TABLE_LEFT + (c + 0.5) * cell - _GAP / 2, top - 0.2, name, colour=style.SOFT)
    for rank in range(world_size):
        marks.rank_badge(page, _TABLE_LEFT - 0.5, top + (rank + 0.5) * row - _GAP / 2, rank)
    _draw_table(page, state, _TABLE_LEFT, top, cell, row, named=True)
    below = top + world_size * row + 0.24
    marks.label(page, _TABLE_LEFT - 0.87, below, _sent(state, world_size), colour=style.SOFT, align="left")
    if world_size > _LARGE:
        marks.label(page, _TABLE_LEFT - 0.5, top - 0.2, "chunk", colour=style.SOFT)


def _draw_table(
    page: Axes, state: RingStep, x: float, y: float, cell: float, row: float, *, named: bool = False
) -> None:
    """One stack of hues per rank and chunk; what came in this step is framed."""
    arrived = {(transfer.target, transfer.chunk) for transfer in state.transfers}
    for rank, chunks in enumerate(state.buffers):
        for c, parts in enumerate(chunks):
            new = (rank, c) in arrived
            marks.chunk(
                page,
                x + c * cell,
                y + rank * row,
                cell - _GAP,
                row - _GAP,
                sources=parts,
                slots=len(chunks),
                text=f"Σ{c}" if named and len(parts) == len(chunks) > 1 else "",
                edge=style.COMMUNICATION if new else style.FAINT,
                line=2.2 if new else 0.9,
            )


def _badge_width(world_size: int) -> float:
    return 0.74 if world_size <= _LARGE else 0.34


def _on_circle(turn: float, reach: float = 1.0) -> tuple[float, float]:
    """The point at a fraction of a clockwise turn from the top, `reach` times as far out as the ring."""
    return _CENTRE[0] + reach * _RADIUS * sin(2 * pi * turn), _CENTRE[1] - reach * _RADIUS * cos(2 * pi * turn)


def _headline(state: RingStep, world_size: int) -> str:
    if state.number == 0:
        return "Ring all-reduce, before the first step"
    return f"Ring all-reduce, step {state.number} of {2 * (world_size - 1)}: {state.phase}"


def _explanation(state: RingStep, world_size: int) -> str:
    if world_size == 1:
        return "one rank has the sum already: nothing to send"
    if state.number == 0:
        return f"every rank holds its own tensor, cut into {world_size} chunks"
    verb = "adds it to its own" if state.phase == "reduce-scatter" else "keeps it: the chunk is complete"
    return f"every rank sends one chunk to the next rank, which {verb}"


def _sent(state: RingStep, world_size: int) -> str:
    return f"sent per rank so far: {state.number} × 1/{world_size} of the tensor"


def _in_words(state: RingStep, world_size: int) -> str:
    """The same step as text; A0 is chunk 0 of rank 0's tensor, B0 of rank 1's."""
    lines = [f"{_explanation(state, world_size)}; {_sent(state, world_size)}"]
    lines += [
        f"rank {t.source} sends chunk {t.chunk} ({_sum(t.parts, t.chunk)}) to rank {t.target}" for t in state.transfers
    ]
    lines.append("every rank then holds:")
    for rank, chunks in enumerate(state.buffers):
        lines.append(f"  rank {rank}: " + ", ".join(_sum(parts, c) for c, parts in enumerate(chunks)))
    return "\n".join(lines)


def _sum(parts: Parts, chunk: int) -> str:
    return "+".join(f"{chr(ord('A') + rank)}{chunk}" for rank in parts)
