"""What is done to the pages when Sphinx has written them: what nobody asks for goes, and a map of the rest is added."""

from __future__ import annotations

import shutil
from xml.sax.saxutils import escape

from tools.site.places import ADDRESS, PAGES

UNUSED = ("_static/scripts/fontawesome.js", "_static/vendor", "_static/locales", "_sources")
NOT_TO_BE_FOUND = ("search.html",)  # its words are those of other pages
_MAP = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{}</urlset>\n'


def finish() -> None:
    """Remove what the theme brings along unasked; where the site's address is known, write its map."""
    for name in UNUSED:
        path = PAGES / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in (*PAGES.rglob("*.map"), *PAGES.rglob("*.LICENSE.txt"), *PAGES.glob("_static/*macros.html")):
        name.unlink()
    (PAGES / ".nojekyll").touch()  # or a host would leave out folders whose names begin with an underscore
    if ADDRESS:
        write_map()


def write_map() -> None:
    """Write the addresses of all pages, for those who search."""
    found = sorted(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.html"))
    rows = [f"<url><loc>{escape(ADDRESS + page)}</loc></url>\n" for page in found if page not in NOT_TO_BE_FOUND]
    (PAGES / "sitemap.xml").write_text(_MAP.format("".join(rows)))
    (PAGES / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {ADDRESS}sitemap.xml\n")
