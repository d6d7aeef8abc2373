"""Attention on two ranks: queries, keys and values by outputs, between two heads, and o by inputs."""

from __future__ import annotations

from course_lib.viz.ink import keys, marks, sheet, style
from course_lib.viz.ink.picture import Picture
from course_lib.viz.models.shared_matrices import (
    CELL,
    KEY_WITH_SUMS,
    OUTSIDE,
    RANKS,
    draw_arrows,
    draw_bar,
    draw_table,
    draw_vector,
    part,
)

_HEADS = 4  # each one number wide, so that x and y are as wide as all heads together, as in a layer
_TALL, _PITCH = _HEADS * CELL, 1.6  # inches: of a vector, from one rank to the next
_MATRICES = {"q_proj": 1.68, "k_proj": 2.74, "v_proj": 3.8}  # inches: their left edges
_VECTORS = {"q": 4.9, "k": 5.2, "v": 5.5}
_X, _HEADS_LEFT, _O, _TERMS, _BAR, _END = 1.3, 6.64, 7.1, 8.2, 8.84, 9.25
_SUBTITLE = "four heads, one number wide each: a row of q_proj makes the query of one head"


@sheet.course_style()
def plot_heads(*, title: str = "Attention: two heads on each rank") -> Picture:
    """Draw attention with four heads on two ranks: nothing is sent until the terms of its output are added up."""
    key = keys.lines_of(KEY_WITH_SUMS, style.MARGIN)
    first = style.HEADER + 0.68 + keys.LINE * (len(key) - 1) + _TALL / 2
    middles = [first + rank * _PITCH for rank in range(RANKS)]
    figure, page = sheet.new_page(middles[-1] + _TALL / 2 + 0.56, title, _SUBTITLE)
    keys.draw_key(page, KEY_WITH_SUMS, style.MARGIN)
    every, square = range(_HEADS), (_HEADS, _HEADS)
    for rank, middle in enumerate(middles):
        own, hue = part(_HEADS, rank), style.rank_hue(rank)
        heads = [(rank,) if head in own else () for head in every]
        marks.rank_badge(page, style.MARGIN + 0.37, middle - 0.2, rank)
        marks.label(page, style.MARGIN, middle + 0.16, f"{len(own)} heads", size=style.SMALL_SIZE, align="left")
        draw_vector(page, _X, middle, [OUTSIDE] * _HEADS, "x")
        for name, left in _MATRICES.items():
            draw_table(page, left, middle, square, own, every, hue=hue, name=name)
        for name, left in _VECTORS.items():
            draw_vector(page, left, middle, heads, name)
        draw_vector(page, _HEADS_LEFT, middle, heads, "heads")
        draw_table(page, _O, middle, square, every, own, hue=hue, name="o_proj")
        draw_vector(page, _TERMS, middle, [(rank,)] * _HEADS, "terms")
        draw_vector(page, _END, middle, [tuple(range(RANKS))] * _HEADS, "y")
    bend = (_VECTORS["v"] + CELL + _HEADS_LEFT) / 2
    draw_arrows(page, bend, middles)
    for middle in middles:
        marks.label(page, bend, middle - 0.16, "softmax", size=style.SMALL_SIZE)
    draw_bar(page, _BAR, middles, "all_reduce", "the only sum")
    lines = [f"  rank {rank}: heads {part(_HEADS, rank).start} and {part(_HEADS, rank).stop - 1}" for rank in range(2)]
    lines += ["  before the end: nothing is sent; at the end: all_reduce"]
    return Picture(figure, title=title, description="\n".join([_SUBTITLE, *lines]))
