"""How far numbers of several sources lie apart, where no source is to decide alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt


def quantiles(
    values: npt.NDArray[np.float64], groups: Sequence[Hashable], shares: Sequence[float]
) -> npt.NDArray[np.float64]:
    """The values below which these shares lie. A group of n values weighs sqrt(n).

    So neither the many rows of one source decide, nor one row as much as two hundred.
    """
    counts = Counter(groups)
    weights = np.array([counts[group] ** -0.5 for group in groups])
    order = np.argsort(values)
    place = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return np.interp(shares, place, values[order])
