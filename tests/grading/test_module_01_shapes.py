"""01.10: in the table of shapes two rows cannot be built, and only one number of each can be the misprint."""

from __future__ import annotations

import pytest

from course_lib.checks.module_01.printed_shapes import HEADS, WIDTH, printed_shapes
from course_lib.checks.module_01.slips import given


def built(row, width):
    """Parameters in billions of so many layers of this width, as 12 L H² says, and the table of tokens."""
    return (12 * row.layers * width**2 + 50257 * width) / 1e9


@pytest.mark.parametrize("seed", range(50))
def test_one_number_of_each_odd_row_is_wrong_and_no_other_can_be(seed):
    rows = printed_shapes(seed)
    odd = [number for number, row in enumerate(rows) if row.heads * row.head_size != row.width]
    assert odd == [HEADS, WIDTH]
    heads, width = rows[HEADS], rows[WIDTH]
    assert heads.width % heads.head_size == 0 and heads.width % heads.heads
    assert built(heads, heads.width) == pytest.approx(heads.billions, rel=0.06)
    assert built(heads, heads.heads * heads.head_size) > 1.5 * heads.billions
    assert width.width % width.head_size and width.width % width.heads
    assert built(width, width.heads * width.head_size) == pytest.approx(width.billions, rel=0.06)


def test_the_first_table_is_gpt_3_s_and_graded_copies_have_their_own():
    assert [row[1:] for row in printed_shapes(0)] == [
        (0.76, 24, 1536, 16, 96),
        (1.3, 24, 2048, 24, 128),
        (2.7, 32, 2560, 32, 80),
        (13.0, 40, 5140, 40, 128),
    ]
    assert len({given(seed).shapes for seed in range(50)}) == 50
