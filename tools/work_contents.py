"""The table of contents as it stands in `work/`, made from the published one."""

from __future__ import annotations

import re

_OPENING = """# The course, lesson by lesson

Each lesson begins where the one before it still hurts, so read them in order. The minutes are those of its core path:
to read it, to run it, and to think of a number before each result. What lies behind *Going deeper* comes on top, and
you can skip it.

These are your own copies, without results: what you change in them stays, also when the course is updated. Near the
top of each page stands a cell called **Setup**. Run it first, and again whenever you have restarted the kernel. The
slides are not here: `make slides` writes them into `build/slides`, as HTML and PDF. [What others call
it](notebooks/WORDS.md) has the words of the course beside those of papers, logs and frameworks."""
_SLIDES = re.compile(r"( · )?\[[^\]]*\]\(\.\./slides/[^)]*\)")
_EMPTY_LINES = re.compile(r"\n{3,}")
_LINK = re.compile(r"\]\((?!https?://)(?P<place>[^)]+)\)")


def for_work(published: str) -> str:
    """Return the page with links that work in `work/`, where notebooks and exercises keep their folders."""
    lessons = published[published.index("\n## ") :]
    lessons = _EMPTY_LINES.sub("\n\n", _SLIDES.sub("", lessons))
    return _OPENING + "\n" + _LINK.sub(lambda link: f"]({_from_above(link['place'])})", lessons)


def _from_above(place: str) -> str:
    """A link of the folder `notebooks`, as seen from the folder above.

    >>> _from_above("scripts/03_ddp.py"), _from_above("../exercises/release/03_mlp_ddp.ipynb")
    ('notebooks/scripts/03_ddp.py', 'exercises/release/03_mlp_ddp.ipynb')
    """
    return place.removeprefix("../") if place.startswith("../") else f"notebooks/{place}"
