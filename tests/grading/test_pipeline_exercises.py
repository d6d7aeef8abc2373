"""What the exercises of module 04 tell about lists, cuts and numbers; the mutants show the rest."""

from __future__ import annotations

import numpy
import pytest
import torch

from course_lib.checks import check
from course_lib.checks.module_04 import claims, lists, predictions
from course_lib.checks.module_04.cutting import CUT, CutReport, Layers, attempt, step_ms, verdict
from course_lib.comm.ledger import Ledger
from course_lib.schedules import SCHEDULES, Backward, Durations, Forward, bubble_s, held, make_schedule, time_schedule
from course_lib.split import balanced_sizes

NUMBERS = ("bubble", "share", "held")


def library_order(name):
    """The course's own lists."""
    return lambda rank, p, m: list(make_schedule(name, p, m).computes(rank))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_the_course_s_own_lists_are_right(name, p):
    for m in range(1, 8):
        written = lists.write(library_order(name), p, m)
        assert lists.not_legal(written, m) is None
        assert lists.too_costly(name, written.lists, m) is None


def test_backwards_from_the_last_to_the_first_are_gpipe_too():
    written = lists.write(lambda rank, p, m: [*map(Forward, [rank] * m, range(m))] + backwards(rank, m), 4, 6)
    assert lists.not_legal(written, 6) is None
    assert lists.too_costly("gpipe", written.lists, 6) is None


def backwards(rank, m):
    return [Backward(rank, k) for k in reversed(range(m))]


def test_gpipe_for_1f1b_is_named_with_its_number():
    written = lists.write(library_order("gpipe"), 4, 8)
    found = lists.too_costly("1f1b", written.lists, 8)
    assert found == "rank 0 holds 8 activations at once, 1F1B holds 4: is that GPipe?"


def test_who_waits_for_whom_is_said():
    order = [[Forward(0, 0), Backward(0, 0), Forward(0, 1), Backward(0, 1)]]
    order.append([Forward(1, 0), Forward(1, 1), Backward(1, 0), Backward(1, 1)])
    assert lists.not_legal(lists.Written(order), 2) == (
        "your lists deadlock: rank 0 waits with Backward(0, 0) for Backward(1, 0), which rank 1 does only after "
        "Forward(1, 1); rank 1 waits with Forward(1, 1) for Forward(0, 1), which rank 0 does only after Backward(0, 0)"
    )


def test_who_only_waits_for_one_that_waits_is_left_out():
    order = [[Forward(0, 0), Backward(0, 0), Forward(0, 1), Backward(0, 1)]]
    order += [[Forward(rank, 0), Forward(rank, 1), Backward(rank, 0), Backward(rank, 1)] for rank in (1, 2)]
    found = lists.not_legal(lists.Written(order), 2)
    assert found.count("waits with") == 2 and "rank 2 waits" not in found


def test_a_list_without_an_end_is_cut_off():
    def endless(rank, p, m):
        while True:
            yield Forward(rank, 0)

    assert lists.not_legal(lists.write(endless, 2, 3), 3) == "Forward(0, 0) stands 16 times"


@pytest.mark.parametrize("numbers", [numpy.arange, torch.arange])
def test_numpy_s_and_torch_s_whole_numbers_are_whole_numbers(numbers):
    written = lists.write(lambda rank, p, m: [kind(rank, k) for kind in (Forward, Backward) for k in numbers(m)], 3, 4)
    assert written == lists.write(library_order("gpipe"), 3, 4)
    assert all(type(one.microbatch) is int for one in written.lists[0])
    case = CUT.levels["small"].cases[0]
    given = ([8, 1, 1, 1, 5], 2, 4)
    report = attempt(lambda costs, p, m: ([numbers(costs[1] + 1)[1], numbers(9)[4]], numbers(41)[40]), given)
    assert verdict(case, given, (report,), Ledger((), 1)) is None


@pytest.mark.parametrize("gap", [0, 3])
def test_idle_time_in_a_list_is_named(gap):
    written = lists.write(lambda rank, p, m: [*map(Forward, [0] * gap, range(gap)), None, Backward(0, 0)], 2, 3)
    assert written.strange == "rank 0's list holds None: idle time is not written down; waiting comes by itself"


@pytest.mark.parametrize("one", [7, "F0", Forward(0, 0.5), Forward])
def test_what_is_no_computation_is_shown(one):
    assert f"rank 0's list holds {one!r}" in lists.write(lambda rank, p, m: [one], 2, 3).strange


@pytest.mark.parametrize("seed", range(12))
def test_the_slide_s_numbers_are_those_of_the_timed_schedule(seed):
    given = claims.given(seed)
    durations = Durations(forward_s=given.F_s, backward_input_s=given.B_s, backward_weight_s=0)
    slots = time_schedule(make_schedule("gpipe", given.N, given.m), durations)
    length = max(slot.end_s for slot in slots)
    assert given.step == length
    assert given.waiting == pytest.approx(bubble_s(slots, given.N) / length)


@pytest.mark.parametrize("seed", range(12))
def test_04_6_asks_what_the_lists_show(seed):
    """Its formulas hold for every number that is drawn."""
    for level in predictions.PREDICT.levels.values():
        assert {ask.arguments(seed)[0] for ask in level.cases} == set(SCHEDULES)
        for ask in level.cases:
            name, p, m, v, rank, F, B, W = asked = ask.arguments(seed)
            schedule = make_schedule(name, p, m, stages_per_rank=v)
            assert held(schedule, rank).in_flight == asked.held
            durations = Durations(forward_s=F, backward_input_s=B, backward_weight_s=W)
            found = bubble_s(time_schedule(schedule, durations), p)
            assert found == pytest.approx(asked.bubble)


def test_every_best_cut_is_accepted():
    case = Layers(text="4 layers", costs=lambda random: [4, 1, 1, 4], stages=3)
    given = ([4, 1, 1, 4], 3, 4)
    for result in (([1, 2, 1], 22), [(1, 2, 1), 22.0]):
        report = attempt(lambda costs, p, m, result=result: result, given)
        assert verdict(case, given, (report,), Ledger((), 1)) is None
    assert max(balanced_sizes([4, 1, 1, 4], 3)) == 2
    slow = CutReport([2, 1, 1], 25, "")
    assert "stage 0 takes 5 ms, where 4 is possible" in verdict(case, given, (slow,), Ledger((), 1))


def test_with_one_micro_batch_every_cut_is_best():
    case = CUT.levels["edges"].cases[-1]
    assert case.m == 1
    given = (case.costs(None), 3, 1)
    for sizes in ([4, 1, 1], [1, 1, 4]):
        assert verdict(case, given, (CutReport(sizes, sum(given[0]), ""),), Ledger((), 1)) is None


@pytest.mark.parametrize("stages", [[8, 8], [10, 6], [3, 3, 6, 3], [5], [1, 9, 4]])
def test_the_step_of_04_3_is_that_of_the_timed_schedule(stages):
    each = [Durations(forward_s=ms / 3, backward_input_s=ms / 3, backward_weight_s=ms / 3) for ms in stages]
    for m in (1, 2, 7):
        slots = time_schedule(make_schedule("gpipe", len(stages), m), each)
        assert step_ms(stages, m) == pytest.approx(max(slot.end_s for slot in slots))


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([2, 2, 1], "stage 0 takes 13 ms, where 12 is possible: your stages take 13, 7, 8"),
        (
            [1, 1, 3],
            "stage 2 takes 15 ms, where 12 is possible: the last stage takes longest; your stages take 5, 8, 15",
        ),
    ],
)
def test_where_several_algorithms_agree_with_a_uniform_cut_only_costs_are_said(sizes, text):
    case = CUT.levels["small"].cases[2]
    costs = case.costs(None)
    found = verdict(case, (costs, 3, 4), (CutReport(sizes, 0, ""),), Ledger((), 1))
    assert found.endswith(f"(5, 8, 4, 3, 8): {text}")


def test_the_llama_of_04_3_has_a_head_as_dear_as_two_or_three_layers():
    *layers, head = CUT.levels["models"].cases[0].costs(None)
    assert len(layers) == 32 and 2 < head / layers[0] < 3


def test_of_three_numbers_the_right_one_is_looked_at():
    found = check("04.6", lambda *given: (None, None, None))
    assert [level.name for level in found.levels] == list(NUMBERS)
    assert "returned None, the reference" in found.reason
