"""What the learner found in a trainer with a planted bug: a rung of the ladder, and a number."""

from __future__ import annotations

from math import isclose
from typing import Any, NamedTuple

from course_lib.verify import RUNGS
from course_lib.verify.numbers import number_of


class Diagnosis(NamedTuple):
    """The right one: the first rung that fails and a number, and what a wrong number means."""

    rung: str
    number: float
    name: str  # of the number
    way_out: str
    once: str = ""  # under which condition the rung is the first one

    def why_wrong(self, found: Any) -> str | None:
        """None if what was found is right."""
        if not isinstance(found, tuple | list) or len(found) != 2:
            return f"returned {found!r}: give two things, the rung's name and {self.name}"
        rung, number = found
        if rung not in RUNGS:
            return f"{rung!r} is no rung: they are {', '.join(RUNGS)}"
        if rung != self.rung:
            place = "an earlier one fails" if RUNGS.index(self.rung) < RUNGS.index(rung) else "that one passes"
            return f"rung {rung!r}: {self.once}{place}; climb again, and read which rung the error names"
        if isinstance(number, str):
            return f"{number!r} is text: give {self.name} as a number"
        given = number_of(number)
        if given is None or not isclose(given, self.number, rel_tol=1e-6):
            return f"the rung is right, but {self.name} is not {number!r}: {self.way_out}"
        return None
