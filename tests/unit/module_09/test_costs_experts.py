"""Formulas of expert parallelism: counts, rows out and back, by hand; uneven experts, and ranks that get no row."""

from __future__ import annotations

import pytest

from course_lib.config import load_model
from course_lib.costs import all_to_all_uneven, even_expert_rows, expert_exchange, expert_rows_between
from course_lib.hardware import load_cluster, wires

ROWS = [[3, 1, 0], [2, 2, 2]]  # 2 ranks, 3 experts: rank 0 has experts 0 and 1, rank 1 has expert 2
ROW = 16 * 4  # bytes


def exchange(rows, **options):
    return expert_exchange(rows, hidden_size=16, itemsize=4, **options)


def test_rows_by_rank():
    assert expert_rows_between(ROWS) == [[4, 0], [4, 2]]


def test_counts_then_rows_out_and_back():
    """Nothing leaves rank 0; 4 rows leave rank 1, and rank 0 sends their results back."""
    forward, backward = exchange(ROWS), exchange(ROWS, when="backward")
    assert forward.sent_bytes == (8 * 1 + 4 * ROW, 8 * 2 + 4 * ROW)
    assert forward.received_bytes == (8 * 2 + 4 * ROW, 8 * 1 + 4 * ROW)
    assert backward.sent_bytes == backward.received_bytes == (4 * ROW, 4 * ROW)
    assert forward.messages == (2, 2)  # rank 0's empty message to rank 1 is none, nor is the way back
    assert backward.messages == (1, 1)
    assert [step.nbytes for step in forward.path] == [16, 4 * ROW, 4 * ROW]


def test_sent_is_what_leaves_and_what_came():
    rows = [[5, 0, 1, 2, 9, 1], [0, 0, 7, 1, 0, 0], [4, 4, 4, 4, 4, 4], [0, 0, 0, 0, 0, 0]]  # 2, 2, 1, 1 experts
    between = expert_rows_between(rows)
    assert between == [[5, 3, 9, 1], [0, 8, 0, 0], [8, 8, 4, 4], [0, 0, 0, 0]]
    for rank, here in enumerate((2, 2, 1, 1)):
        leaving = sum(between[rank]) - between[rank][rank]
        coming = sum(row[rank] for row in between) - between[rank][rank]
        assert exchange(rows).sent_bytes[rank] == (6 - here) * 8 + (leaving + coming) * ROW
        assert exchange(rows, when="backward").sent_bytes[rank] == (leaving + coming) * ROW


def test_a_busy_rank_holds_up_all():
    even, uneven = [[2, 2], [2, 2]], [[4, 0], [4, 0]]
    assert exchange(even).critical_bytes < exchange(uneven).critical_bytes
    assert exchange(even).total_bytes == exchange(uneven).total_bytes


def test_one_rank_sends_nothing():
    assert exchange([[3, 2]]).total_bytes == 0
    assert exchange([[3, 2]]).messages == (0,)


def test_an_even_router():
    """Mixtral: 512 tokens, 2 experts each, 8 experts: 128 rows each; on 4 ranks three quarters of 1,024 rows leave."""
    rows = even_expert_rows(load_model("mixtral_8x7b"), [512] * 4)
    assert rows == [[128] * 8] * 4
    cost = expert_exchange(rows, hidden_size=4096, itemsize=2)
    assert cost.sent_bytes == (6 * 8 + 2 * 768 * 4096 * 2,) * 4
    assert even_expert_rows(load_model("mixtral_8x7b"), [5, 0]) == [[2, 2, 1, 1, 1, 1, 1, 1], [0] * 8]


def test_wires_price_it_inside_and_across_domains():
    machine = wires(load_cluster("deepseek_h800"))
    rows = even_expert_rows(load_model("mixtral_8x7b"), [512] * 8)
    inside, across = (expert_exchange(rows, hidden_size=4096, itemsize=2, node_size=n).time_s(machine) for n in (8, 4))
    assert 0 < inside < across


@pytest.mark.parametrize(
    "rows", [[], [[1, 2], [1]], [[1], [1]], [[1, -1], [1, 1]]], ids=["none", "ragged", "fewer experts", "negative"]
)
def test_a_table_with_gaps_is_refused(rows):
    with pytest.raises(ValueError, match="expert_exchange: .* ranks, rows of .*; every rank has an expert, .*; give a"):
        exchange(rows)


def test_refusals():
    with pytest.raises(ValueError, match="expert_exchange: itemsize=0; itemsize is positive; give itemsize >= 1"):
        expert_exchange(ROWS, hidden_size=16, itemsize=0)
    with pytest.raises(ValueError, match="all_to_all_uneven: 2 ranks, rows of .1, 2.; each rank has a size"):
        all_to_all_uneven([[1], [1, 2]])
