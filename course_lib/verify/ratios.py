"""A ratio of what came out to what is right, in words: the first thing that a wrong number says."""

from __future__ import annotations

import math

_NEAR = 1e-4  # two ratios this near are one: the numbers were rounded, the causes are far apart


def agrees(ratio: float, expected: float) -> bool:
    """Whether a ratio is the one that a cause gives.

    >>> agrees(3.9999, 4), agrees(3.99, 4), agrees(1e-5, 0)
    (True, False, True)
    """
    return abs(ratio - expected) < _NEAR * max(1.0, abs(expected))


def in_words(ratio: float) -> str:
    """A ratio as one says it.

    >>> [in_words(ratio) for ratio in (4.0000001, 0.25, -1.0, 0.327, 1.5)]
    ['4.0 x', '1/4 of', '-1.0 x', '0.327 x', '1.5 x']
    """
    if 0 < ratio < 0.9 and abs(1 / ratio - round(1 / ratio)) < _NEAR:
        return f"1/{round(1 / ratio)} of"
    return times(ratio)


def times(ratio: float) -> str:
    """A ratio to a target or a limit, below 1 too.

    >>> [times(ratio) for ratio in (4.0000001, 0.25, 12.5)]
    ['4.0 x', '0.25 x', '12.5 x']
    """
    short = abs(ratio) >= 1 and math.isclose(ratio, round(ratio, 1), rel_tol=_NEAR)
    return f"{ratio:.1f} x" if short else f"{ratio:.3g} x"


def exactly(ratio: float) -> str:
    """A ratio of tensors; what is cut off after a few digits is not called exact.

    >>> [exactly(ratio) for ratio in (4.0, 0.25, 0.75, 8 / 7, 1.0001)]
    ['exactly 4.0 x', 'exactly 1/4 of', 'exactly 0.75 x', '1.143 x', 'exactly 1.0001 x']
    """
    if 0.99 < ratio < 1.01:
        return f"exactly {ratio:.7g} x"
    words = in_words(ratio)
    all_of_it = words.endswith("of") or math.isclose(ratio, float(f"{ratio:.3g}"), rel_tol=1e-5)
    return f"exactly {words}" if all_of_it else f"{ratio:.4g} x"


def of_a_guess(ratio: float) -> str:
    """How much too large or too small a guess is, in per cent if it is little.

    >>> [of_a_guess(ratio) for ratio in (1.05, 4.0, 0.4)]
    ['5 % too large', '4.0 x the answer', '1/2.5 of the answer']
    """
    if 0.9 < ratio < 1.1:
        return f"{100 * abs(ratio - 1):.2g} % too {'large' if ratio > 1 else 'small'}"
    return f"{times(ratio)} the answer" if ratio >= 1 else f"1/{times(1 / ratio)} of the answer".replace(" x of", " of")
