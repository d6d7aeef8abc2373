"""The pictures of module 01: they look like the others, and say what the formulas say."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from course_lib import viz
from course_lib.config import ModelConfig, load_model
from course_lib.costs import model_parameters, parameters_by_part
from tests.unit.test_viz_pictures import drawn_texts, flaws

TINY = ModelConfig(
    name="tiny", hidden_size=8, n_layers=1, n_heads=2, n_kv_heads=2, ffn_size=16, vocab_size=32, tied=True
)
MODELS = ("llama3_1_8b", "llama3_1_405b", "grok_1", "mixtral_8x7b", "gpt3_175b", "olmo_1b", "olmo_70b_workshop")
FIGURES = {
    **{f"anatomy-{name}": lambda name=name: viz.plot_anatomy(load_model(name)) for name in MODELS},
    "anatomy-tiny": lambda: viz.plot_anatomy(TINY),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    figure = FIGURES[name]().figure
    assert len(drawn_texts(figure)) >= 3
    assert list(flaws(figure)) == []


@pytest.mark.parametrize("name", ["anatomy-llama3_1_8b"])
def test_the_svg_speaks_and_is_the_same_in_every_call(name):
    picture = FIGURES[name]()
    assert picture.svg == FIGURES[name]().svg
    root = ElementTree.fromstring(picture.svg)
    assert (root[0].text, root[1].text) == (picture.title, picture.description)


@pytest.mark.parametrize("name", MODELS)
def test_the_anatomy_draws_and_says_the_exact_count_of_every_part(name):
    model = load_model(name)
    picture = viz.plot_anatomy(model)
    drawn = [words for words, _, _ in drawn_texts(picture.figure)]
    for count in parameters_by_part(model).values():
        assert drawn.count(f"{count:,}") >= 1
        assert f": {count:,} parameters" in picture.text
    assert f"together exactly {model_parameters(model):,}" in picture.text


def test_the_anatomy_of_llama():
    text = viz.plot_anatomy(load_model("llama3_1_8b")).text
    assert "32 × layer, residual around each block: norm, attention (32 heads, 8 kv) | norm, feed-forward" in text
    assert "  feed-forward: 5,637,144,576 parameters, 70.2%\n" in text
    assert "  norms, 65 together: 266,240 parameters, < 0.1%\n" in text


def test_the_anatomy_shows_what_is_used_twice_and_what_is_chosen():
    grok = viz.plot_anatomy(load_model("grok_1")).text
    assert "norm, head (the embedding again), logits" in grok
    assert "router (2 of 8 experts), feed-forward (8 × inner 32,768), norm\n" in grok
    assert "norm (no weights), attention (16 heads)" in viz.plot_anatomy(load_model("olmo_1b")).text
