"""A short table of policies: their degrees, how long a step takes, and what the fullest GPU holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from course_lib.planner.reasons import Ranked
from course_lib.sim.policies import RECOMPUTE, SCHEDULES
from course_lib.units import GiB
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_width
from course_lib.viz.schedules.runs import NAMES

ROW = 25.0  # pixels
_APART, _PAD = 28.0, 6.0  # the most between columns; around the row that is chosen
_DEGREES = ("dp", "tp", "pp", "cp", "ep")
_OF_WORDS = ("schedule", "recompute")  # columns that begin where their names do

Row = Mapping[str, str]  # by column, what stands in a cell


def row_of(policy: Mapping[str, float], memory_bytes: float) -> dict[str, str]:
    """What a policy is and needs; 0 bytes stand for a memory that is not known."""
    cells = {name: f"{policy[name]:.0f}" for name in _DEGREES}
    turns = f" × {policy['stages_per_rank']:.0f}" if policy["stages_per_rank"] > 1 else ""
    schedule = SCHEDULES[int(policy["schedule"])]
    return cells | {
        "ZeRO": f"{policy['zero_stage']:.0f}",
        "schedule": NAMES.get(schedule, schedule) + turns if policy["pp"] > 1 else "–",
        "micro-batches": f"{policy['n_microbatches']:.0f} of {policy['micro_batch']:.0f}",
        "recompute": RECOMPUTE[int(policy["recompute"])],
        "GiB": f"{memory_bytes / GiB:,.1f}" if memory_bytes else "–",
    }


def rows_of(policies: Sequence[Ranked]) -> list[Row]:
    """Several policies with their steps, the fastest first."""
    first = policies[0].step_s
    rows: list[Row] = []
    for number, one in enumerate(policies, start=1):
        slower = f"{one.step_s / first - 1:+.1%}" if number > 1 else ""
        times = {"step": style.seconds(one.step_s), "slower": slower, "MFU": f"{one.mfu:.1%}"}
        rows.append({"no.": f"{number}", **row_of(one.policy, one.memory_bytes), **times})
    return rows


def draw_table(canvas: Canvas, rows: Sequence[Row], top: float, *, chosen: int = 0, wrong: Sequence[str] = ()) -> None:
    """Names of columns at `top`, rows below; the chosen one is on a ground of its own, `wrong` columns stand out."""
    wide = {
        name: max(text_width(words, SMALL, bold=True) for words in (name, *(row[name] for row in rows)))
        for name in rows[0]
    }
    apart = min(_APART, (WIDE - 2 * WIDE_EDGE - sum(wide.values())) / (len(wide) - 1))
    lefts = accumulate(wide.values(), lambda x, width: x + width + apart, initial=WIDE_EDGE)
    ground = top + ROW * (chosen + 0.5)
    canvas.box(WIDE_EDGE - _PAD, ground, WIDE - 2 * (WIDE_EDGE - _PAD), ROW, fill=style.FAINT, corner=5)
    for (name, width), left in zip(wide.items(), lefts, strict=False):
        x, align = (left, "start") if name in _OF_WORDS else (left + width, "end")
        canvas.text(x, top, name, size=SMALL, colour=style.SOFT, align=align)
        for number, row in enumerate(rows):
            look = {"colour": style.WRONG, "bold": True} if name in wrong else {"bold": number == chosen}
            canvas.text(x, top + ROW * (number + 1), row[name], size=SMALL, align=align, **look)
