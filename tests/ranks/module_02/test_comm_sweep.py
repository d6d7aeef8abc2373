"""The sweep on real ranks: a point per size and algorithm, and a fit that it allows."""

from __future__ import annotations

import pytest

from course_lib import comm
from course_lib.costs import SweepPoint, comm_time, fit_alpha_beta
from course_lib.ranks import run_ranks


def test_a_point_for_each_size_and_algorithm():
    sizes, algorithms = [1024, 65536, 1 << 20], ["ring", "tree", "native"]
    points = [SweepPoint(*timing) for timing in run_ranks(comm.sweep_all_reduce, 3, sizes, algorithms, 3)[0]]
    assert [(point.nbytes, point.algorithm) for point in points] == [(n, a) for n in sizes for a in algorithms]
    assert all(point.seconds > 0 and point.world_size == 3 for point in points)
    ring = comm_time("all_reduce", "ring", world_size=3, length=256, itemsize=4)
    assert (points[0].steps, points[0].critical_bytes) == (ring.steps, ring.critical_bytes)
    assert points[2].steps == 2 * ring.steps


def test_a_line_goes_through_the_points_of_this_machine():
    """Whatever the times are; on a busy machine alpha or beta may well be 0."""
    sizes = [1 << 12, 1 << 16, 1 << 20]
    timings = run_ranks(comm.sweep_all_reduce, 2, sizes, ["ring", "recursive_doubling"], 3)[0]
    points = [SweepPoint(*timing) for timing in timings]
    fit = fit_alpha_beta([(point.steps, point.critical_bytes, point.seconds) for point in points])
    assert max(fit.alpha_s, fit.beta_s_per_byte) > 0 and min(fit.alpha_s, fit.beta_s_per_byte) >= 0
    predicted = [fit.predict(point.steps, point.critical_bytes) for point in points]
    measured = [point.seconds * (1 + residual) for point, residual in zip(points, fit.residuals, strict=True)]
    assert predicted == pytest.approx(measured, rel=1e-9)
