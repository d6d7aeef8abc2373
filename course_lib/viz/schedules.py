"""Pipeline schedules in time: one with all its numbers, or several below each other on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_lib.errors import four_parts
from course_lib.schedules import Durations, Schedule
from course_lib.viz import marks, style
from course_lib.viz.keys import LINE, draw_key, lines_of
from course_lib.viz.picture import Picture
from course_lib.viz.schedule_lanes import LEFT, draw_lanes, key_of, lane_axes, mark_before, mark_end
from course_lib.viz.schedule_runs import NAMES, Clock, Run, bubble_words, clock_of, rank_words, simulate

_LANE, _THIN = 0.46, 0.24  # inches: one rank, alone and among several schedules
_NAME, _BELOW = 0.34, 0.18  # inches above and below one of several schedules
_MOST = 6
_ONES = Durations()


@style.course_style()
def plot_schedule(
    schedule: Schedule,
    durations: Durations | Sequence[Durations] = _ONES,
    *,
    message_s: float = 0.0,
    upto_s: float = 0.0,
    title: str = "",
    subtitle: str = "",
) -> Picture:
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
    figure = draw_schedule(run, clock, columns, title, subtitle, of=whole)
    said = {} if upto_s else columns
    return Picture(
        figure, title=title, description="\n".join([subtitle, *rank_words(run, clock, said)]), kinds=["formula"]
    )


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
) -> Figure:
    """The lanes of one run, and right of them in columns what there is to say of each rank.

    The axis ends with the step, or at `reach_s`; a line at `before_s` says when another step ended. If it is the
    beginning `of` another run, it has that one's axis, legend and room for the columns, and they are still empty.
    """
    of = of or run
    key, tall = key_of([of]), _LANE * run.schedule.n_ranks
    top = style.HEADER + 0.36 + LINE * len(lines_of(key, LEFT))
    figure, page = style.new_page(top + tall + 0.86, title, subtitle)
    draw_key(page, key, LEFT)
    wide = {name: max(style.text_width(text) for text in (name, *cells)) + 0.26 for name, cells in columns.items()}
    width = style.PAGE_WIDTH - style.MARGIN - LEFT - sum(wide.values())
    axes = style.chart_axes(figure, LEFT, top, width, tall)
    lane_axes(axes, run.schedule.n_ranks, clock, reach_s or of.end_s, size=style.BASE_SIZE)
    draw_lanes(axes, run, clock, width)
    mark_end(axes, clock, run.end_s, width)
    if before_s:
        mark_before(axes, clock, before_s)
    right = LEFT + width
    for name, cells in columns.items() if of is run else ():
        right += wide[name]
        marks.label(page, right, top - 0.18, name, size=style.SMALL_SIZE, colour=style.SOFT, align="right")
        for rank, cell in enumerate(cells):
            marks.label(page, right, top + (rank + 0.5) * _LANE, cell, align="right")
    return figure


def title_of(schedule: Schedule) -> str:
    """What a schedule is called, and how many of everything it has."""
    p, m, v = schedule.n_ranks, schedule.n_microbatches, schedule.stages_per_rank
    stages = f" with {v} stages each" if v > 1 else ""
    return (
        f"{NAMES.get(schedule.name, schedule.name)}: {p} rank{'s' * (p > 1)}{stages}, {m} micro-batch{'es' * (m > 1)}"
    )


@style.course_style()
def plot_schedules(
    schedules: Mapping[str, Schedule],
    durations: Durations | Sequence[Durations] = _ONES,
    *,
    message_s: float = 0.0,
    title: str = "The same work under several schedules",
    subtitle: str = "the bubble of a step is the idle time of its busiest rank",
) -> Picture:
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
    figure = draw_panels(runs, clock, lane=_THIN, title=title, subtitle=subtitle)
    return Picture(figure, title=title, description="\n".join([subtitle, *panel_words(runs, clock)]), kinds=["formula"])


def draw_panels(runs: Mapping[str, Run], clock: Clock, *, lane: float, title: str, subtitle: str) -> Figure:
    """Each run's lanes of `lane` inches below its name, its step and its bubble, all on one time axis."""
    key = key_of(list(runs.values()))
    top = style.HEADER + 0.14 + LINE * len(lines_of(key, LEFT))
    tall = sum(_NAME + run.schedule.n_ranks * lane + _BELOW for run in runs.values())
    figure, page = style.new_page(top + tall + 0.66, title, subtitle)
    draw_key(page, key, LEFT)
    width, reach = style.PAGE_WIDTH - style.MARGIN - LEFT - 0.1, max(run.end_s for run in runs.values())
    for number, (name, run) in enumerate(runs.items(), start=1):
        marks.label(page, LEFT, top + 0.14, name, bold=True, align="left")
        x = LEFT + style.text_width(name, weight=600) + 0.16
        words = bubble_words(run, clock, ideal=False)
        if x + style.text_width(words, style.SMALL_SIZE) > style.PAGE_WIDTH - style.MARGIN:
            rule = "a schedule's name, its step and its bubble fit on one line"
            raise ValueError(four_parts("plot_schedules", f"schedule {name!r}", rule, "shorten it"))
        marks.label(page, x, top + 0.14, words, size=style.SMALL_SIZE, colour=style.SOFT, align="left")
        high = run.schedule.n_ranks * lane
        axes = style.chart_axes(figure, LEFT, top + _NAME, width, high)
        lane_axes(axes, run.schedule.n_ranks, clock, reach, size=style.SMALL_SIZE, last=number == len(runs))
        draw_lanes(axes, run, clock, width)
        top += _NAME + high + _BELOW
    return figure


def panel_words(runs: Mapping[str, Run], clock: Clock) -> list[str]:
    """A line for each run."""
    return [f"  {name}: {bubble_words(run, clock)}" for name, run in runs.items()]
