"""The cost formulas against cases worked out by hand, and against what must hold for all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_lib.costs import ALGORITHMS, comm_time, least_bytes
from course_lib.hardware import INFINIBAND, NVLINK

CASES = [(operation, algorithm) for operation, names in ALGORITHMS.items() for algorithm in names]
WORLD_SIZES = [*range(1, 10), 16]


def cost_of(operation, algorithm, p, length, root=0, node_size=None, itemsize=1):
    """The cost, in nodes of 2 or of 1 where the algorithm needs nodes."""
    if algorithm == "hierarchical" and node_size is None:
        node_size = 2 - p % 2
    return comm_time(
        operation, algorithm, world_size=p, length=length, itemsize=itemsize, root=root, node_size=node_size
    )


# 7 bytes: chunks 3, 2, 2 on three ranks; 2, 2, 2, 1 on four; 2, 1, 1, 1, 1, 1 on six.
@pytest.mark.parametrize(
    ("operation", "algorithm", "p", "root", "sent", "received", "messages", "path"),
    [
        ("broadcast", "naive", 3, 1, (0, 14, 0), (7, 0, 7), (0, 2, 0), (7, 7)),
        ("broadcast", "tree", 4, 0, (14, 0, 7, 0), (0, 7, 7, 7), (2, 0, 1, 0), (7, 7)),
        ("broadcast", "tree", 5, 1, (0, 21, 0, 7, 0), (7, 0, 7, 7, 7), (0, 3, 0, 1, 0), (7, 7, 7)),
        ("reduce", "naive", 3, 1, (7, 0, 7), (0, 14, 0), (1, 0, 1), (7, 7)),
        ("reduce", "tree", 4, 0, (0, 7, 7, 7), (14, 0, 7, 0), (0, 1, 1, 1), (7, 7)),
        ("scatter", "naive", 3, 1, (0, 5, 0), (3, 0, 2), (0, 2, 0), (3, 2)),
        ("scatter", "tree", 4, 0, (5, 0, 1, 0), (0, 2, 3, 1), (2, 0, 1, 0), (3, 2)),
        ("scatter", "tree", 6, 2, (1, 0, 6, 0, 1, 0), (3, 1, 0, 1, 2, 1), (1, 0, 3, 0, 1, 0), (3, 2, 1)),
        ("gather", "naive", 3, 0, (0, 2, 2), (4, 0, 0), (0, 1, 1), (2, 2)),
        ("gather", "tree", 6, 2, (3, 1, 0, 1, 2, 1), (1, 0, 6, 0, 1, 0), (1, 1, 0, 1, 1, 1), (1, 2, 3)),
        ("all_gather", "naive", 3, 0, (6, 4, 4), (4, 5, 5), (2, 2, 2), (3, 3)),
        ("all_gather", "ring", 3, 0, (5, 5, 4), (4, 5, 5), (2, 2, 2), (3, 3)),
        ("reduce_scatter", "naive", 3, 0, (4, 5, 5), (6, 4, 4), (2, 2, 2), (3, 3)),
        ("reduce_scatter", "ring", 3, 0, (4, 5, 5), (5, 4, 5), (2, 2, 2), (3, 3)),
        ("all_to_all", "pairwise", 3, 0, (4, 5, 5), (6, 4, 4), (2, 2, 2), (3, 3)),
        ("all_reduce", "naive", 3, 0, (14, 7, 7), (14, 7, 7), (2, 1, 1), (7, 7, 7, 7)),
        ("all_reduce", "tree", 4, 0, (14, 7, 14, 7), (14, 7, 14, 7), (2, 1, 2, 1), (7, 7, 7, 7)),
        ("all_reduce", "ring", 3, 0, (9, 10, 9), (9, 9, 10), (4, 4, 4), (3, 3, 3, 3)),
        ("all_reduce", "recursive_doubling", 3, 0, (14, 7, 7), (14, 7, 7), (2, 1, 1), (7, 7, 7)),
        ("all_reduce", "recursive_doubling", 4, 0, (14,) * 4, (14,) * 4, (2,) * 4, (7, 7)),
        ("all_reduce", "halving_doubling", 3, 0, (14, 7, 7), (14, 7, 7), (3, 2, 1), (7, 4, 4, 7)),
        (
            *("all_reduce", "halving_doubling", 5, 0),
            *((18, 11, 10, 10, 7), (18, 11, 10, 10, 7), (5, 4, 4, 4, 1), (7, 4, 2, 2, 4, 7)),
        ),
        ("all_reduce", "hierarchical", 4, 0, (11, 10, 11, 10), (11, 10, 11, 10), (4,) * 4, (4, 2, 2, 4)),
    ],
)
def test_by_hand(operation, algorithm, p, root, sent, received, messages, path):
    cost = cost_of(operation, algorithm, p, 7, root)
    assert cost.sent_bytes == sent
    assert cost.received_bytes == received
    assert cost.messages == messages
    assert tuple(step.nbytes for step in cost.path) == path
    assert (cost.steps, cost.critical_bytes, cost.total_bytes) == (len(path), sum(path), sum(sent))


@pytest.mark.parametrize(("p", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_barrier_by_hand(p, rounds):
    cost = cost_of("barrier", "dissemination", p, 1)
    assert cost.sent_bytes == cost.received_bytes == cost.messages == (rounds,) * p
    assert cost.steps == rounds


@pytest.mark.parametrize(
    ("operation", "algorithm", "messages", "steps"),
    [
        ("scatter", "naive", (1, 0, 0, 0), 1),
        ("scatter", "tree", (1, 0, 0, 0), 1),  # ranks 2 and 3 have nothing to get
        ("gather", "tree", (0, 1, 0, 0), 1),
        ("all_gather", "naive", (3, 3, 0, 0), 3),
        ("all_gather", "ring", (1, 2, 2, 1), 3),
        ("reduce_scatter", "naive", (1, 1, 2, 2), 3),
        ("reduce_scatter", "ring", (1, 1, 2, 2), 3),
        ("all_reduce", "ring", (2, 3, 4, 3), 6),
        ("all_reduce", "halving_doubling", (3, 3, 1, 1), 4),
    ],
)
def test_empty_chunks_are_not_messages(operation, algorithm, messages, steps):
    cost = cost_of(operation, algorithm, 4, 2)  # chunks 1, 1, 0, 0
    assert cost.messages == messages
    assert cost.steps == steps


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
@pytest.mark.parametrize("p", WORLD_SIZES)
def test_what_is_sent_is_received_and_fits_the_critical_path(operation, algorithm, p):
    for length in (1, 2, 7, 48, 49):
        for root in range(p):
            cost = cost_of(operation, algorithm, p, length, root, itemsize=4)
            assert len(cost.sent_bytes) == len(cost.received_bytes) == len(cost.messages) == p
            assert sum(cost.sent_bytes) == sum(cost.received_bytes)
            assert max(cost.sent_bytes + cost.received_bytes) <= cost.critical_bytes
            assert max(cost.messages) <= cost.steps
            assert all(bool(n) == bool(m) for n, m in zip(cost.sent_bytes, cost.messages, strict=True))


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
def test_one_rank_says_nothing(operation, algorithm):
    cost = cost_of(operation, algorithm, 1, 7)
    assert cost.sent_bytes == cost.received_bytes == cost.messages == (0,)
    assert cost.steps == cost.time_s(NVLINK) == 0


@pytest.mark.parametrize(("operation", "algorithm"), [case for case in CASES if case[0] != "barrier"])
@pytest.mark.parametrize("p", WORLD_SIZES)
def test_nobody_beats_the_lower_bounds(operation, algorithm, p):
    length = 5 * p
    cost = cost_of(operation, algorithm, p, length)
    bound = least_bytes(operation, world_size=p, nbytes=length)
    assert max(cost.sent_bytes + cost.received_bytes) >= bound - 1e-9
    assert cost.steps >= (p - 1).bit_length()


@pytest.mark.parametrize("p", WORLD_SIZES)
def test_the_ring_reaches_the_bandwidth_bound(p):
    cost = cost_of("all_reduce", "ring", p, 6 * p)
    assert cost.sent_bytes == cost.received_bytes == (2 * (p - 1) * 6,) * p  # 2(p - 1)/p M
    assert cost.steps == 2 * (p - 1)


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_halving_and_doubling_sends_the_ring_s_bytes_in_fewer_steps(p):
    cost, ring = (cost_of("all_reduce", name, p, 6 * p) for name in ("halving_doubling", "ring"))
    assert cost.sent_bytes == ring.sent_bytes
    assert cost.critical_bytes == ring.critical_bytes
    assert cost.steps == 2 * (p.bit_length() - 1)


def test_time_is_alpha_per_step_and_beta_per_byte():
    cost = cost_of("all_reduce", "ring", 4, 8, itemsize=4)
    assert cost.time_s(NVLINK) == pytest.approx(6 * (NVLINK.alpha_s + 8 * NVLINK.beta_s_per_byte))
    naive = cost_of("all_reduce", "naive", 4, 8, itemsize=4)
    assert naive.time_s(NVLINK) == pytest.approx(6 * (NVLINK.alpha_s + 32 * NVLINK.beta_s_per_byte))


def test_a_step_takes_its_slowest_link():
    def slow_steps(operation, algorithm, root=0):
        cost = cost_of(operation, algorithm, 4, 8, root, node_size=2)
        return tuple(step.between for step in cost.path)

    assert slow_steps("all_reduce", "ring") == (True,) * 6
    assert slow_steps("all_reduce", "hierarchical") == (False, True, True, False)
    assert slow_steps("all_reduce", "recursive_doubling") == (False, True)
    assert slow_steps("all_reduce", "halving_doubling") == (True, False, False, True)
    assert slow_steps("broadcast", "naive", root=2) == (True, True, False)
    assert slow_steps("broadcast", "tree") == (True, False)
    assert slow_steps("broadcast", "tree", root=1) == (True, True)
    assert slow_steps("all_to_all", "pairwise") == (True,) * 3


def test_hierarchy_pays_off_between_slow_nodes_and_needs_them():
    ring, hierarchical = (cost_of("all_reduce", name, 16, 16 * 2**20, node_size=4) for name in ("ring", "hierarchical"))
    assert hierarchical.time_s(NVLINK, INFINIBAND) < ring.time_s(NVLINK, INFINIBAND) / 2
    one_node = cost_of("all_reduce", "hierarchical", 4, 7, node_size=4)
    assert one_node == cost_of("all_reduce", "ring", 4, 7, node_size=4)
    assert one_node.time_s(NVLINK, INFINIBAND) == one_node.time_s(NVLINK)


def test_without_a_second_link_all_links_are_alike():
    cost = cost_of("all_reduce", "hierarchical", 4, 8)
    assert cost.time_s(NVLINK) == cost.time_s(NVLINK, NVLINK) < cost.time_s(NVLINK, INFINIBAND)


def test_costs_in_sequence_add_up():
    parts = cost_of("reduce_scatter", "ring", 3, 7) + cost_of("all_gather", "ring", 3, 7)
    assert parts == cost_of("all_reduce", "ring", 3, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": "allreduce"}, r"^comm_time: operation='allreduce'; not a known operation; choose one of broad"),
        ({"algorithm": "butterfly"}, r"^comm_time: algorithm='butterfly'; all_reduce has no such algorithm; choose"),
        ({"world_size": 0}, r"^comm_time all_reduce ring: world_size=0; world_size is positive; give world_size >= 1"),
        ({"length": 0}, r"length=0; length is positive; give length >= 1"),
        ({"itemsize": 0}, r"itemsize=0; itemsize is positive; give itemsize >= 1"),
        ({"operation": "reduce", "algorithm": "tree", "root": 6}, r"root=6, world_size=6; the root is a rank; choose"),
        ({"operation": "reduce", "algorithm": "tree", "root": -1}, r"root=-1, .* choose root in 0\.\.5$"),
        (
            {"algorithm": "hierarchical"},
            r"node_size=None, world_size=6; all nodes hold .*; choose node_size in \[1, 2, ",
        ),
        ({"algorithm": "hierarchical", "node_size": 4}, r"node_size=4, world_size=6; .* in \[1, 2, 3, 6\]$"),
        ({"node_size": 0}, r"^comm_time all_reduce ring: node_size=0; a node has ranks; give node_size >= 1$"),
    ],
)
def test_bad_input_is_refused_in_four_parts(change, message):
    call = {"operation": "all_reduce", "algorithm": "ring", "world_size": 6, "length": 7, "itemsize": 4, **change}
    with pytest.raises(ValueError, match=message):
        comm_time(**call)


def test_no_torch_below_the_line():
    modules = "course_lib.costs, course_lib.config, course_lib.hardware, course_lib.units, course_lib.errors"
    code = f"import sys; sys.modules['torch'] = None; import {modules}; print(course_lib.costs.ALGORITHMS['barrier'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "('dissemination',)"), done.stderr
