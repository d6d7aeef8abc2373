"""Matplotlib's SVG made small: each glyph once, and short paths and styles; half of the bytes, and it looks the same.

A glyph's name follows from its font and number alone, so that figures which stand in one page agree about it. All
other names follow from everything that the figure draws: matplotlib counts clip paths, and gives the first of one
figure the name of the first of another, which would be clipped by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

_SVG, _HREF = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_GLYPH_SCALE = 1 / 64  # matplotlib's outlines: a hundred to the em, in 64ths
_GLYPH_DIGITS, _PAGE_DIGITS = 1, 2  # a thousandth of an em and a hundredth of a point: both far below a pixel
_TOKEN = re.compile(r"[MLQCz]|-?[\d.]+(?:e-?\d+)?")
_POINTS = {"M": 1, "L": 1, "Q": 2, "C": 3}
_Point = tuple[float, float]


def parsed(svg: str) -> Element:
    """The root of a small SVG that looks the same: one `defs` with all glyphs, then what is drawn."""
    root = ElementTree.fromstring(svg[svg.index("<svg") :])
    for element in root.iter():
        element.tag, element.tail = element.tag.rpartition("}")[2], None
    root.text, root.attrib = None, {"xmlns": _SVG, **root.attrib}
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    _drop_spaces(root)
    _name_glyphs_alike(root)
    used = set(re.findall(r"#([\w-]+)", " ".join(value for one in root.iter() for value in one.attrib.values())))
    glyphs = Element("defs")
    root[:] = [glyphs, *(part for child in list(root) for part in _slim(child, used, glyphs))]
    _name_by_figure(root, glyphs)
    return root


def written(root: Element) -> str:
    """As text, with a line for each group."""
    text = ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")
    return re.sub(r"(?<=.)(?=<(?:g|defs|title|desc)\b|</svg>)", "\n", text)


def _drop_spaces(root: Element) -> None:
    """Glyphs without an outline, and their uses."""
    blank = {f"#{one.get('id')}" for one in root.iter("path") if _is_glyph(one) and not one.get("d")}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get(_HREF) in blank or f"#{child.get('id')}" in blank:
                parent.remove(child)


def _name_glyphs_alike(root: Element) -> None:
    """From CourseSans-SemiBold-3d to CSSB3d, where it is drawn and where it is used."""
    for element in root.iter():
        if _is_glyph(element):
            element.set("id", _short(element.attrib["id"]))
        if _HREF in element.attrib:
            target = element.attrib.pop(_HREF)[1:]
            element.attrib = {"href": f"#{_short(target)}", **element.attrib}


def _is_glyph(element: Element) -> bool:
    return element.tag == "path" and element.get("transform") == f"scale({_GLYPH_SCALE})"


def _short(name: str) -> str:
    """The capitals of the font and the glyph's number; other names are hashes and stay."""
    font, _, number = name.rpartition("-")
    return re.sub("[^A-Z]", "", font) + number if font else name


def _name_by_figure(root: Element, glyphs: Element) -> None:
    """Give clip paths, markers and hatches names that no other figure has."""
    drawn = b"".join(map(ElementTree.tostring, root))
    figure = f"f{sha256(drawn).hexdigest()[:8]}"
    shared = {one.get("id") for one in glyphs}
    own = [one.attrib["id"] for one in root.iter() if "id" in one.attrib and one.get("id") not in shared]
    names = {name: f"{figure}-{number}" for number, name in enumerate(own)}
    for element in root.iter():
        if element.get("id") in names:
            element.set("id", names[element.attrib["id"]])
        for key, value in element.items():
            if "#" in value:
                element.set(key, re.sub(r"#([\w-]+)", lambda found: f"#{names.get(found[1], found[1])}", value))


def _slim(element: Element, used: set[str], glyphs: Element) -> list[Element]:
    """What of an element and its children is to be drawn where it stood; glyphs are collected instead."""
    if element.get("id") not in used:
        element.attrib.pop("id", None)
    if _is_glyph(element):
        del element.attrib["transform"]
        element.set("d", _shorter(element.attrib["d"], _GLYPH_DIGITS, _GLYPH_SCALE))
        glyphs.append(element)
        return []
    _shorten(element)
    element[:] = [part for child in list(element) for part in _slim(child, used, glyphs)]
    if not (element.text or "").strip():
        element.text = None
    if element.tag == "defs" and not len(element):
        return []
    return list(element) if element.tag == "g" and not element.attrib else [element]


def _shorten(element: Element) -> None:
    """Numbers to what can be seen."""
    found = element.attrib
    if "d" in found:
        found["d"] = _shorter(found["d"], _PAGE_DIGITS)
    if "style" in found:
        found["style"] = re.sub(r"([:;]) ", r"\1", found["style"])
    moved = re.fullmatch(r"translate\(([^ )]+) ?([^ )]*)\)", found.get("transform", ""))
    if element.tag == "use" and moved:  # a glyph in its line
        del found["transform"]
        places = (("x", float(moved[1])), ("y", float(moved[2] or 0)))
        found.update({name: _number(place, _GLYPH_DIGITS) for name, place in places if place})
    elif element.tag == "use":  # a marker
        found.update({name: _number(float(found[name]), _PAGE_DIGITS) for name in ("x", "y") if name in found})
    elif "transform" in found:
        found["transform"] = re.sub(r"translate\([^)]*\)", _rounded, found["transform"])


def _rounded(translation: re.Match[str]) -> str:
    return re.sub(r"-?[\d.]+", lambda number: _number(float(number[0]), _PAGE_DIGITS), translation[0])


def _shorter(path: str, digits: int, scale: float = 1.0) -> str:
    """The same path in steps from where it has come to, which are short; what is rounded is where each ends."""
    text, now, start = [], (0.0, 0.0), (0.0, 0.0)
    segments = list(_segments(path, digits, scale))
    for (command, points), (following, _) in zip(segments, [*segments[1:], ("", [])], strict=True):
        if command == "z":
            text.append("z")
            now = start
        elif command == "M":
            now = start = points[0]
            text.append("M" + _joined(now, digits))
        elif not (command == "L" and following == "z" and points[0] == start):  # which z draws
            text.append(_step(command, [(x - now[0], y - now[1]) for x, y in points], digits))
            now = points[-1]
    return "".join(text)


def _segments(path: str, digits: int, scale: float) -> Iterator[tuple[str, list[_Point]]]:
    """Each command with its points, on the grid that is written."""
    tokens = iter(_TOKEN.findall(path))
    for command in tokens:
        numbers = [round(float(next(tokens)) * scale, digits) for _ in range(2 * _POINTS.get(command, 0))]
        yield command, list(zip(numbers[::2], numbers[1::2], strict=True))


def _step(command: str, points: Sequence[_Point], digits: int) -> str:
    (x, y), *_ = points
    if command == "L" and not round(y, digits):
        return "h" + _number(x, digits)
    if command == "L" and not round(x, digits):
        return "v" + _number(y, digits)
    return command.lower() + _joined([part for point in points for part in point], digits)


def _joined(numbers: Sequence[float], digits: int) -> str:
    """Numbers kept apart by a sign where there is one, else by a space."""
    return re.sub(r" (?=-)", "", " ".join(_number(one, digits) for one in numbers))


def _number(value: float, digits: int) -> str:
    """Without zeros that say nothing: .5, -.5, 12."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "0", "") else re.sub(r"^(-?)0\.", r"\1.", text)
