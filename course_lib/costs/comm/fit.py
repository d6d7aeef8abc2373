"""Alpha and beta of this machine, from measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.errors import four_parts

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class SweepPoint:
    """How long one algorithm took for an all-reduce of `nbytes`, and what the alpha-beta model needs to explain it.

    A native call is explained by gloo's ring, whose every step waits for the receiver: 4 (p - 1) latencies.
    Units: bytes of a float32 tensor, seconds (median over rounds).
    """

    algorithm: str
    world_size: int
    nbytes: int
    seconds: float

    @property
    def steps(self) -> int:
        """The factor of alpha."""
        return self._ring_or_own.steps * (2 if self.algorithm == "native" else 1)

    @property
    def critical_bytes(self) -> int:
        """The factor of beta."""
        return self._ring_or_own.critical_bytes

    @property
    def _ring_or_own(self) -> CommTime:
        algorithm = "ring" if self.algorithm == "native" else self.algorithm
        return comm_time("all_reduce", algorithm, world_size=self.world_size, length=self.nbytes // 4, itemsize=4)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A line through measurements: steps * alpha + bytes * beta.

    Units: seconds, bytes. `residuals` are (predicted - measured) / measured, one per point.
    `r2` is the share of the relative squared error that the line removes from the best single time; 1 is perfect.
    """

    alpha_s: float
    beta_s_per_byte: float
    residuals: tuple[float, ...]
    r2: float

    def predict(self, steps: float, nbytes: float) -> float:
        """Seconds for `steps` steps that pass `nbytes` on the critical path."""
        return steps * self.alpha_s + nbytes * self.beta_s_per_byte


def fit_alpha_beta(points: Sequence[tuple[float, float, float]]) -> Fit:
    """Fit alpha and beta, neither below 0, to points of (steps, bytes on the critical path, seconds).

    Least squares of the *relative* error, so that a 10 us message counts as much as a 10 ms one.
    Raises: ValueError for fewer than two points, a time that is not positive, or points that cannot tell
    alpha from beta.
    Source: Lawson & Hanson 1974 (non-negative least squares).
    """
    import numpy as np  # all other formulas do without both
    from scipy.optimize import nnls

    _check_count(points)
    steps, nbytes, seconds = np.asarray(points, dtype=float).T
    _check_seconds(seconds)
    rows = np.stack([steps, nbytes], axis=1)
    _check_variation(rows)
    relative = rows / seconds[:, None]  # (point, 2): the solution makes every row's product with it 1
    scale = np.linalg.norm(relative, axis=0)  # alpha and beta differ by 10^6
    solution, _ = nnls(relative / scale, np.ones_like(seconds))
    alpha_s, beta_s_per_byte = solution / scale
    residuals = relative @ (alpha_s, beta_s_per_byte) - 1
    constant_s = (1 / seconds).sum() / (1 / seconds**2).sum()  # the best single time
    spread = constant_s / seconds - 1
    unexplained = residuals @ residuals / (spread @ spread) if spread.any() else 0.0
    return Fit(
        alpha_s=float(alpha_s),
        beta_s_per_byte=float(beta_s_per_byte),
        residuals=tuple(float(residual) for residual in residuals),
        r2=float(1 - unexplained),
    )


def _check_count(points: Sequence[tuple[float, float, float]]) -> None:
    if len(points) < 2:
        rule, way_out = "two unknowns need two measurements", "measure at least two message sizes"
        raise ValueError(four_parts("fit_alpha_beta", f"{len(points)} points", rule, way_out))


def _check_seconds(seconds: np.ndarray) -> None:
    if seconds.min() <= 0:
        rule, way_out = "a relative error needs times above 0", "time more repetitions of each point"
        raise ValueError(four_parts("fit_alpha_beta", f"seconds={seconds.min():g}", rule, way_out))


def _check_variation(rows: np.ndarray) -> None:
    """Refuse points whose bytes are all the same multiple of their steps."""
    import numpy as np

    lengths = np.linalg.norm(rows, axis=0)
    if not lengths.all() or np.linalg.matrix_rank(rows / lengths) < 2:
        steps, nbytes = rows[0]
        raise ValueError(
            four_parts(
                "fit_alpha_beta",
                f"{len(rows)} points, all in proportion to steps={steps:g}, bytes={nbytes:g}",
                "alpha and beta differ only where bytes per step do",
                "measure messages of different sizes",
            )
        )
