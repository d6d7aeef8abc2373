"""Causal attention cut over ranks, turned by its controls: how long, on how many ranks, in which order."""

from __future__ import annotations

from typing import Any, get_args

from course_lib.sequence_cut import Order, SequenceCut
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.sequence.causal import plot_causal
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Values
from course_lib.viz.widgets.explorer import Explorer
from course_lib.viz.wires.holdings import LARGEST_PICTURE

_LENGTHS = (4, 6, 8, 12, 13, 16, 24, 32, 48, 64)


def causal_explorer(length: int = 16, ranks: int = 4, order: Order = "contiguous") -> Explorer:
    """Controls for a sequence and its cut, above the triangle of causal attention and each rank's work.

    A bar is as long as the rank's work in fair shares, so its axis stays; an outline is what the rank had before.
    """
    panel = Panel(
        draw=_draw,
        controls={
            "length": controls.slider("positions", length, sorted({*_LENGTHS, length})),
            "ranks": controls.slider("ranks", ranks, range(1, LARGEST_PICTURE + 1)),
            "order": controls.choice("order", order, get_args(Order)),
        },
        presets={
            "contiguous": {"order": "contiguous"},
            "zigzag": {"order": "zigzag"},
            "6 positions, 2 ranks": {"length": 6, "ranks": 2},
            "64 positions, 8 ranks": {"length": 64, "ranks": 8},
            "13 positions, 4 ranks": {"length": 13, "ranks": 4},
        },
        compares=True,
    )
    return Explorer(panel)


def _draw(*, before: Values | None, **now: Any) -> Drawing:
    return plot_causal(_cut(now), before=_cut(before) if before else None)


def _cut(values: Values) -> SequenceCut:
    return SequenceCut(values["length"], values["ranks"], values["order"])
