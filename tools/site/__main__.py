"""`make site`: build it, and say where it is."""

from __future__ import annotations

import sys

from tools.paths import ROOT
from tools.site.build import build
from tools.site.places import PAGES

if __name__ == "__main__":
    try:
        build()
    except RuntimeError as error:
        sys.exit(str(error))
    folder = PAGES.relative_to(ROOT)
    print(f"{folder}: {len(list(PAGES.rglob('*.html')))} pages; look at them by: python -m http.server -d {folder}")
