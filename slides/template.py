"""Fills a deck's template: `{{ expression }}` becomes its value, `{{ picture(...) }}` a figure made by course_lib.

A deck opens with Marp's front matter, then one block ```python setup that defines the names its expressions use.
"""

from __future__ import annotations

import html
import linecache
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from course_lib.errors import four_parts

SETUP = re.compile(r"^```python setup\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
EXPRESSION = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
NOTE = re.compile(r"<!--(.*?)-->", re.DOTALL)
MINUTES = re.compile(r"^Minutes: (\d+)\b.*$", re.MULTILINE)
WINDOW = re.compile(r'(?:width="[\d.]+pt" height="[\d.]+pt" )?viewBox="0 0 ([\d.]+) ([\d.]+)"')
_PIXELS = 80  # of a drawing on a canvas, to an inch of a headline
HEADLINE_IN, EDGE_IN = 1.0, 0.1  # inches of a figure's headline and subtitle, and of its card's edge
_UNITS = r"[KMGT]i?B|bytes?|[KMGT]?B/s|[KMGT]b/s|n?s|[mµu]s|seconds?|%|times|×"
TYPED = re.compile(rf"(?<![\w$\\^_{{.])(?<!- )(?<!− )\d[\d.,]*\s*(?:{_UNITS})(?![\w])")


class Picture(Protocol):
    """What `picture()` takes: course_lib.viz's figures."""

    @property
    def still(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def kinds(self) -> Sequence[str]: ...


class Figures:
    """Saves the pictures of one deck and returns what stands for them in its Markdown."""

    def __init__(self, folder: Path, *, relative_to: Path) -> None:
        self.folder, self.relative_to, self.count = folder, relative_to, 0

    def picture(self, figure: Picture, style: str = "", *, headline: bool = False) -> str:
        """Save `figure` and return its <img>, without the figure's own headline: the slide has one, and its badges.

        `style` is one of the theme's classes for pictures.
        """
        self.count += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.count:02}.svg"
        path.write_text(cropped(figure.still, top_in=EDGE_IN if headline else HEADLINE_IN), encoding="utf-8")
        source = path.relative_to(self.relative_to).as_posix()
        kinds = () if headline else figure.kinds
        badges = "".join(f'<span class="kind {kind}">{kind}</span>' for kind in kinds)
        badges = f'<span class="kinds">{badges}</span>' if kinds else ""
        return f'<img class="{style}" src="{source}" alt="{html.escape(" ".join(figure.text.split()))}">{badges}'


def cropped(svg: str, *, top_in: float) -> str:
    """Narrow the window on the drawing: `top_in` inches off the top, and the card's edge off the other sides.

    A page is 10 inches wide; a drawing of 640 or 840 pixels has its headline and its edge on as many of them.
    """

    def window(match: re.Match[str]) -> str:
        width, height = float(match[1]), float(match[2])
        inch = 72 if "pt" in match[0] else _PIXELS
        edge, top = EDGE_IN * inch, top_in * inch
        width, height = width - 2 * edge, height - top - edge
        return f'width="{width:g}pt" height="{height:g}pt" viewBox="{edge:g} {top:g} {width:g} {height:g}"'

    return WINDOW.sub(window, svg, count=1)


def fill(text: str, names: Mapping[str, Any]) -> str:
    """Run the deck's setup block and replace each expression by its value.

    Raises: ValueError if an expression fails, naming its line.
    """
    namespace = {"__name__": "deck", **names}
    setup = SETUP.search(text)
    if setup:
        file = "<setup block of the deck>"  # known to linecache, so that a slide can show what it ran
        linecache.cache[file] = (len(setup[1]), None, setup[1].splitlines(keepends=True), file)
        exec(compile(setup[1], file, "exec"), namespace)

    def value(match: re.Match[str]) -> str:
        expression = match[1].strip()
        try:
            return str(eval(f"({expression})", namespace))
        except Exception as error:
            raise ValueError(
                four_parts(
                    f"slides, line {text.count(chr(10), 0, match.start()) + 1}",
                    f"{{{{ {expression} }}}} raises {type(error).__name__}: {error}",
                    "each expression is Python over the names of the setup block",
                    "define the name in the setup block or correct the expression",
                )
            ) from error

    return SETUP.sub("", EXPRESSION.sub(value, text), count=1)


def with_clock(text: str) -> str:
    """Add to each slide's minutes when it begins, so that the lecturer sees in the notes whether there is time."""
    total, begun = sum(int(minutes) for minutes in MINUTES.findall(text)), 0

    def line(match: re.Match[str]) -> str:
        nonlocal begun
        begun += int(match[1])
        return f"Minutes: {match[1]} (from {begun - int(match[1])} of {total})"

    return MINUTES.sub(line, text)


def typed_numbers(text: str) -> list[str]:
    """Return a line for each number with a unit that was typed where course_lib should have computed it."""
    blank = SETUP.sub(_same_lines, EXPRESSION.sub(_same_lines, text))
    return [
        f"line {blank.count(chr(10), 0, hit.start()) + 1}: {hit.group()!r} is typed; write {{{{ expression }}}}"
        for hit in TYPED.finditer(blank)
    ]


def _same_lines(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")
