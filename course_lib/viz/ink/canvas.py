"""A card to draw on whose text stays text and whose parts can move: SVG by drawsvg, moved by CSS, without a script.

What is drawn is the last frame. Print, and everyone who asks for less motion, gets that alone; every movement ends in
it, and after a few rounds stands still, so that it can be read back from the file. Units: seconds, and pixels of a card
that is 640 wide, or 840 if it holds many small parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree

import drawsvg

from course_lib.errors import four_parts
from course_lib.viz.ink import style
from course_lib.viz.ink.embedded_font import font_face
from course_lib.viz.ink.kinds import Kind
from course_lib.viz.ink.letters import FILES, width_in_ems

WIDTH, EDGE = 640.0, 24.0
WIDE, WIDE_EDGE = 840.0, 35.0  # beside matplotlib's pages: as wide, with the same margin
_TITLE, TEXT, SMALL = 21.0, 16.0, 14.5
DELAY = "--later"  # the CSS variable of a group whose parts all begin so much later
_FADE_S = 0.25
_ROUNDS = 3  # one to look, one to follow, one to check; nothing moves for ever
_BEFORE = "\ue000"  # stands for the figure's own name, which follows from all that it draws
_FALLBACK = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_HALF_CAP = 72 * style.HALF_CAP  # of a letter's size
_MOTION_WANTED = "@media screen and (prefers-reduced-motion:no-preference)"
_PILL, _DOT = 24.0, 4.5
_USUAL = {"font-size": f"{TEXT:g}", "fill": style.INK}  # of a text
_HREF = "{http://www.w3.org/1999/xlink}href"

_Frame = tuple[float, str]  # when, and how it looks then
_Parent = Any  # what drawsvg appends to: the drawing or a group


class Canvas:
    """A card with a headline and, in its corner, what its numbers are; a loop of `lasts_s` seconds.

    It begins `begins_s` into its loop, so that the first frame may be the last one, in which all is seen.
    Raises: ValueError for a title or a subtitle that does not fit on its line.
    """

    def __init__(
        self,
        height: float,
        title: str,
        subtitle: str = "",
        *,
        width: float = WIDTH,
        kinds: Sequence[Kind] = (),
        lasts_s: float = 0.0,
        begins_s: float = 0.0,
    ) -> None:
        self.height, self.width, self.lasts_s, self.begins_s = height, width, lasts_s, begins_s
        edge = WIDE_EDGE if width == WIDE else EDGE
        self.edge = edge
        self.drawing = drawsvg.Drawing(_short(width), _short(height), id_prefix=_BEFORE)
        self._motions: dict[str, str] = {}  # keyframes -> class
        self._symbols = 0
        self._letters: dict[int, set[str]] = {weight: set() for weight in FILES}
        self.box(1, 1, width - 2, height - 2, fill=style.PAPER, fill_opacity=style.CARD, stroke=style.FAINT, corner=12)
        self.text(edge, 32, title, size=_TITLE, bold=True)
        self.text(edge, 58, subtitle, colour=style.SOFT)
        right = width - edge
        for kind in reversed(kinds):
            right -= self._badge(right, kind) + 8
        _check_fits("title", title, right - edge, size=_TITLE, bold=True)
        _check_fits("subtitle", subtitle, width - 2 * edge)

    def group(self, motion: str = "", *, parent: _Parent | None = None, **look: Any) -> drawsvg.Group:
        """A group that moves as `motion` says."""
        group = drawsvg.Group(**({"class_": motion} if motion else {}), **look)
        (parent or self.drawing).append(group)
        return group

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = style.PAPER,
        corner: float = 0.0,
        motion: str = "",
        parent: _Parent | None = None,
        **look: Any,
    ) -> None:
        """A rectangle; `x`, `y` is its top left corner."""
        found: dict[str, Any] = {"class_": motion} if motion else {}
        if corner:
            found["rx"] = _short(corner)
        sides = map(_short, (x, y, width, height))
        (parent or self.drawing).append(drawsvg.Rectangle(*sides, fill=fill, **found, **look))

    def symbol(self) -> drawsvg.Group:
        """A group that is drawn wherever `use` puts it."""
        self._symbols += 1
        group = drawsvg.Group(id=f"{_BEFORE}s{self._symbols}")
        self.drawing.append_def(group)
        return group

    def use(
        self,
        symbol: drawsvg.Group,
        x: float = 0.0,
        y: float = 0.0,
        *,
        motion: str = "",
        parent: _Parent | None = None,
        **look: Any,
    ) -> None:
        """A symbol with its origin at `x`, `y`."""
        found = {"class_": motion} if motion else {}
        (parent or self.drawing).append(drawsvg.Use(symbol.id, _short(x), _short(y), **found, **look))

    def path(self, d: str, *, motion: str = "", parent: _Parent | None = None, **look: Any) -> None:
        """A path as SVG writes it."""
        found = {"class_": motion} if motion else {}
        (parent or self.drawing).append(drawsvg.Path(d=d, **found, **look))

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = TEXT,
        colour: str = style.INK,
        bold: bool = False,
        align: str = "start",
        motion: str = "",
        parent: _Parent | None = None,
        **look: Any,
    ) -> None:
        """A line of text, vertically centred on `y`."""
        if not words:
            return
        weight = 600 if bold else 400
        self._letters[weight].update(words)
        found: dict[str, Any] = {"class_": motion} if motion else {}
        found |= {"font_weight": 600} if bold else {}
        found |= {"text_anchor": align} if align != "start" else {}
        at = _short(x), _short(y + _HALF_CAP * size)
        (parent or self.drawing).append(drawsvg.Text(words, f"{size:g}", *at, fill=colour, **found, **look))

    def rank(self, x: float, y: float, rank: int, *, word: bool = True, parent: _Parent | None = None) -> None:
        """A pill in the rank's hue with its name, centred on `x`, `y`."""
        hue, width = style.rank_hue(rank), 62.0 if word else 28.0
        self.box(x - width / 2, y - 14, width, 28, fill=hue, corner=14, parent=parent)
        words = f"rank {rank}" if word else str(rank)
        self.text(x, y, words, size=SMALL, bold=True, align="middle", colour=style.text_on(hue), parent=parent)

    def moving(self, *frames: _Frame) -> str:
        """The class of what passes through these frames; the last one stays, and is what is drawn."""
        steps = "".join(f"{round(100 * at / self.lasts_s, 1):g}%{{{look}}}" for at, look in frames)
        rule = f"{steps}to{{{frames[-1][1].partition(';animation')[0]}}}"
        return self._motions.setdefault(rule, f"{_BEFORE}m{len(self._motions)}")

    def appears(self, at: float) -> str:
        """The class of what fades in and stays."""
        return self.moving((0, "opacity:0"), (at, "opacity:0"), (at + _FADE_S, "opacity:1"))

    def shown(self, start: float, end: float) -> str:
        """The class of what is there for a while; it is drawn with opacity 0."""
        before: list[_Frame] = [(0, "opacity:0"), (start, "opacity:0")] if start else []
        last = max(start, end - _FADE_S)
        return self.moving(
            *before, (start + _FADE_S * bool(start), "opacity:1"), (last, "opacity:1"), (end, "opacity:0")
        )

    def written(self, title: str, description: str, *, moves: bool = True, name: str = "", typeface: str = "") -> str:
        """The whole as SVG, as wide as its place, with title and description, if there are any.

        Without `moves`, the last frame alone. `name` is for those who listen and is no tooltip, as a title is. With
        `typeface`, which the page around it has, no letters are embedded. The same facts give the same bytes.
        """
        ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
        root = ElementTree.fromstring(self.drawing.as_svg(header=""))
        for side in ("width", "height"):
            del root.attrib[side]
        family = f"'{typeface}'" if typeface else _BEFORE
        root.attrib |= {"role": "img", "font-family": f"{family}, {_FALLBACK}", **_USUAL}
        root.attrib |= {"aria-label": name} if name else {}
        for element in root.iter():
            _slim(element)
        if not moves:
            _stop(root)
        head = (("title", title), ("desc", description), ("style", self._css(moves, embeds=not typeface)))
        for number, (tag, words) in enumerate(one for one in head if one[1]):
            part = ElementTree.Element(tag)
            part.text = words
            root.insert(number, part)
        text = ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")
        return text.replace(_BEFORE, f"f{sha256(text.encode()).hexdigest()[:5]}")

    @property
    def moves(self) -> bool:
        """Whether anything on it does."""
        return bool(self._motions)

    def _css(self, moves: bool, *, embeds: bool) -> str:
        """The letters, and the movements for those who want to see them."""
        used = self._letters if embeds else {}
        rules = [font_face(_BEFORE, weight, letters) for weight, letters in used.items() if letters]
        names = [*self._motions.values()]
        if moves and names:
            every = f"animation:{_short(self.lasts_s)}s linear var({DELAY},{_short(-self.begins_s)}s) {_ROUNDS}"
            classes = "".join(f".{name}{{animation-name:{name}}}" for name in names)
            rules.append(f"{_MOTION_WANTED}{{{','.join(f'.{name}' for name in names)}{{{every}}}{classes}}}")
            rules += [f"@keyframes {name}{{{rule}}}" for rule, name in self._motions.items()]
        return "\n".join(rules)

    def _badge(self, right: float, kind: Kind) -> float:
        """A pill that ends at `right`; its dot is open for a formula, half full if emulated, full if measured."""
        width = 34 + text_width(kind, SMALL)
        left, y = right - width, 31.0
        self.box(left, y - _PILL / 2, width, _PILL, fill="none", stroke=style.FAINT, corner=_PILL / 2)
        self.drawing.append(drawsvg.Circle(_short(left + 14), y, _DOT, fill="none", stroke=style.SOFT))
        if kind != "formula":
            whole = f"a{_DOT} {_DOT} 0 0 0 0 {-2 * _DOT}" if kind == "measured" else ""
            half = f"M{_short(left + 14)} {y - _DOT}a{_DOT} {_DOT} 0 0 0 0 {2 * _DOT}{whole}z"
            self.path(half, fill=style.SOFT)
        self.text(left + 24, y, kind, size=SMALL, colour=style.SOFT)
        return width


def text_width(words: str, size: float = TEXT, *, bold: bool = False) -> float:
    """Pixels that a line of text takes."""
    return size * width_in_ems(words, 600 if bold else 400)


def text_on(colour: str) -> str:
    """White, or black where `style` has dark letters: on backward's colour its contrast is 5.4, that of ink 3.9."""
    return style.BLACK_LETTERS if style.text_on(colour) == style.DARK_LETTERS else style.text_on(colour)


def _check_fits(what: str, words: str, room: float, *, size: float = TEXT, bold: bool = False) -> None:
    if text_width(words, size, bold=bold) > room:
        rule = f"a {what} fits on its line of the card"
        raise ValueError(four_parts("Canvas", f"{what}={words!r}", rule, "shorten it"))


def rectangles(corners: Sequence[tuple[float, float, float, float]]) -> str:
    """Many rectangles as one path, each from its left, top, width and height."""
    return "".join(f"M{_short(x)} {_short(y)}h{_short(w)}v{_short(h)}h{_short(-w)}z" for x, y, w, h in corners)


def _stop(root: ElementTree.Element) -> None:
    """Without what is not seen in the last frame, and nothing that could move."""
    for parent in list(root.iter()):
        parent.attrib.pop("class", None)
        for child in [child for child in parent if child.get("opacity") == "0"]:
            parent.remove(child)


def _slim(element: ElementTree.Element) -> None:
    """Without what the card says once for all its texts, and without an origin."""
    found = element.attrib
    if element.tag.endswith("}text"):
        for name, value in _USUAL.items():
            if found.get(name) == value:
                del found[name]
    if _HREF in found:
        found["href"] = found.pop(_HREF)
        for side in ("x", "y"):
            if found.get(side) == "0":
                del found[side]


def _short(number: float) -> float | int:
    """A hundredth of a pixel is not seen."""
    rounded = round(number, 2)
    return int(rounded) if rounded == int(rounded) else rounded
