"""The curves of module 03, losses, efficiency and speedup: they lie where the numbers are, on axes that say so."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from course_lib import viz
from course_lib.training.psgd import Quadratic, psgd_alone
from course_lib.viz.ink import charts, style
from tests.unit.module_03.test_viz_module_03 import LINKS, MEASURED, RUN_NORMS, RUNS, small_speedup
from tests.unit.test_viz_pictures import drawn_texts


def drawn(chart, hue):
    """(xs, ys) of all lines and marks of one hue within the chart's own axes."""
    lines = [line for line in chart.lines if line.get_transform() == chart.transData]
    return [tuple(map(list, line.get_data())) for line in lines if to_hex(line.get_color()) == hue.lower()]


def test_scaling_draws_lines_and_marks_of_one_hue_where_the_numbers_are():
    picture = viz.plot_scaling(LINKS, MEASURED)
    chart = picture.figure.axes[1]
    line, marks = drawn(chart, style.RUN_HUES[1])
    assert line == (list(LINKS["NVLink"]), list(LINKS["NVLink"].values()))
    assert marks == ([2, 4], [0.98, 0.97])
    assert drawn(chart, style.RUN_HUES[4]) == [([2, 4], [0.5, 0.22])]
    assert "  Ethernet, predicted: 100.0% on 1, 52.6% on 2, 42.6% on 4" in picture.text
    assert "  this machine, measured: 100.0% on 1, 50.0% on 2, 22.0% on 4" in picture.text


def test_marks_that_lie_upon_each_other_are_all_seen():
    chart = viz.plot_scaling(LINKS, {name: {2: 0.9} for name in LINKS}).figure.axes[1]
    sizes = [line.get_markersize() for line in chart.lines if line.get_marker() == "o"]
    assert len(sizes) == 3 and sizes == sorted(set(sizes), reverse=True)


def test_the_axis_of_counts_doubles_in_equal_steps():
    chart = viz.plot_scaling(LINKS).figure.axes[1]
    places = [chart.transData.transform((n, 0.5))[0] for n in (1, 2, 4, 64)]
    assert places[2] - places[1] == pytest.approx(places[1] - places[0])
    assert places[3] - places[0] == pytest.approx(6 * (places[1] - places[0]))
    assert list(chart.get_xticks()) == [1, 2, 4, 8, 16, 32, 64]


def test_the_loss_of_every_run_is_drawn_and_the_norms_tell_them_apart():
    picture = viz.plot_loss_curves(RUNS, RUN_NORMS)
    losses, norms = picture.figure.axes[1:]
    assert drawn(losses, style.RUN_HUES[2])[0][1] == RUNS["summed"]
    assert drawn(norms, style.RUN_HUES[2])[0] == (list(range(1, 81)), RUN_NORMS["summed"])
    written = [words for words, _, _ in drawn_texts(picture.figure)]
    assert [words for words in written if "×" in words and "=" not in words] == ["4 ×"]  # not of one that begins alike
    assert written.count("one device") == written.count("summed") == 2
    assert losses.get_xlim() == norms.get_xlim()
    assert norms.get_yscale() == "log"
    assert (
        "  summed: loss 4.71 at step 1, 1.461 at step 80; gradient norm 9.2 at step 1, 4 × the reference's"
        in picture.text
    )


def test_a_run_that_is_none_of_a_neighbours_has_the_hue_that_it_is_given():
    losses = viz.plot_loss_curves(RUNS, hues={"summed": style.RUN_HUES[-1]}).figure.axes[1]
    assert drawn(losses, style.RUN_HUES[-1])[0][1] == RUNS["summed"]
    assert drawn(losses, style.RUN_HUES[2]) == []


def test_runs_are_as_broad_as_each_other_and_curves_upon_each_other_are_seen():
    """The reference is broader; of each later run a smaller share is drawn, in dashes on those beneath."""
    chart = viz.plot_loss_curves(RUNS).figure.axes[1]
    lines = [line for line in chart.lines if line.get_transform() == chart.transData]
    reference, *widths = [line.get_linewidth() for line in lines]
    assert len(set(widths)) == 1 and reference > 2 * widths[0]
    assert [line.is_dashed() for line in lines] == [False, False, *[True] * (len(lines) - 2)]
    assert len({line.get_zorder() for line in lines}) == 1  # drawn in their order


def test_speedup_draws_what_parallel_sgd_reaches_and_the_slope_from_its_first_point():
    picture = small_speedup()
    chart, problem = picture.figure.axes[1], Quadratic(size=4)
    reached = [psgd_alone(problem, n, 200) for n in (1, 4, 16)]
    assert drawn(chart, style.RUN_HUES[1])[0] == ([1, 4, 16], reached)
    slope = drawn(chart, style.SOFT)[1][1]
    assert slope == pytest.approx([reached[0], reached[0] / 2, reached[0] / 4])
    assert chart.get_xscale() == chart.get_yscale() == "log"
    assert f"  T = 200: {reached[0]:.3g} with 1, " in picture.text


def test_speedup_opens_the_points_within_the_transient():
    picture = small_speedup()
    chart = picture.figure.axes[1]
    points = [line for line in chart.lines if line.get_marker() == "o"]
    is_open = [to_hex(point.get_markerfacecolor()) == style.PAPER.lower() for point in points]
    assert is_open == [False, False, True, False, False, False]  # 2 L D N / sigma^2 is 20.4 for 16 workers
    assert [cell.count("within") for cell in picture.text.splitlines()[2:]] == [1, 0]


def test_a_log_axis_names_2_and_5_only_where_there_is_room():
    chart = viz.plot_scaling(LINKS).figure.axes[1]
    charts.number_axis(chart, [1, 10], most=5)
    assert list(chart.get_yticks()) == [1, 2, 5, 10]
    charts.number_axis(chart, [1, 1000], most=5)
    assert [tick for tick in chart.get_yticks() if 1 <= tick <= 1000] == [1, 10, 100, 1000]


@pytest.mark.parametrize(
    ("ends", "tick", "label"),
    [([0.002, 16], 0.01, "0.01"), ([1e-5, 1], 0.01, "1e-02"), ([1, 1e7], 100, "1e+02")],
)
def test_a_log_axis_writes_exponents_only_where_a_plain_number_would_be_long(ends, tick, label):
    chart = viz.plot_scaling(LINKS).figure.axes[1]
    charts.number_axis(chart, ends, most=5)
    assert chart.yaxis.get_major_formatter()(tick) == label
