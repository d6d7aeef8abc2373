"""What a class got wrong, and how often: a table without names, from what the graded cells said.

A check says a sentence for each slip that it knows. The table counts by how many students each was earned. What a check
says beside these sentences may hold what a student typed, so it is counted as "something else".
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from course_lib.checks.kit.formula import FormulaExercise
from course_lib.checks.kit.registry import Exercise, find
from course_lib.checks.kit.sheet import NumberExercise
from tools.exercise_text import exercise_of

ELSE, UNTOUCHED = "something else", "nothing was written"
_STUBS = ("not written yet", ": no number yet")  # what checks say of an untouched answer
FEWEST = 5  # students of a table: with fewer, a sentence would be somebody's


@dataclass
class Misconceptions:
    """Of one module: who was told which sentence of which exercise, and how many handed in."""

    told: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    students: set[str] = field(default_factory=set)

    def add(self, student: str, said: Mapping[str, str]) -> None:
        """Note what the graded cells of one submission said, by cell; a cell that passed says nothing."""
        self.students.add(student)
        for cell, why in said.items():
            exercise = exercise_of(cell)
            for sentence in sentences_in(find(exercise), why):
                self.told[exercise, sentence].add(student)

    def content(self) -> bytes | None:
        """The table as a file, by exercise and then by how many; None where a sentence would be somebody's."""
        if len(self.students) < FEWEST:
            return None
        rows = [(exercise, len(who), len(self.students), says) for (exercise, says), who in self.told.items()]
        rows.sort(key=lambda row: ([int(part) for part in row[0].split(".")], -row[1], row[3]))
        file = io.StringIO(newline="")
        csv.writer(file).writerows([("exercise", "students", "of", "what they were told"), *rows])
        return file.getvalue().encode("utf-8")


def sentences_in(exercise: Exercise, why: str) -> list[str]:
    """The sentences of slips that a check has said, or what stands for all others."""
    if any(stub in why for stub in _STUBS):
        return [UNTOUCHED]
    known = [sentence for sentence in sentences_of(exercise) if sentence in why]
    longest = [one for one in known if not any(one != other and one in other for other in known)]
    return longest or [ELSE]


def sentences_of(exercise: Exercise) -> Iterable[str]:
    """What an exercise says of its slips; a sentence that is made for each answer is none of them."""
    if isinstance(exercise, NumberExercise):
        asks = (ask for group in exercise.levels.values() for ask in group.asks)
        return dict.fromkeys(says for ask in asks for says in ask.slips)
    if isinstance(exercise, FormulaExercise):
        return dict.fromkeys(says for formula in exercise.formulas for says in formula.slips)
    return [says for says in getattr(exercise, "slips", {}) if isinstance(says, str)]  # a script has none
