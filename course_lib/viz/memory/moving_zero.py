"""The stages of ZeRO in motion: what every rank keeps of a model's states, against the memory that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import StateBytes, state_bytes
from course_lib.errors import four_parts
from course_lib.hardware import load_device
from course_lib.units import GB
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import EDGE, SMALL, WIDTH, Canvas, rectangles, text_width
from course_lib.viz.ink.canvas_key import draw_key
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.style import WRONG
from course_lib.viz.memory.parts import MEMORY_PARTS

_PARTS = ("weights", "gradients", "optimizer")  # from the foot up; the last is cut first
_STAGES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP")
_LEFT, _RIGHT, _TOP, _FOOT, _HEIGHT = 30.0, 452.0, 150.0, 366.0, 418.0
_FIRST_S, _STAGE_S, _LAST_S = 2.4, 3.4, 4.0
_FADES_S, _FALLS_S = 0.6, 1.5  # after a stage has begun: parts are gone, the rest has come down
_APART = 21.0
_MOST = 8


class _Page(NamedTuple):
    """Four stages on some ranks, and where bytes lie."""

    stages: Sequence[StateBytes]  # of one rank
    ranks: int
    scale: float

    def y(self, nbytes: float) -> float:
        return _FOOT - nbytes * self.scale

    def column(self, rank: int) -> tuple[float, float]:
        """Left and width."""
        pitch = (_RIGHT - _LEFT) / self.ranks
        return _LEFT + rank * pitch + 0.1 * pitch, 0.8 * pitch

    def foot(self, part: str, stage: int) -> float:
        """The bytes below a part."""
        return float(sum(getattr(self.stages[stage], below) for below in _PARTS[: _PARTS.index(part)]))


def animate_zero_stages(
    billions: float = 7.5, ranks: int = 4, *, convention: str = "zero", device: str = "h100_sxm_80"
) -> Drawing:
    """All states on each rank, then cut one after the other: the optimizer's, the gradients, the weights.

    Units: billions of parameters; GB. The line is the device's memory.
    Raises: ValueError for fewer than 2 ranks or more than 8, no parameters, or names that are not known.
    """
    if not 2 <= ranks <= _MOST or not 0 < billions < 1e6:
        values, rule = f"{billions:g} billion parameters, ranks={ranks}", f"2 to {_MOST} ranks cut a model's states"
        raise ValueError(four_parts("animate_zero_stages", values, rule, "give such numbers"))
    counted, memory = find_convention(convention), load_device(device).memory_bytes()
    stages = [state_bytes(round(billions * 1e9), counted, zero_stage=stage, shards=ranks) for stage in range(4)]
    page = _Page(stages, ranks, (_FOOT - _TOP) / max(memory, stages[0].total))
    title = f"{billions:g} billion parameters on {ranks} ranks"
    each = f"{counted.weights} + {counted.gradients} + {counted.optimizer}"
    subtitle = f"{each} bytes a parameter, when backward is through"
    lasts_s = _begins(len(stages)) + _LAST_S
    canvas = Canvas(_HEIGHT, title, subtitle, kinds=["formula"], lasts_s=lasts_s)
    draw_key(canvas, [Entry(MEMORY_PARTS[part][0], [MEMORY_PARTS[part][1]]) for part in _PARTS], 90)
    for rank in range(ranks):
        for cut_at, part in enumerate(reversed(_PARTS), 1):
            _draw_part(canvas, page, rank, part, cut_at)
        x, wide = page.column(rank)
        canvas.rank(x + wide / 2, _FOOT + 26, rank, word=ranks <= 6)
    _draw_levels(canvas, page, device, memory)
    _draw_words(canvas, ranks)
    lines = [f"  {name}: {_gb(stage.total)} on each rank" for name, stage in zip(_STAGES, stages, strict=True)]
    description = "\n".join([subtitle, *lines, f"  one GPU has {_gb(memory)}"])
    return Drawing(canvas, title=title, description=description, kinds=["formula"])


def _begins(stage: int) -> float:
    """When in the loop a stage is entered."""
    return 0.0 if stage == 0 else _FIRST_S + (stage - 1) * _STAGE_S


def _draw_part(canvas: Canvas, page: _Page, rank: int, part: str, cut_at: int) -> None:
    """The rank's own shard, drawn where it is in the end; and the others' shards, which leave at stage `cut_at`."""
    (x, wide), hue = page.column(rank), MEMORY_PARTS[part][1]
    whole, foot = getattr(page.stages[0], part), page.foot(part, 0)
    shard, last = whole / page.ranks, len(page.stages) - 1
    others = [number for number in range(page.ranks) if number != rank]
    boxes = [(x, page.y(foot + (number + 1) * shard), wide, shard * page.scale) for number in others]
    look: dict[str, Any] = {"fill": hue, "stroke": style.PAPER, "stroke_width": 1}
    gone = canvas.shown(0, _begins(cut_at) + _FADES_S)
    canvas.path(rectangles(boxes), motion=gone, opacity=0, **look)
    feet = [page.foot(part, stage) + (rank * shard if stage < cut_at else 0) for stage in range(last + 1)]
    frames = [(0.0, _lifted(page, feet[0] - feet[last]))]
    for stage in range(1, last + 1):
        frames.append((_begins(stage) + _FADES_S, _lifted(page, feet[stage - 1] - feet[last])))
        frames.append((_begins(stage) + _FALLS_S, _lifted(page, feet[stage] - feet[last])))
    kept = canvas.moving(*frames)
    size = getattr(page.stages[last], part) * page.scale
    canvas.box(x, page.y(feet[last]) - size, wide, size, motion=kept, **look)


def _lifted(page: _Page, nbytes: float) -> str:
    return f"transform:translateY({-nbytes * page.scale:.5g}px)"


def _draw_levels(canvas: Canvas, page: _Page, device: str, memory: float) -> None:
    """The device's memory, and a ghost of each stage's height that appears with its stage; each with name and bytes."""
    rows = [(page.y(memory), _gb(memory), f"one {device.partition('_')[0].upper()}", WRONG, "")]
    for number, (name, stage) in enumerate(zip(_STAGES, page.stages, strict=True)):
        motion = canvas.appears(_begins(number) + _FALLS_S) if number else ""
        rows.append((page.y(stage.total), _gb(stage.total), name.partition(",")[0], style.INK, motion))
    rows.sort(key=lambda row: row[0])
    for (level, nbytes, name, hue, motion), y in zip(rows, _spread([row[0] for row in rows]), strict=True):
        group = canvas.group(motion)
        look = (
            {"stroke": hue, "stroke_width": 2.4} if hue == WRONG else {"stroke": style.SOFT, "stroke_dasharray": "3 3"}
        )
        d = f"M{_LEFT - 6:g} {level:.2f}H{_RIGHT + 4:g}L{_RIGHT + 16:g} {y:.2f}"
        canvas.path(d, fill="none", parent=group, **look)
        canvas.text(_RIGHT + 20, y, nbytes, bold=True, size=SMALL, colour=hue, parent=group)
        canvas.text(WIDTH - EDGE, y, name, size=SMALL, align="end", colour=hue, parent=group)


def _spread(levels: Sequence[float]) -> list[float]:
    """The levels, from the top on, moved as little as leaves a line of text between them and none below the foot."""
    places: list[float] = []
    for level in levels:
        places.append(max(level, places[-1] + _APART) if places else level)
    for number in reversed(range(len(places))):
        lowest = places[number + 1] - _APART if number + 1 < len(places) else _FOOT
        places[number] = min(places[number], lowest)
    return places


def _draw_words(canvas: Canvas, ranks: int) -> None:
    """What each stage does; the last one stays."""
    share = f"1/{ranks} of"
    words = (
        "every rank has everything",
        f"each rank keeps {share} the optimizer's states",
        f"and {share} the gradients",
        f"{share} everything; weights are gathered for each use",
    )
    for stage, (name, text) in enumerate(zip(_STAGES, words, strict=True)):
        last = stage == len(words) - 1
        motion = canvas.appears(_begins(stage)) if last else canvas.shown(_begins(stage), _begins(stage + 1))
        group = canvas.group(motion, **({} if last else {"opacity": 0}))
        canvas.text(EDGE, 120, name, bold=True, parent=group)
        canvas.text(EDGE + 12 + 1.1 * text_width(name, bold=True), 120, text, parent=group)


def _gb(nbytes: float) -> str:
    """Three digits."""
    return f"{nbytes / GB:,.3g} GB" if nbytes < 1000 * GB else f"{nbytes / GB:,.0f} GB"
