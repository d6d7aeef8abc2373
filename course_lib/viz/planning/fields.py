"""The planner, turned by its controls: a job and what-ifs, the best policies, and one step of one of them in time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from course_lib.config import load_model
from course_lib.hardware import ClusterSpec, cluster_names, load_cluster
from course_lib.planner.policy_search import Nearest, search
from course_lib.planner.reasons import Ranked, ranked, why_slower
from course_lib.planner.space import RULES, Job, Space
from course_lib.sim.exact import ExactStep
from course_lib.sim.machine import has_constants
from course_lib.units import GiB, format_bytes
from course_lib.viz.ink import style
from course_lib.viz.ink.canvas import WIDE, WIDE_EDGE, Canvas
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.planning.policy_table import ROW, draw_table, row_of, rows_of
from course_lib.viz.planning.step_lanes import step_words
from course_lib.viz.planning.step_timeline import (
    draw_timeline,
    exact_step_of,
    timeline_axis,
    timeline_head,
    timeline_height,
    too_long,
)
from course_lib.viz.widgets import controls
from course_lib.viz.widgets.controls import Panel, Values
from course_lib.viz.widgets.explorer import Explorer

_SHOWN = 5
_TABLE, _HEAD = 92.0, 34.0  # the columns' names; from the last row to what is said below it, and on to the key
_UNDER = _TABLE + ROW * _SHOWN + _HEAD
_FACTORS = (0.125, 0.25, 0.5, 1, 2, 4)
_FIRST: dict[str, Any] = {
    **{"model": "llama3_1_405b", "cluster": "dgx_h100", "gpus": 16384, "batch": 2048, "sequence": 8192},
    **{"cut": False, "network": 1, "peak": 1, "place": 1},
}
_SMALLER = {**_FIRST, "model": "llama3_1_70b", "gpus": 64, "batch": 256}
_PRESETS = {
    "405B on 16,384 H100": _FIRST,
    "… with sequences cut": {**_FIRST, "cut": True},
    "70B on 64 H100": _SMALLER,
    "… network four times slower": {**_SMALLER, "network": 0.25},
    "8B on one node": {**_FIRST, "model": "llama3_1_8b", "gpus": 8, "batch": 128},
    "405B on 16 GPUs": {**_FIRST, "gpus": 16, "batch": 64},
}


class _Plan(NamedTuple):
    """What there is to draw."""

    job: Job
    tried: int
    possible: int
    best: list[Ranked]
    nearest: Nearest | None = None  # where nothing is possible
    chosen: int = 0  # of the best
    step: ExactStep | None = None  # of the chosen one
    without: str = ""  # where there is none, what is too much


def planner_explorer() -> Explorer:
    """Controls for a job and two what-ifs, above the best policies and one step of the chosen one.

    The search looks at every way, without cp unless sequences may be cut. Network and peak are factors on what the data
    sheets say of a GPU's way to other nodes and of its operations per second. An outline is the step before. Where no
    policy is possible, the one that comes nearest is shown with what it lacks.
    """
    clusters = {cluster.name: name for name in cluster_names() if has_constants((cluster := load_cluster(name)).device)}
    panel = Panel(
        draw=_draw,
        controls={
            "model": controls.model_choice(_FIRST["model"]),
            "cluster": controls.choice("cluster", _FIRST["cluster"], clusters),
            "cut": controls.choice("sequences", _FIRST["cut"], {"whole (cp 1)": False, "may be cut (cp)": True}),
            "gpus": controls.slider("GPUs", _FIRST["gpus"], controls.powers_of_two(8, 16384)),
            "batch": controls.slider("batch", _FIRST["batch"], controls.powers_of_two(8, 8192)),
            "sequence": controls.slider("sequence", _FIRST["sequence"], controls.powers_of_two(1024, 131_072)),
            "network": controls.slider("network ×", _FIRST["network"], _FACTORS),
            "peak": controls.slider("GPU's peak ×", _FIRST["peak"], _FACTORS),
            "place": controls.slider("timeline of no.", _FIRST["place"], range(1, _SHOWN + 1)),
        },
        presets=_PRESETS,
        compares=True,
    )
    return Explorer(panel)


def _draw(*, before: Values | None, **now: Any) -> Drawing:
    """The table, and below it the step, or what the nearest policy lacks."""
    plan, old = _plan(**now), _plan(**before) if before else None
    title = f"{plan.job.model.name} on {plan.job.cluster.n_gpus:,} × {plan.job.cluster.device.name}"
    subtitle = f"{plan.possible:,} of {plan.tried:,} layouts are possible{_what_if(now)}"
    if plan.nearest:
        return _nearest_drawn(plan.job, plan.nearest, title, subtitle)
    if not plan.step:
        return _table_drawn(plan, title, subtitle)
    step, axis = plan.step, timeline_axis(plan.step.step_s)
    before_s = old.step.step_s if old and old.step else 0.0
    height = _UNDER + _HEAD + timeline_height(step, axis)
    canvas = Canvas(height, title, subtitle, width=WIDE, kinds=["formula"])
    draw_table(canvas, rows_of(plan.best), _TABLE, chosen=plan.chosen)
    head = f"No. {plan.chosen + 1}: {timeline_head(step, plan.job.cluster.n_gpus)}"
    canvas.text(WIDE_EDGE, _UNDER, head, bold=True)
    draw_timeline(canvas, step, axis, _UNDER + _HEAD - 4, before_s)
    words = [subtitle, *_ranking(plan.best), head, *step_words(step)]
    words += [f"  before: step {style.seconds(before_s)}"] if before_s else []
    return Drawing(canvas, title=title, description="\n".join(words), kinds=["formula"])


def _table_drawn(plan: _Plan, title: str, subtitle: str) -> Drawing:
    """Without the step, and why."""
    canvas = Canvas(_UNDER + _HEAD, title, subtitle, width=WIDE, kinds=["formula"])
    draw_table(canvas, rows_of(plan.best), _TABLE, chosen=plan.chosen)
    said = f"No. {plan.chosen + 1} sends {plan.without}, too many to time. Choose a smaller batch."
    canvas.text(WIDE_EDGE, _UNDER, said)
    words = "\n".join([subtitle, *_ranking(plan.best), said])
    return Drawing(canvas, title=title, description=words, kinds=["formula"])


@lru_cache(maxsize=4)  # of the picture before, too
def _plan(*, cut: bool, place: int, **now: Any) -> _Plan:
    cluster = _changed(load_cluster(now["cluster"]), now["gpus"], now["network"], now["peak"])
    job = Job(model=load_model(now["model"]), cluster=cluster, batch=now["batch"], sequence=now["sequence"])
    found = search(job, Space() if cut else Space(cp=(1,)))
    if found.nearest:
        return _Plan(job, found.n_tried, 0, [], found.nearest)
    best = ranked(found, _SHOWN)
    chosen = min(place, len(best)) - 1
    index = found.distinct[chosen]
    without = too_long(found, index)
    step = None if without else exact_step_of(found, index)
    return _Plan(job, found.n_tried, len(found), best, None, chosen, step, without)


def _changed(cluster: ClusterSpec, gpus: int, network: float, peak: float) -> ClusterSpec:
    """As many nodes as hold the GPUs, with faster or slower links and matrix units."""
    card, device = cluster.card, cluster.device
    peaks = {dtype: peak * flops for dtype, flops in device.dense_flops_per_s.items()}
    return replace(
        cluster,
        n_nodes=gpus // cluster.gpus_per_node,
        card=replace(card, bandwidth_bytes_per_s=network * card.bandwidth_bytes_per_s),
        device=replace(device, dense_flops_per_s=peaks),
    )


def _what_if(now: Values) -> str:
    """What is not as the data sheets say."""
    changes = {"network": now["network"], "GPUs' peak": now["peak"]}
    return "".join(f"; {name} × {factor:g}" for name, factor in changes.items() if factor != 1)


def _ranking(best: list[Ranked]) -> list[str]:
    """What the table says, and why the others lose."""
    lines = [
        f"  no. {number}: {one.name}; {style.seconds(one.step_s)}, {one.memory_bytes / GiB:.1f} GiB, MFU {one.mfu:.1%}"
        for number, one in enumerate(best, start=1)
    ]
    reasons = [f"; {why_slower(one, best[0])}" for one in best[1:]]
    return [line + reason for line, reason in zip(lines, ["", *reasons], strict=True)]


def _nearest_drawn(job: Job, nearest: Nearest, title: str, subtitle: str) -> Drawing:
    """The policy that comes nearest, and below it what it lacks."""
    memory = job.room_bytes + nearest.lacking_bytes if nearest.lacking_bytes else 0.0
    said = [f"This comes nearest. It breaks a rule: {RULES[rule]}." for rule in nearest.broken]
    if memory:
        need, room, lack = map(format_bytes, (memory, job.room_bytes, nearest.lacking_bytes))
        said = [f"This comes nearest. Its fullest GPU needs {need} and has {room}: it lacks {lack}."]
    top = _TABLE + ROW + _HEAD
    canvas = Canvas(top + ROW * len(said), title, subtitle, width=WIDE, kinds=["formula"])
    row = row_of(nearest.policies.one(0), memory)
    draw_table(canvas, [row], _TABLE, wrong=["GiB"] if memory else [])
    for number, words in enumerate(said):
        canvas.text(WIDE_EDGE, top + ROW * number, words, bold=True, colour=style.WRONG)
    words = "\n".join([subtitle, f"  {nearest.in_words}", *said])
    return Drawing(canvas, title=title, description=words, kinds=["formula"])
