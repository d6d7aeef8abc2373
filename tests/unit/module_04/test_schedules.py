"""Schedules on their lists alone: no deadlock, right order, and the bubble and memory of the formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from course_lib.costs.comm.pipeline import pipeline_bubble_s, pipeline_in_flight, pipeline_stashed
from course_lib.schedules import (
    SCHEDULES,
    Backward,
    BackwardWeight,
    Durations,
    Forward,
    RecvActivation,
    RecvGradient,
    Schedule,
    SendActivation,
    SendGradient,
    bubble_s,
    held,
    make_schedule,
    problems,
    time_schedule,
)

UNEQUAL = Durations(forward_s=2.0, backward_input_s=3.0, backward_weight_s=1.0)
SHORT_FORWARD = Durations(forward_s=1.0, backward_input_s=1.0, backward_weight_s=2.0)
SHORT_BACKWARD = Durations(forward_s=2.5, backward_input_s=1.0, backward_weight_s=2.25)


def cases(p: int, most: int = 64) -> list[tuple[str, int, int]]:
    """Name, m and v of the schedules that p ranks can have.

    Up to 2p + 1 micro-batches, every m; from there on each one more is one more turn of the same kind, so the two
    largest stand for them. Beyond 8 ranks only the m where something turns: beside 1, p, 2p and at the end.
    """
    turning = {1, 2, p - 1, p, p + 1, 2 * p - 1, 2 * p, 2 * p + 1, most - 1, most}
    few = [m for m in range(1, most + 1) if m in turning or (p <= 8 and m <= 2 * p + 1)]
    turns = [m for m in range(p, most + 1, p) if m <= 3 * p or m > most - p]  # interleaved takes multiples of p
    plain = [(name, m, 1) for name in SCHEDULES if name != "interleaved" for m in few]
    return plain + [("interleaved", m, v) for v in (2, 3) for m in turns]


def agrees_with_the_formulas(schedule: Schedule, durations: Durations) -> bool:
    """Bubble and memory as the lists have them, against the closed forms."""
    p, v = schedule.n_ranks, schedule.stages_per_rank
    bubble = pipeline_bubble_s(
        schedule.name,
        n_ranks=p,
        n_microbatches=schedule.n_microbatches,
        forward_s=durations.forward_s,
        backward_input_s=durations.backward_input_s,
        backward_weight_s=durations.backward_weight_s,
        stages_per_rank=v,
    )
    sizes = {"n_microbatches": schedule.n_microbatches}
    for rank in range(p):
        in_flight = pipeline_in_flight(schedule.name, n_ranks=p, rank=rank, stages_per_rank=v, **sizes)
        stashed = pipeline_stashed(schedule.name, rank=rank, **sizes)
        if (held(schedule, rank).in_flight, held(schedule, rank).stashed) != (in_flight, stashed):
            return False
    return bubble_s(time_schedule(schedule, durations), p) == pytest.approx(bubble, abs=1e-9)


@pytest.mark.parametrize("p", [*range(1, 9), 12, 13, 16])
def test_every_schedule_is_good(p: int) -> None:
    for name, m, v in cases(p):
        schedule = make_schedule(name, p, m, stages_per_rank=v)
        assert problems(schedule) == [], (name, m, v)
        assert agrees_with_the_formulas(schedule, Durations()), (name, m, v)


@pytest.mark.parametrize("durations", [UNEQUAL, SHORT_FORWARD, SHORT_BACKWARD])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_bubbles_hold_for_other_ratios(p: int, durations: Durations) -> None:
    for name, m, v in cases(p, most=3 * p + 1):
        assert agrees_with_the_formulas(make_schedule(name, p, m, stages_per_rank=v), durations), (name, m, v)


@pytest.mark.parametrize("p", [1, 2, 5, 16])
def test_zero_bubble_never_holds_more_than_one_f_one_b(p: int) -> None:
    for m in (1, 2, p, 2 * p + 1):
        schedule = make_schedule("zb-h1", p, m)
        for rank in range(p):
            kept = [isinstance(one, Forward) - isinstance(one, BackwardWeight) for one in schedule.computes(rank)]
            assert max(accumulate(kept)) == held(make_schedule("1f1b", p, m), 0).in_flight, (m, rank)


def test_one_f_one_b_of_four_ranks_is_the_papers() -> None:
    orders = ["".join(type(one).__name__[0] for one in make_schedule("1f1b", 4, 8).computes(rank)) for rank in range(4)]
    assert orders == ["FFFFBFBFBFBFBBBB", "FFFBFBFBFBFBFBBB", "FFBFBFBFBFBFBFBB", "FBFBFBFBFBFBFBFB"]


def test_a_message_delays_who_needs_it() -> None:
    schedule = make_schedule("gpipe", 2, 1)
    ends = {slot.instruction: slot.end_s for slot in time_schedule(schedule, Durations(), message_s=0.5)}
    assert ends[Forward(1, 0)] == 1 + 0.5 + 1
    assert ends[Backward(0, 0)] == 2.5 + 2 + 0.5 + 2


def test_a_straggler_holds_up_all() -> None:
    schedule = make_schedule("1f1b", 4, 16)
    even = time_schedule(schedule, Durations())
    slow = time_schedule(
        schedule, [*[Durations()] * 3, Durations(forward_s=2, backward_input_s=2, backward_weight_s=2)]
    )
    length, delayed = (max(slot.end_s for slot in slots) for slots in (even, slow))
    assert length == 16 * 3 + 9 and delayed == 16 * 6 + 9


def swapped(schedule: Schedule, rank: int, one: int, other: int) -> Schedule:
    """The schedule with two instructions of a rank in each other's place."""
    changed = list(schedule.lists[rank])
    changed[one], changed[other] = changed[other], changed[one]
    return with_list(schedule, rank, changed)


def with_list(schedule: Schedule, rank: int, changed: list) -> Schedule:
    return replace(schedule, lists=(*schedule.lists[:rank], tuple(changed), *schedule.lists[rank + 1 :]))


def test_what_is_wrong_is_said() -> None:
    good = make_schedule("1f1b", 2, 2)
    first = list(good.lists[0])
    assert problems(swapped(good, 0, 0, 1)) == ["rank 0 does SendActivation(0, 0) before Forward(0, 0)"]
    without = [one for one in first if one != Backward(0, 1)]
    assert problems(with_list(good, 0, without)) == ["no Backward(0, 1)"]
    assert "Forward(0, 0) stands 2 times" in problems(with_list(good, 0, [*first, Forward(0, 0)]))
    assert "rank 0 has Forward(1, 0), which is not its own" in problems(with_list(good, 0, [*first, Forward(1, 0)]))
    assert "Backward(0, 0) and its parts too" in problems(with_list(good, 0, [*first, BackwardWeight(0, 0)]))


def test_two_ranks_that_both_send_first_block_each_other() -> None:
    """1F1B as one writes it first: it works only as long as sends do not wait."""
    first = [Forward(0, 0), SendActivation(0, 0), Forward(0, 1), SendActivation(0, 1)]
    first += [RecvGradient(0, 0), Backward(0, 0), RecvGradient(0, 1), Backward(0, 1)]
    last = [RecvActivation(1, 0), Forward(1, 0), Backward(1, 0), SendGradient(1, 0)]
    last += [RecvActivation(1, 1), Forward(1, 1), Backward(1, 1), SendGradient(1, 1)]
    schedule = Schedule(name="first try", n_microbatches=2, lists=(tuple(first), tuple(last)))
    assert problems(schedule) == ["deadlock: rank 0 waits at SendActivation(0, 1), rank 1 waits at SendGradient(1, 0)"]
    assert time_schedule(schedule, Durations())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2f2b", 2, 2, 1), r"make_schedule: name='2f2b'; no schedule is called so; choose one of gpipe, 1f1b"),
        (("1f1b", 0, 2, 1), r"n_ranks=0; n_ranks is a positive whole number; give n_ranks >= 1"),
        (("1f1b", 2, 1.5, 1), r"n_microbatches=1.5; n_microbatches is a positive whole number"),
        (("interleaved", 4, 6, 2), r"n_microbatches=6, n_ranks=4; .* groups of n_ranks; choose 4 or 8"),
        (("interleaved", 4, 3, 2), r"choose 4$"),
        (("interleaved", 4, 8, 1), r"a rank takes turns between stages; give 2 or more, or use 1f1b"),
        (("gpipe", 4, 8, 2), r"it has one stage on each rank; give 1, or use interleaved"),
    ],
)
def test_impossible_schedules_are_refused(arguments: tuple, message: str) -> None:
    name, p, m, v = arguments
    with pytest.raises(ValueError, match=message):
        make_schedule(name, p, m, stages_per_rank=v)


def test_lists_that_block_cannot_be_timed() -> None:
    stuck = Schedule(name="stuck", n_microbatches=1, lists=((Backward(0, 0), Forward(0, 0)),))
    with pytest.raises(ValueError, match=r"rank 0 at Backward\(0, 0\); some rank can always go on"):
        time_schedule(stuck, Durations())
    with pytest.raises(ValueError, match=r"^time_schedule: 3 durations, 2 ranks; each rank has its own; give one for"):
        time_schedule(make_schedule("gpipe", 2, 1), [Durations()] * 3)


def test_an_unknown_schedule_has_no_formula() -> None:
    with pytest.raises(ValueError, match=r"schedule='2f2b'; no formula for it; choose one of gpipe"):
        pipeline_stashed("2f2b", n_microbatches=1, rank=0)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_the_schedule_lacks_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"^schedule: rank {rank}; this schedule has 2 ranks, counted from 0; give"):
        held(make_schedule("gpipe", 2, 3), rank)


@pytest.mark.parametrize(
    "times", [(-1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (1.0, float("inf"), 1.0), (1.0, 1.0, float("nan"))]
)
def test_durations_that_nothing_can_have_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"^Durations: .* s; no computation takes less than 0 s, and together they"):
        Durations(forward_s=times[0], backward_input_s=times[1], backward_weight_s=times[2])
