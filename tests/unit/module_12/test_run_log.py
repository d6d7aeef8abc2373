"""A run's lines of JSON: how they are read, what asks for a look, and what only seems to."""

from __future__ import annotations

import json
import math
import os
import random
import time

import pytest

from course_lib.cli import watch
from course_lib.cli.main import main
from course_lib.gauges import alarms, read_run, stragglers
from course_lib.gauges.run_log import METRICS, LoggedStep, columns


def run_of(steps=120, seed=0, **changed):
    """Losses that fall with noise, as a small run's do; `changed` maps a field to {step: value}."""
    draw = random.Random(seed)
    found = []
    for k in range(1, steps + 1):
        values = {
            "loss": 2 + 3.5 / (1 + k / 20) + draw.gauss(0, 0.06),
            "gradient_norm": abs(draw.gauss(1.5, 0.4)),
            "tokens_per_s": 1000 * draw.uniform(0.85, 1.1) * (0.3 if k == 1 else 1),
            "seconds": 0.1,
        }
        values |= {name: at[k] for name, at in changed.items() if k in at}
        found.append(LoggedStep(step=k, **values))
    return found


def kinds(steps, **more):
    return [(one.what, one.step) for one in alarms(steps, **more)]


def written(folder, lines, end="\n"):
    (folder / METRICS).write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines) + end)
    return folder


@pytest.mark.parametrize("seed", range(20))
def test_an_ordinary_run_asks_for_no_look(seed):
    assert kinds(run_of(seed=seed), idle_s=20) == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"loss": {80: 4.5, 81: 4.1}}, [("spike", 80)]),  # one, as long as it lasts
        ({"loss": {60: 5.0, 100: 6.0}}, [("spike", 60), ("spike", 100)]),
        ({"loss": dict.fromkeys(range(80, 121), 4.0)}, [("spike", 80)]),  # and does not come back
        ({"loss": {70: math.nan, 71: math.nan}}, [("not finite", 70)]),
        ({"gradient_norm": {50: math.nan}}, [("not finite", 50)]),
        ({"tokens_per_s": dict.fromkeys(range(105, 121), 600.0)}, [("slower", 105)]),
        ({"tokens_per_s": dict.fromkeys((50, 51, 52, 90), 100.0)}, []),  # a checkpoint was written
        ({"own_s": dict.fromkeys(range(60, 121), (0.02, 0.02, 0.05, 0.02))}, [("straggler", 60)]),  # since then
        ({"own_s": {k: (0.02, 0.02 + 0.03 * (k >= 90 and k != 110)) for k in range(10, 121, 10)}}, [("straggler", 90)]),
        ({"own_s": {k: (0.02, 0.02, 0.05 if k == 90 else 0.02) for k in range(60, 121)}}, []),
    ],
)
def test_what_asks_for_a_look_is_named_with_its_step(changed, found):
    assert kinds(run_of(**changed)) == found


def test_columns_have_what_was_told_and_of_the_slowest_rank_its_ratio_to_the_usual():
    steps = run_of(own_s={10: (0.02, 0.02, 0.05), 20: (0.03, 0.03, 0.03), 30: (0.02, 0.01), 40: (0.02,)})
    steps += [LoggedStep(step=121, loss=math.nan)]
    told = columns(steps)
    assert [*told] == ["loss", "gradient norm", "tokens/s", "slowest rank"]
    assert told["slowest rank"] == {10: 2.5, 20: 1.0, 30: 2.0}  # one rank alone is not slower than others
    assert told["slowest rank"][10] == stragglers([steps[9].own_s])[0].ratio
    assert [*told["loss"]] == [*range(1, 122)] and [*told["gradient norm"]] == [*range(1, 121)]
    assert "slowest rank" not in columns(run_of(own_s=dict.fromkeys(range(1, 121), (0.02,))))


def test_a_run_stands_if_no_line_comes_for_many_steps_time():
    assert kinds(run_of(), idle_s=61) == [("stands", 120)]
    slow = run_of(seconds=dict.fromkeys(range(1, 121), 30.0))
    assert kinds(slow, idle_s=299) == [] and kinds(slow, idle_s=301) == [("stands", 120)]
    assert kinds([], idle_s=1000) == []


def test_lines_are_read_as_they_were_written(tmp_path):
    line = {"step": 1, "loss": 2.5, "gradient_norm": None, "own_s": [1, 2], "memory": "peak RSS"}
    (one, two) = read_run(written(tmp_path, [line, {"step": 2, "loss": 2.25}]))
    assert math.isnan(one.gradient_norm) and one.own_s == (1.0, 2.0) and one.mfu is None and one.loss == 2.5
    assert two == LoggedStep(step=2, loss=2.25)
    written(tmp_path, [line, {"step": 2, "loss": 2.25}, {"step": 3, "loss": 1}, {"step": 2, "loss": 4}])
    assert [(step.step, step.loss) for step in read_run(tmp_path / METRICS)] == [(1, 2.5), (2, 4.0), (3, 1.0)]
    assert len(read_run(written(tmp_path, [line, '{"step": 2, "lo'], end=""))) == 1  # it is being written


@pytest.mark.parametrize("line", ["x", "[1]", '{"step": 2}', '{"step": "a", "loss": 1}', "5", '{"step":1,"loss":[1]}'])
def test_a_line_that_is_no_step_is_named(tmp_path, line):
    with pytest.raises(ValueError, match=r"^read_run: line 2 of .*metrics.jsonl; a line is a step as JSON, with step"):
        read_run(written(tmp_path, [{"step": 1, "loss": 2.5}, line]))


def test_watch_draws_a_run_once(tmp_path, capsys):
    lines = [
        {"step": k, "loss": 9 - k, "gradient_norm": 1.5, "tokens_per_s": 1234.5, "mfu": 0.38, "seconds": 1}
        for k in range(1, 9)
    ]
    written(tmp_path, lines)
    assert main(["watch", str(tmp_path), "once=true"]) == 0
    heading, *curves = capsys.readouterr().out.splitlines()
    assert heading.startswith(f"{tmp_path.name}: step 8, ") and heading.endswith(" ago")
    assert curves == [
        "loss           █▇▆▅▄▃▂▁  8 -> 1",
        "gradient norm  ▁▁▁▁▁▁▁▁  1.5 -> 1.5",
        "tokens/s       ▁▁▁▁▁▁▁▁  1,234 -> 1,234",
        "MFU            ▁▁▁▁▁▁▁▁  38.0% -> 38.0%",
    ]


def test_watch_goes_on_over_steps_that_do_not_tell_and_names_the_slow_rank(tmp_path, capsys):
    lines = [{"step": k, "loss": 2.0} for k in range(1, 41)]
    for k in (10, 20, 30, 40):
        lines[k - 1] |= {"own_s": [0.02, 0.02, 0.05 if k > 10 else 0.02]}
        lines[k - 1] |= {"gradient_norm": None if k == 20 else 1.5}
    assert main(["watch", str(written(tmp_path, lines))]) == 1
    _, _, norm, slowest, *said = capsys.readouterr().out.splitlines()
    assert norm == f"gradient norm  {' ' * 9}{'▁' * 10}×{'▁' * 20}  1.5 -> 1.5"  # absent is not what was not finite
    assert slowest == f"slowest rank   {' ' * 9}{'▁' * 10}{'█' * 21}  1 -> 2.5, rank 2"
    assert "! rank 2 takes 2.5 x as long as the others for its own work, in 75% of the steps" in said


def test_watch_says_what_asks_for_a_look_and_whether_the_run_has_ended(tmp_path, capsys):
    written(tmp_path, [{"step": k, "loss": 2.5, "gradient_norm": None if k == 3 else 1.0} for k in range(1, 5)])
    long_ago = time.time() - 100
    os.utime(tmp_path / METRICS, (long_ago, long_ago))
    assert main(["watch", str(tmp_path)]) == 1  # no terminal: once
    out = capsys.readouterr().out
    assert "! the gradient norm is not finite in step 3\n! no step for 100 s\n" in out and "▁▁×▁" in out
    (tmp_path / "config.yaml").write_text("steps: 4\n")
    assert main(["watch", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path.name}: step 4 of 4, ended\n")


def test_watch_draws_again_until_the_run_has_ended(tmp_path, capsys, monkeypatch):
    (tmp_path / "config.yaml").write_text("steps: 2\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    counts = iter((0, 1, 2))
    monkeypatch.setattr(
        watch.time, "sleep", lambda _: written(tmp_path, [{"step": 1 + k, "loss": 2.5} for k in range(next(counts))])
    )
    assert main(["watch", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.split("\x1b[H\x1b[2J")
    assert [one.splitlines()[0].split(",")[0] for one in shown[1:]] == [
        f"{name}: {text}"
        for name, text in (
            (tmp_path / METRICS, "not there yet"),
            *((tmp_path.name, text) for text in ("no step yet", "step 1 of 2", "step 2 of 2")),
        )
    ]


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ([], "watch: 0 folders are named; one run is watched; write: watch FOLDER once=true"),
        (["a", "b"], "watch: 2 folders are named; one run is watched; write: watch FOLDER once=true"),
        (["absent"], "absent; its lines cannot be read: No such file or directory; name the folder of a run, which"),
        (["a", "once=1"], "watch: once=1; once is a switch; give once=true or false"),
        (["a", "one=true"], "did you mean once=?"),
    ],
)
def test_what_cannot_be_watched_is_said_in_a_line(words, end, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *words]) == 2
    err = capsys.readouterr().err
    assert end in err and err.count("\n") == 1
