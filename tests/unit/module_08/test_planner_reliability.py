"""Goodput: formulas against each other, against a run that is played through, and against what was published."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from statistics import fmean, stdev

import pytest

from course_lib.config import load_model
from course_lib.costs import model_parameters
from course_lib.planner import (
    DAY_S,
    LLAMA_3_STOPS,
    LLAMA_3_STORAGE_BYTES_PER_S,
    OPT_STOPS,
    Reliability,
    daly_interval_s,
    first_order_goodput,
    goodput,
    longest_restart_s,
    play_run,
    shares,
    young_interval_s,
)

HOUR = 3600.0
RUN = Reliability(mtbf_s=3 * HOUR, checkpoint_s=30.0, restart_s=300.0)
STATE_BYTES = 14  # of one parameter in a checkpoint: weights in 2, the optimizer's three numbers in 4


def best_interval_s(run):
    """The maximum of the goodput, by looking everywhere."""
    middle = young_interval_s(run)
    return max((middle * 1.002**k for k in range(-800, 800)), key=lambda interval: goodput(run, interval))


def test_small_losses_are_those_of_the_whiteboard():
    run = Reliability(mtbf_s=1e6, checkpoint_s=2.0, restart_s=20.0)
    assert young_interval_s(run) == 2000.0
    assert first_order_goodput(run, 2000.0) == pytest.approx(1 - 0.001 - 0.001 - 0.00002)
    assert goodput(run, 2000.0) == pytest.approx(first_order_goodput(run, 2000.0), abs=5e-6)


@pytest.mark.parametrize("checkpoint_s", [1.0, 30.0, 600.0, 2 * HOUR])
def test_daly_s_interval_is_the_best_one_and_young_s_is_not_far(checkpoint_s):
    run = replace(RUN, checkpoint_s=checkpoint_s)
    best = best_interval_s(run)
    assert daly_interval_s(run) == pytest.approx(best, rel=0.03)
    assert goodput(run, daly_interval_s(run)) == pytest.approx(goodput(run, best), rel=1e-4)
    assert abs(daly_interval_s(run) - best) <= abs(young_interval_s(run) - best)


def test_where_a_checkpoint_takes_longer_than_the_runs_between_failures_the_interval_is_that():
    hopeless = replace(RUN, checkpoint_s=6 * HOUR)
    assert daly_interval_s(hopeless) == hopeless.mtbf_s
    assert shares(replace(RUN, mtbf_s=1.0, checkpoint_s=1000.0), 1000.0) == (0.0, 0.0, 0.0, 1.0)


def test_shares_are_all_the_time_and_each_comes_from_its_own_cause():
    parts = shares(RUN, 800.0)
    assert sum(parts) == pytest.approx(1)
    assert parts.checkpoints / parts.training == pytest.approx(30 / 800)
    assert shares(replace(RUN, restart_s=0.0), 800.0).restarts == 0
    rare = shares(replace(RUN, mtbf_s=1e12), 800.0)
    assert rare.lost_work == pytest.approx(0, abs=1e-6) and rare.training == pytest.approx(800 / 830)


@pytest.mark.parametrize("interval_s", [120.0, 800.0, 4 * HOUR])
def test_a_run_that_is_played_spends_its_time_as_the_formula_says(interval_s):
    expected = shares(RUN, interval_s)
    played = [play_run(RUN, interval_s, elapsed_s=40 * DAY_S, seed=seed).shares for seed in range(8)]
    for field, value in zip(expected._fields, expected, strict=True):
        found = [getattr(one, field) for one in played]
        assert fmean(found) == pytest.approx(value, abs=4 * stdev(found) / sqrt(len(found)) + 2e-4), field


def test_a_played_run_has_no_gap_and_the_same_seed_gives_the_same_run():
    played = play_run(RUN, 800.0, elapsed_s=DAY_S, seed=3)
    ends = [stretch.end_s for stretch in played.stretches]
    assert [stretch.start_s for stretch in played.stretches] == [0.0, *ends[:-1]] and ends[-1] == DAY_S
    assert played == play_run(RUN, 800.0, elapsed_s=DAY_S, seed=3)
    assert played != play_run(RUN, 800.0, elapsed_s=DAY_S, seed=4)
    assert sum(played.shares) == pytest.approx(1)


def test_llama_3_s_published_goodput_leaves_a_quarter_of_an_hour_for_a_restart():
    mtbf_s = LLAMA_3_STOPS.mtbf_s
    assert mtbf_s / HOUR == pytest.approx(3.09, abs=0.01)
    checkpoint_s = STATE_BYTES * model_parameters(load_model("llama3_1_405b")) / LLAMA_3_STORAGE_BYTES_PER_S
    assert checkpoint_s == pytest.approx(2.84, abs=0.01)
    restart_s = longest_restart_s(mtbf_s, checkpoint_s, LLAMA_3_STOPS.least_goodput)
    assert 13 * 60 < restart_s < 16 * 60
    run = Reliability(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=restart_s)
    assert goodput(run, daly_interval_s(run)) == pytest.approx(0.9)
    played = [play_run(run, daly_interval_s(run), elapsed_s=54 * DAY_S, seed=seed) for seed in range(8)]
    assert fmean(one.stops for one in played) == pytest.approx(419, abs=4 * sqrt(419 / 8))
    assert fmean(one.shares.training for one in played) == pytest.approx(0.9, abs=0.01)
    assert longest_restart_s(mtbf_s, 60.0, 0.9) < 0  # a minute for each checkpoint would already be too long


def test_opt_s_gpus_stopped_their_run_between_three_and_four_times_as_often_as_llama_3_s():
    assert OPT_STOPS.stops == 105 and OPT_STOPS.mtbf_s / HOUR == pytest.approx(13.7, abs=0.05)
    assert 3 < LLAMA_3_STOPS.gpu_mtbf_s / OPT_STOPS.gpu_mtbf_s < 4
    years = [one.gpu_mtbf_s / (365 * DAY_S) for one in (LLAMA_3_STOPS, OPT_STOPS)]
    assert years == pytest.approx([5.79, 1.55], abs=0.01)
    run = Reliability(mtbf_s=OPT_STOPS.mtbf_s, checkpoint_s=60.0, restart_s=HOUR)
    played = [play_run(run, HOUR, elapsed_s=60 * DAY_S, seed=seed).stops for seed in range(8)]
    assert fmean(played) == pytest.approx(105, abs=4 * sqrt(105 / 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(RUN, mtbf_s=0), "Reliability: mtbf_s=0; mtbf_s is a time above 0; give seconds, above 0"),
        (lambda: replace(RUN, checkpoint_s=-1), "Reliability: checkpoint_s=-1; checkpoint_s is a time above 0; give "),
        (lambda: replace(RUN, restart_s=-1), "Reliability: restart_s=-1; restart_s is a time 0 or more; give seconds,"),
        (lambda: replace(RUN, mtbf_s=float("inf")), "Reliability: mtbf_s=inf; "),
        (lambda: goodput(RUN, 0), "goodput: interval_s=0; some training lies between two checkpoints; give interv"),
        (lambda: first_order_goodput(RUN, -1), "goodput: interval_s=-1; some training lies between two checkpoints; "),
        (lambda: longest_restart_s(1e4, 1, 1), "longest_restart_s: wanted=1; a goodput is a share of the time; give "),
        (lambda: play_run(RUN, 1, elapsed_s=0), "play_run: elapsed_s=0; a run lasts, and trains between checkpoints; "),
    ],
)
def test_times_that_nothing_can_have_are_refused(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message)
