"""The bank: all questions, and the ten that the placement test takes."""

from __future__ import annotations

from random import Random

from course_lib.errors import four_parts
from tools.exam import many_ranks, on_a_cluster, one_device
from tools.exam.question import Question

BANK: tuple[Question, ...] = (*one_device.QUESTIONS, *many_ranks.QUESTIONS, *on_a_cluster.QUESTIONS)
_BY_KEY = {question.key: question for question in BANK}
PLACEMENT = ("01a", "02a", "03b", "04a", "05a", "06b", "07b", "08a", "09a", "12a")  # one for each lesson


def placement() -> list[Question]:
    """The questions of the placement test, in the order of their lessons."""
    return [_BY_KEY[key] for key in PLACEMENT]


def paper(seed: int, count: int) -> list[Question]:
    """So many questions for a seed, in the order of their lessons, from as many lessons as can be.

    Raises: ValueError for a count that the bank has not.
    """
    if not 1 <= count <= len(BANK):
        rule = f"the bank has {len(BANK)} questions, and a paper takes each once"
        raise ValueError(four_parts("exam", f"COUNT={count}", rule, f"choose COUNT in 1..{len(BANK)}"))
    chance = Random(seed)
    left = chance.sample(BANK, len(BANK))
    chosen: list[Question] = []
    while len(chosen) < count:
        fresh = {one.lesson: one for one in left}  # one of each lesson
        chosen += [*fresh.values()][: count - len(chosen)]
        left = [one for one in left if one not in chosen]
    return sorted(chosen, key=lambda question: question.key)
