"""The first page: its text is in `site/index.md`; what is computed for it stands here."""

from __future__ import annotations

import re

from course_lib.units import GB
from tools import downloads
from tools.contents import LESSONS, exercise_minutes
from tools.lesson import number, told_minutes
from tools.paths import ROOT
from tools.site.elements import explorer
from tools.site.explorers import TEXTS
from tools.site.places import SITE, SOURCES

AFTERNOON = ("00", "02", "03")  # what ranks are, how they agree, and how one knows that it is right
_PLACE = re.compile(r"\{\{ (?P<name>\w+) \}\}")


def write_home() -> None:
    """Write the page.

    Raises: KeyError for a name in double braces that nothing here computes.
    """
    packages = f"{(downloads.TORCH_FOR_CPU + downloads.OTHER_PACKAGES) / GB:.1f} GB"
    known = {"explorer": explorer("memory", TEXTS["memory"][0], ""), "packages": packages, **minutes()}
    text = (SITE / "index.md").read_text(encoding="utf-8")
    (SOURCES / "index.md").write_text(_PLACE.sub(lambda hit: known[hit["name"]], text), encoding="utf-8")


def minutes() -> dict[str, str]:
    """What the routes take: core paths of lessons, and exercises, as their own pages say."""
    lessons = {number(source): told_minutes(source) for source in LESSONS}
    exercises = sum(sum(exercise_minutes(path)) for path in (ROOT / "exercises/src").glob("[0-9]*.py"))
    return {
        "afternoon": f"{sum(lessons[one] for one in AFTERNOON)} minutes",
        "lessons": f"{round(sum(lessons.values()) / 60)} hours",
        "exercises": f"{round(exercises / 60)} hours",
    }
