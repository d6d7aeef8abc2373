"""The decoder as one row: it looks like the other pictures, and each bar is as high as its count."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch

from course_lib import viz
from course_lib.config import load_model
from course_lib.costs import layer_weights, model_parameters, outer_weights, parameters_by_part
from course_lib.viz.memory.parts import WEIGHTS
from course_lib.viz.models import anatomy_row
from tests.unit.test_viz_pictures import drawn_texts, flaws

MODELS = ("llama3_1_8b", "llama3_1_405b", "llama_7b")


@pytest.mark.parametrize("name", MODELS)
def test_the_text_is_large_within_the_margins_and_does_not_overlap(name):
    assert list(flaws(viz.plot_anatomy_row(load_model(name)).figure)) == []


@pytest.mark.parametrize("name", MODELS)
def test_it_says_the_exact_counts_and_they_are_what_its_formulas_give(name):
    model = load_model(name)
    text, counts = viz.plot_anatomy_row(model).text, parameters_by_part(model)
    L, H, V, K, F = model.n_layers, model.hidden_size, model.vocab_size, model.kv_size, model.ffn_size
    assert f"together exactly {model_parameters(model):,}\n" in text
    assert f"  embedding: {V * H:,} parameters, " in text and f"  head: {V * H:,} parameters, " in text
    assert f"  attention: {L * (2 * H * H + 2 * H * K):,} parameters, " in text
    assert f"  feed-forward: {L * 3 * H * F:,} parameters, " in text
    assert f"  all norms: {counts['norm']:,} parameters" in text
    assert sum(counts.values()) == sum(w.parameters for w in (*outer_weights(model), *(layer_weights(model) * L)))


def test_the_bars_are_as_high_as_their_shares():
    model = load_model("llama3_1_8b")
    counts, total = parameters_by_part(model), model_parameters(model)
    page = viz.plot_anatomy_row(model).figure.axes[0]
    boxes = [patch for patch in page.findobj(FancyBboxPatch) if patch.get_width() == anatomy_row.BAR]
    found = [(box.get_x(), box.get_height()) for box in boxes]
    expected = [anatomy_row.TALLEST * counts[part] / total for part in ("embedding", "attention", "ffn", "head")]
    assert [height for _, height in found] == pytest.approx(expected)
    assert all(one < other for (one, _), (other, _) in pairwise(found))
    assert {box.get_facecolor() for box in boxes} == {to_rgba(WEIGHTS)}


def test_the_drawn_words_are_those_of_llama():
    words = [text for text, _, _ in drawn_texts(viz.plot_anatomy_row(load_model("llama3_1_8b")).figure)]
    for text in ("L = 32 layers like this", "V = 128,256", "K = 1,024", "F = 14,336", "5.64 B", "70.2%", "L (3 H F)"):
        assert text in words


@pytest.mark.parametrize("name", ["olmo_1b", "gpt3_175b", "grok_1"])
def test_another_shape_is_refused(name):
    with pytest.raises(ValueError, match=r"plot_anatomy_row: .*; the row has the boxes of a Llama .*; draw it with"):
        viz.plot_anatomy_row(load_model(name))
