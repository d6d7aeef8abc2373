"""Nothing is lost for good: what a method sent and what it kept are together what it was given."""

from __future__ import annotations

import torch

from course_lib.parallel.lossy.exchange import Method
from course_lib.verify.identities.averaged import averaged, normal_numbers, off, whole_numbers

_STEPS, _RANKS, _SIZE = 6, 4, 40


def sent_and_kept(method: Method) -> float:
    """In each step: sent + kept = gradient + kept before, summed over the ranks."""
    run = averaged(method, whole_numbers(_STEPS, _RANKS, _SIZE))
    return off(_RANKS * run.means[:, 0] + run.kept[1:], run.given.sum(1) + run.kept[:-1])


def all_sent(method: Method) -> float:
    """Over the whole run: all that was sent and what is left are all gradients."""
    run = averaged(method, whole_numbers(_STEPS, _RANKS, _SIZE))
    return off(_RANKS * run.means[:, 0].sum(0) + run.kept[-1], run.given.sum((0, 1)))


def virtual_iterate(method: Method) -> float:
    """The weights without what is still to be sent are those of training without a loss on the same gradients."""
    run, rate = averaged(method, normal_numbers(_STEPS, _RANKS, _SIZE)), 0.1
    weights = -rate * run.means[:, 0].cumsum(0)
    exact = -rate * run.given.mean(1).cumsum(0)
    return off(weights - rate * run.kept[1:] / _RANKS, exact)


def same_everywhere(method: Method) -> float:
    """After each exchange all ranks take the same numbers for the mean."""
    run = averaged(method, normal_numbers(_STEPS, _RANKS, _SIZE))
    return off(run.means, run.means[:, :1].expand_as(run.means))


def nothing_lost(method: Method) -> float:
    """A method that is told to lose nothing gives the mean."""
    run = averaged(method, whole_numbers(_STEPS, _RANKS, _SIZE))
    return off(run.means[:, 0], run.given.mean(1))


def nothing_lost_of_few_rows(method: Method, columns: int) -> float:
    """The same of matrices of which the first gradient has one row alone, and each later one a row more.

    An embedding's gradient has the rows of the tokens that were there.
    """
    given = whole_numbers(_STEPS, _RANKS, _SIZE)
    rows = given.view(_STEPS, _RANKS, -1, columns)
    for step in range(_STEPS):
        rows[step, :, : -(step + 1)] = 0
    run = averaged(method, given)
    return off(run.means[:, 0], run.given.mean(1))


def left_after_rounds(rounds: int, fraction: float, method: Method) -> float:
    """By how much what is left exceeds (1 - k/d)^rounds of what was given; both squared lengths, of one rank's step."""
    run = averaged(method, normal_numbers(1, 1, _SIZE))
    most = (1 - fraction) ** rounds * run.given.square().sum()
    left = (run.means[0, 0] - run.given[0, 0]).square().sum()
    return float((left - most).clamp_min(0) / most)


def mean_alone(method: Method) -> float:
    """The ranks' result is that of their mean, given to one rank: so it may be added up on its way."""
    given = normal_numbers(_STEPS, _RANKS, _SIZE)
    alone = averaged(method, given.mean(1, keepdim=True))
    return off(averaged(method, given).means[:, 0], alone.means[:, 0])


def scales(method: Method) -> float:
    """Gradients of a loss times 2^10 are sent as the same messages times 2^10."""
    given = normal_numbers(_STEPS, _RANKS, _SIZE)
    return off(averaged(method, given * 2.0**10).means, averaged(method, given).means * 2.0**10)


def bytes_off(method: Method, one_step: int) -> float:
    """Bytes that the first rank sent, against those of a formula for one step."""
    run = averaged(method, normal_numbers(_STEPS, _RANKS, _SIZE))
    return float(torch.tensor(run.bytes_sent - _STEPS * one_step).abs())
