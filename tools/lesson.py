"""What the source of a lesson says of it: its cells, its minutes, its title, and what a reader will be able to do."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any

import jupytext

DEEPER, _WORDS_A_MINUTE = "# Going deeper", 150
FOLD = "<details><summary>After your guess: why</summary>"  # over what would tell a question's answer below it
_PREDICTION = re.compile(r"^ *predict\(", re.MULTILINE)
_PROMISES = re.compile(r"^- (?P<promise>.+)$", re.MULTILINE)
_ROUND_MINUTES = 5


@cache
def cells(source: Path) -> list[Any]:
    """The cells that hold anything."""
    return [cell for cell in jupytext.read(source, fmt="py:percent").cells if cell.source.strip()]


def number(source: Path) -> str:
    """What a lesson's name begins with: the module's two digits, and a letter if it is the module's second one.

    >>> number(Path("notebooks/src/12b_through_the_night.py"))
    '12b'
    """
    return source.stem.partition("_")[0]


def words(text: str) -> list[str]:
    """The words to be read: comments, tags, pictures and the label of a fold are none."""
    unfolded = text.replace(FOLD, "")
    shown = re.sub(r"<!--.*?-->|</?[a-z][^<>]*>|!\[.*?\]\(.*?\)|\]\(.*?\)|[|*#`>-]", " ", unfolded, flags=re.DOTALL)
    return shown.split()


def core_minutes(source: Path) -> float:
    """Minutes of all that comes before the deeper parts: to read, to run each code cell, to think of a number."""
    return float(_core_minutes(source))


def _core_minutes(source: Path) -> Fraction:
    core = takewhile(lambda cell: not cell.source.startswith(DEEPER), cells(source))
    return sum(map(cell_minutes, core), start=Fraction())


def cell_minutes(cell: Any) -> Fraction:
    """Minutes of one cell: its words, or one to run it and two more for each number that is to be thought of.

    Exact, since a lesson of fifty minutes must not be told as one of more by the rounding of a sum.
    """
    if cell.cell_type == "markdown":
        return Fraction(len(words(cell.source)), _WORDS_A_MINUTE)
    return Fraction(1 + 2 * len(_PREDICTION.findall(cell.source)))


def told_minutes(source: Path) -> int:
    """The same as one tells it: the next five minutes."""
    return _ROUND_MINUTES * ceil(_core_minutes(source) / _ROUND_MINUTES)


def title(source: Path) -> str:
    """The lesson's name without its number."""
    return str(cells(source)[0].source).splitlines()[0].partition(" · ")[2]


def promises(source: Path) -> list[str]:
    """What a reader will be able to do: the first list of the lesson, without its joints."""
    texts = [str(cell.source) for cell in cells(source) if cell.cell_type == "markdown"]
    first = next(found for text in texts if (found := _PROMISES.findall(text)))
    return [re.sub(r"(,| and|\.)+$", "", promise.strip()) for promise in first]
