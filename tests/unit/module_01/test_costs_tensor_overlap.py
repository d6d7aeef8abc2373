"""Overlapped tensor parallelism by hand, at its edges, and against the formulas of its own page."""

from __future__ import annotations

from itertools import product

import pytest

from course_lib.costs.comm.tensor_overlap import tensor_overlap


def blocks(compute, summed, count=1, **options):
    return tensor_overlap([compute] * count, [summed] * count, **options)


def test_in_one_part_everything_takes_its_turn():
    for waits_for in ("own", "all"):
        found = blocks(3.0, 2.0, 4, parts=1, latency_s=0.5, waits_for=waits_for)
        assert found.overlapped_s == found.in_turn_s == 4 * (3 + 2 + 0.5)
        assert found.exposed_s == found.sum_s == 10 and found.hidden_share == 0


def test_two_halves_by_hand():
    found = blocks(4.0, 2.0, 2)
    lanes = [(slot.block, slot.part, slot.kind, slot.start_s, slot.end_s) for slot in found.slots]
    assert lanes == [
        (0, 0, "compute", 0, 2),
        (0, 0, "sum", 2, 3),
        (0, 1, "compute", 2, 4),
        (0, 1, "sum", 4, 5),
        (1, 0, "compute", 4, 6),
        (1, 0, "sum", 6, 7),
        (1, 1, "compute", 6, 8),
        (1, 1, "sum", 8, 9),
    ]
    assert (found.in_turn_s, found.overlapped_s, found.exposed_s, found.hidden_share) == (12, 9, 1, 0.75)


@pytest.mark.parametrize(("compute", "summed"), [(4.0, 2.0), (3.0, 3.0)])
@pytest.mark.parametrize("parts", [2, 4])
def test_where_computing_is_longer_only_the_last_part_s_sum_is_exposed(compute, summed, parts):
    for count in (1, 2, 10):
        assert blocks(compute, summed, count, parts=parts).exposed_s == pytest.approx(summed / parts)


def test_where_summing_is_longer_the_wire_never_rests_once_it_has_begun():
    for count in (1, 2, 10):
        assert blocks(2.0, 6.0, count).overlapped_s == pytest.approx(1 + 6 * count)


@pytest.mark.parametrize(("compute", "summed", "parts"), [*product((1.0, 3.0), (0.5, 1.0, 8.0), (1, 2, 8))])
def test_pieces_of_one_product_wait_for_all_of_the_block_before(compute, summed, parts):
    found = blocks(compute, summed, 3, parts=parts, waits_for="all")
    each = max(compute, summed) + min(compute, summed) / parts
    assert found.overlapped_s == pytest.approx(3 * each)
    assert blocks(compute, summed, 3, parts=parts).overlapped_s <= found.overlapped_s + 1e-9


def test_nothing_to_send_exposes_nothing_and_nothing_to_compute_hides_nothing():
    assert blocks(2.0, 0.0, 3).exposed_s == 0 == blocks(2.0, 0.0, 3).hidden_share
    assert blocks(0.0, 2.0, 3).exposed_s == 6
    assert tensor_overlap([], []).overlapped_s == 0


def test_each_part_pays_its_own_latency_so_that_small_sums_are_better_left_whole():
    whole, halves = (blocks(1.0, 0.1, 8, parts=parts, latency_s=2.0) for parts in (1, 2))
    assert halves.overlapped_s > whole.overlapped_s == pytest.approx(whole.in_turn_s)
    assert halves.hidden_share < 0
    assert blocks(8.0, 0.1, 8, latency_s=2.0).hidden_share > 0.8


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_no_way_is_faster_than_its_busier_lane(parts):
    for compute, summed in product((0.0, 1.0, 2.5), repeat=2):
        found = tensor_overlap([compute, 2 * compute], [summed, 0.5 * summed], parts=parts, latency_s=0.1)
        sums = [slot for slot in found.slots if slot.kind == "sum"]
        assert found.overlapped_s >= max(found.compute_s, sum(slot.end_s - slot.start_s for slot in sums)) - 1e-9
        for kind in ("compute", "sum"):
            lane = [slot for slot in found.slots if slot.kind == kind]
            assert all(a.end_s <= b.start_s for a, b in zip(lane, lane[1:], strict=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": 0}, r"^tensor_overlap: parts=0; a batch has parts; give parts >= 1$"),
        ({"sum_s": [1.0]}, r"^tensor_overlap: 2 blocks, 1 sums; each block ends in a sum; give a time for each$"),
        ({"latency_s": -1.0}, r"^tensor_overlap: a time of -1.0 s; times are not negative; give seconds >= 0$"),
    ],
)
def test_bad_input_is_refused_in_four_parts(change, message):
    with pytest.raises(ValueError, match=message):
        tensor_overlap(**{"compute_s": [1.0, 2.0], "sum_s": [1.0, 1.0], **change})
