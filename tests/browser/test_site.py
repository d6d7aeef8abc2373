"""The site as a reader meets it, with the network cut: light, still while it loads, readable by everybody, whole."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser.pages import ADDRESS, KINDS, Links, page_names, reader, sent_bytes
from tests.ranks.deadlines import at_most
from tools.site.places import NODE, PAGES, SITE

pytestmark = pytest.mark.timeout(900)
LESSON_BYTES = 500_000  # gzipped, with all that its page loads
PRINT_BYTES = 5_000_000
FIRST_PAINT_MS, SHIFT = 800, 0.1
TRIES = 3  # the first load may find the disk busy
LESSONS = sorted(path.stem for path in (PAGES.parent.parent / "notebooks").glob("*.ipynb"))
WIDER = "document.documentElement.scrollWidth - innerWidth"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FINDINGS = """contrast => axe.run(document, { rules: { "color-contrast": { enabled: contrast } } }).then(found =>
    found.violations.filter(one => ["serious", "critical"].includes(one.impact))
        .map(one => `${one.id}: ${one.nodes[0].html.slice(0, 150)}`))"""


def findings(page, *, contrast):
    """What axe-core calls serious; without contrast it takes a tenth of the time."""
    page.evaluate((NODE / "axe-core/axe.min.js").read_text())
    return page.evaluate(FINDINGS, contrast)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_is_light_soon_seen_and_stays_where_it_is(offline, site, lesson):
    sizes, paints = {}, []
    while len(paints) < TRIES and (not paints or min(paints) > at_most(FIRST_PAINT_MS)):
        with reader(offline) as page:
            page.on("response", lambda answer: sizes.setdefault(answer.url, sent_bytes(answer.body(), answer.url)))
            page.goto(f"{site}lessons/{lesson}.html", wait_until="load")
            for place in range(0, page.evaluate("document.body.scrollHeight"), 900):  # figures load when they are near
                page.evaluate("place => scrollTo(0, place)", place)
            page.wait_for_load_state("networkidle")
            paints.append(page.evaluate(PAINT))
            assert page.evaluate("shift") <= SHIFT
    assert min(paints) <= at_most(FIRST_PAINT_MS)
    assert len(sizes) > 10 and sum(sizes.values()) <= LESSON_BYTES, sorted(sizes.items(), key=lambda one: -one[1])[:5]


def test_the_print_of_the_lesson_that_was_heaviest_is_light(offline, site):
    """Its stripes were a hatch once, of which Chromium prints an image for each box: 7 to 20 MB."""
    with reader(offline) as page:
        page.goto(f"{site}lessons/06_zero_and_fsdp.html", wait_until="load")
        printed = page.pdf(prefer_css_page_size=True)
    assert printed.startswith(b"%PDF") and 100_000 < len(printed) <= PRINT_BYTES


def test_every_local_link_leads_somewhere(site):
    links = {name: Links((PAGES / name).read_text(encoding="utf-8")) for name in page_names()}
    dead, followed = [], 0
    for name, found in links.items():
        for target in found.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (PAGES / name).parent.joinpath(unquote(parts.path)).resolve() if parts.path else PAGES / name
            page = file.relative_to(PAGES).as_posix()
            followed += 1
            if not file.is_file() or (page in links and parts.fragment and parts.fragment not in links[page].sections):
                dead.append(f"{name}: {target}")
    assert dead == [] and followed > 5000


def test_axe_finds_nothing_serious_on_any_page_and_none_is_wider_than_a_phone(offline, site):
    """Of the library's pages, which are made alike, every tenth."""
    names = page_names()
    library = [name for name in names if name.startswith("library/")]
    chosen, found = sorted({*names} - {*library}) + library[::10], {}
    with reader(offline, width=390) as page:
        for name in chosen:
            page.goto(site + name)
            found[name] = findings(page, contrast=False)
            if (wider := page.evaluate(WIDER)) > 0:
                found[name].append(f"{wider} pixels wider than the screen")
    assert len(found) > 75 and {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 800)])
def test_a_page_of_each_kind_is_read_in_light_and_dark(offline, site, scheme, width):
    with reader(offline, width=width, scheme=scheme) as page:
        for name in KINDS:
            page.goto(f"{site}{name}.html")
            assert page.evaluate("document.documentElement.dataset.theme") == scheme
            assert findings(page, contrast=True) == [], name
            assert page.evaluate(WIDER) <= 0, name


def test_figures_follow_the_theme_that_the_reader_chooses_on_the_page(offline, site):
    """The button, not the system: an image has the page's own colour scheme."""
    with reader(offline) as page:
        page.goto(f"{site}lessons/01_why_distributed.html")
        figure = page.locator(".cell_output img").first
        figure.scroll_into_view_if_needed()
        light = figure.screenshot()
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        assert figure.screenshot() != light


def test_an_answer_is_seen_only_when_its_fold_is_opened_by_a_key(offline, site):
    with reader(offline) as page:
        page.goto(f"{site}lessons/01_why_distributed.html")
        answer, why = page.get_by_text("the answer 1,050,673,152"), page.get_by_text("The tables add only 1.05")
        assert not answer.is_visible() and not why.is_visible()
        for fold, told in (("After your guess: the answer", answer), ("After your guess: why", why)):
            page.locator("summary", has_text=fold).first.focus()
            page.keyboard.press("Enter")
            assert told.is_visible()


def test_the_menu_opens_on_a_phone_and_leads_on(offline, site):
    with reader(offline, width=390) as page:
        page.goto(f"{site}lessons/01_why_distributed.html")
        entry = page.get_by_role("link", name="05 · Tensor parallelism: two ranks, one matrix")
        assert entry.count() == 0  # what is not shown has no role
        page.get_by_role("button", name="Toggle primary sidebar").click()
        entry.click()
        page.wait_for_url("**/05_tensor_parallelism.html")


def test_words_are_found_offline(offline, site):
    with reader(offline) as page:
        page.goto(f"{site}index.html")
        words = page.get_by_role("searchbox", name="Search", exact=True)
        words.fill("bubble")
        words.press("Enter")
        page.wait_for_selector("#search-results li a")
        found = page.locator("#search-results li a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert any("04_model_and_pipeline" in address for address in found)


def test_the_map_has_every_page_but_the_search_and_the_card_is_a_picture(site):
    listed = re.findall(r"<loc>(.*?)</loc>", (PAGES / "sitemap.xml").read_text())
    assert listed == [ADDRESS + name for name in page_names() if name != "search.html"]
    assert f'<meta property="og:image" content="{ADDRESS}card.png">' in (PAGES / "words.html").read_text()
    card = (PAGES / "card.png").read_bytes()
    sides = [int.from_bytes(card[at : at + 4], "big") for at in (16, 20)]
    assert card[:8] == b"\x89PNG\r\n\x1a\n" and sides == [1200, 630]


def test_what_is_written_by_hand_arrives(site):
    """The text of index.md, and below the templates such as layout.html, these files."""
    for name in ("course.css", "explorer.js", "worker.js"):
        assert (PAGES / "_static" / name).read_bytes() == (SITE / "_static" / name).read_bytes()
    assert "Does it fit, and is it still right?" in (PAGES / "index.html").read_text(encoding="utf-8")


def test_no_script_sets_formulas_or_icons(site):
    text = (PAGES / "lessons/05_tensor_parallelism.html").read_text(encoding="utf-8")
    assert text.count("<math ") > 20 and "MathJax" not in text and "fontawesome" not in text.lower()
    assert not list(PAGES.rglob("fontawesome*"))
