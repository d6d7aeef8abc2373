"""The explorers on pages: a browser's Python says what this one says, and a reader can turn them by keys and links."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from course_lib.costs import model_parameters
from course_lib.models.config_text import config_from_text
from course_lib.viz.pages.catalog import PANELS
from course_lib.viz.pages.front import Front, value_of
from tests.browser.pages import reader
from tools import outside
from tools.site.places import PAGES

pytestmark = pytest.mark.timeout(900)
RUNS = 400
NODE_PROGRAM = Path(__file__).with_name("python_in_node.mjs")
TYPED = {"billions": (0.5, 7.5, 405, -1), "ranks": (1, 8, 64, 1024, 0), "config": ("",)}
READY = ".explorer[data-drawn]"
LLAMA_1B = {
    **{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256, "hidden_act": "silu"},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True},
}


def drawn_by_lot(number):
    """A panel, and words for each of its controls; every setting that the page offers may come."""
    lot = random.Random(number)
    name = lot.choice(list(PANELS))
    controls = PANELS[name]().controls
    words = {
        key: str(lot.choice([value for _, value in control.options] or TYPED[key])) for key, control in controls.items()
    }
    return name, words


def said_here(name, words):
    """What a fresh panel shows after it is turned once; pictures are compared by their bytes."""
    front = Front(PANELS[name]())
    front.turn(words)
    return front.state()


def test_four_hundred_random_runs_are_the_same_in_a_browser_s_python_and_here(site, tmp_path):
    cases = [drawn_by_lot(number) for number in range(RUNS)]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    files = (PAGES / "python", tmp_path / "cases.json", tmp_path / "said.json")
    subprocess.run([outside.node_folder() / "node", NODE_PROGRAM, *files], check=True)
    there = json.loads((tmp_path / "said.json").read_text())
    assert len(there) == RUNS
    refused = 0
    for (name, words), state in zip(cases, there, strict=True):
        assert state == said_here(name, words), (name, words)
        refused += bool(state["refused"])
    assert RUNS / 10 < refused < RUNS / 2  # both answers were compared often


def test_the_first_picture_is_that_of_a_notebook_and_stands_in_the_page(site):
    for name, panel in PANELS.items():
        text = (PAGES / f"explorers/{name}.html").read_text(encoding="utf-8")
        svg = Front(panel()).state()["picture"].partition("<svg ")[2].partition(">")[0]
        assert f"<svg {svg}>" in text and "aria-label=" in svg


@pytest.fixture
def tab(offline):
    with reader(offline) as page:
        page.set_default_timeout(120_000)  # a busy machine is no fault of the page
        yield page


def turned(page, times):
    page.wait_for_selector(f'.explorer[data-drawn="{times}"]')
    return page.locator(".explorer pre").text_content()


def test_keys_turn_it_and_what_it_says_is_heard_counted_carried_by_the_address_or_refused(tab, site):
    tab.goto(f"{site}explorers/memory.html")
    slider = tab.get_by_label("data (dp)")
    slider.focus()
    turned(tab, 1)
    slider.press("ArrowRight")
    words = {"model": "llama3_1_70b", "dp": "32"}
    twin = said_here("memory", words)
    assert turned(tab, 2).partition("\n  before")[0] == twin["text"].partition("\n  before")[0]
    assert slider.get_attribute("aria-valuetext") == "32"
    assert tab.locator("[aria-live=polite]").inner_text().startswith("Llama 3.1 70B on 64 GPUs (formula)")
    tab.get_by_text("As a table").click()
    cells = tab.locator(".explorer tbody td").all_inner_texts()
    assert cells == [row[1] for row in twin["table"][1:]]
    address = tab.url
    tab.goto("about:blank")
    tab.goto(address)
    assert turned(tab, 1) == twin["text"].partition("\n  before")[0]
    assert tab.get_by_label("data (dp)").get_attribute("aria-valuetext") == "32"
    before = tab.locator("figure").inner_html()
    tab.get_by_label("pipeline (pp)").press("End")
    tab.get_by_role("alert").wait_for()
    assert tab.get_by_role("alert").inner_text() == said_here("memory", {**words, "pp": "64"})["refused"] != ""
    assert tab.locator("figure").inner_html() == before


def test_a_model_of_one_s_own_is_pasted(tab, site):
    tab.goto(f"{site}explorers/what_fits.html")
    pasted = json.dumps(LLAMA_1B)
    tab.get_by_label("config.json").fill(pasted)
    tab.get_by_label("config.json").blur()
    tab.wait_for_function("document.querySelector('.explorer pre').textContent.startsWith('What fits: your llama')")
    assert tab.locator(".explorer pre").text_content() == said_here("what_fits", {"config": pasted})["text"]
    assert model_parameters(config_from_text(pasted)) == 1_235_814_400


def test_words_of_a_link_that_are_no_option_are_refused_in_four_parts():
    with pytest.raises(ValueError, match=r"^data \(dp\): '3'; there is no such option; choose one of 1, 2, 4"):
        value_of(PANELS["memory"]().controls["dp"], "3")
    with pytest.raises(ValueError, match=r"^ranks: 'many'; this field takes a whole number; type one such as 64"):
        value_of(PANELS["zero"]().controls["ranks"], "many")
