"""What failures cost a long run: the share of its time in which it learns, and the best time between checkpoints.

Letters, as Daly's: M mean time between failures, delta to write a checkpoint, R to be back after a failure, tau of
work between two checkpoints. Failures come at random, at the same rate at any time (exponential), and also strike
while a run writes or comes back.
Source: Young 1974, A first order approximation to the optimum checkpoint interval; Daly 2006, A higher order estimate
of the optimum checkpoint interval for restart dumps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, isfinite, log, sqrt
from typing import NamedTuple

from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often a run fails, and what a checkpoint and a failure take.

    Units: seconds.
    Raises: ValueError for times that nothing can have.
    """

    mtbf_s: float  # M, of the whole run: that of one GPU over the number of GPUs
    checkpoint_s: float  # delta, in which training stands still
    restart_s: float  # R, from the failure until training goes on, with its detection

    def __post_init__(self) -> None:
        for field in ("mtbf_s", "checkpoint_s", "restart_s"):
            value, may_be_none = getattr(self, field), field == "restart_s"
            if not isfinite(value) or value < 0 or (value == 0 and not may_be_none):
                more = "0 or more" if may_be_none else "above 0"
                values, rule = f"{field}={value:g}", f"{field} is a time {more}"
                raise ValueError(four_parts("Reliability", values, rule, f"give seconds, {more}"))


class Shares(NamedTuple):
    """Parts of the elapsed time, together 1."""

    training: float  # what is not lost: the goodput
    checkpoints: float
    lost_work: float  # computed, and gone with the failure before the next checkpoint
    restarts: float


def young_interval_s(run: Reliability) -> float:
    """sqrt(2 delta M): the best time between checkpoints as long as it is far below M."""
    return sqrt(2 * run.checkpoint_s * run.mtbf_s)


def daly_interval_s(run: Reliability) -> float:
    """The best time between checkpoints, to a higher order: sqrt(2 delta M) (1 + x/3 + x^2/9) - delta.

    x = sqrt(delta / 2M). Where a checkpoint takes twice M or more, it is M.
    """
    if run.checkpoint_s >= 2 * run.mtbf_s:
        return run.mtbf_s
    x = sqrt(run.checkpoint_s / (2 * run.mtbf_s))
    return young_interval_s(run) * (1 + x / 3 + x * x / 9) - run.checkpoint_s


def shares(run: Reliability, interval_s: float) -> Shares:
    """Where the time goes, on average over a long run with a checkpoint after each `interval_s` of training.

    A piece of tau + delta is over when no failure fell into it. It takes M (e^((tau + delta)/M) - 1) of work on
    average, and each failure a restart of M (e^(R/M) - 1), for restarts fail too.
    """
    _check_interval(interval_s)
    piece_s = interval_s + run.checkpoint_s
    try:
        failures = expm1(piece_s / run.mtbf_s)  # of one piece, until it is through
        total_s = run.mtbf_s * failures * exp(run.restart_s / run.mtbf_s)
    except OverflowError:
        total_s = inf
    if not isfinite(total_s):
        return Shares(0.0, 0.0, 0.0, 1.0)  # never through
    lost_s = run.mtbf_s * failures - piece_s
    restarts_s = total_s - lost_s - piece_s
    return Shares(*(part / total_s for part in (interval_s, run.checkpoint_s, lost_s, restarts_s)))


def goodput(run: Reliability, interval_s: float) -> float:
    """The share of the elapsed time that trains: tau / (M e^(R/M) (e^((tau + delta)/M) - 1))."""
    return shares(run, interval_s).training


def first_order_goodput(run: Reliability, interval_s: float) -> float:
    """The same as one says it at the whiteboard: 1 - delta/tau - (tau/2 + R)/M, good while both losses are small."""
    _check_interval(interval_s)
    return 1 - run.checkpoint_s / interval_s - (interval_s / 2 + run.restart_s) / run.mtbf_s


def longest_restart_s(mtbf_s: float, checkpoint_s: float, wanted: float) -> float:
    """How long a restart may take on average if the goodput is to be `wanted` at the best interval.

    Below 0 the checkpoints alone cost more than may be lost.
    Raises: ValueError for a goodput that is no share.
    """
    if not 0 < wanted < 1:
        rule = "a goodput is a share of the time"
        raise ValueError(four_parts("longest_restart_s", f"wanted={wanted:g}", rule, "give 0 < wanted < 1"))
    run = Reliability(mtbf_s=mtbf_s, checkpoint_s=checkpoint_s, restart_s=0.0)
    return mtbf_s * log(goodput(run, daly_interval_s(run)) / wanted)


def _check_interval(interval_s: float) -> None:
    if not (interval_s > 0 and isfinite(interval_s)):
        values, rule = f"interval_s={interval_s:g}", "some training lies between two checkpoints"
        raise ValueError(four_parts("goodput", values, rule, "give interval_s > 0"))
