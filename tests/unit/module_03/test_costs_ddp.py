"""Formulas of DDP: buckets by hand, bytes of the ring, and the two streams of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_lib.costs import comm_time
from course_lib.costs.comm.ddp import DdpTime, ddp_settling, ddp_step, ddp_time, ddp_wrapping, fill_buckets
from course_lib.hardware import ETHERNET, INFINIBAND, NVLINK, Link

TOY = Link(name="toy", alpha_s=0.0, bandwidth_bytes_per_s=4.0, source="a test", date="2026-11")


@pytest.mark.parametrize(
    ("bucket_bytes", "buckets"),
    [
        (1, [[5], [1], [6], [2]]),
        (20, [[5], [1, 6], [2]]),
        (21, [[5, 1], [6], [2]]),
        (25, [[5, 1, 6], [2]]),
        (10**6, [[5, 1, 6, 2]]),
    ],
)
def test_a_bucket_is_full_once_it_holds_its_bytes(bucket_bytes, buckets):
    assert fill_buckets([5, 1, 6, 2], bucket_bytes=bucket_bytes, itemsize=4) == buckets


def test_the_workshop_s_perceptron_by_hand():
    """6-4-2 with biases: 24 + 4 + 8 + 2 = 38 parameters; at 2 ranks each sends M = 152 bytes in fp32."""
    lengths = [24, 4, 8, 2]
    assert ddp_step(lengths, world_size=2).sent_bytes == (152, 152)
    assert ddp_step(lengths, world_size=2).messages == (2, 2)
    assert ddp_step(lengths, world_size=2, bucket_bytes=1).messages == (8, 8)
    assert ddp_step(lengths, world_size=1).total_bytes == 0
    assert ddp_wrapping([(lengths, 4)], world_size=2).sent_bytes == (152, 0)
    unused = ddp_step(lengths, world_size=2, find_unused_parameters=True)
    assert unused.total_bytes == 2 * 152 + 2 * 4
    assert ddp_settling(4, world_size=2).total_bytes == 2 * 4 + 4 * 8


def test_buckets_neither_add_nor_save_bytes_where_they_divide():
    one = ddp_step([12, 24, 36], world_size=3)
    three = ddp_step([12, 24, 36], world_size=3, bucket_bytes=1)
    assert one.sent_bytes == three.sent_bytes == (2 * 2 * 72 * 4 // 3,) * 3
    assert three.steps == 3 * one.steps


def test_state_of_two_dtypes_goes_apart():
    both = ddp_wrapping([([10, 5], 4), ([1], 8)], world_size=4)
    assert both.total_bytes == 3 * (15 * 4 + 8)
    assert both.messages == (4, 0, 2, 0)


TIMES = DdpTime(compute_s=10.0, ready_s=(6.0, 8.0, 10.0), all_reduce_s=(3.0, 1.0, 2.0))


def test_two_streams_by_hand():
    """6 to 9, 9 to 10, 10 to 12: only the last bucket is seen."""
    assert TIMES.overlapped_s == 12.0 and TIMES.in_turn_s == 16.0
    assert TIMES.starts_s() == (6, 9, 10) and TIMES.starts_s(overlap=False) == (10, 13, 14)
    assert TIMES.efficiency() == pytest.approx(10 / 12) and TIMES.efficiency(overlap=False) == pytest.approx(10 / 16)
    slow = replace(TIMES, all_reduce_s=(30.0, 1.0, 2.0))
    assert slow.overlapped_s == 6 + 33
    assert replace(TIMES, all_reduce_s=(0.0, 0.0, 0.0)).efficiency() == 1.0


def test_a_step_of_layers_by_hand():
    """Two ranks, beta 1/4 s per byte: a bucket of n float32 takes n seconds."""
    time = ddp_time([[4], [2, 2]], forward_s=1, backward_s=[2, 3], world_size=2, inside=TOY, bucket_bytes=1)
    assert time.compute_s == 7
    assert time.ready_s == (5, 5, 7)  # the last layer first
    assert time.all_reduce_s == (2, 2, 4)
    assert (time.overlapped_s, time.in_turn_s) == (13, 15)
    together = ddp_time([[4], [2, 2]], forward_s=1, backward_s=[2, 3], world_size=2, inside=TOY)
    assert together.ready_s == (7,) and together.overlapped_s == together.in_turn_s == 15


def test_slower_links_scale_worse_and_overlap_helps():
    layers = [[4096 * 4096] * 3] * 8

    def efficiency(link, overlap=True):
        time = ddp_time(layers, forward_s=0.01, backward_s=0.02, world_size=8, inside=link, itemsize=2)
        assert time.overlapped_s >= max(time.compute_s, sum(time.all_reduce_s))
        return time.efficiency(overlap=overlap)

    found = [efficiency(link) for link in (NVLINK, INFINIBAND, ETHERNET)]
    assert 1 > found[0] > found[1] > found[2] > 0
    assert all(efficiency(link) > efficiency(link, overlap=False) for link in (NVLINK, INFINIBAND, ETHERNET))


def test_nodes_use_the_link_between_them():
    options = {"forward_s": 0.01, "backward_s": 0.02, "world_size": 4, "inside": NVLINK}
    fast = ddp_time([[10**6]], **options)
    slow = ddp_time([[10**6]], **options, between=ETHERNET, node_size=2)
    cost = comm_time("all_reduce", "ring", world_size=4, length=10**6, itemsize=4, node_size=2)
    assert slow.all_reduce_s == (cost.time_s(NVLINK, ETHERNET),) and slow.all_reduce_s > fast.all_reduce_s


@pytest.mark.parametrize(
    ("layers", "backward_s", "values"), [([[1]], [1, 2], "2 times in backward_s, 1 layers"), ([], [], "0 times")]
)
def test_times_that_do_not_fit(layers, backward_s, values):
    with pytest.raises(ValueError, match=f"ddp_time: {values}.*; each layer has a time; give one number, or one for"):
        ddp_time(layers, forward_s=1, backward_s=backward_s, world_size=2, inside=TOY)
