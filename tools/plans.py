"""Plans for weekends, weeks and a term: which lessons and exercises each step has, and how long that takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.exercise_facts import HEAD
from tools.lesson import cells, told_minutes
from tools.paths import ROOT
from tools.routes import slides_of, table


@dataclass(frozen=True, kw_only=True)
class Step:
    """A day or a week: lessons by number, and the modules whose exercises are done in it."""

    title: str
    lessons: tuple[str, ...]
    practice: tuple[str, ...]
    says: str = ""

    @property
    def reading(self) -> int:
        """Minutes of the lessons' core paths."""
        return sum(told_minutes(_only(f"notebooks/src/{lesson}_*.py")) for lesson in self.lessons)

    @property
    def lecture(self) -> int:
        """Minutes of the modules' slides, where there are any."""
        decks = {deck for lesson in self.lessons for deck in (ROOT / "slides").glob(f"{lesson[:2]}_*.md")}
        return sum(sum(slides_of(deck).values()) for deck in decks)

    def practising(self, marks: tuple[str, ...]) -> int:
        """Minutes of the exercises that bear one of the marks, such as core."""
        masters = [one for module in self.practice for one in (ROOT / "exercises/src").glob(f"{module}_*.py")]
        heads = [HEAD.match(cell.source) for master in masters for cell in cells(master)]
        return sum(int(head["minutes"]) for head in heads if head and head["importance"] in marks)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Steps that follow each other, and what is said below them."""

    name: str
    title: str
    needs: str
    says: str
    exercises: tuple[str, ...]  # the marks of those that belong to it
    steps: tuple[Step, ...]
    lectures: bool = False
    after: tuple[str, ...] = ()

    def minutes(self, step: Step) -> int:
        """All that a step takes."""
        return step.reading + step.practising(self.exercises) + (step.lecture if self.lectures else 0)

    def problems(self) -> Iterator[str]:
        """Lessons that are not there; exercises may still be written."""
        for step in self.steps:
            for lesson in step.lessons:
                if len([*(ROOT / "notebooks/src").glob(f"{lesson}_*.py")]) != 1:
                    yield f"{self.name}, {step.title}: no lesson {lesson}"


def plans() -> dict[str, Plan]:
    """The plans by name."""
    return {row["name"]: _plan_of(row) for row in table()["plans"]}


def _plan_of(row: dict[str, Any]) -> Plan:
    steps = tuple(
        Step(**{**step, "lessons": (*step["lessons"],), "practice": (*step["practice"],)}) for step in row["steps"]
    )
    return Plan(**{**row, "exercises": (*row["exercises"],), "after": (*row.get("after", ()),), "steps": steps})


def _only(pattern: str) -> Path:
    (found,) = ROOT.glob(pattern)
    return found
