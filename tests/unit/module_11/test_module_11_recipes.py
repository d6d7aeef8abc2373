"""The bill of one GPU, recipe by recipe: its parts are the formulas of states, activations and adapters."""

from __future__ import annotations

import pytest

from course_lib.config import load_model
from course_lib.costs.model.activations import activation_bytes, layer_activations
from course_lib.costs.model.adapter_activations import adapter_activations
from course_lib.costs.model.adapters import Adapters, nf4_bytes
from course_lib.costs.model.parameters import model_parameters
from course_lib.costs.sweep.recipes import Recipe, recipe_memory
from course_lib.units import GB

LORA = Adapters(rank=16)
SAVED = {  # GB of the 8B for 2,048, 8,192 and 32,768 tokens, added up by hand from layer, head and parameters
    Recipe(): (140.7, 177.1, 323.1),
    Recipe(recompute=True): (130.5, 136.4, 160.0),
    Recipe(adapters=LORA): (28.9, 65.4, 211.4),
    Recipe(adapters=LORA, recompute=True): (18.7, 24.6, 48.2),
    Recipe(adapters=LORA, nf4=True, recompute=True): (8.3, 14.2, 37.9),
    Recipe(adapters=LORA, nf4=True, recompute=True, pieces=16): (7.4, 10.3, 22.1),
}


@pytest.mark.parametrize("recipe", SAVED, ids=str)
def test_the_8b_s_bill(recipe):
    model = load_model("llama3_1_8b")
    found = [recipe_memory(model, recipe, sequence=length).total / GB for length in (2048, 8192, 32768)]
    assert found == pytest.approx(SAVED[recipe], abs=0.05)


@pytest.mark.parametrize("model", ["llama3_2_1b", "llama3_1_70b"])
def test_a_saver_takes_its_own_part_away(model):
    model, length = load_model(model), 4096
    full, again, pieces, lora, codes, scores = (
        recipe_memory(model, recipe, sequence=length)
        for recipe in (
            Recipe(),
            Recipe(recompute=True),
            Recipe(pieces=8),
            Recipe(adapters=LORA),
            Recipe(adapters=LORA, nf4=True),
            Recipe(scores=True),
        )
    )
    states = 16 * model_parameters(model)
    assert full.weights + full.gradients + full.optimizer == states
    layer = sum(x.nbytes for x in layer_activations(model, batch=1, sequence=length, itemsize=2, fused_norms=True))
    assert full.activations == model.n_layers * layer
    assert again.activations == 2 * length * model.hidden_size * model.n_layers + layer
    assert (again.head, again.weights) == (full.head, full.weights)
    logits = 4 * length * model.vocab_size
    assert full.head - pieces.head == logits - logits // 8 and pieces.activations == full.activations
    assert scores.activations - full.activations == 2 * model.n_layers * model.n_heads * length**2
    trained = LORA.parameters(model)
    assert lora.weights == 2 * model_parameters(model) + 4 * trained
    assert (lora.gradients, lora.optimizer) == (4 * trained, 8 * trained)
    assert codes.activations == lora.activations and codes.weights < lora.weights / 2
    assert codes.weights > nf4_bytes(model_parameters(model))


def test_what_adapters_keep_of_the_layers_is_their_own_formula_without_the_ends():
    model, sizes = load_model("llama3_1_8b"), {"batch": 1, "sequence": 512, "itemsize": 2}
    everything = sum(x.nbytes for x in adapter_activations(model, LORA, **sizes, fused_norms=True))
    full = activation_bytes(model, **sizes, fused_norms=True)
    layers = recipe_memory(model, Recipe(adapters=LORA), sequence=512).activations
    assert 0.95 * full < layers < everything < full * 1.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(nf4=True), "Recipe: nf4 without adapters; codes cannot be trained; give adapters, or"),
        (
            lambda: recipe_memory(load_model("llama3_1_8b"), Recipe(pieces=0), sequence=8),
            "chunked_head_activations: pieces=0; a loss is made of pieces; give pieces >= 1",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
