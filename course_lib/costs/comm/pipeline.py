"""Bubble, activations and messages of pipeline schedules by formula: p ranks, m micro-batches, v stages on each rank.

F, B and W are the seconds that one *rank* takes for one micro-batch: forward, gradient of the input, gradient of the
weights. They are the same on all ranks, and messages are free.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.costs.comm.traffic import CommTime
from course_lib.errors import four_parts

_NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1")


def pipeline_bubble_s(
    schedule: str,
    *,
    n_ranks: int,
    n_microbatches: int,
    forward_s: float,
    backward_input_s: float,
    backward_weight_s: float,
    stages_per_rank: int = 1,
) -> float:
    """The idle time of each rank's step.

    GPipe and 1F1B: (p - 1)(F + B + W). Interleaved: the same over v. ZB-H1: (p - 1)(F + B - W) if W is at most F and
    B and m >= p, since W fills the gaps. In general a W fills min(F, B, W) of its gap, and there are min(m, p) - 1.
    Source: Narayanan et al. 2021, section 2.2; Qi et al. 2023, table 2.
    Raises: ValueError for an unknown schedule.
    """
    _check(schedule)
    whole = (n_ranks - 1) * (forward_s + backward_input_s + backward_weight_s)
    if schedule == "zb-h1":
        filled = min(n_microbatches, n_ranks) - 1
        each = min(forward_s, backward_input_s, backward_weight_s)
        return (n_ranks - 1) * (forward_s + backward_input_s) - filled * each
    return whole / stages_per_rank if schedule == "interleaved" else whole


def pipeline_in_flight(schedule: str, *, n_ranks: int, n_microbatches: int, rank: int, stages_per_rank: int = 1) -> int:
    """The most activations that a rank holds at once, each of one micro-batch at one stage.

    GPipe: m. 1F1B and ZB-H1: min(p - i, m). Interleaved: min(2(p - i - 1) + (v - 1)p + 1, v m), each of a v-th of
    the rank's layers.
    Source: Narayanan et al. 2021, section 2.2.
    Raises: ValueError for an unknown schedule.
    """
    _check(schedule)
    p, m, v = n_ranks, n_microbatches, stages_per_rank
    if schedule == "gpipe":
        return m
    if schedule == "interleaved":
        return min(2 * (p - rank - 1) + (v - 1) * p + 1, v * m)
    return min(p - rank, m)


def pipeline_stashed(schedule: str, *, n_microbatches: int, rank: int) -> int:
    """The most micro-batches whose weights' gradients a rank owes: i + 1 of ZB-H1's rank i, none otherwise.

    Raises: ValueError for an unknown schedule.
    """
    _check(schedule)
    return min(rank + 1, n_microbatches) if schedule == "zb-h1" else 0


def pipeline_step(cut_bytes: Sequence[int], *, n_ranks: int, n_microbatches: int, tied_bytes: int = 0) -> CommTime:
    """What a step sends at the cuts, the same under every schedule; stage s lies on rank s mod p.

    `cut_bytes[s]` are the bytes of one micro-batch that stage s hands to the next. Each micro-batch passes every cut
    once as activations and once, backwards, as gradients of the same size. `tied_bytes` are those of the parameter
    that the first and the last rank share: they send each other its gradient, once a step. When a message can leave is
    the schedule's affair, so there is no path: `schedules.time_schedule` has the time.
    """
    sent, received, messages = ([0] * n_ranks for _ in range(3))

    def send(source: int, to: int, nbytes: int, times: int) -> None:
        if source != to:
            sent[source] += nbytes * times
            received[to] += nbytes * times
            messages[source] += times

    for stage, nbytes in enumerate(cut_bytes):
        here, there = stage % n_ranks, (stage + 1) % n_ranks
        send(here, there, nbytes, n_microbatches)
        send(there, here, nbytes, n_microbatches)
    if tied_bytes:
        send(0, n_ranks - 1, tied_bytes, 1)
        send(n_ranks - 1, 0, tied_bytes, 1)
    return CommTime(sent_bytes=tuple(sent), received_bytes=tuple(received), messages=tuple(messages), path=())


def _check(schedule: str) -> None:
    if schedule not in _NAMES:
        way_out = f"choose one of {', '.join(_NAMES)}"
        raise ValueError(four_parts("pipeline costs", f"schedule={schedule!r}", "no formula for it", way_out))
