"""The pictures of module 12: calls side by side, who starts whom, what to ask first, and a trace's lanes."""

from __future__ import annotations

import pytest

from course_lib import viz
from tests.unit.module_12.test_exposed import CPU, event
from tests.unit.module_12.test_flight import hang_calls
from tests.unit.test_viz_pictures import drawn_texts, flaws


def texts_of(picture):
    assert list(flaws(picture.figure)) == []
    return [text for text, _, _ in drawn_texts(picture.figure)]


def test_the_calls_of_a_hang_show_where_ranks_part_and_who_waits():
    picture = viz.plot_calls(hang_calls())
    texts = texts_of(picture)
    assert picture.kinds == ("measured",)
    assert texts.count("evaluate") == 4 and texts.count("save") == 1 and texts.count("step") == 5 + 3 * 6
    assert "ranks part in call 6, on rank 3; all wait in call 7" in texts
    assert "call 7: ranks 0, 1, 2 all_reduce in evaluate, line 55, waits; rank 3 barrier in save" in picture.description


def test_an_old_difference_is_shown_beside_the_last_calls_and_a_missing_call_too():
    one = hang_calls()[0][0]
    calls = [[one._replace(number=number) for number in range(1, 31)] for _ in range(8)]
    calls[2][3] = calls[2][3]._replace(operation="_reduce_scatter_base", place="validate_the_whole_set, line 1234")
    calls[5].pop()
    texts = texts_of(viz.plot_calls(calls))
    assert [text for text in texts if text.startswith("call ")] == ["call 4", "call 29", "call 30"]
    assert {"…", "no call", "validate_the_whole_set"} < {*texts}


def test_calls_without_lines_of_code_take_one_line_each():
    picture = viz.plot_calls([[call._replace(place="") for call in calls] for calls in hang_calls()])
    assert "ranks part in call 7, on rank 3; all wait in call 7" in texts_of(picture)
    with pytest.raises(ValueError, match=r"^plot_calls: no calls; .*; pass flight_calls\(dump\) of each rank$"):
        viz.plot_calls([[], []])


def test_a_rank_s_variables_follow_from_its_node_and_its_gpu():
    picture = viz.plot_who_starts()
    texts = texts_of(picture)
    assert {str(rank) for rank in range(16)} < {*texts}
    assert "RANK=9 LOCAL_RANK=1 GROUP_RANK=2 WORLD_SIZE=16" in texts
    assert "--nnodes=4 --nproc-per-node=4 --rdzv-endpoint=node0:14711" in texts
    assert all(text in picture.description for text in texts if "=" in text)


@pytest.mark.parametrize("size", [(1, 1, 0), (2, 8, 11), (4, 8, 31)])
def test_large_nodes_show_some_of_their_ranks_and_always_the_one_that_is_followed(size):
    texts = texts_of(viz.plot_who_starts(*size))
    assert str(size[2]) in texts and ("…" in texts) == (size[1] > 4)


@pytest.mark.parametrize("size", [(5, 4, 0), (4, 9, 0), (2, 2, 4)])
def test_who_starts_refuses_what_does_not_fit(size):
    with pytest.raises(
        ValueError, match=r"^plot_who_starts: nodes=\d, gpus_per_node=\d, rank=\d; this picture holds 4"
    ):
        viz.plot_who_starts(*size)


def test_the_printed_page_has_four_columns_and_fits_upright_on_a4():
    picture = viz.plot_first_questions()
    texts = texts_of(picture)
    assert {"It hangs", "It is slow", "It is wrong", "It is dead", "its ranks", "before"} < {*texts}
    wide, tall = picture.figure.get_size_inches()
    assert 1 < tall / wide < 297 / 210
    assert picture.description.count("?") >= 14


def test_lanes_of_a_trace_are_as_long_as_what_it_holds_and_the_share_is_written():
    hidden = [*CPU, event("aten::mm", 100, 400)]
    picture = viz.plot_trace({"one bucket": CPU, "small buckets": hidden})
    texts = texts_of(picture)
    assert picture.kinds == ("measured",)
    assert {"73% exposed, 220 µs of 300 µs", "0% exposed, 0 s of 300 µs"} < {*texts}
    ends = [
        {round(x) for x, _ in patch.get_path().vertices}
        for patch in picture.figure.axes[1].patches
        if patch.zorder == 2
    ]
    assert ends == [{0, 100, 300, 330}, {50, 100, 300, 330}, {100, 300, 330, 350}]
    for wrong in ({}, {"alone": [event("aten::mm", 0, 9)]}):
        with pytest.raises(ValueError, match="^plot_trace: "):
            viz.plot_trace(wrong)
