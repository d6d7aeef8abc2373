"""Weights in codes: steps of a scale, NF4's levels, the dynamic levels, each against a straightforward reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from course_lib.savers.absmax import absmax_int8
from course_lib.savers.codebook import decode, encode
from course_lib.savers.dynamic_levels import dynamic_levels
from course_lib.savers.nf4 import BLOCK, SCALES_BLOCK, encode_nf4, nf4_levels


def drawn(*shape, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * scale


def off(back, weight):
    """Relative error."""
    return ((back - weight).norm() / weight.norm()).item()


@pytest.mark.parametrize("group", ["tensor", "row", 1, 7, 64, 5000])
@pytest.mark.parametrize("shape", [(24, 50), (3, 4, 5), (40,)])
def test_no_weight_is_off_by_more_than_half_a_step_of_its_group(shape, group):
    weight = drawn(*shape)
    found = absmax_int8(weight, group)
    assert found.decode().shape == found.bound().shape == weight.shape
    assert ((found.decode() - weight).abs() <= found.bound() * (1 + 1e-5)).all()
    assert found.steps.abs().max() == 127


@pytest.mark.parametrize(("group", "scales"), [("tensor", 1), ("row", 24), (64, 19)])
def test_a_scale_is_the_largest_of_its_group_in_127_steps(group, scales):
    weight = drawn(24, 50)
    found = absmax_int8(weight, group)
    assert found.scales.numel() == scales and found.nbytes == 24 * 50 + 4 * scales
    if group == "row":
        assert torch.allclose(found.scales[:, 0] * 127, weight.abs().amax(1))


def test_one_outlier_spoils_its_group_alone():
    weight = drawn(64, 64)
    weight[3, 7] = 50.0
    errors = {group: (absmax_int8(weight, group).decode() - weight).abs() for group in ("tensor", "row")}
    assert errors["tensor"].median() > 10 * errors["row"].median()
    others = torch.arange(64) != 3
    assert torch.equal(errors["row"][others], (absmax_int8(weight[others], "row").decode() - weight[others]).abs())


def test_zeros_stay_zeros():
    nothing = torch.zeros(4, 64)
    assert not absmax_int8(nothing, "row").decode().any()
    assert not encode_nf4(nothing).decode().any() and not encode_nf4(nothing, double=False).decode().any()


def test_an_unknown_group_is_refused():
    with pytest.raises(ValueError, match=r"absmax_int8: group='column'; each number belongs to a group; choose 'ten"):
        absmax_int8(drawn(2, 2), "column")


def test_nf4_levels_are_quantiles_of_a_normal_distribution():
    last = ((1 - 1 / 32) + (1 - 1 / 30)) / 2
    above = norm.ppf(np.linspace(0.5, last, 9))[1:]
    below = norm.ppf(np.linspace(1 - last, 0.5, 8))[:-1]
    wanted = np.concatenate([below, [0.0], above]) / above[-1]
    assert np.abs(nf4_levels().double().numpy() - wanted).max() < 1e-7  # they are in float32
    assert nf4_levels()[[0, 7, 15]].tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("shape", [(8, 64), (24, 50), (2, 3), (300, 128)])
def test_every_weight_becomes_the_nearest_level_of_its_block(shape, double):
    weight, levels = drawn(*shape, scale=0.02), nf4_levels()
    found = encode_nf4(weight, double=double)
    scales = np.array([abs(block).max() for block in np.split(weight.flatten(), range(BLOCK, weight.numel(), BLOCK))])
    shares = weight.flatten().numpy() / scales.repeat(BLOCK)[: weight.numel()]
    nearest = np.abs(shares[:, None] - levels.numpy()).argmin(1)
    codes = torch.stack([found.codes >> 4, found.codes & 15], 1).flatten()
    assert np.array_equal(codes.numpy(), nearest)
    assert found.decode().shape == weight.shape
    if not double:
        wanted = levels.numpy()[nearest] * scales.repeat(BLOCK)[: weight.numel()]
        assert np.allclose(found.decode().flatten().numpy(), wanted, atol=0, rtol=1e-6)


def test_double_quantisation_takes_the_paper_s_bits_and_costs_little():
    weight = drawn(1024, 1024)  # whole blocks of blocks
    single, double = encode_nf4(weight, double=False), encode_nf4(weight)
    mean = 32 / weight.numel()
    assert single.bits == 4.5 and double.bits == 4 + 8 / BLOCK + 32 / (BLOCK * SCALES_BLOCK) + mean
    assert 0.37 < single.bits - double.bits < 0.374
    assert off(single.decode(), weight) < off(double.decode(), weight) < 1.01 * off(single.decode(), weight)
    assert 0.08 < off(single.decode(), weight) < 0.1


def test_nf4_is_nearer_to_normal_weights_than_as_many_even_levels():
    weight = drawn(256, 256)
    even = torch.linspace(-7, 7, 15) / 7
    with_even = decode(*encode(weight, even, BLOCK), even, BLOCK).view_as(weight)
    assert off(encode_nf4(weight, double=False).decode(), weight) < 0.9 * off(with_even, weight)


def test_half_a_byte_is_refused():
    with pytest.raises(ValueError, match=r"encode_nf4: 15 weights; two codes of 4 bits make a byte; leave this one in"):
        encode_nf4(drawn(3, 5))


@pytest.mark.parametrize("signed", [False, True])
def test_dynamic_levels_are_the_middles_of_decades_that_are_cut_finer_and_finer(signed):
    levels, wanted = dynamic_levels(signed=signed), [0.0, 1.0]
    for decade in range(7):
        count = 2 ** (decade + (not signed))
        for number in range(count):
            middle = (0.1 + 0.9 * (number + 0.5) / count) * 10.0 ** (decade - 6)
            wanted += [middle, -middle] if signed else [middle]
    assert len(levels) == 256
    assert np.allclose(levels.double().numpy(), sorted(wanted), atol=0, rtol=1e-6)


@pytest.mark.parametrize(
    ("table", "options"), [(nf4_levels, {}), (dynamic_levels, {"signed": True}), (dynamic_levels, {"signed": False})]
)
def test_a_table_does_not_follow_the_default_dtype(table, options):
    """Each process makes it once, and ranks that made it under another default would have other levels."""
    torch.set_default_dtype(torch.float64)
    try:
        found = table.__wrapped__(**options)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32 and torch.equal(found, table(**options))


@pytest.mark.parametrize("length", [1, 255, 256, 700])
def test_codes_come_back_as_the_nearest_level(length):
    x, levels = drawn(length), dynamic_levels(signed=True)
    codes, scales = encode(x, levels, 256)
    assert codes.dtype == torch.uint8 and len(codes) == length and len(scales) == -(-length // 256)
    back = decode(codes, scales, levels, 256)
    for before, after, scale in zip(x.split(256), back.split(256), scales, strict=True):
        distance = (before[:, None] - levels * scale).abs().amin(1)
        assert torch.allclose((before - after).abs(), distance, atol=1e-7)
