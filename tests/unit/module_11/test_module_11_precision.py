"""Weights in bf16, rounded by chance or with a master copy; the loss scaler; fp16's range."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from course_lib.savers.loss_scaler import LARGEST, LossScaler, through_fp16
from course_lib.savers.rounding import Bf16Weights, rounded_by_chance, share_unmoved


def test_by_chance_a_number_is_one_of_its_neighbours_and_on_average_itself():
    x = torch.full((100_000,), 1.0 + 0.3 / 128)  # bf16 has 1 and 1 + 1/128
    rounded = rounded_by_chance(x, torch.Generator().manual_seed(0))
    assert rounded.dtype == torch.bfloat16 and set(rounded.tolist()) == {1.0, 1.0 + 1 / 128}
    assert rounded.float().mean().item() == pytest.approx(x[0].item(), abs=3e-5)  # 2.5 standard errors
    exact = torch.tensor([0.0, -0.0, 1.5, -3.0, 1e-30, 2.0**100]).bfloat16()
    assert torch.equal(rounded_by_chance(exact.float()), exact)
    negative = rounded_by_chance(-x, torch.Generator().manual_seed(0))
    assert torch.equal(negative, -rounded)


@pytest.mark.parametrize(
    ("rounding", "last", "lasting"), [("nearest", 1.0, 0), ("stochastic", 0.9, 0), ("master", 0.9, 4)]
)
def test_small_steps_reach_the_weight_or_do_not(rounding, last, lasting):
    """A hundred steps of a thousandth, beside a gap of 1/256 below one: half of it is more than a step."""
    torch.manual_seed(0)
    layer = nn.Linear(1000, 1, bias=False).bfloat16()
    nn.init.ones_(layer.weight)
    bf16 = Bf16Weights(layer.parameters(), rounding)
    optimizer = torch.optim.SGD(bf16.trained, lr=1.0)
    for _ in range(100):
        layer.weight.grad = torch.full_like(layer.weight, 0.001)
        bf16.before()
        optimizer.step()
        bf16.after()
    assert layer.weight.float().mean().item() == pytest.approx(last, abs=2e-3)
    kept = sum(p.nbytes for p in bf16.trained if p is not layer.weight)
    assert kept == lasting * layer.weight.numel()
    before = {"weight": torch.ones(1, 1000)}
    assert share_unmoved(before, {"weight": layer.weight.float()}) == (1.0 if rounding == "nearest" else 0.0)


def test_the_scale_halves_at_once_and_doubles_late():
    scaler, seen = LossScaler(8.0, growth_interval=3), []
    for number in (1.0, torch.inf, 1.0, 1.0, 1.0, torch.nan, 1.0):
        gradient = torch.full((2,), number)
        scaler.unscale_([gradient])
        seen.append((scaler.skips, scaler.scale))
    assert seen == [(False, 8), (True, 4), (False, 4), (False, 4), (False, 8), (True, 4), (False, 4)]
    gradient = torch.tensor([6.0])
    scaler.unscale_([gradient])
    assert gradient.item() == 1.5


def test_what_fp16_leaves():
    x = torch.tensor([LARGEST, 7e4, 1.0, 1e-5, 2e-8])
    assert through_fp16(x).tolist() == pytest.approx([65504.0, torch.inf, 1.0, 1e-5, 0.0], rel=1e-2)
    assert through_fp16(x[4] * 2**16).item() / 2**16 == pytest.approx(2e-8, rel=1e-3)
