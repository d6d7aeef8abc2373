"""A pipeline schedule turned by its controls: who computes when, what is idle, what is held."""

from __future__ import annotations

from typing import Any

from course_lib.costs.comm.pipeline import pipeline_bubble_s
from course_lib.errors import four_parts
from course_lib.schedules import SCHEDULES, Durations, bubble_s, make_schedule
from course_lib.viz.ink.clock import clock_of
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.schedules.chart import draw_schedule, title_of
from course_lib.viz.schedules.runs import MOST_RANKS, NAMES, Run, held_by_rank, percent, rank_words, simulate
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Values
from course_lib.viz.widgets.explorer import Explorer

_OPERATION = "schedule_explorer"
_MOST_MICROBATCHES, _MOST_STAGES = 32, 4
_MS = [0.25 * quarter for quarter in range(1, 13)]  # of a pass
_REACHES_S = [0.04 * 2**step for step in range(6)]


def schedule_explorer(ranks: int = 4, microbatches: int = 8, schedule: str = "1f1b") -> Explorer:
    """Controls for a schedule and its durations, above its lanes, its bubble and what each rank holds.

    F, B and W are the milliseconds of one micro-batch on one rank: forward, gradient of the input, gradients of the
    weights. Stages per rank are for interleaving alone; under other schedules that control is off. An outline is
    the step before.
    Raises: ValueError for what no schedule or no picture has.
    """
    return Explorer(schedule_panel(ranks, microbatches, schedule))


def schedule_panel(ranks: int = 4, microbatches: int = 8, schedule: str = "1f1b") -> Panel:
    """The same without widgets.

    Raises: ValueError for what no schedule or no picture has.
    """
    if schedule not in SCHEDULES:
        rule, way_out = "no schedule is called so", f"choose one of {', '.join(SCHEDULES)}"
        raise ValueError(four_parts(_OPERATION, f"schedule={schedule!r}", rule, way_out))
    stages = range(1, _MOST_STAGES + 1)
    return Panel(
        draw=_draw,
        controls={
            "schedule": controls.choice("schedule", schedule, {NAMES.get(name, name): name for name in SCHEDULES}),
            "ranks": controls.slider("ranks", ranks, range(1, MOST_RANKS + 1)),
            "microbatches": controls.slider("micro-batches", microbatches, range(1, _MOST_MICROBATCHES + 1)),
            "stages_per_rank": controls.slider("stages per rank", 2, stages, only_with=("schedule", "interleaved")),
            "forward_ms": controls.slider("F (ms)", 1.0, _MS),
            "backward_input_ms": controls.slider("B (ms)", 1.0, _MS),
            "backward_weight_ms": controls.slider("W (ms)", 1.0, _MS),
        },
        presets={
            **{NAMES.get(name, name): {"schedule": name} for name in SCHEDULES},
            "8 micro-batches": {"microbatches": 8},
            "32 micro-batches": {"microbatches": 32},
            "a slow forward": {"forward_ms": 2.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0},
            "even passes": {"forward_ms": 1.0, "backward_input_ms": 1.0, "backward_weight_ms": 1.0},
        },
        compares=True,
    )


def _draw(*, before: Values | None, **now: Any) -> Drawing:
    """One schedule, with its bubble by its list and by the formula, and where the step ended before."""
    run, durations = _run(**now)
    clock = clock_of(durations, run.end_s)
    formula = pipeline_bubble_s(
        now["schedule"],
        n_ranks=now["ranks"],
        n_microbatches=now["microbatches"],
        stages_per_rank=run.schedule.stages_per_rank,
        forward_s=durations.forward_s,
        backward_input_s=durations.backward_input_s,
        backward_weight_s=durations.backward_weight_s,
    )
    bubble = bubble_s(run.computed, now["ranks"])
    both = f"{clock.says(bubble)} by the list, {clock.says(formula)} by the formula"
    subtitle = f"step {clock.says(run.end_s)}, bubble {both}: {percent(bubble / run.end_s)} of the step"
    columns = {"idle": [percent(share) for share in run.idle_shares]}
    for kind, numbers in held_by_rank(run.schedule).items():  # all kinds, so that the axis keeps its place
        columns[kind] = [f"{number:.3g}" for number in numbers]
    reach_s, before_s = _reach_of(run.end_s), _run(**before)[0].end_s if before else 0.0
    title = title_of(run.schedule)
    canvas = draw_schedule(run, clock, columns, title, subtitle, reach_s=reach_s, before_s=before_s)
    words = [f"  before: step {clock.says(before_s)}"] if before_s else []
    description = "\n".join([subtitle, *rank_words(run, clock, columns), *words])
    return Drawing(canvas, title=title, description=description, kinds=["formula"])


def _run(
    *,
    ranks: int,
    microbatches: int,
    schedule: str,
    stages_per_rank: int,
    forward_ms: float,
    backward_input_ms: float,
    backward_weight_ms: float,
) -> tuple[Run, Durations]:
    v = stages_per_rank if schedule == "interleaved" else 1
    f, b, w = (milliseconds / 1e3 for milliseconds in (forward_ms, backward_input_ms, backward_weight_ms))
    durations = Durations(forward_s=f, backward_input_s=b, backward_weight_s=w)
    return simulate(_OPERATION, make_schedule(schedule, ranks, microbatches, stages_per_rank=v), durations), durations


def _reach_of(end_s: float) -> float:
    """Where the axis ends: at one of a few lengths, so that it stays when a step becomes a little shorter or longer."""
    return next(reach for reach in _REACHES_S if end_s <= reach)
