"""One answer to "is this a number", and ratios in words."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.verify.numbers import number_of, whole_of
from course_lib.verify.ratios import agrees, exactly, in_words, of_a_guess, times

WHOLE = (3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor([3]))
BROKEN = (2.5, np.float32(2.5), np.float64(2.5), np.array([2.5]), torch.tensor(2.5, requires_grad=True))
NONE = (None, True, np.True_, torch.tensor(True), "3", b"3", [3], (1, 2), {}, 1j, np.arange(2), torch.ones(2), object)


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_whole_numbers(value):
    assert (number_of(value), whole_of(value)) == (3, 3)
    assert type(number_of(value)) is int


@pytest.mark.parametrize("value", [*BROKEN, Fraction(5, 2), Decimal("2.5")], ids=repr)
def test_other_numbers(value):
    assert (number_of(value), whole_of(value)) == (2.5, None)
    assert type(number_of(value)) is float


@pytest.mark.parametrize("value", NONE, ids=repr)
def test_no_numbers(value):
    assert number_of(value) is None


def test_ratios_in_words():
    assert [exactly(ratio) for ratio in (4.0, 1 / 3, 0.75, 1.25, 8 / 7, -1.0, 0.0, 1.004)] == [
        "exactly 4.0 x",
        "exactly 1/3 of",
        "exactly 0.75 x",
        "exactly 1.25 x",
        "1.143 x",
        "exactly -1.0 x",
        "exactly 0 x",
        "exactly 1.004 x",
    ]
    assert (in_words(0.25), times(0.25), of_a_guess(0.25)) == ("1/4 of", "0.25 x", "1/4.0 of the answer")
    assert agrees(4.0003, 4) and not agrees(4.0005, 4)
