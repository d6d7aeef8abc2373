"""A question: a text with places for numbers, which are drawn, and the formula of its answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Drawn = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question of the bank.

    `given` has the choices for each number of the text, and `answer` takes one of each. A paper is solved by hand, so
    an answer within one percent is right.
    """

    key: str  # the lesson and a letter, as 02c
    text: str
    given: Mapping[str, Sequence[Any]]
    answer: Callable[..., float]
    unit: str
    also: Callable[..., Drawn] = lambda **given: {}  # what else the text says, such as a model's shape

    @property
    def lesson(self) -> str:
        """The number of the lesson that has the answer."""
        return self.key[:-1]

    def drawn(self, seed: int) -> Drawn:
        """The numbers of a seed: the same ones in every process."""
        chance = random.Random(f"{seed} {self.key}")
        return {name: chance.choice(choices) for name, choices in self.given.items()}

    def asked(self, seed: int) -> str:
        """The question as it is put, with the unit of its answer."""
        counted = "How many " in self.text
        unit = f" Answer in {self.unit}." if self.unit and not counted else ""
        drawn = self.drawn(seed)
        return self.text.format(**{**drawn, **self.also(**drawn)}) + unit

    def right(self, seed: int) -> float:
        """The answer, in the unit that the question names."""
        return float(self.answer(**self.drawn(seed)))


def in_words(number: float, unit: str) -> str:
    """An answer as the key prints it, with four digits.

    >>> in_words(1536.0, "MiB"), in_words(0.42857, ""), in_words(1234567.0, "messages")
    ('1,536 MiB', '0.4286', '1,234,567 messages')
    """
    text = f"{number:,.0f}" if float(number).is_integer() else f"{number:,.4g}"
    return f"{text} {unit}".rstrip()
