"""The pictures of module 08: where a step's time goes, memory against time, and goodput."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from course_lib.config import LLAMA_3_1_8B
from course_lib.hardware import load_cluster
from course_lib.planner import Job, Reliability, Space, daly_interval_s, goodput, policy_name, ranked, search
from course_lib.sim import CAUSES
from course_lib.units import GiB
from course_lib.viz import plot_goodput, plot_policy_front, plot_step_causes
from course_lib.viz.ink import style
from course_lib.viz.ink.cause_hues import CAUSE_GROUPS
from tests.unit.test_viz_pictures import drawn_texts, flaws

RUN = Reliability(mtbf_s=11_000.0, checkpoint_s=3.0, restart_s=600.0)


@pytest.fixture(scope="module")
def found():
    job = Job(model=LLAMA_3_1_8B, cluster=load_cluster("dgx_h100"), batch=16, sequence=8192)
    return search(job, Space(cp=(1,), micro_batch=(1,), schedule=("1f1b", "interleaved"), stages_per_rank=(2,)))


def test_a_bar_is_as_long_as_its_step_and_its_causes_are_said(found):
    policies = ranked(found, 3)
    picture = plot_step_causes(policies)
    assert list(flaws(picture.figure)) == [] and picture.kinds == ("formula",)
    chart = picture.figure.axes[1]
    ends = [patch.get_x() + patch.get_width() for patch in chart.patches]
    groups = len(CAUSE_GROUPS)
    assert ends[groups - 1 :: groups] == pytest.approx([one.step_s for one in policies])
    assert {cause for _, causes in CAUSE_GROUPS.values() for cause in causes} == {*CAUSES}
    assert len({hue for hue, _ in CAUSE_GROUPS.values()}) == groups  # and no two of them look alike
    assert all(one.name in picture.description for one in policies)
    texts = [text for text, _, _ in drawn_texts(picture.figure)]
    behind = [one.step_s / policies[0].step_s - 1 for one in policies[1:]]
    assert {f"+{share:.{int(share < 0.1)}%}" for share in behind} < {*texts}  # a decimal only where it says something
    backwards = [text for text, _, _ in drawn_texts(plot_step_causes(policies[::-1]).figure)]
    assert sorted(backwards) == sorted(texts) and texts.count("fastest") == 1  # wherever the fastest stands
    with pytest.raises(ValueError, match=r"^plot_step_causes: 0 policies; "):
        plot_step_causes([])


def test_the_front_is_a_line_and_every_possible_policy_a_mark(found):
    picture = plot_policy_front(found)
    assert list(flaws(picture.figure)) == []
    chart = picture.figure.axes[1]
    (dots,) = [patch.get_path().vertices for patch in chart.patches]
    shown = found.step_s <= 2 * found.step_s[0]
    wanted = np.column_stack([found.memory_bytes / GiB, found.step_s])[shown]
    assert dots[::2] == pytest.approx(wanted) and dots[1::2] == pytest.approx(wanted)
    line = next(one for one in chart.lines if len(one.get_xdata()) > 2)
    assert [*line.get_xdata()] == pytest.approx([found.memory_bytes[k] / GiB for k in found.front()])
    assert len(picture.description.splitlines()) == 1 + len(found.front()) + 2  # the two that are named
    large = replace(found.job, batch=7, cluster=replace(found.job.cluster, n_nodes=16))
    with pytest.raises(ValueError, match=r"^plot_policy_front: no policy; .*; look at found.nearest$"):
        plot_policy_front(search(large, Space(pp=(1,), cp=(1,))))


def test_a_policy_that_is_named_has_a_ring_wherever_it_lies(found):
    beaten = next(index for index in range(len(found)) if index not in found.front())
    picture = plot_policy_front(found, named={"ours": beaten})
    (ring,) = [one for one in picture.figure.axes[1].lines if one.get_markerfacecolor() == style.PAPER]
    assert [*ring.get_xdata(), *ring.get_ydata()] == [found.memory_bytes[beaten] / GiB, found.step_s[beaten]]
    assert picture.description.endswith(f": {policy_name(found.policies, beaten)}")
    assert ring.get_markeredgecolor() == style.INK  # and not in the front's colour
    assert "\nours: " in picture.description and list(flaws(picture.figure)) == []


def test_goodput_is_drawn_with_its_best_interval_and_what_was_played():
    runs = {"short restarts": RUN, "long ones": replace(RUN, restart_s=3600.0)}
    picture = plot_goodput(runs, played={"short restarts": {60.0: 0.9, 900.0: 0.91}}, reported=0.9)
    assert list(flaws(picture.figure)) == [] and picture.kinds == ("formula", "emulated")
    best = daly_interval_s(RUN)
    rings = [one for one in picture.figure.axes[1].lines if [*one.get_xdata()] == [best]]
    assert [ring.get_ydata()[0] for ring in rings] == pytest.approx([goodput(run, best) for run in runs.values()])
    assert "    played: 90.0% at 1 min, 91.0% at 15 min" in picture.description
    assert plot_goodput({"one": RUN}).kinds == ("formula",)
    with pytest.raises(ValueError, match=r"^plot_goodput: 0 runs; "):
        plot_goodput({})
