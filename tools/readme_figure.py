"""Writes the README's figure, made by the library like every other; a test finds drift."""

from __future__ import annotations

from course_lib.viz.picture import Picture
from course_lib.viz.ring import ring_all_reduce_step
from tools.paths import ROOT

FIGURE = ROOT / "notebooks/ring_all_reduce.svg"


def picture() -> Picture:
    """Return what the README shows: the second step of a ring all-reduce on four ranks."""
    return ring_all_reduce_step(4, 2)


if __name__ == "__main__":
    print(picture().save(FIGURE).relative_to(ROOT))
