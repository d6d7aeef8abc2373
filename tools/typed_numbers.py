"""No typed numbers: a number with a unit in prose is followed by `<!-- =expression -->`, evaluated and compared.

Bare counts ("4 ranks"), module numbers, model names ("Llama 3.1 8B"), minutes, code and formulas are exempt.
Slides compute theirs when they are built: slides/template.py looks for typed ones.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from contextlib import suppress
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import Any

import jupytext

from tools import downloads
from tools.paths import ROOT

PROSE = (
    "README.md",
    "COMMANDS.md",
    "CHECK_YOUR_TRAINER.md",
    "CONTRIBUTING.md",
    "notebooks/src/*.py",
    "exercises/src/*.py",
)
SHARED_NAMES = ("units", "hardware", "config", "costs")  # an expression may use what these define

NUMBER = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
SPACED_UNITS = r"(?:[kKMGTP]?B|[kKMGT]iB|[kKMGT]?b|[kKMGT]?bit|[kKMGTPE]?FLOPs?|[nuµμm]?s|[KMGT]?Hz)(?:/s)?"
WORD_UNITS = r"(?:(?:kilo|mega|giga|tera)?bytes?|bits?|(?:nano|micro|milli)?seconds?|percent)"
UNIT = rf"(?:[ \u00a0\u202f](?:{SPACED_UNITS}|{WORD_UNITS})|[kKMGTP]i?B(?:/s)?|[nuµμm]s|[ \u00a0\u202f]?%)(?![\w/])"
CLAIM = re.compile(rf"(?P<number>{NUMBER})(?P<unit>{UNIT})?(?P<closing>[*_)\]]*\s*<!--\s*=(?P<expression>.*?)-->)?")
FROM_IMPORT = re.compile(r"^from (course_lib[\w.]*) import (\([^)]*\)|[^\n(#]+)", re.MULTILINE)
ANNOTATION = re.compile(r"<!--\s*=")
EXEMPT = re.compile(
    r"^(```|~~~).*?^\1|(`+)(?!`).*?(?<!`)\2(?!`)|\$\$.*?\$\$|\$(?! )[^$\n]*(?<! )\$|<!--(?!\s*=).*?-->|\]\([^)\s]*\)",
    re.DOTALL | re.MULTILINE,
)
PATH = re.compile(r"\b[a-z_]\w*(?:\.\w+)+")


class Names(dict[str, Any]):
    """What an expression sees: what it is given, any module of the package, and what `code` imports."""

    def __init__(self, code: str = "", **known: Any) -> None:
        super().__init__(known)
        self._imports = imports_of(code)

    def __missing__(self, name: str) -> Any:
        module, original = self._imports.get(name, ("course_lib", name))
        try:
            return self.setdefault(name, member(module, original))
        except ModuleNotFoundError:
            raise KeyError(name) from None


def names(code: str = "") -> Names:
    """Return the names that prose beside `code` may compute with."""
    known = Names(code, math=math, downloads=downloads)
    for name in SHARED_NAMES:
        module = importlib.import_module(f"course_lib.{name}")
        known.update({key: getattr(module, key) for key in dir(module) if not key.startswith("_")})
        known[name] = module
    return known


def imports_of(code: str) -> dict[str, tuple[str, str]]:
    """Map each name that `code` imports from the package to its module and its name there."""
    found = {}
    for module, wanted in FROM_IMPORT.findall(code):
        for phrase in wanted.strip("() \n").split(","):
            name, _, alias = phrase.strip().partition(" as ")
            found[alias or name] = (module, name)
    return found


def member(module: str, name: str) -> Any:
    """Return what `from module import name` would bind."""
    parent = importlib.import_module(module)
    return getattr(parent, name) if hasattr(parent, name) else importlib.import_module(f"{module}.{name}")


def problems_in(text: str, known: Names) -> list[str]:
    """Return one line for each number in `text` that is typed or does not come out as printed."""
    prose = EXEMPT.sub(" ", text)
    claims = list(CLAIM.finditer(prose))
    lines = [line for claim in claims if (line := problem_of(claim, known))]
    covered = sum(claim["expression"] is not None for claim in claims)
    if covered < len(ANNOTATION.findall(prose)):
        lines.append("an <!-- =expression --> stands behind no number")
    return lines


def problem_of(claim: re.Match[str], known: Names) -> str:
    """Return what is wrong with one number, or an empty string."""
    printed = claim["number"] + (claim["unit"] or "")
    if claim["expression"] is None:
        return f"'{printed}' is typed; put <!-- =expression --> behind it" if claim["unit"] else ""
    expression = claim["expression"].strip()
    import_modules(expression)
    try:
        value = eval(expression, known)
    except Exception as error:
        return f"'{printed}': {expression} raises {type(error).__name__}: {error}"
    return "" if agrees(printed, claim["number"], value) else f"'{printed}': {expression} gives {value}"


def import_modules(expression: str) -> None:
    """Import what it names of the package, as `checks.module_03.overlap`: a module that nobody imports is not there."""
    for path in PATH.findall(expression):
        with suppress(ModuleNotFoundError):
            for module in accumulate(path.split("."), "{}.{}".format):
                importlib.import_module(f"course_lib.{module}")


def agrees(printed: str, number: str, value: Any) -> bool:
    """Whether `value` comes out as printed: a text word for word, a number at the digits shown."""
    if isinstance(value, str):
        return " ".join(printed.split()) == value
    shown = Decimal(number.rstrip(",").replace(",", ""))
    half = Decimal(5).scaleb(int(shown.as_tuple().exponent) - 1)
    return abs(Decimal(repr(float(value))) - shown) <= half


def problems_of(path: Path) -> list[str]:
    """Return one line per problem in a Markdown file or in the text cells of a notebook's source."""
    if path.suffix == ".md":
        return [f"{path.name}: {line}" for line in problems_in(path.read_text(), names())]
    cells = list(enumerate(jupytext.read(path, fmt="py:percent").cells))
    known = names("\n".join(cell.source for _, cell in cells if cell.cell_type == "code"))
    texts = [(number, cell.source) for number, cell in cells if cell.cell_type == "markdown"]
    return [f"{path.name} cell {number}: {line}" for number, text in texts for line in problems_in(text, known)]


def all_problems() -> list[str]:
    """Return one line per problem in all prose of the course."""
    paths = [path for pattern in PROSE for path in sorted(ROOT.glob(pattern))]
    return [line for path in paths for line in problems_of(path)]


if __name__ == "__main__":
    found = all_problems()
    sys.exit("\n".join(found) or None)
