"""The planner's page: what it shows of a case is what the command prints, and keys and addresses choose the case."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from html import unescape

import pytest

from tests.browser.pages import reader
from tools.paths import ROOT
from tools.site.places import PAGES
from tools.site.plans import CASES

pytestmark = pytest.mark.timeout(900)
CASE = re.compile(r'<section class="case" data-case="(?P<name>[^"]*)".*?</section>', re.S)
COMMAND = re.compile(r"<pre><code>course (.*?)</code></pre>")
PRINTED = re.compile(r'<pre tabindex="0">(.*?)</pre>', re.S)
ROW = re.compile(r'<tr><th scope="row">\d</th>(.*?)</tr>')
ON_A_DESK = {"olmo_1b 1_kempner_h100": 0, "llama3_1_70b 2_dgx_h100": 1}  # cases, and what the command returns


def on_the_page():
    """By its name, the HTML of each case."""
    text = (PAGES / "explorers/plan.html").read_text(encoding="utf-8")
    return {hit["name"]: hit[0] for hit in CASE.finditer(text)}


@pytest.mark.parametrize(("name", "status"), ON_A_DESK.items())
def test_a_case_says_what_its_command_prints(site, name, status):
    case = on_the_page()[name]
    (command,), (said,) = COMMAND.findall(case), PRINTED.findall(case)
    run = [sys.executable, "-m", "course_lib", *shlex.split(unescape(command))]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    printed = re.sub(r"(layouts looked at) in [^;]+", r"\1", done.stdout)
    assert unescape(said) == printed.rstrip()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in ROW.findall(case)]
    assert len(rows) == (0 if status else 3)
    for number, (*_, step, _slower, mfu) in enumerate(rows, start=1):
        assert re.search(rf"^{number}\. .*\n   {re.escape(step)} a step .*MFU {re.escape(mfu)}, ", printed, re.M)


def test_every_case_stands_in_the_page_and_one_is_seen_at_first(site):
    cases = on_the_page()
    assert [*cases] == [f"{case.model} {case.gpus}" for case in CASES] and len(cases) == 18
    assert [" hidden>" in text.partition("<p>")[0] for text in cases.values()].count(False) == 1


def test_keys_choose_a_case_and_the_address_carries_it(offline, site):
    with reader(offline) as page:
        page.goto(f"{site}explorers/plan.html")
        seen = page.locator(".case:visible")
        assert seen.get_attribute("data-case") == "llama3_1_8b 2_dgx_h100"
        page.get_by_label("model").focus()
        page.keyboard.press("ArrowUp")
        assert seen.get_attribute("data-case") == "olmo_1b 2_dgx_h100"
        assert page.locator("[aria-live=polite]").inner_text() == "OLMo 1B on 16 × H100 SXM 80 GB (DGX H100)"
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        assert seen.get_attribute("data-case") == "olmo_1b 2_dgx_h100"
        picture = seen.locator("img")
        picture.scroll_into_view_if_needed()
        page.wait_for_function("one => one.complete && one.naturalWidth > 0", arg=picture.element_handle())


def test_without_scripts_all_cases_are_read(offline, site):
    context = offline.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}explorers/plan.html")
    seen = page.locator(".case:visible").count()
    context.close()
    assert seen == 18
