"""Parallel SGD on real ranks is parallel SGD in one process, and its speed-up has the theorem's slope."""

from __future__ import annotations

import math

import pytest

from course_lib.ranks import run_ranks
from course_lib.training.psgd import Quadratic, bound, psgd_alone, psgd_rank, stepsize, transient_steps

PROBLEM = Quadratic()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_equal_one_process(world_size: int) -> None:
    found = run_ranks(psgd_rank, world_size, PROBLEM, 50)
    assert found == pytest.approx([psgd_alone(PROBLEM, world_size, 50)] * world_size, rel=1e-12)


def slope(workers: tuple[int, ...], steps: int) -> float:
    """Least squares of log(error) on log(workers)."""
    xs = [math.log(n) for n in workers]
    ys = [math.log(psgd_alone(PROBLEM, n, steps)) for n in workers]
    middle = sum(xs) / len(xs)
    return sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)


def test_after_the_transient_the_error_falls_as_one_over_the_root_of_n() -> None:
    workers = (1, 2, 4, 8, 16)
    assert transient_steps(PROBLEM, 16) < 4000
    assert slope(workers, 4000) == pytest.approx(-0.5, abs=0.05)


def test_before_the_transient_ends_more_workers_help_less() -> None:
    assert transient_steps(PROBLEM, 16) > 100
    assert slope((16, 32, 64), 100) > -0.15


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("steps", [20, 200, 2000])
def test_the_theorem_holds(workers: int, steps: int) -> None:
    assert psgd_alone(PROBLEM, workers, steps) < bound(PROBLEM, workers, steps)


def test_the_stepsize_is_the_one_that_minimises_the_bound() -> None:
    past = 10 * transient_steps(PROBLEM, 4)
    promised = 2 * math.sqrt(2 * PROBLEM.smoothness * PROBLEM.distance * PROBLEM.sigma**2 / (4 * past))
    assert bound(PROBLEM, 4, past) == pytest.approx(promised, rel=1e-12)
    assert stepsize(PROBLEM, 4, 1) == 1 / PROBLEM.smoothness


def test_a_problem_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Quadratic: size=32, sigma=0.0; two curvatures at least, and noise; give"):
        Quadratic(sigma=0.0)
