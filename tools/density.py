"""How many numbers a reader meets in a lesson's prose; run as a module, it prints a line for each lesson.

python -m tools.density      # each lesson, and its section with the most numbers
python -m tools.density 01   # each section of one lesson
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tools.lesson import words
from tools.lesson_sections import Section, sections
from tools.paths import ROOT

_TABLE = re.compile(r"^ *\|.*$", re.MULTILINE)
_ITEM = re.compile(r"(^ *|<summary>)\d+\. ", re.MULTILINE)  # the number of a list's item, or of a question
_UNIT = r"%|×|[kMGTP]i?B|[mµn]?s|st|nd|rd|th"  # "B" alone is none: 70B is a model's name
_NUMBER = re.compile(rf"[−+~≈]?\d[\d.,:/–]*(?:{_UNIT})?(?:'s)?")
_AROUND = "()[]{}$*_.,;:?!…\"'“”"
_NAMED = {"zero", "llama", "olmo", "gpt", "grok", "python", "pytorch", "lesson", "lessons", "exercise", "exercises"}


@dataclass(frozen=True, kw_only=True)
class Density:
    """What a text asks a reader to bear in mind: its words with a digit, beside all of its words."""

    words: int
    numbers: tuple[str, ...]
    names: tuple[str, ...]

    def in_a_hundred(self, some: tuple[str, ...]) -> float:
        """How many of its numbers, or of its names, stand in a hundred words."""
        return 100 * len(some) / max(1, self.words)

    def __str__(self) -> str:
        shares = (self.in_a_hundred(some) for some in (self.numbers, self.names))
        return "{:5} words, in a hundred {:4.1f} numbers and {:4.1f} names".format(self.words, *shares)


def density(text: str) -> Density:
    """Tell the numbers of a text from the names that have a digit, as fp32, A100, ZeRO-2 or lesson 05; no table counts.

    "Rank 0" and "chunk 2" are numbers, since a reader has to follow them.

    >>> density("In lesson 01, ZeRO-1 on 64 A100s keeps 17.6 GB in fp32, 5 % more than rank 0's.").numbers
    ('64', '17.6', '5', "0's")
    """
    read = words(_ITEM.sub(r"\1", _TABLE.sub("", text)))
    bare = [word.strip(_AROUND) for word in read]
    digits = [(before.lower(), word) for before, word in zip(["", *bare], bare, strict=False) if re.search(r"\d", word)]
    number = [bool(_NUMBER.fullmatch(word)) and before not in _NAMED for before, word in digits]
    return Density(
        words=len(read),
        numbers=tuple(word for (_, word), counts in zip(digits, number, strict=True) if counts),
        names=tuple(word for (_, word), counts in zip(digits, number, strict=True) if not counts),
    )


def density_of(some: Iterable[Section]) -> Density:
    """The same of sections of a lesson, without their code."""
    texts = (cell.source for section in some for cell in section.cells if cell.cell_type == "markdown")
    return density("\n\n".join(texts))


def main(only: str) -> None:
    """Print the lessons, or the sections of the one whose name starts with the given text."""
    for source in sorted((ROOT / "notebooks/src").glob(f"{only}*.py")):
        by_section = {section.name or "opening": density_of([section]) for section in sections(source)}
        if only:
            print(*(f"{one}  {name}" for name, one in by_section.items()), sep="\n")
        most = max(by_section, key=lambda name: by_section[name].in_a_hundred(by_section[name].numbers))
        share = by_section[most].in_a_hundred(by_section[most].numbers)
        print(f"{density_of(sections(source))}  {source.stem}; at most {share:.1f} in {most!r}")


if __name__ == "__main__":
    main("".join(sys.argv[1:]))
