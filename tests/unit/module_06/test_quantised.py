"""Blocks of one-byte numbers: how far they are off, what they take, and what is not hidden by them."""

from __future__ import annotations

import pytest
import torch

from course_lib.parallel.sharding.quantised import BLOCK, dequantise_, empty_blocks, quantise_


def there_and_back(numbers):
    """What a piece becomes, and its blocks."""
    blocks = empty_blocks([len(numbers)], numbers.device)
    quantise_(blocks, numbers)
    dequantise_(back := torch.empty_like(numbers), blocks)
    return back, blocks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7])
def test_each_number_is_off_by_half_a_step_of_its_own_block(length, dtype):
    numbers = torch.randn(length, dtype=dtype, generator=torch.Generator().manual_seed(0))
    numbers[length // 2 : length // 2 + 1] *= 1000  # a number far above the rest
    back, blocks = there_and_back(numbers)
    assert blocks.nbytes == -(-length // BLOCK) * (BLOCK + 4)
    for before, after in zip(numbers.split(BLOCK), back.split(BLOCK), strict=True):
        step = before.abs().max() / 127 if len(before) else 0
        assert ((before - after).abs() <= step / 2 * (1 + 1e-5)).all()
    assert length <= 1 or not torch.equal(back, numbers)


def test_bf16_is_rounded_once_more_when_it_comes_back():
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    back, _ = there_and_back(numbers)
    wanted, _ = there_and_back(numbers.float())
    assert torch.equal(back, wanted.bfloat16())


def test_whole_steps_come_back_as_they_were():
    steps = torch.arange(-127.0, 128.0)
    assert torch.equal(there_and_back(steps / 4)[0], steps / 4)
    assert torch.equal(there_and_back(torch.zeros(300))[0], torch.zeros(300))


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so(fault):
    numbers = torch.ones(2 * BLOCK)
    numbers[5] = fault
    back, _ = there_and_back(numbers)
    assert not back[:BLOCK].isfinite().any() and torch.equal(back[BLOCK:], numbers[BLOCK:])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [3, 512, 513, 2000])
def test_each_rank_s_piece_has_its_own_blocks(length, ranks):
    row = torch.arange(float(length))
    blocks = empty_blocks([len(piece) for piece in row.tensor_split(ranks)], row.device)
    for piece, of_piece in zip(row.tensor_split(ranks), blocks.tensor_split(ranks), strict=True):
        assert len(of_piece) == -(-len(piece) // BLOCK)
