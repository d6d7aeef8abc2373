"""The picture of a run: a panel for each thing that its lines tell, and uprights where something asks for a look."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from course_lib import viz
from course_lib.gauges.run_log import METRICS
from tests.unit.module_12.test_run_log import run_of
from tests.unit.test_viz_pictures import drawn_texts, flaws

PANELS = ["loss", "gradient norm", "tokens/s", "MFU"]


def written(folder, steps):
    (folder / METRICS).write_text("".join(json.dumps(asdict(one)) + "\n" for one in steps))
    return folder


def test_a_sick_run_has_a_panel_for_each_column_and_marks(tmp_path):
    steps = run_of(
        loss={80: 5.0},
        gradient_norm={40: math.nan},
        tokens_per_s=dict.fromkeys(range(105, 121), 600.0),
        mfu=dict.fromkeys(range(1, 121), 0.38),
    )
    picture = viz.plot_run(written(tmp_path, steps))
    texts = [text for text, _, _ in drawn_texts(picture.figure)]
    assert list(flaws(picture.figure)) == [] and picture.kinds == ("measured",)
    assert [text for text in texts if text in PANELS] == PANELS and "A run of 120 steps" in texts
    charts = picture.figure.axes[1:]
    assert [*charts[0].lines[0].get_ydata()] == [one.loss for one in steps]
    marked = [[line.get_xdata()[0] for line in chart.lines[1:]] for chart in charts]
    assert marked == [[80], [40], [105], []]
    assert "  look: the loss is 5 in step 80" in picture.description and "38%" not in picture.description


def test_the_slowest_rank_s_line_joins_the_steps_that_tell_it_and_is_named():
    own_s = {k: (0.02, 0.02, 0.05 if k > 40 else 0.02) for k in range(10, 121, 10)}
    picture = viz.plot_run(run_of(own_s=own_s))
    texts = [text for text, _, _ in drawn_texts(picture.figure)]
    assert list(flaws(picture.figure)) == [] and "rank 2" in texts
    joined, points, upright = picture.figure.axes[-1].lines
    assert [*joined.get_xdata()] == [*points.get_xdata()] == [*own_s] and upright.get_xdata()[0] == 50
    assert [*joined.get_ydata()] == [1.0] * 4 + [2.5] * 8
    assert {chart.get_xlim() for chart in picture.figure.axes[1:]} == {(1, 120)}
    alike = viz.plot_run(run_of(30, own_s={10: (0.02, 0.021)}))
    assert not any(text.startswith("rank ") for text, _, _ in drawn_texts(alike.figure)) and "look" not in alike.text


def test_what_was_not_finite_leaves_a_gap_and_what_was_not_said_does_not():
    steps = run_of(9, gradient_norm={3: math.nan, 5: None})
    line = viz.plot_run(steps).figure.axes[2].lines[0]
    assert [*line.get_xdata()] == [1, 2, 3, 4, 6, 7, 8, 9] and math.isnan(line.get_ydata()[2])


def test_a_run_that_tells_its_loss_alone_has_one_panel(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
    picture = viz.plot_run(tmp_path / "mine.jsonl", title="Mine")
    assert (
        len(picture.figure.axes) == 2
        and list(flaws(picture.figure)) == []
        and picture.text.startswith("Mine (measured)")
    )


@pytest.mark.parametrize("text", ["", '{"step": 1, "loss": null}\n'])
def test_a_run_without_a_loss_is_refused(tmp_path, text):
    (tmp_path / METRICS).write_text(text)
    with pytest.raises(ValueError, match=r"^plot_run: .* has [01] steps; a line needs a finite loss; wait for its fir"):
        viz.plot_run(tmp_path)
    with pytest.raises(ValueError, match=r"^plot_run: the run has 0 steps; a line needs a finite loss; wait for its f"):
        viz.plot_run([])
