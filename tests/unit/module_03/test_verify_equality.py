"""Deviations, and how a wrong tensor was made from the right one. No ranks here."""

from __future__ import annotations

import math

import pytest
import torch

from course_lib.verify.equality import deviation, signature
from course_lib.verify.ratios import in_words

WANT = torch.randn(12, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_deviation_is_relative_to_the_largest_number():
    assert deviation(torch.tensor([1.0, -4.4]), torch.tensor([1.0, -4.0])) == pytest.approx(0.1, rel=1e-6)
    assert deviation(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
    assert deviation(torch.tensor([0.5]), torch.tensor([0.25]), scale=2.5) == pytest.approx(0.1)
    assert deviation(torch.zeros(0), torch.zeros(0)) == 0.0
    assert deviation(torch.tensor([True, False]), torch.tensor([True, True])) == 1.0
    assert deviation(torch.tensor([9]), torch.tensor([10])) == pytest.approx(0.1)
    assert math.isnan(deviation(torch.tensor([math.nan]), torch.tensor([1.0])))


def other_shards(order, dim=0):
    return torch.cat([WANT.tensor_split(4, dim)[number] for number in order], dim)


@pytest.mark.parametrize(
    ("got", "kind", "words", "ratio"),
    [
        (WANT * 4, "ratio", "4.0 x one device's", 4.0),
        (WANT / 3, "ratio", "1/3 of one device's", 1 / 3),
        (-WANT, "ratio", "-1.0 x one device's", -1.0),
        (WANT * 1e-6, "ratio", "1/1000000 of one device's", 1e-6),
        (WANT * 0, "zero", "zero", 0.0),
        (WANT * (1 + 1e-5), "other", "near one device's, not equal", 1.0),
        (WANT.bfloat16().double(), "rounded", "one device's rounded to bfloat16", 1.0),
        (WANT.half().double(), "rounded", "one device's rounded to float16", 1.0),
        (WANT.T.reshape(12, 8), "transposed", "one device's transposed", None),
        (other_shards([2, 1, 0, 3]), "permuted", "one device's with its shards of dim 0 in the order 2, 1, 0, 3", None),
        (
            other_shards([3, 0, 1, 2], 1),
            "permuted",
            "one device's with its shards of dim 1 in the order 3, 0, 1, 2",
            None,
        ),
        (WANT.abs(), "other", "wrong, and not by a constant factor", None),
    ],
)
def test_signatures(got, kind, words, ratio):
    found = signature(got, WANT, 4)
    assert (found.kind, found.words) == (kind, words)
    assert found.ratio == (None if ratio is None else pytest.approx(ratio, rel=1e-4))


def test_a_square_matrix_may_be_transposed_as_a_whole_or_in_one_shard():
    square = WANT[:8]
    assert signature(square.T, square, 4).words == "one device's transposed"
    halves = [half.clone() for half in square.tensor_split(2)]
    halves[1] = torch.cat([halves[1][:, :4].T, halves[1][:, 4:].T], 1)
    assert signature(torch.cat(halves), square, 2).kind == "other"  # blocks, which no shard is
    halves[1] = square[4:].T.reshape(4, 8)
    assert signature(torch.cat([square[:4], halves[1]]), square, 2).words.endswith("a transposed shard (dim 0)")


def test_nothing_is_recognised_in_something_else():
    zeros = torch.zeros(3)
    assert signature(torch.ones(3), zeros, 2).kind == "other"
    assert signature(torch.full((3,), math.nan), torch.ones(3), 2).kind == "other"
    equal = torch.ones(4, 4)
    assert signature(equal * 2, equal, 4).ratio == pytest.approx(2)  # not permuted shards


@pytest.mark.parametrize(
    ("ratio", "words"), [(4.0, "4.0 x"), (1 / 3, "1/3 of"), (-1.0, "-1.0 x"), (0.0, "0 x"), (1.37, "1.37 x")]
)
def test_ratios_in_words(ratio, words):
    assert in_words(ratio) == words
