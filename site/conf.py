"""What Sphinx is told about the site; `make site` writes its sources and calls it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.site.places import ADDRESS, TITLE

project = html_title = TITLE
author, copyright, language = "", "", "en"
html_baseurl = ADDRESS
extensions = ["myst_nb", "tools.site.formulas"]
nb_execution_mode = "off"  # outputs are those of `make notebooks`
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "sphinx_book_theme"
html_math_renderer = "mathml"
templates_path, html_static_path, html_extra_path = ["_templates"], ["_static"], ["../build/site-sources/_extra"]
exclude_patterns = ["_extra"]
html_css_files = ["course.css"]
html_show_sourcelink = html_copy_source = html_show_copyright = html_show_sphinx = False
html_permalinks_icon = "#"
html_use_index = False
html_last_updated_fmt = None  # two builds of one commit are the same bytes
html_theme_options = {
    "use_download_button": False,  # a line below each title has it
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "max_navbar_depth": 1,  # or each of four hundred pages would carry the list of all
    "show_toc_level": 2,
    "article_header_end": ["theme-switcher.html", "toggle-secondary-sidebar.html"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["site-name.html", "search-form.html", "sbt-sidebar-nav.html"]}
html_context = {"default_mode": "auto", "site_address": html_baseurl}
