"""One step of a policy in time: which stages compute, wait and send, and what follows the pipeline."""

from __future__ import annotations

from math import floor, log10

from course_lib.errors import four_parts
from course_lib.planner.policy_search import Found, policy_name
from course_lib.sim.exact import ExactStep, exact_step
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.canvas import WIDE, WIDE_EDGE, Canvas
from course_lib.viz.ink.canvas_key import KEY_LINE, draw_key, key_lines
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.planning.step_lanes import clock_of_step, draw_step, lane_height, shown_ranks, step_key, step_words
from course_lib.viz.schedules.lanes import LEFT, draw_ghost, draw_times

_MOST_PASSES = 2_500  # of a micro-batch through a stage: a quarter of a second
_KEY, _HEADS, _AXIS = 92.0, 34.0, 56.0  # the key's first line; above the lanes; below them
_REACHES = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def plot_step_timeline(found: Found, index: int = 0, *, title: str = "") -> Drawing:
    """A lane for each pipeline rank of one policy of a search, the fastest one unless `index` says another.

    Its instruction lists say when each stage computes and waits. What comes after the pipeline is drawn behind it:
    messages along dp that nothing hides, the optimizer, and host and stragglers, though these slow down the whole step.
    Units: seconds. Cost: about 10 microseconds for each instruction.
    Raises: ValueError for a search that found nothing, or a policy of too many instructions.
    """
    step, job = exact_step_of(found, index), found.job
    title = title or f"One step of {job.model.name} on {job.cluster.n_gpus:,} GPUs"
    subtitle = policy_name(found.policies, index)
    axis = timeline_axis(step.step_s)
    canvas = Canvas(_KEY + timeline_height(step, axis), title, subtitle, width=WIDE, kinds=["formula"])
    draw_timeline(canvas, step, axis, _KEY)
    words = "\n".join([subtitle, timeline_head(step, job.cluster.n_gpus), *step_words(step)])
    return Drawing(canvas, title=title, description=words, kinds=["formula"])


def exact_step_of(found: Found, index: int) -> ExactStep:
    """One policy on its instruction lists.

    Raises: ValueError for a search that found nothing, or a policy of too many instructions.
    """
    if found.nearest:
        rule = "a timeline is of a policy that is possible"
        raise ValueError(four_parts("plot_step_timeline", "no policy", rule, "look at found.nearest"))
    if words := too_long(found, index):
        rule = f"a picture times at most {_MOST_PASSES:,} passes through a stage one by one"
        raise ValueError(four_parts("plot_step_timeline", words, rule, "give a smaller batch"))
    return exact_step(found.job, found.policies, index)


def too_long(found: Found, index: int) -> str:
    """Which micro-batches go through which stages, if they are too many to be timed one by one; else nothing."""
    one = found.policies.one(index)
    m, stages = int(one["n_microbatches"]), int(one["pp"] * one["stages_per_rank"])
    return f"{m:,} micro-batches through {stages} stage{'s' * (stages > 1)}" if m * stages > _MOST_PASSES else ""


def timeline_axis(step_s: float) -> Axis:
    """It ends at a round length, so that it stays when a step becomes a little shorter or longer."""
    power = 10.0 ** floor(log10(step_s))
    reach_s = next(size * power for size in _REACHES if step_s <= size * power)
    return Axis(LEFT, WIDE - WIDE_EDGE - 8, reach_s)


def timeline_height(step: ExactStep, axis: Axis) -> float:
    """Pixels from the first line of the key to below the axis."""
    lines = len(key_lines(step_key(step, axis), WIDE - 2 * WIDE_EDGE))
    return KEY_LINE * lines + _HEADS + len(shown_ranks(step)) * lane_height(step) + _AXIS


def draw_timeline(canvas: Canvas, step: ExactStep, axis: Axis, top: float, before_s: float = 0.0) -> None:
    """The key, whose first line is at `top`, the lanes, the axis, and an outline of a step that ended at `before_s`."""
    key, clock = step_key(step, axis), clock_of_step(step)
    draw_key(canvas, key, top)
    top += KEY_LINE * len(key_lines(key, WIDE - 2 * WIDE_EDGE)) + _HEADS - 8
    bottom = top + len(shown_ranks(step)) * lane_height(step)
    draw_step(canvas, step, axis, top)
    draw_times(canvas, clock, axis, bottom + 16, step.step_s)
    draw_ghost(canvas, clock, axis, before_s, top, bottom)


def timeline_head(step: ExactStep, n_gpus: int) -> str:
    """How long it takes, and what a lane is."""
    ranks, shown = step.schedule.n_ranks, len(shown_ranks(step))
    alike = n_gpus // ranks
    each = f"a lane is {alike:,} GPUs that do the same" if alike > 1 else "a lane is one GPU"
    lanes = f"{shown} of {ranks} lanes, {each}" if shown < ranks else each
    return f"step {style.seconds(step.step_s)}, played through; {lanes}"
