"""Each compressor against its own theory and bytes: what is sent is counted, what is lost is summed exactly."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_lib.less import (
    compressed,
    first_directions,
    from_factors,
    left_factor,
    orthonormal,
    qsgd,
    rand_k,
    right_factor,
    sign,
    top_k,
)
from course_lib.less.packing import pack, unpack

ALL = [top_k(0.05), rand_k(0.05), rand_k(0.05, scaled=False), sign(), qsgd(4, 128), qsgd(1, 64), qsgd(100, 512)]
BITS = {1: 2, 4: 4, 7: 4, 8: 8, 127: 8}  # by levels


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=draws(seed), dtype=dtype)


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_a_message_weighs_what_the_compressor_says(compressor):
    for size, dtype in itertools.product((1, 7, 1994), (torch.float32, torch.float64)):
        message = compressor.encode(normal(2, 3, size, dtype=dtype), draws())
        assert message.dtype == torch.uint8
        assert message.shape == (2, 3, compressor.message_bytes(size, dtype.itemsize))


def test_bytes_of_a_message_of_1994_numbers():
    sent = [compressor.message_bytes(1994, 4) for compressor in ALL]
    assert sent == [100 * 8, 100 * 4, 100 * 4, 4 + 250, 16 * 4 + 997, 32 * 4 + 499, 4 * 4 + 1994]


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_a_message_read_from_the_middle_of_a_buffer_says_the_same(compressor):
    x = normal(3, 35, dtype=torch.float64)
    messages = compressor.encode(x, draws())
    received = torch.cat([torch.zeros(3, dtype=torch.uint8), messages.flatten()])
    second = received[3:].view(3, -1)[1]
    alone = compressor.decode(second, 35, torch.float64, draws())
    assert torch.equal(alone, compressed(compressor, x, draws())[1])


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_packing_loses_no_code(bits):
    codes = torch.randint(0, 1 << bits, (3, 13), generator=draws(), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape[-1] == -(-13 * bits // 8)
    assert torch.equal(unpack(packed, bits, 13), codes)


def test_a_signed_level_takes_the_fewest_bits():
    assert {levels: qsgd(levels, 64).bits for levels in BITS} == BITS


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_no_vector_is_further_off_than_the_theory_allows(compressor):
    """The expectation of the error over many draws, for a normal vector and for one that a single number rules."""
    spiky = normal(256, dtype=torch.float64) ** 9
    for x in (normal(256, dtype=torch.float64), spiky, torch.ones(256, dtype=torch.float64)):
        off = torch.stack([compressed(compressor, x, draws(seed)) - x for seed in range(200)])
        error = (off**2).sum(-1).mean() / (x @ x)
        delta, omega = compressor.delta(256), compressor.omega(256)
        assert (delta is None) != (omega is None)
        spread = (off**2).sum(-1).std() / (x @ x) / 200**0.5
        assert error <= (omega if delta is None else 1 - delta) + 4 * spread + 1e-12


def test_top_k_s_and_sign_s_bounds_are_reached():
    alike = torch.ones(100, dtype=torch.float64)
    assert ((compressed(top_k(0.2), alike, draws()) - alike) ** 2).sum() / 100 == pytest.approx(1 - 0.2)
    single = torch.zeros(100, dtype=torch.float64)
    single[3] = 5
    assert ((compressed(sign(), single, draws()) - single) ** 2).sum() / 25 == pytest.approx(1 - 1 / 100)


def test_qsgd_is_right_on_average_over_both_outcomes_and_its_variance_is_the_exact_sum():
    x, s = normal(64, dtype=torch.float64), 4
    height = x.abs() / x.norm() * s
    share = height - height.floor()
    unit = x.norm() / s
    seen = torch.stack([compressed(qsgd(s, 64), x, draws(seed)) for seed in range(400)])
    low, high = seen.abs().amin(0), seen.abs().amax(0)
    assert torch.allclose(low, unit * height.floor(), atol=1e-12)
    both = share.clamp(max=1 - share) > 0.05  # so often that 400 draws cannot miss one of the outcomes
    assert torch.allclose(high[both], unit * (height.floor() + 1)[both], atol=1e-12)
    expected = x.sign() * (low * (1 - share) + (low + unit) * share)
    assert torch.allclose(expected, x, atol=1e-15)
    spread = (share * (1 - share)).sqrt() * unit
    assert ((seen.mean(0) - x).abs() <= 5 * spread / 400**0.5 + 1e-15).all()
    variance, exact = ((seen - x) ** 2).sum(-1).mean().item(), (spread**2).sum().item()
    assert variance == pytest.approx(exact, rel=0.1)
    assert exact <= qsgd(s, 64).omega(64) * (x @ x)


def test_rand_k_s_places_are_equally_likely_and_its_theory_exact():
    x = normal(20, dtype=torch.float64)
    scaled = torch.stack([compressed(rand_k(0.25), x, draws(seed)) for seed in range(2000)])
    assert ((scaled.mean(0) - x).abs() <= 5 * x.abs() * (3 / 2000) ** 0.5).all()
    assert ((scaled - x) ** 2).sum(-1).mean() / (x @ x) == pytest.approx(rand_k(0.25).omega(20), rel=0.05)
    plain = compressed(rand_k(0.25, scaled=False), x, draws())
    assert torch.equal(plain, torch.where(plain != 0, x, 0))
    assert (plain != 0).sum() == 5


@pytest.mark.parametrize(
    ("compressor", "alike"), [(top_k(0.05), False), (rand_k(0.05), True), (qsgd(4, 128), False)], ids=str
)
def test_only_what_adds_up_may_be_summed_before_it_is_decoded(compressor, alike):
    ranks = torch.randint(-1000, 1000, (8, 200), generator=draws()).double()
    assert compressor.adds_up == alike
    mean = compressed(compressor, ranks, draws()).mean(0)
    assert torch.equal(mean, compressed(compressor, ranks.mean(0), draws())) == alike


def test_messages_that_add_up_are_summed_as_numbers():
    ranks = torch.randint(-1000, 1000, (8, 200), generator=draws()).double()
    messages = rand_k(0.1).encode(ranks, draws())
    summed = messages.view(torch.float64).sum(0).view(torch.uint8)
    whole = compressed(rand_k(0.1), ranks, draws()).sum(0)
    assert torch.equal(rand_k(0.1).decode(summed, 200, torch.float64, draws()), whole)


@pytest.mark.parametrize("compressor", [top_k(0.05), rand_k(0.05, scaled=False)], ids=str)
def test_what_is_sent_and_what_is_kept_are_the_gradient_to_the_bit(compressor):
    gradient = normal(8, 1000)
    sent = compressed(compressor, gradient, draws())
    assert 0 < (sent != 0).sum() <= 8 * 50
    assert torch.equal(sent + (gradient - sent), gradient)


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_a_loss_times_1024_sends_1024_times_as_much_to_the_bit(compressor):
    x = normal(8, 1000)
    assert torch.equal(compressed(compressor, 1024 * x, draws()), 1024 * compressed(compressor, x, draws()))


@pytest.mark.parametrize("compressor", ALL, ids=str)
def test_a_gradient_of_zeros_stays_one_and_nan_does_not_hide(compressor):
    assert torch.equal(compressed(compressor, torch.zeros(100), draws()), torch.zeros(100))
    assert not compressed(compressor, torch.full((100,), torch.nan), draws()).isfinite().all()


def test_everything_sent_is_everything_known():
    x = normal(3, 50)
    assert torch.equal(compressed(top_k(1), x, draws()), x)
    assert torch.equal(compressed(rand_k(1), x, draws()), x)


def factors(matrices, directions):
    """What all ranks take for their mean gradient, whose sums the caller makes."""
    left = orthonormal(left_factor(matrices, directions).mean(0))
    right = right_factor(matrices, left).mean(0)
    return from_factors(left, right), right


def test_low_rank_factors_of_many_ranks_are_those_of_their_mean_and_full_rank_is_exact():
    ranks = normal(8, 20, 50, dtype=torch.float64)
    for rank in (1, 4, 30):
        directions = first_directions((20, 50), rank, draws(), torch.float64)
        assert directions.shape == (50, min(rank, 20))
        approximated, _ = factors(ranks, directions)
        alone, _ = factors(ranks.mean(0, keepdim=True), directions)
        assert torch.allclose(approximated, alone, atol=1e-14)
        assert torch.allclose(approximated, ranks.mean(0), atol=1e-13) == (rank >= 20)


def test_a_warm_start_finds_the_best_directions_of_a_gradient_that_stays():
    gradient = normal(1, 20, 64, dtype=torch.float64)
    best = (torch.linalg.svdvals(gradient[0])[2:] ** 2).sum().sqrt()
    right, errors = first_directions((20, 64), 2, draws(), torch.float64), []
    for _ in range(100):
        approximated, right = factors(gradient, right)
        errors.append((approximated - gradient[0]).norm() / best)
    assert errors[0] > 1.02
    assert errors[-1] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: top_k(0), "top_k: fraction=0; .*; choose 0 < fraction <= 1"),
        (lambda: rand_k(1.5), "rand_k: fraction=1.5; .*; choose 0 < fraction <= 1"),
        (lambda: qsgd(128, 64), "qsgd: levels=128; .* at most 8 bits; choose 1 <= levels <= 127"),
        (lambda: qsgd(4, 0), "qsgd: bucket=0; .*; choose bucket >= 1"),
        (lambda: first_directions((3, 4), 0, draws()), "first_directions: rank=0; .*; choose rank >= 1"),
    ],
)
def test_what_cannot_be_says_what_can(make, message):
    with pytest.raises(ValueError, match=message):
        make()
