"""A fit finds alpha and beta in times that were made from them."""

from __future__ import annotations

import numpy as np
import pytest

from course_lib.costs import comm_time, fit_alpha_beta
from course_lib.hardware import Link

LINK = Link(name="made up", alpha_s=30e-6, bandwidth_bytes_per_s=1.25e9, source="-", date="-")


def sweep(algorithm="ring", p=4):
    """(steps, bytes, seconds) from 64 B to 64 MB, without noise."""
    costs = [comm_time("all_reduce", algorithm, world_size=p, length=4**k, itemsize=4) for k in range(2, 13)]
    return [(cost.steps, cost.critical_bytes, cost.time_s(LINK)) for cost in costs]


def test_exact_times_give_exact_numbers():
    fit = fit_alpha_beta(sweep())
    assert fit.alpha_s == pytest.approx(LINK.alpha_s)
    assert fit.beta_s_per_byte == pytest.approx(LINK.beta_s_per_byte)
    assert fit.residuals == pytest.approx([0] * 11, abs=1e-9)
    assert fit.r2 == pytest.approx(1)


def test_a_fit_of_one_algorithm_predicts_another():
    fit = fit_alpha_beta(sweep("ring"))
    for steps, nbytes, seconds in sweep("naive", p=3):
        assert fit.predict(steps, nbytes) == pytest.approx(seconds)


def test_noise_in_proportion_hurts_neither_end():
    noise = np.random.default_rng(0).uniform(0.9, 1.1, size=11)
    fit = fit_alpha_beta([(s, n, t * e) for (s, n, t), e in zip(sweep(), noise, strict=True)])
    assert fit.alpha_s == pytest.approx(LINK.alpha_s, rel=0.1)  # a fit of absolute errors misses this one
    assert fit.beta_s_per_byte == pytest.approx(LINK.beta_s_per_byte, rel=0.1)
    assert max(abs(residual) for residual in fit.residuals) < 0.2
    assert 0.9 < fit.r2 < 1


def test_residuals_are_predicted_over_measured():
    fit = fit_alpha_beta([(1, 1, 1.0), (1, 2, 1.0), (1, 3, 4.0)])
    for (steps, nbytes, seconds), residual in zip([(1, 1, 1), (1, 2, 1), (1, 3, 4)], fit.residuals, strict=True):
        assert residual == pytest.approx(fit.predict(steps, nbytes) / seconds - 1)


def test_neither_number_is_negative():
    falling = fit_alpha_beta([(1, 10, 2.0), (1, 1000, 1.0)])
    assert falling.beta_s_per_byte == 0
    assert falling.alpha_s > 0
    assert fit_alpha_beta([(1, 10, 2.0), (1, 1000, 2.0)]).r2 == 1  # nothing left to explain


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], r"^fit_alpha_beta: 0 points; two unknowns need two measurements; measure at least two message sizes"),
        ([(6, 4, 1.0)], r"^fit_alpha_beta: 1 points; two unknowns"),
        ([(6, 4, 1.0), (6, 4, 1.1), (12, 8, 2.0)], r"3 points, all in proportion to steps=6, bytes=4; alpha and beta"),
        ([(6, 0, 1.0), (12, 0, 2.0)], r"bytes=0; alpha and beta differ only where .*; measure messages of different"),
        ([(6, 4, 1.0), (6, 8, 0.0)], r"seconds=0; a relative error needs times above 0; time more repetitions"),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        fit_alpha_beta(points)
