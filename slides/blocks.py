"""Pieces of HTML that a deck's expressions may use: bars, and the source of a function that ran."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from course_lib.units import format_bytes, format_seconds
from course_lib.viz.style import text_on

NBSP = "\N{NO-BREAK SPACE}"
ALL = ("bar", "key", "parts", "source", "size", "time")


def size(nbytes: float) -> str:
    """Bytes in decimal units, three digits: bandwidths are decimal too."""
    number, unit = format_bytes(float(f"{nbytes:.3g}"), binary=False).split()
    return f"{float(number):g}{NBSP}{unit}"


def time(seconds: float) -> str:
    """A duration as a lecturer writes it."""
    return format_seconds(seconds).replace("us", "µs").replace(" ", NBSP)


def bar(share: float, colour: str, text: str = "") -> str:
    """A horizontal bar, `share` of its cell wide, with `text` in it."""
    ink = f"; color: {text_on(colour)}" if text else ""
    return f'<span class="bar" style="width: {100 * share:.4g}%; background: {colour}{ink}">{text}</span>'


def parts(*shares: tuple[float, str] | tuple[float, str, str]) -> str:
    """One bar cut in coloured parts: share, colour, and the text in it if there is one."""
    return f'<span class="parts">{"".join(bar(*part) for part in shares)}</span>'


def key(colour: str, text: str) -> str:
    """One entry of a legend."""
    return f'<span class="key" style="background: {colour}"></span>&ensp;{text}'


def source(function: Callable[..., Any]) -> str:
    """The code of a function of the setup block, as a fenced block: what is shown is what ran."""
    return f"```python\n{textwrap.dedent(inspect.getsource(function)).rstrip()}\n```"
