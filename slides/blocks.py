"""Pieces of HTML that a deck's expressions may use: rows of a table, bars, and the source of a function that ran."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from course_lib.units import format_bytes, format_seconds
from course_lib.viz.ink.style import rank_hue, text_on

NBSP = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"
NUMBERS = ("size", "time", "percent", "power")
ALL = (*NUMBERS, "row", "left", "right", "bars", "beside", "soft", "badge", "kind", "bar", "key", "parts", "source")


def size(nbytes: float) -> str:
    """Bytes in decimal units, three digits: bandwidths are decimal too."""
    number, unit = format_bytes(float(f"{nbytes:.3g}"), binary=False).split()
    return f"{float(number):g}{NBSP}{unit}"


def time(seconds: float) -> str:
    """A duration as a lecturer writes it."""
    return format_seconds(seconds).replace("us", "µs").replace(" ", NBSP)


def percent(share: float) -> str:
    """A share of one, without digits behind the point."""
    return f"{100 * share:.0f}{NBSP}%"


def power(number: float) -> str:
    """Which power of ten it is, as 2e−16."""
    return f"{number:.0e}".replace("0e+00", "0").replace("e-", f"e{MINUS}")


def row(*cells: str) -> str:
    """A row of a table, made of what `left`, `right` and `bars` return."""
    return f"<tr>{''.join(cells)}</tr>"


def left(text: str) -> str:
    """A cell of words."""
    return f"<td>{text}</td>"


def right(text: str) -> str:
    """A cell of a number."""
    return f'<td align="right">{text}</td>'


def bars(html: str) -> str:
    """A cell of bars, as wide as the other cells allow."""
    return f'<td class="bars">{html}</td>'


def beside(*things: str, gap: int = 18) -> str:
    """Things in a line, in the middle of the slide."""
    look = f"display: flex; justify-content: center; align-items: center; gap: {gap}px"
    return f'<div style="{look}">{"".join(things)}</div>'


def soft(text: str) -> str:
    """Words that stand back."""
    return f'<span class="soft">{text}</span>'


def badge(rank: int) -> str:
    """A rank's name in its colour."""
    hue = rank_hue(rank)
    return f'<span class="badge" style="background: {hue}; color: {text_on(hue)}">rank {rank}</span>'


def kind(word: str) -> str:
    """What a slide without a figure shows, in its corner: formula, emulated or measured."""
    return f'<span class="kinds"><span class="kind {word}">{word}</span></span>'


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
