"""AdamW in 8 bits, and products in fp8: what they keep, and how far they are from 32 bits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from course_lib.costs import find_convention, state_bytes, with_optimizer
from course_lib.savers.adam8bit import AdamW8bit
from course_lib.savers.fp8 import E4M3, E5M2, FP8Linear, to_fp8


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def train(make, parameters, steps=20):
    optimizer = make(parameters, lr=1e-2, weight_decay=0.1)
    for step in range(steps):
        for number, parameter in enumerate(parameters):
            parameter.grad = drawn(*parameter.shape, seed=100 * step + number).to(parameter.dtype)
        optimizer.step()
    return optimizer


def parameters(*shapes, dtype=torch.float32):
    return [nn.Parameter(drawn(*shape).to(dtype)) for shape in shapes]


def held(optimizer):
    return sum(x.nbytes for states in optimizer.state.values() for kind, x in states.items() if kind != "step")


def test_small_tensors_are_trained_exactly_as_by_adamw():
    ours, theirs = parameters((8, 16), (33,)), parameters((8, 16), (33,))
    train(AdamW8bit, ours)
    train(torch.optim.AdamW, theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


def test_the_first_step_is_adamw_s_since_nothing_has_been_rounded():
    ours, theirs = parameters((64, 64)), parameters((64, 64))
    train(AdamW8bit, ours, 1)
    train(torch.optim.AdamW, theirs, 1)
    assert torch.allclose(ours[0], theirs[0], atol=1e-6)


def test_later_steps_are_off_by_a_small_part_of_the_way():
    ours, theirs, begin = parameters((128, 64)), parameters((128, 64)), parameters((128, 64))
    train(AdamW8bit, ours)
    train(torch.optim.AdamW, theirs)
    way = (theirs[0] - begin[0]).norm()
    assert 1e-4 < ((ours[0] - theirs[0]).norm() / way).item() < 0.05


@pytest.mark.parametrize("shape", [(64, 64), (50, 100)])
def test_states_take_the_formula_s_bytes(shape):
    one = parameters(shape)
    convention = with_optimizer(find_convention("fp32"), "adamw8bit")
    assert held(train(AdamW8bit, one, 1)) == state_bytes(one[0].numel(), convention).optimizer
    assert held(train(torch.optim.AdamW, one, 1)) == 8 * one[0].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_goes_on_from_what_was_saved_to_the_bit(dtype):
    one = parameters((64, 64), (5,), dtype=dtype)
    optimizer = train(AdamW8bit, one, 3)
    another = copy.deepcopy(one)
    loaded = AdamW8bit(another, lr=1.0)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for either, its in ((optimizer, one), (loaded, another)):
        for parameter in its:
            parameter.grad = torch.ones_like(parameter)
        either.step()
    assert all(torch.equal(mine, other) for mine, other in zip(one, another, strict=True))


def test_a_parameter_without_a_gradient_stays():
    one, two = parameters((4,), (4,))
    one.grad = torch.ones(4)
    before = two.detach().clone()
    AdamW8bit([one, two], lr=1.0).step()
    assert torch.equal(two, before) and not torch.equal(one, before)


@pytest.mark.parametrize(("dtype", "digits"), [(E4M3, 3), (E5M2, 2)])
def test_fp8_keeps_a_few_digits_of_every_number(dtype, digits):
    x = drawn(50, 40)
    x[0, 0] = 1000.0  # an outlier takes a little of the range, and no digit
    found = to_fp8(x, dtype)
    assert found.values.dtype == dtype and found.values.float().abs().max() == torch.finfo(dtype).max
    large = x.abs() > 2**-5
    error = ((found.decode() - x) / x).abs()[large]
    assert error.max() <= 2.0 ** -(digits + 1) * (1 + 1e-5)


def test_what_is_too_large_is_cut_by_e4m3_and_lost_by_e5m2():
    assert torch.tensor([500.0, 1e6]).to(E4M3).float().tolist() == [448.0, 448.0]
    assert torch.tensor([500.0, 1e6]).to(E5M2).float().tolist() == [512.0, torch.inf]


@pytest.mark.parametrize("shape", [(7, 40), (2, 3, 40)])
def test_a_product_in_fp8_is_the_product_of_the_rounded_numbers(shape):
    linear, x = nn.Linear(40, 24), drawn(*shape).requires_grad_()
    rounded_x, rounded_weight = to_fp8(x).decode(), to_fp8(linear.weight).decode()
    y = FP8Linear(linear)(x)
    assert torch.allclose(y, rounded_x @ rounded_weight.T + linear.bias, atol=1e-5)
    gradient = drawn(*y.shape, seed=1)
    of_x, of_weight = torch.autograd.grad(y, (x, linear.weight), gradient)
    rounded = to_fp8(gradient, E5M2).decode()
    assert torch.allclose(of_x, rounded @ rounded_weight, atol=1e-5)
    rows = rounded.flatten(0, -2).T @ rounded_x.flatten(0, -2)
    assert torch.allclose(of_weight, rows, atol=1e-4)
    off = (y - linear(x)).norm() / linear(x).norm()
    assert 0.005 < off < 0.1
