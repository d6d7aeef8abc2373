"""How often a gradient counts each row of a batch, and what a difference of two tensors looks like. No ranks here."""

from __future__ import annotations

import pytest
import torch

from course_lib.verify.counted import Cut, by_targets, counts, level, odd_rows, only
from course_lib.verify.equality import noise

GENERATOR = torch.Generator().manual_seed(0)
ROWS = {"w": torch.randn(5, 4, 3, generator=GENERATOR).double(), "b": torch.randn(5, 11, generator=GENERATOR).double()}
TARGETS = torch.tensor([2, 1, 0, 4, 3])
NAN = float("nan")
for row in ROWS.values():
    row[2] = 0  # no target, no gradient


def summed(weights):
    return {name: torch.einsum("b,b...->...", torch.tensor(weights).double(), rows) / 10 for name, rows in ROWS.items()}


def test_a_sum_is_taken_apart_into_how_often_each_row_counts():
    count = counts(summed([1, 0, 5, 2.5, 1]), ROWS, 10)
    assert torch.allclose(count, torch.tensor([1, 0, NAN, 2.5, 1]).double(), equal_nan=True)
    assert counts({"b": summed([1, 2, 3, 4, 5])["b"]}, ROWS, 10)[3].item() == pytest.approx(4)


def test_what_is_no_sum_of_the_rows_is_said_to_be_none():
    other = summed([1, 1, 1, 1, 1])
    other["w"][0, 0] += 0.5
    assert counts(other, ROWS, 10) is None
    assert counts({}, ROWS, 10) is None
    assert counts({"w": ROWS["w"][0] * NAN}, ROWS, 10) is None
    few = {"w": ROWS["w"][:, 0, :1]}  # five unknowns, one equation: anything would fit
    assert counts({"w": few["w"][0]}, few, 10) is None


CUT = Cut(targets=TARGETS, shares=2, parts=2)


def test_shares_and_micro_batches_are_cut_as_the_ranks_cut_them():
    assert CUT.rows() == [[0, 1], [3, 4]]
    assert CUT.micro_batches() == [[[0, 1], []], [[3], [4]]]
    assert CUT.of([0, 3]) == 6


def test_patterns_of_counts():
    count = torch.tensor([2.0, 2.0, NAN, 0.0, 0.0])
    assert only(count, [0, 1]) and not only(count, [0]) and not only(count, [0, 1, 3])
    assert level(count, [0, 1]) == 2 and level(count, [1, 3]) is None and level(count, []) is None
    means = torch.tensor([10 / 6, 10 / 6, NAN, 10 / 14, 10 / 14])
    assert by_targets(means, CUT.rows(), CUT) and not by_targets(torch.ones(5), CUT.rows(), CUT)
    assert odd_rows(torch.tensor([1.0, 1.0, NAN, 0.0, 1.0])) == ([3], [])
    assert odd_rows(torch.tensor([0.5, 0.5, NAN, 1.0, 0.5])) == ([], [3])
    assert odd_rows(torch.tensor([0.5, 0.6, NAN, 0.9, 0.7])) == ([], [])


WANT = torch.randn(4, 500, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("terms", [1, 4])
def test_rounding_before_averaging_is_recognised(dtype, terms):
    assert noise(WANT[:terms].to(dtype).double().mean(0), WANT[:terms].mean(0)) == dtype


@pytest.mark.parametrize(
    "got",
    [WANT[0] * 1.001, WANT[1], WANT[0] + 1e-12 * WANT[1], WANT[0][:4] * 1.0],
    ids=["a factor", "another", "rounding of float64", "few"],
)
def test_other_differences_are_no_rounding(got):
    assert noise(got, WANT[0][: len(got)]) is None
