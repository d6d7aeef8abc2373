"""Where the site's parts come from and go to."""

from __future__ import annotations

import os

from tools.paths import ROOT

SITE = ROOT / "site"  # what is written by hand: texts, templates, styles, scripts
SOURCES = ROOT / "build/site-sources"  # what Sphinx reads
PAGES = ROOT / "build/site"  # what a server gives out
NODE = SITE / "node_modules"
_GIVEN = os.environ.get("SITE_URL", "").rstrip("/")
ADDRESS = f"{_GIVEN}/" if _GIVEN else ""  # empty: unknown
PYTHON = "python"  # of a browser's Python and its letters, below the site's root
TITLE = "Distributed training of large language models"
