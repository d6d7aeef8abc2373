"""Where the site's parts come from and go to."""

from __future__ import annotations

from tools.paths import ROOT

SITE = ROOT / "site"  # what is written by hand: texts, templates, styles, scripts
SOURCES = ROOT / "build/site-sources"  # what Sphinx reads
PAGES = ROOT / "build/site"  # what a server gives out
NODE = SITE / "node_modules"
ADDRESS = "https://example.org/"  # where a sitemap and a card are found; SITE_URL replaces it
PYTHON = "python"  # of a browser's Python and its letters, below the site's root
TITLE = "Distributed training of large language models"
