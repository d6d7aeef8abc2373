"""Looks at a built deck in headless Chromium, slide by slide, as the audience sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from slides.marp import CHROMIUM_FLAGS
from slides.template import MINUTES, NOTE, typed_numbers
from tools import outside

LECTURE_MINUTES = range(45, 61)
SMALLEST_TEXT_PX = 20  # on a slide of 1280 x 720; the foot of the slide is exempt
LEFTOVERS = re.compile(r"\{\{|\}\}|\$\$|\\(?:frac|text|log)\b|Traceback|\bnan\b|\bNone\b")
LOOK = (Path(__file__).parent / "look.js").read_text()


@contextmanager
def opened() -> Iterator[Browser]:
    """A headless Chromium, which may look at many decks: its start takes longer than most of them."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=outside.find_chromium(), args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


def problems(browser: Browser, source: Path, page: Path) -> list[str]:
    """Return a line for each thing wrong with the deck `source`, built as the HTML `page`."""
    return typed_numbers(source.read_text()) + note_problems(page.with_suffix(".md")) + slide_problems(browser, page)


def note_problems(filled: Path) -> list[str]:
    """Return a line for each slide without notes that say its minutes and what to say, and for a wrong total."""
    slides = re.split(r"^---$", filled.read_text().split("\n---\n", 1)[1], flags=re.MULTILINE)
    lines, total = [], 0
    for number, slide in enumerate(slides, start=1):
        notes = "\n".join(NOTE.findall(slide))
        minutes = MINUTES.search(notes)
        total += int(minutes[1]) if minutes else 0
        if not minutes:
            lines.append(f"slide {number}: its notes have no line 'Minutes: N'")
        if "Say:" not in notes:
            lines.append(f"slide {number}: its notes do not tell what to say ('Say:')")
    if total not in LECTURE_MINUTES:
        lines.append(
            f"the slides add up to {total} minutes; a lecture has {LECTURE_MINUTES[0]} to {LECTURE_MINUTES[-1]}"
        )
    return lines


def slide_problems(browser: Browser, page: Path) -> list[str]:
    """Return a line for each slide that overflows, misses a picture, shows leftovers, or asks the network."""
    lines: list[str] = []
    tab = browser.new_page(viewport={"width": 1280, "height": 720})
    tab.on("request", lambda request: lines.extend(_asks(request.url, page)))
    tab.on("pageerror", lambda error: lines.append(f"the page's script fails: {error}"))
    tab.goto(page.as_uri())
    for number in range(1, tab.locator("section").count() + 1):
        lines += [f"slide {number}: {line}" for line in _look(tab, number)]
    tab.close()
    return lines


def _asks(url: str, page: Path) -> list[str]:
    allowed = url.startswith(("data:", "blob:", page.as_uri()))
    return [] if allowed else [f"the deck asks for {url[:80]}; it must stand alone"]


def _look(tab: Page, number: int) -> list[str]:
    tab.evaluate(f"location.hash = '#{number}'")
    tab.wait_for_selector(f"section[id='{number}']", state="visible", timeout=60_000)
    seen: dict[str, Any] = tab.evaluate(LOOK, [str(number), SMALLEST_TEXT_PX])
    leftovers = LEFTOVERS.findall(seen["text"])
    return seen["lines"] + [f"unrendered {leftover!r}" for leftover in leftovers]
