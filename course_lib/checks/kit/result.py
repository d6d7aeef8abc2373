"""What a check found: points per level and, for the first level that failed, the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LevelResult:
    """One level of an exercise; `detail` says what was right, or what the learner's numbers reveal."""

    name: str
    points: int
    possible: int
    detail: str
    ran: bool = True

    @property
    def passed(self) -> bool:
        return self.points == self.possible


class NotYet(AssertionError):
    """A graded cell without its points, shown in one line: nothing has gone wrong that a stack could explain."""

    def _render_traceback_(self) -> list[str]:
        return [f"not yet: {self}"]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of `check`."""

    exercise: str
    title: str
    levels: tuple[LevelResult, ...]

    @property
    def passed(self) -> bool:
        """Whether at least one level ran and every level passed."""
        return bool(self.levels) and all(level.passed for level in self.levels)

    @property
    def points(self) -> int:
        return sum(level.points for level in self.levels)

    @property
    def possible(self) -> int:
        return sum(level.possible for level in self.levels)

    @property
    def reason(self) -> str:
        """Why the first failing level failed; empty if all passed."""
        return next((level.detail for level in self.levels if not level.passed), "")

    def __str__(self) -> str:
        if not self.levels:
            return f"{self.exercise} {self.title}: not run while grading"
        verdict = "passed" if self.passed else "not yet"
        lines = [f"{self.exercise} {self.title}: {verdict}, {self.points} of {self.possible} points"]
        width = max(len(level.name) for level in self.levels)
        for level in self.levels:
            mark = "ok  " if level.passed else "FAIL" if level.ran else "-   "
            lines.append(f"  {mark} {level.name:<{width}}  {level.detail}")
        return "\n".join(lines)

    def _ipython_display_(self) -> None:
        """Show nothing: `check` has already printed the verdict, also when it is a cell's last line."""
