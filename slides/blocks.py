"""Pieces of HTML that a deck's expressions may use: bars, and the source of a function that ran."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from course_lib.units import format_bytes, format_seconds

NBSP = "\N{NO-BREAK SPACE}"
ALL = ("bar", "parts", "source", "size", "time")


def size(nbytes: float) -> str:
    """Bytes in decimal units, three digits: bandwidths are decimal too."""
    number, unit = format_bytes(float(f"{nbytes:.3g}"), binary=False).split()
    return f"{float(number):g}{NBSP}{unit}"


def time(seconds: float) -> str:
    """A duration as a lecturer writes it."""
    return format_seconds(seconds).replace("us", "µs").replace(" ", NBSP)


def bar(share: float, colour: str) -> str:
    """A horizontal bar, `share` of its cell wide."""
    return f'<span class="bar" style="width: {100 * share:.4g}%; background: {colour}"></span>'


def parts(*shares: tuple[float, str]) -> str:
    """One bar cut in coloured parts."""
    return f'<span class="parts">{"".join(bar(share, colour) for share, colour in shares)}</span>'


def source(function: Callable[..., Any]) -> str:
    """The code of a function of the setup block, as a fenced block: what is shown is what ran."""
    return f"```python\n{textwrap.dedent(inspect.getsource(function)).rstrip()}\n```"
