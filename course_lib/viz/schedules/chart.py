"""Pipeline schedules in time: one with all its numbers, or several below each other on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.errors import four_parts
from course_lib.schedules import Durations, Schedule
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.canvas import SMALL, WIDE, WIDE_EDGE, Canvas, text_width
from course_lib.viz.ink.canvas_key import KEY_LINE, draw_key, key_lines
from course_lib.viz.ink.clock import Clock, clock_of
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.schedules.lanes import LEFT, draw_ghost, draw_lanes, draw_times, key_of
from course_lib.viz.schedules.runs import NAMES, Run, bubble_words, rank_words, simulate

_KEY = 92.0  # the first line of the key
_LANE, _THIN = 38.0, 20.0  # of one rank, alone and among several schedules
_COLUMN, _APART = 50.0, 22.0  # the least of a column, so that the lanes keep their place; before each
_HEADS, _AXIS = 24.0, 56.0  # above the lanes, for what stands over columns; below them
_NAME, _BELOW = 28.0, 15.0  # above and below one of several schedules
_MOST = 6
_ONES = Durations()


def plot_schedule(
    schedule: Schedule,
    durations: Durations | Sequence[Durations] = _ONES,
    *,
    message_s: float = 0.0,
    upto_s: float = 0.0,
    title: str = "",
    subtitle: str = "",
) -> Drawing:
    """A lane for each rank, a box for each computation with its micro-batch's number, and the idle part of the step.

    `durations` hold for all ranks, or are one for each. With `upto_s` the picture has all its room, but only what has
    ended by then, and says nothing of how the step ends: so it can be built up.
    Units: seconds; or forward passes, where some rank's forward takes exactly 1.
    Raises: ValueError for more than 8 ranks, another number of durations than ranks, lists that cannot run, or if
        nothing has ended by `upto_s`.
    """
    whole = simulate("plot_schedule", schedule, durations, message_s)
    run = _begun(whole, upto_s) if upto_s else whole
    columns = {"idle": [f"{share:.0%}" for share in whole.idle_shares]}
    clock = clock_of(durations, whole.end_s)
    words = f"the first {clock.says(run.end_s)}" if upto_s else bubble_words(run, clock)
    title, subtitle = title or title_of(schedule), subtitle or words
    canvas = draw_schedule(run, clock, columns, title, subtitle, of=whole)
    said = "\n".join([subtitle, *rank_words(run, clock, {} if upto_s else columns)])
    return Drawing(canvas, title=title, description=said, kinds=["formula"])


def _begun(run: Run, upto_s: float) -> Run:
    begun = run.upto(upto_s)
    ranks = {slot.rank for slot in begun.computed}
    if len(ranks) < run.schedule.n_ranks:
        rule = "each rank has done something by then"
        raise ValueError(four_parts("plot_schedule", f"upto_s={upto_s:g}", rule, "choose a later time"))
    return begun


def draw_schedule(
    run: Run,
    clock: Clock,
    columns: Mapping[str, Sequence[str]],
    title: str,
    subtitle: str,
    *,
    reach_s: float = 0.0,
    before_s: float = 0.0,
    of: Run | None = None,
) -> Canvas:
    """The lanes of one run, and right of them in columns what there is to say of each rank.

    The axis ends with the step, or at `reach_s`; an outline that ends at `before_s` is another step. If it is
    the beginning `of` another run, it has that one's axis, legend and room for the columns, and they are still empty.
    """
    of = of or run
    key, tall = key_of([of]), _LANE * run.schedule.n_ranks
    top = _KEY + KEY_LINE * len(key_lines(key, WIDE - 2 * WIDE_EDGE)) + _HEADS - 8
    canvas = Canvas(top + tall + _AXIS, title, subtitle, width=WIDE, kinds=["formula"])
    draw_key(canvas, key, _KEY)
    wide = {name: max(_COLUMN, *map(text_width, (name, *cells))) + _APART for name, cells in columns.items()}
    axis = Axis(LEFT, WIDE - WIDE_EDGE - sum(wide.values()), reach_s or of.end_s)
    draw_lanes(canvas, run, clock, axis, top, _LANE)
    draw_times(canvas, clock, axis, top + tall + 16, run.end_s)
    draw_ghost(canvas, clock, axis, before_s, top, top + tall)
    right = axis.right
    for name, cells in columns.items() if of is run else ():
        right += wide[name]
        canvas.text(right, top - 16, name, size=SMALL, colour=style.SOFT, align="end")
        for rank, cell in enumerate(cells):
            canvas.text(right, top + (rank + 0.5) * _LANE, cell, align="end")
    return canvas


def title_of(schedule: Schedule) -> str:
    """What a schedule is called, and how many of everything it has."""
    p, m, v = schedule.n_ranks, schedule.n_microbatches, schedule.stages_per_rank
    stages = f" with {v} stages each" if v > 1 else ""
    return (
        f"{NAMES.get(schedule.name, schedule.name)}: {p} rank{'s' * (p > 1)}{stages}, {m} micro-batch{'es' * (m > 1)}"
    )


def plot_schedules(
    schedules: Mapping[str, Schedule],
    durations: Durations | Sequence[Durations] = _ONES,
    *,
    message_s: float = 0.0,
    title: str = "The same work under several schedules",
    subtitle: str = "the bubble of a step is the idle time of its busiest rank",
) -> Drawing:
    """The lanes of each schedule below its name, on one time axis, with its step and its bubble.

    `durations` hold for all ranks, or are one for each.
    Units: seconds; or forward passes, where some rank's forward takes exactly 1.
    Raises: ValueError for no schedules or more than 6, a name that is too long, and what `plot_schedule` refuses.
    """
    if not 1 <= len(schedules) <= _MOST:
        values, rule = f"{len(schedules)} schedules", f"this picture holds 1 to {_MOST}"
        raise ValueError(four_parts("plot_schedules", values, rule, "draw two pictures"))
    runs = {name: simulate("plot_schedules", one, durations, message_s) for name, one in schedules.items()}
    clock = clock_of(durations, max(run.end_s for run in runs.values()))
    canvas = draw_panels(runs, clock, lane=_THIN, title=title, subtitle=subtitle)
    words = "\n".join([subtitle, *panel_words(runs, clock)])
    return Drawing(canvas, title=title, description=words, kinds=["formula"])


def draw_panels(
    runs: Mapping[str, Run],
    clock: Clock,
    *,
    lane: float,
    title: str,
    subtitle: str,
    kinds: Sequence[Kind] = ("formula",),
) -> Canvas:
    """Each run's lanes, `lane` tall, below its name, its step and its bubble, all on one time axis."""
    key = key_of(list(runs.values()))
    top = _KEY + KEY_LINE * len(key_lines(key, WIDE - 2 * WIDE_EDGE)) - 8
    tall = sum(_NAME + run.schedule.n_ranks * lane + _BELOW for run in runs.values())
    canvas = Canvas(top + tall + _AXIS - _BELOW, title, subtitle, width=WIDE, kinds=kinds)
    draw_key(canvas, key, _KEY)
    axis = Axis(LEFT, WIDE - WIDE_EDGE - 8, max(run.end_s for run in runs.values()))
    for name, run in runs.items():
        x, words = LEFT + text_width(name, bold=True) + 12, bubble_words(run, clock, ideal=False)
        if x + text_width(words, SMALL) > WIDE - WIDE_EDGE:
            rule = "a schedule's name, its step and its bubble fit on one line"
            raise ValueError(four_parts("plot_schedules", f"schedule {name!r}", rule, "shorten it"))
        canvas.text(LEFT, top + 12, name, bold=True)
        canvas.text(x, top + 12, words, size=SMALL, colour=style.SOFT)
        draw_lanes(canvas, run, clock, axis, top + _NAME, lane)
        top += _NAME + run.schedule.n_ranks * lane + _BELOW
    draw_times(canvas, clock, axis, top - _BELOW + 16, axis.reach)
    return canvas


def panel_words(runs: Mapping[str, Run], clock: Clock) -> list[str]:
    """A line for each run."""
    return [f"  {name}: {bubble_words(run, clock)}" for name, run in runs.items()]
