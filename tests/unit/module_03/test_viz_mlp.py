"""The perceptron's picture: every number is in it, once, and it reads as the others do."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from course_lib.models.mlp import MLP
from course_lib.viz import plot_mlp
from course_lib.viz.ink.cells import NEGATIVE, POSITIVE
from course_lib.viz.ink.style import PANEL, rank_hue, tint
from tests.unit.test_viz_pictures import drawn_texts, flaws


def weights(factor=1.0):
    torch.manual_seed(0)
    return {name: factor * tensor for name, tensor in MLP().state_dict().items()}


def written(picture):
    """The numbers in the cells."""
    return [text.replace("−", "-") for text, _, _ in drawn_texts(picture.figure) if text.lstrip("−")[:1].isdigit()]


def numbers(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).tolist()


@pytest.mark.parametrize("factor", [1.0, 20.0, 1e6, -1e-5, 0.0, math.nan])
def test_the_text_is_large_within_the_margins_and_does_not_overlap(factor):
    figure = plot_mlp(weights(factor), title="W").figure
    assert len(drawn_texts(figure)) >= 38
    assert list(flaws(figure)) == []


def test_every_parameter_has_a_cell_with_its_number():
    cells = [text for text in written(plot_mlp(weights())) if "." in text]
    assert len(cells) == 38
    assert sorted(map(float, cells)) == pytest.approx(sorted(numbers(weights())), abs=0.0051)


def test_small_numbers_are_written_in_a_unit_that_is_named():
    picture = plot_mlp(weights(1e-4))
    cells = [float(text) for text in written(picture) if "." in text]
    assert sorted(1e-5 * cell for cell in cells) == pytest.approx(sorted(numbers(weights(1e-4))), abs=0.0051e-5)
    assert any(text.endswith("in units of 1e-05") for text, _, _ in drawn_texts(picture.figure))


def test_sizes_are_named_as_torch_stores_them():
    texts = [text for text, _, _ in drawn_texts(plot_mlp(weights()).figure)]
    assert {"4 out × 6 in", "4 out", "2 out × 4 in", "2 out", "W₁", "b₁", "W₂", "b₂"} <= set(texts)
    assert any("(out, in)" in text for text in texts)


@pytest.mark.parametrize(("bend", "shown"), [("f", "→ f →"), ("GELU", "GELU")])
def test_the_bend_stands_between_the_matrices_once(bend, shown):
    picture = plot_mlp(weights(), bend=bend)
    texts = [text for text, _, _ in drawn_texts(picture.figure)]
    assert texts.count(shown) == sum("→" in text for text in texts) == 1
    assert picture.description.startswith(f"y = W₂ {bend}(W₁ x") and list(flaws(picture.figure)) == []


def test_colour_says_sign_and_size():
    tensors = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}
    tensors["layer1.weight"][0, 0], tensors["layer2.bias"][1] = 4.0, -2.0
    patches = plot_mlp(tensors).figure.axes[0].findobj(FancyBboxPatch)
    colours = [patch.get_facecolor()[:3] for patch in patches]
    as_rgb = FancyBboxPatch((0, 0), 1, 1)

    def count(colour):
        as_rgb.set_facecolor(colour)
        return colours.count(as_rgb.get_facecolor()[:3])

    assert (count(tint(POSITIVE, 0.66)), count(tint(NEGATIVE, 0.36)), count(PANEL)) == (1, 1, 36)


def test_the_text_alternative_has_every_row():
    picture = plot_mlp(weights())
    first = "  ".join(f"{number:.3g}" for number in weights()["layer1.weight"][0].tolist())
    assert f"W₁, layer1.weight (4, 6):\n  {first}\n" in picture.description
    assert picture.description.count("\n  ") == 4 + 4 + 2 + 2
    root = ElementTree.fromstring(picture.svg)
    assert root[1].text == picture.description
    assert picture.svg == plot_mlp(weights()).svg


def test_gradients_are_drawn_as_well():
    model = MLP(gelu=True)
    model(torch.ones(1, 6)).sum().backward()
    picture = plot_mlp({name: parameter.grad for name, parameter in model.named_parameters()}, title="Gradients")
    assert "b₂, layer2.bias (2):\n  1\n  1" in picture.text


@pytest.mark.parametrize("change", [{"layer2.bias": torch.zeros(3)}, {"layer3.bias": torch.zeros(2)}])
def test_another_model_is_refused(change):
    message = r"^plot_mlp: \{.*\}; the picture is that of \{'layer1.weight': \(4, 6\), .*; give MLP\(\).state_dict\(\)"
    with pytest.raises(ValueError, match=message):
        plot_mlp({**weights(), **change})


def owned(*ranks):
    return plot_mlp(weights(), owners=dict(zip(weights(), ranks, strict=True)))


@pytest.mark.parametrize("ranks", [(0, 0, 1, 1), (0, 1, 2, 3)])
def test_with_owners_too_the_text_does_not_overlap(ranks):
    assert list(flaws(owned(*ranks).figure)) == []


def test_owners_are_frames_in_their_ranks_hues_and_a_line_at_the_cut():
    picture = owned(0, 0, 1, 1)
    page = picture.figure.axes[0]
    frames = [to_hex(box.get_edgecolor()) for box in page.findobj(FancyBboxPatch) if box.get_linewidth() == 2.6]
    assert frames == [rank_hue(rank).lower() for rank in (0, 0, 1, 1)]
    assert len(page.lines) == 1
    assert picture.text.endswith(
        "rank 0 stores 28 numbers: layer1.weight, layer1.bias\nrank 1 stores 10 numbers: layer2.weight, layer2.bias"
    )
    assert {"28 numbers", "10 numbers", "cut"} < {text for text, *_ in drawn_texts(picture.figure)}


def test_without_owners_the_perceptron_has_no_frames_and_no_cut():
    page = plot_mlp(weights()).figure.axes[0]
    assert page.lines[:] == [] and all(box.get_linewidth() < 2 for box in page.findobj(FancyBboxPatch))


@pytest.mark.parametrize("owners", [{"layer1.weight": 0}, dict(zip(weights(), (0, 0, 1, -1), strict=True))])
def test_owners_of_some_parameters_or_ranks_below_0_are_refused(owners):
    message = (
        r"^plot_mlp: owners=\{.*\}; each parameter lies on one rank, 0 or later; say it for layer1.weight, .*2.bias"
    )
    with pytest.raises(ValueError, match=message):
        plot_mlp(weights(), owners=owners)
