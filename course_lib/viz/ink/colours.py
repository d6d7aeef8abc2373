"""Arithmetic with colours that are written #RRGGBB, or #RRGGBBAA where something shines through."""

from __future__ import annotations


def parts(colour: str) -> list[float]:
    """Red, green and blue from 0 to 1; of what shines through, as it is on white."""
    red, green, blue, share = (int(f"{colour}FF"[place : place + 2], 16) / 255 for place in (1, 3, 5, 7))
    return [1 - share * (1 - part) for part in (red, green, blue)]


def _luminance(colour: str) -> float:
    """How bright a colour is, from 0 to 1 (WCAG)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """How well one colour stands out from another, from 1 to 21 (WCAG)."""
    darker, brighter = sorted(map(_luminance, (one, other)))
    return (brighter + 0.05) / (darker + 0.05)


def mixed(colour: str, other: str, share: float) -> str:
    """`colour` with `share` of it, and the rest of `other`."""
    pairs = zip(parts(colour), parts(other), strict=True)
    return "#" + "".join(f"{round(255 * (share * here + (1 - share) * there)):02x}" for here, there in pairs)


def lightened(colour: str, ground: str, least: float) -> str:
    """The nearest mixture of `colour` with white that stands out from a dark `ground` by `least`.

    >>> lightened("#ffffff", "#000000", 4.5)
    '#ffffff'
    """
    mixtures = (mixed(colour, "#ffffff", share / 50) for share in range(50, -1, -1))
    return next(one for one in mixtures if contrast(one, ground) >= least)
