"""What fine-tuning keeps: formulas against what autograd keeps and what parameters and optimizers hold, to the byte."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
import torch
import torch.nn.functional as F

from course_lib.config import ModelConfig, load_model
from course_lib.costs import activation_bytes, find_convention, model_parameters
from course_lib.costs.model.adapter_activations import adapter_activations
from course_lib.costs.model.adapters import FACTORS, IA3, MAPS, Adapters, adapter_state_bytes, nf4_bytes
from course_lib.gauges.allocated import saved_bytes
from course_lib.models.decoder import Decoder
from course_lib.savers.checkpointing import checkpoint_layers
from course_lib.savers.ia3 import add_ia3
from course_lib.savers.lora import add_lora
from course_lib.savers.nf4 import encode_nf4
from course_lib.savers.quantised_linear import quantise

CONFIG = ModelConfig(
    name="grouped", hidden_size=128, n_layers=3, n_heads=8, n_kv_heads=2, ffn_size=320, vocab_size=200, tied=False
)
WIDE = replace(CONFIG, name="one layer, wide heads", n_layers=1, head_dim=24, n_kv_heads=8, tied=True)
BATCH, SEQUENCE = 2, 48


def patterns(maps):
    return [f"layers.*.{'ffn' if name in MAPS[4:] else 'attention'}.{name}" for name in maps]


def adapted(config, adapters):
    model = Decoder(config)
    if adapters.rank is None:
        outputs = [name for name in adapters.maps if name != "down_proj"]
        return add_ia3(model, patterns(outputs), patterns(set(adapters.maps) - set(outputs)))
    return add_lora(model, adapters.rank, targets=patterns(adapters.maps))


def kept(model, config):
    rows = torch.randint(config.vocab_size, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = rows[:, :-1].clone(), rows[:, 1:].clone()
    return saved_bytes(model, lambda: F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))


def formula(config, adapters, itemsize=4, recompute="none"):
    sizes = {"batch": BATCH, "sequence": SEQUENCE, "itemsize": itemsize}
    rows = adapter_activations(config, adapters, **sizes, recompute=recompute)
    return sum(saved.nbytes for saved in rows)


SOME = [
    Adapters(rank=3, maps=maps)
    for maps in [*((name,) for name in MAPS), ("q_proj", "v_proj"), ("o_proj", "up_proj"), MAPS[1:], MAPS]
]
OF_FACTORS = [
    Adapters(rank=None, maps=maps) for maps in chain.from_iterable(combinations(FACTORS, n) for n in (1, 2, 3))
]


@pytest.mark.parametrize("config", [CONFIG, WIDE], ids=lambda config: config.name)
@pytest.mark.parametrize("adapters", [*SOME, *OF_FACTORS], ids=str)
def test_autograd_keeps_the_formula_s_bytes_whatever_is_adapted(adapters, config):
    assert kept(adapted(config, adapters), config) == formula(config, adapters) + 4  # cross-entropy's divisor


@pytest.mark.parametrize("adapters", [Adapters(rank=3), IA3], ids=str)
def test_codes_in_the_place_of_weights_keep_the_same(adapters):
    model = quantise(Decoder(CONFIG))
    model = add_ia3(model) if adapters.rank is None else add_lora(model, adapters.rank)
    assert kept(model, CONFIG) == formula(CONFIG, adapters) + 4


@pytest.mark.parametrize("adapters", [Adapters(rank=3), IA3], ids=str)
def test_layers_that_are_recomputed_keep_their_input(adapters):
    model = adapted(CONFIG, adapters)
    checkpoint_layers(model.layers)
    assert kept(model, CONFIG) == formula(CONFIG, adapters, recompute="layers") + 4


@pytest.mark.parametrize("adapters", [Adapters(), Adapters(rank=2, maps=("q_proj", "v_proj")), IA3], ids=str)
def test_what_is_trained_is_counted(adapters):
    model = adapted(CONFIG, adapters)
    assert adapters.parameters(CONFIG) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("nf4", [False, True])
def test_states_are_what_parameters_and_adamw_hold(nf4):
    model, adapters = Decoder(CONFIG), Adapters(rank=4)
    add_lora(quantise(model) if nf4 else model, 4)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    found = adapter_state_bytes(CONFIG, adapters, find_convention("fp32"), itemsize=4, nf4=nf4)
    assert found.weights == sum(p.nbytes for p in model.parameters())
    assert found.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    moments = [x for state in optimizer.state.values() for x in state.values() if x.dim()]
    assert found.optimizer == sum(x.nbytes for x in moments)


@pytest.mark.parametrize("shape", [(2, 1), (24, 50), (64, 64), (300, 130)])
@pytest.mark.parametrize("double", [False, True])
def test_codes_take_the_formula_s_bytes(shape, double):
    weight = torch.randn(*shape)
    assert nf4_bytes(weight.numel(), double=double) == encode_nf4(weight, double=double).nbytes


def test_activations_hardly_shrink_and_where_adapters_stand_decides():
    """As fractions of what full training keeps, with a GPU's fused norms."""
    llama = load_model("llama3_1_8b")
    sizes = {"batch": 1, "sequence": 2048, "itemsize": 2, "fused_norms": True}

    def share(adapters):
        return sum(saved.nbytes for saved in adapter_activations(llama, adapters, **sizes)) / activation_bytes(
            llama, **sizes
        )

    assert 0.98 < share(Adapters(rank=16)) < 1.0 < share(Adapters(rank=64))
    assert 0.7 < share(Adapters(rank=16, maps=("q_proj", "v_proj"))) < 0.8


def test_65_billion_parameters_fit_into_48_gb():
    """QLoRA's abstract; with 16 bits and full training it names more than 780 GB: 12 bytes a parameter."""
    llama = load_model("llama_65b")
    found = adapter_state_bytes(llama, Adapters(rank=64), find_convention("zero"), nf4=True)
    assert 35e9 < found.total < 48e9
    assert 12 * model_parameters(llama) > 780e9


def test_a_layer_without_the_maps_is_refused():
    latent, message = (
        load_model("deepseek_v2"),
        "Adapters: DeepSeek-V2; its layers have no maps called k_proj, v_proj; ",
    )
    with pytest.raises(ValueError, match=message):
        IA3.parameters(latent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maps": ("q",)}, "Adapters: rank=8, maps=.*; a layer has these maps, .*; choose from q_proj, k_proj,"),
        ({"maps": ()}, "something is trained"),
        ({"rank": None}, "Adapters: rank=None, .* choose from k_proj, v_proj, down_proj"),
        ({"rank": 0}, "Adapters: rank=0; B A has a rank; give rank >= 1, or None"),
    ],
)
def test_what_adapters_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Adapters(**options)
