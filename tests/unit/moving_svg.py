"""Reads a drawing back from its SVG: what is drawn, and how it looks at any time of its loop."""

from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

from course_lib.viz.ink.canvas import EDGE, TEXT, text_width

Frame = tuple[float, dict[str, str]]  # seconds, declarations


class Part(NamedTuple):
    """An element that is drawn, and everything that it stands in, from the root down to itself."""

    element: ElementTree.Element
    line: tuple[ElementTree.Element, ...]


class Film:
    """A figure's elements and movements."""

    def __init__(self, svg: str) -> None:
        self.svg, self.root = svg, ElementTree.fromstring(svg)
        for element in self.root.iter():
            element.tag = element.tag.rpartition("}")[2]
        self.css = self.root.findtext("style")
        loop = re.search(r"animation:([\d.]+)s linear var\(--later,(-?[\d.]+)s\) (\d+)\}", self.css)
        self.lasts_s, self.begins_s = (float(loop[1]), -float(loop[2])) if loop else (0.0, 0.0)
        self.rounds = int(loop[3]) if loop else 0
        rules = re.findall(r"@keyframes (\w+)\{(.*)\}", self.css)
        self.motions = {name: [*self._frames(text)] for name, text in rules}

    def _frames(self, text: str):
        for at, look in re.findall(r"([\d.]+%|to)\{(.*?)\}", text):
            share = 1.0 if at == "to" else float(at[:-1]) / 100
            yield share * self.lasts_s, dict(one.split(":", 1) for one in look.split(";"))

    def parts(self, tag: str = "") -> list[Part]:
        """Everything that is drawn, symbols apart."""
        found = []

        def walk(element: ElementTree.Element, line: tuple[ElementTree.Element, ...]) -> None:
            line = (*line, element)
            if not tag or element.tag == tag:
                found.append(Part(element, line))
            for child in element:
                if child.tag not in ("defs", "style", "title", "desc"):
                    walk(child, line)

        walk(self.root, ())
        return found

    def opacity(self, part: Part, at_s: float | None = None) -> float:
        """How much of it is seen: in the still, or at a time."""
        product, later = 1.0, 0.0
        for element in part.line:
            delay = re.search(r"--later:([\d.]+)s", element.get("style", ""))
            later = float(delay[1]) if delay else later
            drawn = float(element.get("opacity", 1))
            motion = self.motions.get(element.get("class", ""))
            moved = motion and at_s is not None and at_s >= later and any("opacity" in look for _, look in motion)
            product *= self._between(motion, "opacity", (at_s - later) % self.lasts_s) if moved else drawn
        return product

    def lift(self, part: Part, at_s: float | None = None) -> float:
        """Pixels by which it is moved down."""
        motion = self.motions.get(part.element.get("class", ""), [])
        known = [
            (time, {"y": re.sub(r".*\((.*)px\)", r"\1", look["transform"])})
            for time, look in motion
            if "transform" in look
        ]
        return self._between(known, "y", at_s) if known and at_s is not None else 0.0

    def _between(self, motion: list[Frame], name: str, at_s: float) -> float:
        known = [(time, float(look[name])) for time, look in motion if name in look]
        for (start, low), (end, high) in zip(known, known[1:], strict=False):
            if start <= at_s < end:
                return low + (high - low) * (at_s - start) / (end - start)
        return known[-1][1]

    def words(self, at_s: float | None = None) -> list[str]:
        """All that is written and seen."""
        return [part.element.text for part in self.parts("text") if self.opacity(part, at_s) > 0.5]

    def last_seen(self, words: str) -> float:
        """The last time at which a text that goes away again is seen in full."""
        lines = [part.line for part in self.parts("text") if part.element.text == words]
        motions = [self.motions[one.get("class")] for line in lines for one in line if one.get("class")]
        motion = next(motion for motion in motions if motion[-1][1]["opacity"] == "0")
        return max(time for time, look in motion if look["opacity"] == "1")


def boxes(d: str) -> list[tuple[float, float, float, float]]:
    """The rectangles of a path: left, top, width, height."""
    found = re.findall(r"M([-\d.]+) ([-\d.]+)h([-\d.]+)v([-\d.]+)h[-\d.]+z", d)
    return [tuple(map(float, numbers)) for numbers in found]


def steps_of(d: str) -> tuple[float, list[tuple[float, float]]]:
    """The foot of a path that goes along and up and down in turn, and (from where on, how high above the foot)."""
    start, foot = map(float, re.match(r"M([-\d.]+) ([-\d.]+)", d).groups())
    return foot, [(float(x), foot - float(y)) for x, y in re.findall(r"H([-\d.]+)V([-\d.]+)", d)]


_Place = list[float]  # left, top, right, bottom of a line's capitals


def drawn_texts(svg: str) -> list[tuple[str, float, _Place]]:
    """(words, size, place) of all that is written and seen."""
    film, found = Film(svg), []
    for part in film.parts("text"):
        if film.opacity(part) > 0.5:
            one, words = part.element, part.element.text
            size = float(one.get("font-size", TEXT))
            wide = text_width(words, size, bold=one.get("font-weight") == "600")
            x = float(one.get("x")) - wide * {"middle": 0.5, "end": 1.0}.get(one.get("text-anchor"), 0.0)
            foot = float(one.get("y"))
            found.append((words, size, [x, foot - 0.73 * size, x + wide, foot]))
    return found


def flaws(svg: str) -> list[str]:
    """What a reader at the back of the room would complain about; of a figure without motion."""
    texts = drawn_texts(svg)
    _, _, width, height = map(float, re.search(r'viewBox="(.*?)"', svg)[1].split())
    found = [f"small: {words}" for words, size, _ in texts if size < 12]
    for words, _, (left, top, right, bottom) in texts:
        if left < EDGE - 1 or right > width - EDGE + 1 or top < 12 or bottom > height - 12:
            found.append(f"outside: {words}")
    for (one, _, a), (two, _, b) in combinations(texts, 2):
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            found.append(f"overlap: {one}, {two}")
    return found
