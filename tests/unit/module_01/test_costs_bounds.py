"""Lower bounds, their limits, and the claim that is only true of the whole tensor."""

from __future__ import annotations

import math

import pytest

from course_lib.costs import (
    bandwidth_bound_s,
    bandwidth_limit_s,
    comm_time,
    gloo_all_reduce_s,
    latency_bound_s,
    least_bytes,
)
from course_lib.hardware import INFINIBAND, NVLINK

M = 10**9
WHOLE_SECONDS = M / INFINIBAND.bandwidth_bytes_per_s


@pytest.mark.parametrize(("p", "steps"), [(1, 0), (2, 1), (3, 2), (8, 3), (9, 4)])
def test_latency_bound(p, steps):
    assert latency_bound_s(world_size=p, link=NVLINK) == steps * NVLINK.alpha_s


@pytest.mark.parametrize(
    ("operation", "share"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75)]
    + [("broadcast", 1), ("reduce", 1), ("scatter", 0.75), ("gather", 0.75)],
)
def test_least_bytes_on_four_ranks(operation, share):
    assert least_bytes(operation, world_size=4, nbytes=M) == share * M
    assert least_bytes(operation, world_size=1, nbytes=M) == 0
    seconds = bandwidth_bound_s(operation, world_size=4, nbytes=M, link=INFINIBAND)
    assert seconds == pytest.approx(share * WHOLE_SECONDS)


@pytest.mark.parametrize(("operation", "times"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_limits_for_many_ranks(operation, times):
    limit_s = bandwidth_limit_s(operation, nbytes=M, link=INFINIBAND)
    assert limit_s == pytest.approx(times * WHOLE_SECONDS)
    bounds = [bandwidth_bound_s(operation, world_size=p, nbytes=M, link=INFINIBAND) for p in (2, 8, 64, 10**6)]
    assert bounds == sorted(bounds)
    assert bounds[-1] < limit_s
    assert math.isclose(bounds[-1], limit_s, rel_tol=1e-5)


def test_all_gather_depends_on_the_ranks_when_m_is_each_rank_s_part():
    part = 10**6
    for p in (2, 8, 64):
        seconds = bandwidth_bound_s("all_gather", world_size=p, nbytes=p * part, link=INFINIBAND)
        assert seconds == pytest.approx((p - 1) * part / INFINIBAND.bandwidth_bytes_per_s)


def test_gloo_waits_twice_per_step_and_sends_the_ring_s_bytes():
    ring = comm_time("all_reduce", "ring", world_size=4, length=1024, itemsize=4)
    extra_s = gloo_all_reduce_s(world_size=4, nbytes=4096, link=NVLINK) - ring.time_s(NVLINK)
    assert extra_s == pytest.approx(6 * NVLINK.alpha_s)


def test_a_barrier_has_no_bandwidth_bound():
    with pytest.raises(
        ValueError, match=r"^least_bytes: operation='barrier'; the bound is about .*; choose one of broad"
    ):
        least_bytes("barrier", world_size=4, nbytes=1)
