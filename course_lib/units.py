"""Units of memory, time and counts: plain numbers inside the code, readable text at the edge.

1 GB is 10^9 bytes, 1 GiB is 2^30 bytes: 7 % apart, and the course never writes one and means the other.
"""

from __future__ import annotations

import re

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40

LARGEST = 2**40  # whole number that anybody is asked for: a size, a count, a degree
_FLOATS = 1e300  # beyond, a product is no float
_Units = dict[str, float]  # largest first
_BINARY: _Units = {"TiB": TiB, "GiB": GiB, "MiB": MiB, "KiB": KiB, "B": 1}
_DECIMAL: _Units = {"TB": TB, "GB": GB, "MB": MB, "KB": KB, "B": 1}
_SECONDS: _Units = {"d": 86_400, "h": 3_600, "min": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_KINDS: tuple[_Units, ...] = (  # of what a text may give an amount, in the words that people use
    {**_BINARY, **_DECIMAL, "byte": 1, "bytes": 1},
    {**_SECONDS, "µs": 1e-6, "second": 1, "seconds": 1, "hours": 3_600, "days": 86_400},
)
_AMOUNT = re.compile(r"(?P<number>[-+]?[\d.][\d.,_]*(?:e[-+]?\d+)?)\s*(?P<unit>[^\W\d]*)", re.IGNORECASE)
_COUNTS: _Units = {"T": 10**12, "B": 10**9, "M": 10**6, "k": 10**3, "": 1}


def is_number(value: object) -> bool:
    """Whether formulas can compute with it: neither text nor nan nor infinite, and a float holds it.

    >>> is_number(3), is_number(1e-5), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, True, False, False, False)
    """
    return type(value) in (int, float) and -_FLOATS <= value <= _FLOATS  # type: ignore[operator]


def format_bytes(n: float, binary: bool = True) -> str:
    """Write a number of bytes in KiB, MiB, ... or, with `binary=False`, in KB, MB, ...

    >>> format_bytes(1_572_864), format_bytes(1_572_864, binary=False)
    ('1.5 MiB', '1.573 MB')
    """
    return _format(n, _BINARY if binary else _DECIMAL, digits=4) if n else "0 B"


def format_seconds(seconds: float) -> str:
    """Write a duration in the unit that fits it, from nanoseconds to days.

    >>> format_seconds(1.23e-5), format_seconds(5400)
    ('12.3 us', '1.5 h')
    """
    return _format(seconds, _SECONDS, digits=3) if seconds else "0 s"


def format_count(n: float) -> str:
    """Write a count of things (parameters, FLOPs, tokens) in thousands, millions, billions (B) or trillions.

    >>> format_count(8_030_261_248), format_count(38)
    ('8.03 B', '38')
    """
    return _format(n, _COUNTS, digits=3) if n else "0"


def amount_of(text: str, unit: str = "") -> float | None:
    """The number that a text gives in `unit`; None if it gives none, or one of another kind.

    >>> amount_of("3 MiB", "bytes"), amount_of("1,500", "steps"), amount_of("2 s", "ms"), amount_of("2 s", "bytes")
    (3145728.0, 1500.0, 2000.0, None)
    """
    found = _AMOUNT.fullmatch(text.strip())
    try:
        number = float(found["number"].replace(",", "").replace("_", "")) if found else None
    except ValueError:
        return None
    if not found or number is None or found["unit"] in ("", unit):
        return number
    kind = next((kind for kind in _KINDS if unit in kind and found["unit"] in kind), None)
    return number * (kind[found["unit"]] / kind[unit]) if kind else None


def _format(value: float, units: _Units, digits: int) -> str:
    """Write `value` in the largest unit in which it still rounds to 1 or more."""
    texts = [(f"{value / size:.{digits}g}", unit) for unit, size in units.items()]
    text, unit = next((pair for pair in texts if abs(float(pair[0])) >= 1), texts[-1])
    return f"{text} {unit}".rstrip()
