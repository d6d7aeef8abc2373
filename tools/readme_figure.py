"""Writes the README's figure, made by the library like every other; a test finds drift."""

from __future__ import annotations

from course_lib.viz.moving import Moving
from course_lib.viz.moving_ring import animate_ring
from tools.paths import ROOT

FIGURE = ROOT / "notebooks/ring_all_reduce.svg"


def picture() -> Moving:
    """Return what the README shows: a ring all-reduce on four ranks."""
    return animate_ring(4)


if __name__ == "__main__":
    print(picture().save(FIGURE).relative_to(ROOT))
