"""When checkpoints are due: every so many steps, or minutes, with few questions to the first rank's clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course_lib.cli.train_config import read_train
from course_lib.training import cadence
from course_lib.training.cadence import Cadence, Every


def due(every, *, steps, step_s=1.0, start=0, monkeypatch):
    """After which steps it is due, and how often the clock was asked."""
    now, asked = [0.0], []
    monkeypatch.setattr(cadence, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = Cadence(every, None, start)
    spent = one._spent_s
    one._spent_s = lambda: asked.append(now[0]) or spent()
    found = []
    for step in range(start + 1, steps + 1):
        now[0] += step_s
        if one.is_due(step):
            found.append(step)
    return found, len(asked)


def test_steps_are_counted_from_the_run_s_beginning(monkeypatch):
    assert due(Every(steps=3), steps=10, monkeypatch=monkeypatch) == ([3, 6, 9], 0)
    assert due(Every(steps=3), steps=10, start=4, monkeypatch=monkeypatch) == ([6, 9], 0)
    assert due(Every(), steps=10, monkeypatch=monkeypatch) == ([], 0)


def test_minutes_are_seen_within_a_step_and_the_clock_is_asked_seldom(monkeypatch):
    found, asked = due(Every(seconds=600), steps=100_000, step_s=0.1, monkeypatch=monkeypatch)
    assert found == pytest.approx(list(range(6000, 100_001, 6000)), abs=len(found))  # a float's rounding, a step each
    assert asked <= 20 * (len(found) + 1)


def test_slow_steps_are_asked_about_each_time(monkeypatch):
    assert due(Every(seconds=90), steps=6, step_s=60.0, monkeypatch=monkeypatch) == ([2, 4, 6], 6)


@pytest.mark.parametrize(
    ("typed", "every"),
    [
        ("100", Every(steps=100)),
        ("10min", Every(seconds=600)),
        ("0.5min", Every(seconds=30)),
        ("null", Every()),
    ],
)
def test_it_is_typed_as_steps_or_minutes(typed, every):
    assert read_train([f"checkpoint_every={typed}"]).every == every


@pytest.mark.parametrize("typed", ["0", "-1", "2.5", "10s", "0min", "often", "true"])
def test_anything_else_is_refused(typed):
    with pytest.raises(ValueError, match=r"^train: checkpoint_every=.*; it is a number of steps, or of minutes; write"):
        read_train([f"checkpoint_every={typed}"])


def test_ten_minutes_where_nothing_is_said():
    assert read_train([]).every == Every(seconds=600)
