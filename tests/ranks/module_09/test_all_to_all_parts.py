"""Before an all-to-all the ranks compare what each sends to each other one with what that one has room for."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist

from course_lib.ranks import RankError, run_ranks

ROWS = [[1, 2, 0], [3, 0, 1], [2, 2, 2]]  # rank i sends ROWS[i][j] rows to rank j


def table(size):
    """What this rank sends, and what it should expect."""
    rank = dist.get_rank()
    return ROWS[rank][:size], [ROWS[other][rank] for other in range(size)]


def filled(rows, row=(2,)):
    return torch.full((rows, *row), float(dist.get_rank()))


def single(sent, expected, row=(2,)):
    mine, room = filled(sum(sent), row), torch.full((sum(expected), *row), -1.0)
    dist.all_to_all_single(room, mine, expected, sent)  # the culprit
    return room


def listed(sent, expected, row=(2,)):
    room = [torch.full((n, *row), -1.0) for n in expected]
    dist.all_to_all(room, [filled(n, row) for n in sent])  # the culprit
    return torch.cat(room)


@pytest.mark.parametrize("row", [(), (2,), (2, 3)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_uneven_rows_arrive_where_tables_agree(size, row):
    def right():
        sent, expected = table(size)
        room = single(sent, expected, row)
        return room.equal(torch.cat([torch.full((n, *row), float(other)) for other, n in enumerate(expected)]))

    assert run_ranks(right, size) == [True] * size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_lists_of_equal_tensors_arrive(size):
    def right():
        return listed([2] * size, [2] * size).equal(torch.arange(float(size)).repeat_interleave(2).repeat(2, 1).T)

    assert run_ranks(right, size) == [True] * size


def test_lists_of_uneven_tensors_agree_and_are_gloo_s_to_refuse():
    """NCCL takes them. What matters here: nobody says that the ranks disagree, and the line is the learner's."""
    with pytest.raises(
        RankError, match=f"line {line_of(listed)} of .* ProcessGroupGloo::alltoall: invalid tensor size"
    ):
        run_ranks(lambda: listed(*table(2)), 2)


def line_of(way):
    lines, first = inspect.getsourcelines(way)
    return first + next(n for n, line in enumerate(lines) if "# the culprit" in line)


@pytest.mark.parametrize("size", [2, 3])
def test_even_parts_need_no_tables(size):
    def right():
        room = torch.empty(size, 2)
        dist.all_to_all_single(room, filled(size))
        return room.equal(torch.arange(float(size)).repeat(2, 1).T)

    assert run_ranks(right, size) == [True] * size


def too_much_from_rank_1(way, size):
    sent, expected = table(size)
    if dist.get_rank() == 0:
        expected[1] += 2
    way(sent, expected)


def sends_and_expects_swapped(way, size):
    sent, expected = table(size)
    if dist.get_rank() == 1:
        sent, expected = expected, sent
    way(sent, expected)


def even_beside_uneven(way, size):
    sent, expected = table(size)
    if dist.get_rank() == 0:
        sent = [2] * size
    way(sent, expected)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", [single, listed])
@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (too_much_from_rank_1, "rank 1 sends 6 numbers to rank 0, which expects 10 from it"),
        (sends_and_expects_swapped, "rank 0 sends 4 numbers to rank 1, which expects 6 from it"),
        (even_beside_uneven, "rank 0 sends 4 numbers to rank 0, which expects 2 from it"),
    ],
)
def test_tables_that_disagree_end_in_one_report_with_the_learners_line(mistake, said, way, size):
    with pytest.raises(RankError) as caught:
        run_ranks(mistake, size, way, size)
    name = {single: "all_to_all_single", listed: "all_to_all"}[way]
    assert f"{name}: {said}; " in str(caught.value)
    assert f"line {line_of(way)} of test_all_to_all_parts.py" in str(caught.value)
    assert run_ranks(dist.get_rank, size) == list(range(size))  # nobody was lost


def test_in_a_group_ranks_keep_their_own_numbers():
    def wrong():
        pair = dist.new_group([1, 2])
        if dist.get_rank():
            sent = [dist.get_rank() - 1, 3 - dist.get_rank()]
            dist.all_to_all_single(torch.empty(2), torch.empty(2), [1, 1], sent, pair)

    with pytest.raises(RankError, match="rank 1 sends 0 numbers to rank 1, which expects 1 from it"):
        run_ranks(wrong, 3)


@pytest.mark.parametrize("mistake", ["short_lists", "short_tables"])
def test_each_rank_has_a_part(mistake):
    with pytest.raises(RankError, match=r"all_to_all\w*: 1 of 2 parts; each rank sends a part to each"):
        run_ranks(globals()[mistake], 2)


def short_lists():
    dist.all_to_all([torch.empty(1)], [torch.empty(1)] * 2)


def short_tables():
    dist.all_to_all_single(torch.empty(2), torch.empty(2), [2], [2])
