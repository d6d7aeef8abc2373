"""Fit the constants to measured runs: logarithms of step times, robust, with a physical prior on each constant.

What a stack has of its own is drawn towards what is fitted for a stack that nobody knows, and this towards a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from course_lib.sim.priors import PRIORS, drawn_to
from course_lib.sim.runs import Run
from course_lib.sim.table import Table, table_of

_NOISE = 0.1  # of one measured step, in the logarithm: chosen by left-out sources, twice what repeats differ by
_WEIGHT = -0.25  # a source with many rows counts more than one with few, but not in proportion
_STEP = 1e-4  # of the logarithm of a constant, for differences


def fit(
    runs: Sequence[Run],
    *,
    held: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The constants that these runs and the priors agree on; those `held` have their value, `start` saves time.

    A row's residual is log(predicted/measured), weighted by (rows of its source)^(-1/4); the loss is soft-L1.
    Cost: about 15 steps of 90 evaluations of the closed form over all runs; a second for 1,000 runs.
    """
    from scipy.optimize import least_squares

    table = table_of(runs)
    names = tuple(PRIORS)
    places = table.places(names)
    guess = np.log([PRIORS[name][0] for name in names])
    spread = np.array([PRIORS[name][1] for name in names])
    fixed = held or {}
    free = np.array([name not in fixed for name in names])
    logs = np.log([fixed.get(name, (start or {}).get(name, PRIORS[name][0])) for name in names])
    stacks, unknown = ([names.index(name) for name in each] for each in zip(*drawn_to().items(), strict=True))
    counts = Counter(run.source for run in runs)
    weight = np.array([counts[run.source] ** _WEIGHT for run in runs]) / _NOISE
    measured = np.log(table.step_s)

    def residuals(found: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        logs[free] = found
        guess[stacks] = logs[unknown]
        predicted = np.log(table.times(np.exp(logs), places).total)
        return np.concatenate([weight * (predicted - measured), ((logs - guess) / spread)[free]])

    found = least_squares(residuals, logs[free], loss="soft_l1", diff_step=_STEP, max_nfev=40, xtol=1e-4, ftol=1e-5)
    logs[free] = found.x
    return dict(zip(names, np.exp(logs).tolist(), strict=True))


def errors(table: Table, values: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """log(predicted/measured) of each run."""
    names = tuple(values)
    times = table.times(np.array([values[name] for name in names]), table.places(names))
    return np.asarray(np.log(times.total) - np.log(table.step_s))
