"""Bytes and seconds of one synchronisation by formula: against arithmetic by hand, and against the laboratory."""

from __future__ import annotations

import math

import pytest

from course_lib import costs, less
from course_lib.hardware import BETWEEN_CITIES, INFINIBAND, NVLINK, TEN_GIGABIT
from course_lib.less.workers import SHAPES, SIZE

MODEL = costs.load_model("llama_7b")
NUMBERS = costs.model_parameters(MODEL)
ROWS = {row.method: row for row in costs.one_synchronisation(MODEL, ranks=64)}


def test_messages_weigh_what_the_compressors_pack():
    for size in (1, 7, 1994, 70_000):
        for itemsize in (4, 8):
            assert costs.top_k_bytes(size, 0.07, itemsize) == less.top_k(0.07).message_bytes(size, itemsize)
            assert costs.rand_k_bytes(size, 0.07, itemsize) == less.rand_k(0.07).message_bytes(size, itemsize)
            assert costs.sign_bytes(size, itemsize) == less.sign().message_bytes(size, itemsize)
            for levels in (1, 7, 8):
                packed = less.qsgd(levels, 64).message_bytes(size, itemsize)
                assert costs.qsgd_bytes(size, levels, 64, itemsize) == packed


@pytest.mark.parametrize(
    ("method", "cost"),
    [
        (less.psgd(), lambda: costs.sum_time(SIZE, itemsize=4, ranks=8)),
        (
            less.error_feedback(less.top_k(0.05)),
            lambda: costs.gather_time(costs.top_k_bytes(SIZE, 0.05, 4), ranks=8),
        ),
        (less.alone(less.rand_k(0.05)), lambda: costs.sum_time(100, itemsize=4, ranks=8)),
        (less.ef21(less.sign()), lambda: costs.gather_time(costs.sign_bytes(SIZE, 4), ranks=8)),
        (
            less.double_squeeze(less.top_k(0.05)),
            lambda: costs.double_squeeze_time([costs.top_k_bytes(n, 0.05, 4) for n in (250, 250, *[249] * 6)]),
        ),
        (less.power_sgd(2), lambda: costs.power_sgd_time(SHAPES, 2, itemsize=4, ranks=8)),
    ],
    ids=lambda one: "" if callable(one) else str(one),
)
def test_the_laboratory_s_bytes_are_those_of_the_formulas(method, cost):
    """Of a collective's ranks the mean, since their chunks differ by one number."""
    assert method.sent_bytes(SHAPES, 4, 8) == pytest.approx(cost().total_bytes / 8)


def test_averaged_models_cost_what_the_formulas_say():
    bowls = less.Bowls(workers=8, size=16)
    for topology, degree in (("ring", 2), ("torus", 3), ("static_exponential", 3), ("one_peer_exponential", 1)):
        run = less.gossip(bowls, topology, steps=3)
        assert run.bytes_a_step == max(costs.gossip_time([degree] * 8, 16 * 8).sent_bytes)
    summed = costs.sum_time(16, itemsize=8, ranks=8)
    assert less.local(bowls, 10, steps=3).bytes_a_step == pytest.approx(max(summed.sent_bytes) / 10)


def test_bytes_of_each_method_as_shares_of_the_gradient():
    """By hand: 64 ranks, numbers of 2 bytes, places of 4."""
    shares = {method: row.bytes_a_step / (2 * NUMBERS) for method, row in ROWS.items()}
    assert shares.pop("QSGD in 4 bits, all-gather") == pytest.approx(63 * (4 + 16 / 512) / 16)
    powers = [shares.pop(f"PowerSGD, rank {rank}") for rank in (1, 4, 32)]
    assert powers[0] < 0.001
    assert powers[2] / powers[1] == pytest.approx(8, rel=0.05)  # but for the norms' vectors
    twice = 2 * 63 / 64
    assert shares == pytest.approx(
        {
            "all-reduce, ring": twice,
            "all-reduce, halving-doubling": twice,
            "gossip, ring": 2,
            "gossip, one-peer exponential": 1,
            "gossip, static exponential": math.log2(64),
            "local, every 10": twice / 10,
            "local, every 50": twice / 50,
            "local, every 500": twice / 500,
            "top-1 %, all-gather": 63 * 0.01 * (2 + 4) / 2,
            "top-0.1 %, all-gather": 63 * 0.001 * (2 + 4) / 2,
            "sign, all-gather": 63 / 16,
            "top-1 %, Double-Squeeze": twice * 0.01 * (2 + 4) / 2,
            "sign, Double-Squeeze": twice / 16,
            "rand-1 %, all-reduce": twice * 0.01,
        },
        rel=1e-4,
    )


def test_one_in_a_hundred_by_all_gather_loses_from_67_ranks_on():
    def saves(ranks):
        gathered = costs.gather_time(costs.top_k_bytes(10**6, 0.01, 2), ranks=ranks)
        summed = costs.sum_time(10**6, itemsize=2, ranks=ranks, algorithm="ring")
        return max(gathered.sent_bytes) < max(summed.sent_bytes)

    assert saves(66)
    assert not saves(67)


def test_seconds_on_the_slow_wire_are_latency_once_few_bytes_are_left():
    """(p - 1) or 2 log2 p latencies, twice for PowerSGD, and the bytes at 1 Gb/s."""
    whole = 2 * NUMBERS * 2 * 63 / 64 / 0.125e9
    slow = {method: row.seconds_a_step(BETWEEN_CITIES) for method, row in ROWS.items()}
    assert slow["all-reduce, ring"] == pytest.approx(whole + 126 * 0.02)
    assert slow["all-reduce, halving-doubling"] == pytest.approx(whole + 12 * 0.02)
    assert slow["local, every 500"] == pytest.approx((whole + 12 * 0.02) / 500)
    latency = 24 * 0.02
    assert latency < slow["PowerSGD, rank 1"] < 1.25 * latency
    assert min(slow, key=slow.get) == "local, every 500"


def test_inside_a_node_nothing_is_to_be_won():
    """A step that computes 1.7 s waits a tenth of it at most, whatever the method, if only it sends no more."""
    computing = 6 * 7e9 * 16_384 / 400e12
    for method, row in ROWS.items():
        if row.bytes_a_step <= 2 * NUMBERS * 2:
            assert row.seconds_a_step(NVLINK) < 0.11 * computing, method
    assert ROWS["all-reduce, ring"].seconds_a_step(TEN_GIGABIT) > 10 * computing
    seconds = [ROWS["all-reduce, ring"].seconds_a_step(link) for link in (NVLINK, INFINIBAND, TEN_GIGABIT)]
    assert seconds == sorted(seconds)


def test_stretches_of_unlike_sizes_are_sent_as_they_are():
    cost = costs.double_squeeze_time([10, 20, 40])
    assert cost.sent_bytes == (60 + 20, 50 + 40, 30 + 80)  # all but its own, then its own to both others
    assert sum(cost.sent_bytes) == sum(cost.received_bytes)
    assert cost.steps == 4
    assert costs.double_squeeze_time([10]).total_bytes == 0


def test_power_sgd_sums_vectors_as_they_are_and_no_more_columns_than_a_matrix_has():
    cost = costs.power_sgd_time([(8, 4), (8,)], 100, itemsize=4, ranks=2)
    left, right = 4 * 8 + 8, 4 * 4
    assert max(cost.sent_bytes) == 4 * (left + right) * 2 * (2 - 1) // 2
    assert costs.power_sgd_time([(8,)], 1, itemsize=4, ranks=2).steps == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: costs.qsgd_bytes(10, 128, 64, 4), "qsgd_bytes: levels=128; .*; choose 1 <= levels <= 127"),
        (lambda: costs.one_synchronisation(MODEL, ranks=6), "ranks=6; .*; choose a power of two"),
    ],
)
def test_what_cannot_be_says_what_can(make, message):
    with pytest.raises(ValueError, match=message):
        make()
