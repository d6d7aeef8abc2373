"""Links of the repository as links of the site: to the page that a file has here, or to a copy of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tools.paths import ROOT
from tools.site.places import SOURCES

FILES = "files"  # copies of what has no page
_MARKDOWN = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_HTML = re.compile(r'<a href="(?P<target>[^"]+)"')
_COMPUTED = re.compile(r" ?<!-- =.*?-->", re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z]+:|#")
_RULES = (  # a file of the repository, and its page
    (r"notebooks/(\w+)\.ipynb", r"lessons/\1"),
    (r"exercises/(?:release|solutions)/(\w+)\.ipynb", r"exercises/\1"),
    (r"notebooks/scripts/(\w+)\.py", r"scripts/\1"),
    (r"(?:notebooks/)?README\.md", "index"),
    (r"notebooks/(\w+)\.md", lambda hit: hit[1].lower()),
    (r"slides/\w+\.md", "slides/index"),
    (r"exercises/README\.md", "more/for_instructors"),
    (r"exercises/project/ASSIGNMENT\.md", "more/project"),
    (r"tests/gpu/README\.md", "more/on_gpus"),
    (r"wild/(\w+)\.md", lambda hit: f"wild/{hit[1].lower()}"),
    (r"([\w-]+)\.md", lambda hit: f"more/{hit[1].lower().replace('-', '_')}"),
    (r"course_lib/(.+)\.py", r"library/\1"),
)


def page_of(file: str) -> str | None:
    """The page that shows a file of the repository; None if there is none.

    >>> page_of("notebooks/scripts/03_ddp.py"), page_of("LICENSE")
    ('scripts/03_ddp', None)
    """
    for rule, page in _RULES:
        if hit := re.fullmatch(rule, file):
            return hit.expand(page) if isinstance(page, str) else page(hit)
    return None


def source_of(page: str) -> str:
    """The file that Sphinx makes a page of: lessons and exercises stay notebooks.

    >>> source_of("lessons/02_collectives"), source_of("words")
    ('lessons/02_collectives.ipynb', 'words.md')
    """
    return f"{page}{'.ipynb' if page.startswith(('lessons/', 'exercises/')) else '.md'}"


class Links:
    """Rewrites the links of one file, which becomes the page `page`; `there` are all pages of the site."""

    def __init__(self, file: Path, page: str, there: set[str]) -> None:
        self.folder, self.page, self.there = file.parent, page, there

    def rewritten(self, text: str) -> str:
        """A text for readers: its links lead to the site's pages, and how its numbers are computed is left out."""
        plain = _HTML.sub(lambda hit: f'<a href="{self._address(hit["target"])}"', _COMPUTED.sub("", text))
        return _MARKDOWN.sub(self._in_markdown, plain)

    def _in_markdown(self, hit: re.Match[str]) -> str:
        """To a page as Sphinx knows it, so that a link to nowhere is found; to a copy as HTML, which it lets pass."""
        if _ELSEWHERE.match(hit["target"]):
            return hit[0]
        page, anchor = self._page(hit["target"])
        if page in self.there:
            return f"[{hit['text']}](/{source_of(page)}{anchor})"
        if (ROOT / self._file(hit["target"])).is_dir():  # of which nothing is copied
            return hit["text"]
        return f'<a href="{self._address(hit["target"])}">{hit["text"]}</a>'

    def _address(self, target: str) -> str:
        """Where a link leads, seen from this page."""
        if _ELSEWHERE.match(target):
            return target
        up = "../" * self.page.count("/")
        page, anchor = self._page(target)
        return f"{up}{page}.html{anchor}" if page in self.there else f"{up}{copied(self._file(target))}"

    def _page(self, target: str) -> tuple[str, str]:
        """The page that a link leads to and a section of it; both are empty if it leads elsewhere."""
        _, _, anchor = target.partition("#")
        page = "" if _ELSEWHERE.match(target) else page_of(self._file(target)) or ""
        return page, f"#{slug(anchor)}" if anchor else ""

    def _file(self, target: str) -> str:
        path, _, _ = target.partition("#")
        return (self.folder / unquote(path)).resolve().relative_to(ROOT).as_posix()


def slug(anchor: str) -> str:
    """The name of a section on the site, from the one that Jupyter gives it.

    >>> slug("How-many-numbers-is-a-Llama%3F")
    'how-many-numbers-is-a-llama'
    """
    return re.sub(r"[^\w\- ]", "", unquote(anchor).lower()).replace(" ", "-")


def copied(file: str) -> str:
    """Copy a file of the repository to the site as it is; return where it lies there."""
    target = SOURCES / "_extra" / FILES / file
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / file, target)
    return f"{FILES}/{file}"


def demoted(text: str) -> str:
    """A text whose headings are one level lower; what looks like one in a block of code stays.

    >>> demoted("# Going deeper\\n```\\n# a comment\\n```")
    '## Going deeper\\n```\\n# a comment\\n```'
    """
    return "\n".join(_demoted(text.split("\n")))


def _demoted(lines: list[str]) -> Iterator[str]:
    in_code = False
    for line in lines:
        in_code ^= line.startswith("```")
        yield f"#{line}" if line.startswith("#") and not in_code else line
