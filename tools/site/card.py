"""The card that others show beside a link to the site: the still of a ring all-reduce, as the picture they can read."""

from __future__ import annotations

from base64 import b64encode

from playwright.sync_api import sync_playwright

from course_lib.viz.ink.embedded_font import font_face
from course_lib.viz.wires.moving_ring import animate_ring
from tools.outside import find_chromium
from tools.site.places import PAGES, TITLE

NAME, WIDTH, HEIGHT = "card.png", 1200, 630  # pixels, as the networks ask for
_SAYS = "Every claim is run, on your own machine, and proven equal to one device"
_PAGE = """<style>{font}
body {{ margin: 0; width: 1200px; height: 630px; box-sizing: border-box; padding: 0 50px; display: grid;
  grid-template-columns: 1fr 620px; gap: 40px; align-items: center; background: #1b2630; color: #fff;
  font: 600 50px/1.15 Card; }}
small {{ display: block; margin-top: 28px; font-size: 25px; line-height: 1.35; color: #a9cdea; }}
img {{ width: 620px; background: #fff; border-radius: 14px; }}
</style><div>{title}<small>{says}</small></div><img src="data:image/svg+xml;base64,{picture}">"""


def draw_card() -> None:
    """Write the card beside the pages."""
    picture = b64encode(animate_ring(4).still.encode()).decode()
    page = _PAGE.format(font=font_face("Card", 600, TITLE + _SAYS), title=TITLE, says=_SAYS, picture=picture)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        sheet = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        sheet.set_content(page)
        sheet.evaluate("document.fonts.ready")
        sheet.screenshot(path=PAGES / NAME)
        browser.close()
