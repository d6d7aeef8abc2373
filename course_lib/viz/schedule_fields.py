"""A pipeline schedule turned by its controls: who computes when, what is idle, what is held."""

from __future__ import annotations

from course_lib.costs.comm.pipeline import pipeline_bubble_s
from course_lib.errors import four_parts
from course_lib.schedules import SCHEDULES, Durations, bubble_s, make_schedule
from course_lib.viz import explorer
from course_lib.viz.explorer import Explorer
from course_lib.viz.held import held_by_rank
from course_lib.viz.picture import Picture
from course_lib.viz.schedule_runs import MOST_RANKS, clock_of, percent, rank_words, simulate
from course_lib.viz.schedules import draw_schedule, title_of
from course_lib.viz.style import course_style

_OPERATION = "schedule_explorer"
_MOST_MICROBATCHES, _MOST_STAGES, _MOST_MS = 32, 4, 1000


def schedule_explorer(ranks: int = 4, microbatches: int = 8, schedule: str = "1f1b") -> Explorer:
    """Controls for a schedule and its durations, above its lanes, its bubble and what each rank holds.

    F, B and W are the milliseconds of one micro-batch on one rank: forward, gradient of the input, gradients of the
    weights. Stages per rank are for interleaving alone; under other schedules that control is off.
    Raises: ValueError for what no schedule or no picture has.
    """
    if schedule not in SCHEDULES:
        rule, way_out = "no schedule is called so", f"choose one of {', '.join(SCHEDULES)}"
        raise ValueError(four_parts(_OPERATION, f"schedule={schedule!r}", rule, way_out))
    names, stages = explorer.choice("schedule", schedule, SCHEDULES), explorer.number("stages per rank", 2)

    def switch(_: object = None) -> None:
        stages.disabled = names.value != "interleaved"

    names.observe(switch, names="value")
    switch()
    return Explorer(
        _draw,
        {
            "ranks": explorer.number("ranks", ranks),
            "microbatches": explorer.number("micro-batches", microbatches),
            "schedule": names,
            "stages_per_rank": stages,
            "forward_ms": explorer.decimal("F (ms)", 1.0),
            "backward_input_ms": explorer.decimal("B (ms)", 1.0),
            "backward_weight_ms": explorer.decimal("W (ms)", 1.0),
        },
    )


@course_style()
def _draw(
    *,
    ranks: int,
    microbatches: int,
    schedule: str,
    stages_per_rank: int,
    forward_ms: float,
    backward_input_ms: float,
    backward_weight_ms: float,
) -> Picture:
    """One schedule, with its bubble by its list and by the formula."""
    _check("ranks", ranks, MOST_RANKS)
    _check("micro-batches", microbatches, _MOST_MICROBATCHES)
    v = stages_per_rank if schedule == "interleaved" else 1
    _check("stages per rank", v, _MOST_STAGES)
    passes = {"F": forward_ms, "B": backward_input_ms, "W": backward_weight_ms}
    for name, milliseconds in passes.items():
        if not 0 < milliseconds <= _MOST_MS:
            rule = f"a pass takes more than 0 and at most {_MOST_MS} ms"
            raise ValueError(four_parts(_OPERATION, f"{name}={milliseconds:g} ms", rule, "give such a number"))
    f, b, w = (milliseconds / 1e3 for milliseconds in passes.values())
    durations = Durations(forward_s=f, backward_input_s=b, backward_weight_s=w)
    run = simulate(_OPERATION, make_schedule(schedule, ranks, microbatches, stages_per_rank=v), durations)
    clock = clock_of(durations, run.end_s)
    formula = pipeline_bubble_s(
        schedule,
        n_ranks=ranks,
        n_microbatches=microbatches,
        stages_per_rank=v,
        forward_s=f,
        backward_input_s=b,
        backward_weight_s=w,
    )
    bubble = bubble_s(run.computed, ranks)
    both = f"{clock.says(bubble)} by the list, {clock.says(formula)} by the formula"
    subtitle = f"step {clock.says(run.end_s)}, bubble {both}: {percent(bubble / run.end_s)} of the step"
    columns = {"idle": [percent(share) for share in run.idle_shares]}
    for kind, numbers in held_by_rank(run.schedule).items():
        if any(numbers):
            columns[kind] = [f"{number:.3g}" for number in numbers]
    title = title_of(run.schedule)
    figure = draw_schedule(run, clock, columns, title, subtitle)
    return Picture(
        figure, title=title, description="\n".join([subtitle, *rank_words(run, clock, columns)]), kinds=["formula"]
    )


def _check(what: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise ValueError(four_parts(_OPERATION, f"{what}={number}", f"this picture holds 1 to {most}", "give as many"))
