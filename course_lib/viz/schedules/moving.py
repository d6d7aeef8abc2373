"""Pipeline schedules in motion: below each other on one time axis, with what a rank holds below each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from course_lib.errors import four_parts
from course_lib.schedules import Durations, Schedule, held, in_flight_over_time
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis, draw_axis
from course_lib.viz.ink.canvas import EDGE, WIDTH, Canvas, rectangles, text_width
from course_lib.viz.ink.canvas_key import KEY_LINE, draw_key, key_lines
from course_lib.viz.ink.clock import Clock, clock_of
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.ink.entries import Entry
from course_lib.viz.ink.sweep import FIRST_S, LOOP_S, Sweep, draw_sweep
from course_lib.viz.schedules.lanes import key_of, shade
from course_lib.viz.schedules.runs import Run, bubble_words, percent, simulate

_LEFT, _KEY = 84.0, 92.0  # right of the ranks' names; the first line of the key
_NAME, _HOLDS, _BELOW, _AXIS = 24.0, 26.0, 16.0, 52.0
_MOST = 4
_ONES = Durations()


def animate_schedules(
    schedules: Mapping[str, Schedule],
    durations: Durations | Sequence[Durations] = _ONES,
    *,
    title: str = "The same work under several schedules",
) -> Drawing:
    """Each schedule's lanes, and below them how many micro-batches its fullest rank has in flight.

    A line sweeps over all of them. Of a rank with v stages, a micro-batch at one of them counts 1/v.
    Raises: ValueError for no schedules or more than 4, a name that is too long, and what `plot_schedule` refuses.
    """
    if not 1 <= len(schedules) <= _MOST:
        values, rule = f"{len(schedules)} schedules", f"this picture holds 1 to {_MOST}"
        raise ValueError(four_parts("animate_schedules", values, rule, "draw two pictures"))
    runs = {name: simulate("animate_schedules", one, durations) for name, one in schedules.items()}
    reach, lane = max(run.end_s for run in runs.values()), _lane(runs)
    clock, sweep = clock_of(durations, reach), Sweep(_LEFT, WIDTH - EDGE, reach)
    key = [*key_of([*runs.values()]), Entry("micro-batch 0", [style.INK], striped=True)]
    top = _KEY + KEY_LINE * len(key_lines(key)) - 4
    tall = sum(_NAME + lane * run.schedule.n_ranks + _HOLDS + _BELOW for run in runs.values())
    subtitle = "below each: the micro-batches in flight on its fullest rank"
    for name, run in runs.items():
        if text_width(name, bold=True) + text_width(_result(run, clock)) > WIDTH - 2 * EDGE - 12:
            rule = "a schedule's name and its result fit on one line"
            raise ValueError(four_parts("animate_schedules", f"schedule {name!r}", rule, "shorten it"))
    canvas = Canvas(top + tall + _AXIS, title, subtitle, kinds=["formula"], lasts_s=LOOP_S, begins_s=FIRST_S)
    draw_key(canvas, key, _KEY)
    y, most = top, max(map(_most, runs.values()))
    for run in runs.values():
        _draw_run(canvas, run, sweep, y + _NAME, lane)
        foot = y + _NAME + lane * run.schedule.n_ranks + _HOLDS
        _draw_holds(canvas, run, sweep, foot - _HOLDS + 4, most)
        draw_sweep(canvas, sweep, y + _NAME - 3, foot + 2)  # not over the names, which may reach beyond time 0
        y = foot + _BELOW
    _draw_words(canvas, runs, clock, sweep, top, lane)
    draw_axis(canvas, Axis(_LEFT, WIDTH - EDGE, reach * clock.factor), y + 4, clock.axis)
    lines = [f"  {name}: {bubble_words(run, clock)}; {_holds_words(run)}" for name, run in runs.items()]
    return Drawing(canvas, title=title, description="\n".join([subtitle, *lines]), kinds=["formula"])


def _lane(runs: Mapping[str, Run]) -> float:
    """Pixels of one rank, so that large pipelines are no taller than they must be."""
    return max(8.0, min(14.0, 52.0 / max(run.schedule.n_ranks for run in runs.values())))


def _fullest(run: Run) -> int:
    return max(range(run.schedule.n_ranks), key=lambda rank: held(run.schedule, rank).in_flight)


def _most(run: Run) -> float:
    return held(run.schedule, _fullest(run)).in_flight / run.schedule.stages_per_rank


def _holds_words(run: Run) -> str:
    return f"at most {_most(run):.3g} in flight, on rank {_fullest(run)}"


def _result(run: Run, clock: Clock) -> str:
    idle = percent(min(run.idle_shares))
    return f"step {clock.says(run.end_s)}, idle {idle}, at most {_most(run):.3g} in flight"


def _draw_run(canvas: Canvas, run: Run, sweep: Sweep, top: float, lane: float) -> None:
    """Idle time, on it every computation, and the way of the first micro-batch."""
    group = canvas.group(stroke=style.PAPER, stroke_width=0.7)
    idle = [(_LEFT, top + rank * lane, sweep.x(run.end_s) - _LEFT, lane) for rank in range(run.schedule.n_ranks)]
    canvas.path(rectangles(idle), fill=style.IDLE, parent=group)
    found: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    first = []
    for slot in run.computed:
        wide = sweep.x(slot.end_s) - sweep.x(slot.start_s)
        box = (sweep.x(slot.start_s), top + slot.rank * lane, wide, lane)
        found[shade(style.COMPUTE[run.what(slot)], run.chunk(slot), run.schedule.stages_per_rank)].append(box)
        first += [box] if slot.instruction.microbatch == 0 else []
    for hue, some in found.items():
        canvas.path(rectangles(some), fill=hue, parent=group)
    inner = [(x + 0.8, y + 0.8, wide - 1.6, tall - 1.6) for x, y, wide, tall in first]
    canvas.path(rectangles(inner), fill="none", stroke=style.INK, stroke_width=1.6)


def _draw_holds(canvas: Canvas, run: Run, sweep: Sweep, top: float, most: float) -> None:
    """Steps up with each forward, down with each backward."""
    foot, high = top + _HOLDS - 6, _HOLDS - 6
    d, v = f"M{_LEFT:g} {foot:g}", run.schedule.stages_per_rank
    for time, number in in_flight_over_time(run.slots, _fullest(run)):
        d += f"H{sweep.x(time):.5g}V{foot - high * number / v / most:.5g}"
    canvas.path(f"{d}V{foot:g}z", fill=style.COMPUTE["forward"], stroke=style.INK, stroke_width=0.8)


def _draw_words(canvas: Canvas, runs: Mapping[str, Run], clock: Clock, sweep: Sweep, top: float, lane: float) -> None:
    """Names, and at its end what each schedule took, idled and held."""
    for name, run in runs.items():
        ranks, at = run.schedule.n_ranks, sweep.passes(run.end_s)
        group = canvas.group(canvas.appears(at))
        canvas.text(EDGE, top + 10, name, bold=True)
        words = _result(run, clock)
        canvas.text(WIDTH - EDGE, top + 10, words, align="end", parent=group)
        canvas.box(sweep.x(run.end_s) - 1, top + _NAME - 3, 2, lane * ranks + 6, fill=style.INK, parent=group)
        for rank in {0, ranks - 1}:
            y = top + _NAME + (rank + 0.5) * lane
            canvas.text(EDGE, y, f"rank {rank}", size=12.5, colour=style.SOFT)
        canvas.text(EDGE, top + _NAME + lane * ranks + _HOLDS / 2 + 2, "in flight", size=12.5, colour=style.SOFT)
        top += _NAME + lane * ranks + _HOLDS + _BELOW
