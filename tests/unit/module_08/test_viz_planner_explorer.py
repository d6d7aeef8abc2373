"""The planner explorer without a browser, and the step's timeline: what they say, how they look, what they refuse."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import numpy as np
import pytest

from course_lib import viz
from course_lib.config import LLAMA_3_1_8B
from course_lib.hardware import load_cluster
from course_lib.planner import Job, Space, policy_name, ranked, search
from course_lib.schedules import idle_s
from course_lib.sim.exact import exact_step
from course_lib.viz.ink import style
from course_lib.viz.ink.axis import Axis
from course_lib.viz.ink.cause_hues import CAUSE_HUES
from course_lib.viz.planning.step_lanes import column_edges, column_shares, shown_ranks
from course_lib.viz.planning.step_timeline import timeline_axis
from tests.unit.moving_svg import Film, boxes, drawn_texts, flaws

NODES = replace(load_cluster("dgx_h100"), n_nodes=4)
PIPELINES = Space(tp=(2,), cp=(1,), zero_stage=(1,), micro_batch=(1,), recompute=("none",))


def found(batch=32, **values):
    space = replace(PIPELINES, **values)
    return search(Job(model=LLAMA_3_1_8B, cluster=NODES, batch=batch, sequence=8192), space)


def step_of(policies, index=0):
    return exact_step(policies.job, policies.policies, index)


def paths(svg, hue):
    return [part.element.get("d") for part in Film(svg).parts("path") if part.element.get("fill", "").upper() == hue]


def bold(svg):
    return [one.element.text for one in Film(svg).parts("text") if one.element.get("font-weight") == "600"]


def test_a_step_s_boxes_are_those_of_its_lists_and_what_follows_is_behind_them():
    policies = found(pp=(4,), schedule=("1f1b",))
    picture, step = viz.plot_step_timeline(policies), step_of(policies)
    assert flaws(picture.svg) == [] and picture.kinds == ("formula",)
    (forward,), (idle,) = (paths(picture.svg, hue) for hue in (style.COMPUTE["forward"], style.IDLE))
    assert len(boxes(forward)) == 4 * step.schedule.n_microbatches
    left, _, pipeline, _ = boxes(idle)[0]
    _, host = paths(picture.svg, CAUSE_HUES["fixed"])  # the optimizer, then the host: the rest, in one colour
    assert boxes(host)[0][0] > left + pipeline - 0.1 and len(boxes(host)) == 4
    end = boxes(host)[0][0] + boxes(host)[0][2]
    assert (end - left) / pipeline == pytest.approx(step.step_s / step.pipeline_s, rel=1e-3)
    assert picture.description.splitlines()[0] == policy_name(policies.policies, 0)
    waits = idle_s([slot for slots in step.computed for slot in slots], 4)
    said = re.findall(r"pp \d: computes (\S+) s, messages (\S+) s, idle (\S+) s", picture.description)
    assert [float(idle) for *_, idle in said] == pytest.approx(waits, rel=0.01)
    assert [sum(map(float, each)) for each in said] == pytest.approx([step.pipeline_s] * 4, rel=0.01)


def test_the_parts_of_an_exact_step_add_up_to_it():
    policies = found(pp=(4,), schedule=("interleaved",), stages_per_rank=(2,))
    step = step_of(policies)
    assert step.step_s == pytest.approx(step.pipeline_s + sum(step.after_s.values()))
    assert step.after_s["fixed"] > 0 and len(step.computed) == 4
    no_tp = search(replace(policies.job), replace(PIPELINES, tp=(1,), pp=(4,), recompute=("layers",)))
    assert max(step_of(no_tp).messages_s) == 0 < min(step.messages_s)


def test_columns_hold_as_much_time_as_the_boxes_in_whose_place_they_are():
    policies = found(batch=1024, pp=(4,), schedule=("zb-h1",))
    step = step_of(policies)
    edges = column_edges(step, Axis(0.0, 700.0, step.step_s))
    for slots in step.computed:
        spent = sum(column_shares(slots, [1.0] * len(slots), edges) * np.diff(edges))
        assert spent == pytest.approx(sum(slot.end_s - slot.start_s for slot in slots))
    picture = viz.plot_step_timeline(policies)
    assert flaws(picture.svg) == [] and len(picture.svg) < 60_000
    assert boxes(paths(picture.svg, style.COMPUTE["forward"])[0]) == []  # no boxes
    names = [words for words, *_ in drawn_texts(picture.svg) if words.startswith("pp ")]
    assert names == [f"pp {rank}" for rank in range(4)]


def test_of_many_stages_some_have_a_lane_the_first_and_the_last_among_them():
    policies = found(pp=(32,), tp=(1,), zero_stage=(0,), schedule=("1f1b",))
    assert len(shown_ranks(step_of(policies))) == 16
    picture = viz.plot_step_timeline(policies)
    assert flaws(picture.svg) == [] and "16 of 32 lanes, a lane is one GPU\n" in picture.description
    assert {"pp 0", "pp 31"} <= {words for words, *_ in drawn_texts(picture.svg)}


def test_the_axis_ends_at_a_round_length():
    for step_s in (0.004, 0.13, 0.999, 1.0, 5.96, 59.4, 731.0):
        assert step_s <= timeline_axis(step_s).reach <= 1.34 * step_s
    assert timeline_axis(7.23) == timeline_axis(7.9) and timeline_axis(7.9).reach == 8


def test_a_step_that_cannot_be_drawn_is_refused_in_four_parts():
    with pytest.raises(ValueError, match=r"^plot_step_timeline: 4,096 micro-batches through 2 stages; .* batch$"):
        viz.plot_step_timeline(found(batch=4096 * 8, pp=(2,), schedule=("1f1b",)))
    with pytest.raises(ValueError, match=r"^plot_step_timeline: no policy; .*; look at found.nearest$"):
        viz.plot_step_timeline(found(batch=7))


@pytest.fixture
def small():
    explorer = viz.planner_explorer()
    explorer.presets["8B on one node"].click()
    return explorer


def shown(explorer):
    return explorer._shown.value


def test_every_preset_is_legible_and_says_the_planner_s_own_numbers():
    explorer = viz.planner_explorer()
    assert repr(explorer) == explorer.first.text == explorer.text
    assert "no. 1: dp=128 tp=8 pp=16 zero_stage=1 interleaved x 4, 16 micro-batches of 1, recompute=half" in repr(
        explorer
    )
    for button in explorer.presets.values():
        button.click()
        picture = explorer._panel.draw(before=explorer._drawn, **explorer._drawn)
        assert flaws(picture.svg) == [] and explorer._refused.value == ""
        assert picture.kinds == ("formula",) and picture.title.endswith("(formula)")


def test_the_table_is_the_planner_s_and_the_timeline_that_of_the_chosen_row(small):
    job = Job(model=LLAMA_3_1_8B, cluster=load_cluster("dgx_h100"), batch=128, sequence=8192)
    policies = search(job, Space(cp=(1,)))
    best = ranked(policies, 5)
    assert [one.name for one in best] == re.findall(r"no\. \d: (.*?); ", small.text)
    small.controls["place"].value = 3
    step = exact_step(job, policies.policies, policies.distinct[2])
    assert f"No. 3: step {style.seconds(step.step_s)}, played through; " in small.text
    assert "\n  before: step " in small.text
    assert html.escape(small.text, quote=False) in shown(small) and "<img" not in shown(small)


def test_a_slower_network_and_a_faster_gpu_change_what_they_should(small):
    first = [float(ms) for ms in re.findall(r"MFU ([\d.]+)%", small.text)]
    small.controls["peak"].value = 4
    assert small.text.splitlines()[1].endswith("layouts are possible; GPUs' peak × 4")
    assert float(re.search(r"MFU ([\d.]+)%", small.text)[1]) < first[0]
    small.presets["… network four times slower"].click()
    small.controls["gpus"].value = 1024  # of few GPUs the messages are hidden, however slow
    slow = small.text
    assert slow.splitlines()[1].endswith("; network × 0.25")
    small.presets["70B on 64 H100"].click()
    small.controls["gpus"].value = 1024
    fast = small.text
    steps = [float(re.search(r"step ([\d.]+) s, played", text)[1]) for text in (slow, fast)]
    assert steps[0] > steps[1]


def test_where_nothing_fits_the_nearest_policy_is_shown_with_what_it_lacks(small):
    small.presets["405B on 16 GPUs"].click()
    assert "0 of 7,200 layouts are possible" in small.text
    assert small.text.endswith("it lacks 382.5 GiB.") and "tp=8 pp=2 1f1b, 64 micro-batches of 1" in small.text
    small.controls["gpus"].value, small.controls["batch"].value = 16384, 8
    assert "It breaks a rule: the batch does not divide by dp x micro-batch." in small.text
    assert flaws(small._panel.draw(before=None, **small._drawn).svg) == []


def test_a_step_of_too_many_passes_leaves_the_table_and_says_why(small):
    small.presets["70B on 64 H100"].click()
    small.controls["batch"].value = 8192
    small.controls["place"].value = 3
    (micro_batches,) = re.findall(r"no\. 3: .*? ([\d,]+) micro-batches of", small.text)
    said = small.text.splitlines()[-1]
    assert said.startswith(f"No. 3 sends {int(micro_batches):,} micro-batches through ") and "no. 5: " in small.text
    assert said.endswith(" stages, too many to time. Choose a smaller batch.")
    picture = small._panel.draw(before=None, **small._drawn)
    assert next(filter(str.isdigit, bold(picture.svg))) == "3" and flaws(picture.svg) == []


def test_what_the_model_cannot_do_is_said_below_the_last_picture_which_stays(small):
    good = shown(small)
    small.controls["model"].value = "gpt3_175b"
    assert small.text.startswith("ModelConfig 'GPT-3 175B': sequence=8192; ") and "\n" not in small.text
    assert shown(small) == good and small._refused.value.startswith('<p role="alert" ')
    small.controls["sequence"].value = 2048
    assert small._refused.value == "" and small.text.startswith("GPT-3 175B on 8 × H100")
