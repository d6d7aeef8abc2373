"""A run that is watched in a notebook: one place on the page, drawn anew as steps come, until it ends or you do."""

from __future__ import annotations

import json
import math
import os
import time
from types import SimpleNamespace

import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell

from course_lib import viz
from course_lib.gauges.run_log import CONFIG, METRICS
from course_lib.viz.cluster import watch_run
from tests.unit.module_12.test_run_log import written

LINES = [{"step": k, "loss": 5.0 - k} for k in range(1, 5)]


@pytest.fixture
def page(monkeypatch):
    """What a notebook is told to show: its data, and of which place it is, with whether that is there already."""
    shown = []

    def publish(data, metadata, transient, update=False):
        shown.append((data, (transient["display_id"], update)))

    shell = SimpleNamespace(display_formatter=DisplayFormatter(), display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr(InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(InteractiveShell, "instance", lambda: shell)
    return shown


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """Which steps are drawn, in place of their picture, which takes a hundred times as long."""
    made = []

    def draw(steps):
        made.append([one.step for one in steps])
        return SimpleNamespace(html=f"<img {len(made)}>", text=f"picture {len(made)}")

    monkeypatch.setattr(watch_run, "plot_run", draw)
    return made


@pytest.fixture
def between(monkeypatch):
    """Lets one thing happen each time that the watch sleeps, and tells for how long it would have."""
    slept = []

    def let(*events):
        left = iter(events)
        monkeypatch.setattr(watch_run.time, "sleep", lambda seconds: (slept.append(seconds), next(left)()))
        return slept

    return let


def interrupt():
    raise KeyboardInterrupt


def headings(page):
    return [data["text/plain"].splitlines()[0].partition(",")[0] for data, _ in page]


def test_a_run_is_drawn_in_one_place_until_it_has_ended(tmp_path, page, between, drawn):
    folder = tmp_path / "run"

    def begin():
        folder.mkdir()
        (folder / CONFIG).write_text("steps: 4\n")

    slept = between(
        begin,
        lambda: written(folder, []),
        lambda: written(folder, LINES[:2]),
        lambda: None,
        lambda: written(folder, [*map(json.dumps, LINES[:3]), '{"step": 4, "lo'], end=""),
        lambda: written(folder, LINES),
    )
    watched = viz.watch_run(folder, every_s=30)
    waiting = [f"{folder}: not there yet", f"{folder / METRICS}: not there yet", "run: no step yet"]
    assert headings(page) == [*waiting, *(f"run: step {k} of 4" for k in (2, 2, 3, 4))]
    assert [update for _, (_, update) in page] == [False] + [True] * 6 and len({at for _, (at, _) in page}) == 1
    assert drawn == [[1, 2], [1, 2, 3], [1, 2, 3, 4]] and slept == [30] * 6  # what has not changed is not drawn again
    assert page[2][0]["text/html"] == "<pre>run: no step yet</pre>"
    assert page[-1][0]["text/html"] == "<pre>run: step 4 of 4, ended</pre>\n<img 3>"
    assert repr(watched) == page[-1][0]["text/plain"] == "run: step 4 of 4, ended\npicture 3"


def test_a_run_that_has_ended_is_shown_once_and_as_a_cell_s_value_not_again(tmp_path, page, between, monkeypatch):
    monkeypatch.setattr(watch_run, "plot_run", viz.plot_run)
    (written(tmp_path, LINES) / CONFIG).write_text("steps: 4\n")
    slept = between()
    watched = viz.watch_run(tmp_path / METRICS)
    assert watched.picture.html in page[0][0]["text/html"] and watched.picture.text in page[0][0]["text/plain"]
    assert len(page) == 1 and slept == [] and DisplayFormatter().format(watched) == ({}, {})


def test_an_interrupt_ends_the_watch_and_leaves_the_picture(tmp_path, page, between):
    between(lambda: None, interrupt)
    watched = viz.watch_run(written(tmp_path, LINES))
    assert len(page) == 2 and page[-1][0]["text/html"].endswith("\n<img 1>") and watched.picture.text == "picture 1"


def test_an_interrupt_before_the_first_look_is_over_shows_nothing(tmp_path, page, monkeypatch):
    monkeypatch.setattr(watch_run, "run_now", lambda run, may_come: interrupt())
    watched = viz.watch_run(tmp_path)
    assert page == [] and watched.picture is None and watched.text == ""


def test_what_asks_for_a_look_is_said_below_the_picture(tmp_path, page, between):
    written(tmp_path, [*LINES, {"step": 5, "loss": None}])
    long_ago = time.time() - 100
    os.utime(tmp_path / METRICS, (long_ago, long_ago))
    between(interrupt)
    viz.watch_run(tmp_path)
    ((data, _),) = page
    said = "! the loss is not finite in step 5", "! no step for 100 s"
    assert data["text/html"].endswith("".join(["<img 1>", *(f"\n<pre>{one}</pre>" for one in said)]))
    assert data["text/plain"].endswith("\n".join(["picture 1", *said]))


def test_without_a_finite_loss_there_are_words_and_no_picture(tmp_path, page, between):
    between(interrupt)
    watched = viz.watch_run(written(tmp_path, [{"step": 1, "loss": None}]))
    assert watched.picture is None and watched.text.endswith("\n! the loss is not finite in step 1")


def test_a_run_that_takes_long_to_draw_is_drawn_less_often(tmp_path, page, between, monkeypatch):
    clock = iter((0.0, 3.0))
    monkeypatch.setattr(watch_run.time, "perf_counter", lambda: next(clock))
    slept = between(interrupt)
    viz.watch_run(written(tmp_path, LINES))
    assert slept == [30.0]


@pytest.mark.parametrize("every_s", [0, -1.0, math.nan])
def test_a_time_that_is_none_is_refused(tmp_path, every_s):
    with pytest.raises(ValueError, match=r"^watch_run: every_s=.*; it is a time between looks; give 2.0$"):
        viz.watch_run(tmp_path, every_s=every_s)


def test_what_is_no_run_is_said(tmp_path, page):
    with pytest.raises(ValueError, match=r"^read_run: line 1 of .*metrics.jsonl; a line is a step as JSON"):
        viz.watch_run(written(tmp_path, ["x"]))
