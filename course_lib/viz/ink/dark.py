"""A figure's second variant, for a dark page: one rule for each of its colours, written into the SVG itself.

An image follows the colour scheme of the page around it, which JupyterLab sets with its theme, and a plain page takes
from the reader's system. On paper and on slides, and wherever a program reads no styles, it stays light.
"""

from __future__ import annotations

import re

from course_lib.viz.ink import style
from course_lib.viz.ink.colours import lightened

_USED = re.compile(r"(?P<what>fill|stroke)(?P<written>:|=\")(?P<colour>#(?:[0-9a-fA-F]{8}|[0-9a-fA-F]{6})\b)")
_LETTERS = 4.5  # the contrast that small letters need; a line or a bar needs 3
_THEME = ':is([data-jp-theme-light="false"],[data-theme="dark"]) '  # JupyterLab's body, and the course's own pages


def with_dark_variant(svg: str) -> str:
    """An SVG that is an image: it looks as it did on a light page, and has dark colours on a dark one."""
    rules = "".join(_rules(svg))
    style_element = f"<style>@media screen and (prefers-color-scheme:dark){{{rules}}}</style>"
    return svg.removesuffix("</svg>") + style_element + "</svg>"


def inline_dark_variant(svg: str, name: str) -> str:
    """The style for an SVG inside an element of class `name`, a part of the page: it follows the page's theme.

    A page without one may be white although its reader's system is dark.
    """
    return f"<style>@media screen{{{''.join(_rules(svg, f'{_THEME}.{name} '))}}}</style>"


def _rules(svg: str, where: str = "") -> list[str]:
    """What each colour becomes, as attribute and as style; and what has none, which is black, and a card's white."""
    used = sorted({(one["what"], one["colour"]) for one in _USED.finditer(svg)})
    root = f"{where}svg" if where else ":root"
    found = [f"{root}{{fill:{style.on_dark(style.INK)}}}", f'{where}[fill-opacity="{style.CARD}"]{{fill-opacity:1}}']
    found.append(f'{where}[style*="fill-opacity:{style.CARD}"]{{fill-opacity:1!important}}')
    for what, colour in used:
        partner = style.on_dark(colour)
        at = f'{where}[{what}="{colour}"],{where}[style*="{what}:{colour}"]'
        found.append(f"{at}{{{what}:{partner}!important}}")
        letters = for_letters(colour, partner)
        if what == "fill" and letters != partner:
            at = f'{where}text[fill="{colour}"],{where}g[style*="fill:{colour}"]'
            found.append(f"{at}{{fill:{letters}!important}}")
    return found


def for_letters(colour: str, partner: str) -> str:
    """Letters in a hue stand on the ground; those on a hue have colours of their own, which stay."""
    on_hues = (style.DARK_LETTERS, style.WHITE_LETTERS, style.DARKENED_LETTERS, style.BLACK_LETTERS)
    if len(colour) > 7 or colour.lower() in (style.PAPER.lower(), *(one.lower() for one in on_hues)):
        return partner
    return lightened(partner, style.DARK_PAPER, _LETTERS)
