"""What is left of a figure where a page takes scripts, inline SVG and perhaps styles out of a notebook's outputs."""

from __future__ import annotations

import re
from base64 import b64decode
from html import unescape

import bleach
import pytest
from bleach.css_sanitizer import CSSSanitizer

from course_lib import viz

# Of the elements that GitHub's html-pipeline and JupyterLab 4.6 let through, all that a figure could want.
BOTH = {
    "b",
    "br",
    "code",
    "details",
    "div",
    "em",
    "i",
    "img",
    "p",
    "pre",
    "small",
    "span",
    "strong",
    "summary",
    "table",
}
PAGES = {
    "JupyterLab, not signed": (BOTH, {"*": ["style", "title"], "img": ["alt", "src", "height", "width"]}),
    "GitHub, with folds": (BOTH, {"img": ["alt", "src", "height", "width"]}),
    "GitHub, without folds": (BOTH - {"details", "summary"}, {"img": ["alt", "src", "height", "width"]}),
}
FIGURES = {
    "matplotlib": lambda: viz.who_holds_what("broadcast"),
    "moving": lambda: viz.animate_ring(4),
    "explorer": viz.float_bits_explorer,
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", FIGURES)
def test_the_picture_its_name_and_its_words_are_left(name, page):
    bundle, (tags, attributes) = FIGURES[name]()._repr_mimebundle_(), PAGES[page]
    kept = bleach.clean(
        bundle["text/html"],
        tags=tags,
        attributes=attributes,
        protocols={"http", "https", "data"},
        css_sanitizer=CSSSanitizer(allowed_css_properties=["max-width", "width", "white-space"]),
        strip=True,
    )
    first, *_ = bundle["text/plain"].splitlines()
    images = re.findall(r'<img alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', kept)
    assert len(images) == (2 if name == "moving" else 1)
    for alternative, data in images:
        assert unescape(alternative).startswith(first) and b64decode(data).endswith(b"</svg>")
    assert bundle["text/plain"] in unescape(kept)
    assert kept.count("<details>") == (len(images) if "details" in tags else 0)
