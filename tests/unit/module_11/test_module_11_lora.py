"""Adapters: LoRA, (IA)^3, and LoRA beside a weight in codes, against the same mathematics written out."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.config import ModelConfig
from course_lib.gauges.allocated import peak_bytes, saved_bytes
from course_lib.models.decoder import Decoder
from course_lib.parallel.tensors.lint import lint
from course_lib.parallel.tensors.plan import plan_for
from course_lib.savers.adapted import merge_adapters
from course_lib.savers.ia3 import IA3Linear, add_ia3
from course_lib.savers.lora import LoRALinear, add_lora
from course_lib.savers.quantised_linear import NF4Linear, quantise
from course_lib.savers.targets import QUERIES_AND_VALUES

CONFIG = ModelConfig(
    name="small", hidden_size=16, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=24, vocab_size=32, tied=False
)
TOKENS = torch.arange(24).view(2, 12) % 32


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def loss_of(model):
    return F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


def train(model, steps=5):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model


ADAPTED = {
    "lora": add_lora,
    "lora of queries and values": lambda model: add_lora(model, 3, 6.0, targets=QUERIES_AND_VALUES),
    "lora, root": lambda model: add_lora(model, 4, 16.0, scaling="root"),
    "ia3": add_ia3,
}
ways = pytest.mark.parametrize("adapt", ADAPTED.values(), ids=[*ADAPTED])


@ways
def test_training_starts_from_the_model_as_it_is_to_the_bit(adapt):
    model = Decoder(CONFIG)
    before = model(TOKENS)
    assert torch.equal(adapt(model)(TOKENS), before)


@ways
def test_only_what_is_beside_the_matrices_is_trained(adapt):
    model = adapt(Decoder(CONFIG))
    before = copy.deepcopy(model.state_dict())
    train(model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all(name.rpartition(".")[2] in ("A", "B", "factors") for name in trained)
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert changed == trained


@ways
def test_merged_it_computes_the_same_with_the_names_of_the_model(adapt):
    model = train(adapt(Decoder(CONFIG)))
    before = model(TOKENS)
    plain = merge_adapters(model)
    assert (plain(TOKENS) - before).abs().max() < 1e-13
    assert [*plain.state_dict()] == [*Decoder(CONFIG).state_dict()]
    assert not any(isinstance(module, LoRALinear | IA3Linear) for module in plain.modules())


@pytest.mark.parametrize(("scaling", "scale"), [("rank", 16 / 4), ("root", 16 / 2)])
def test_lora_is_w_x_and_s_b_a_x(scaling, scale):
    linear = nn.Linear(6, 5)
    model = add_lora(nn.Sequential(linear), 4, 16.0, scaling=scaling, targets=("0",))
    lora = model[0]
    nn.init.normal_(lora.B)
    x = torch.randn(3, 6)
    assert torch.allclose(model(x), x @ (linear.weight + scale * lora.B @ lora.A).T + linear.bias, atol=1e-14)


def test_with_b_at_zero_b_has_a_gradient_and_a_has_none():
    """dB is s dW A^T, of the gradient that W would have; with A at 0 too nothing would ever move."""
    linear, x, target = nn.Linear(6, 5), torch.randn(3, 6), torch.randn(3, 5)
    (linear(x) - target).square().sum().backward()
    lora = LoRALinear(linear, 2, 3.0)
    (lora(x) - target).square().sum().backward()
    assert not lora.A.grad.any()
    assert torch.allclose(lora.B.grad, 3.0 * linear.weight.grad / 2 @ lora.A.T, atol=1e-14)  # it has both gradients


def test_ia3_stretches_outputs_of_some_maps_and_inputs_of_others():
    linear = nn.Linear(6, 5)
    factors_in, factors_out, x = torch.rand(6), torch.rand(5), torch.randn(3, 6)
    for on_input, factors in ((True, factors_in), (False, factors_out)):
        adapted = IA3Linear(linear, on_input=on_input)
        adapted.factors.data = factors
        wanted = linear(x * factors) if on_input else linear(x) * factors
        assert torch.equal(adapted(x), wanted)
        assert torch.allclose(adapted.merged()(x), wanted, atol=1e-14)


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.bfloat16, 0.3, 0.9), (torch.float32, 0.0, 1e-3)], ids=str)
def test_merged_in_bf16_much_of_a_small_update_is_lost(dtype, least, most):
    """Between 2^-6 and 2^-5 the numbers of bf16 are 2^-13 apart, 0.4 to 0.8 % of themselves."""
    linear = nn.Linear(64, 64)
    linear.weight.data.normal_(std=0.02)
    lora = LoRALinear(linear.to(dtype), 8, 1.0)
    lora.B.data.normal_(std=4e-4)
    update = lora.B.double() @ lora.A.double()
    assert 1e-3 < update.norm() / linear.weight.double().norm() < 1e-2
    merged_weight = lora.merged().weight
    found = merged_weight.double() - linear.weight.double()
    assert merged_weight.dtype == dtype and least <= (found - update).norm() / update.norm() < most


def test_a_pattern_that_names_no_map_is_refused():
    message = (
        r"add_lora: layers.\*.attention.query: no linear map is called so; every pattern names a linear map, so that "
        r"nothing stays as it was unseen; see layers.\*.attention.q_proj, "
    )
    with pytest.raises(ValueError, match=message):
        add_lora(Decoder(CONFIG), targets=("layers.*.attention.q_proj", "layers.*.attention.query"))
    with pytest.raises(ValueError, match=r"add_ia3: layers.\*.attention: no linear map is called so"):
        add_ia3(Decoder(CONFIG), outputs=("layers.*.attention",))
    with pytest.raises(ValueError, match="quantise: .* see another model: there is none here"):
        quantise(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="add_lora: layers"):
        add_lora(add_lora(Decoder(CONFIG)))  # a map has one adapter


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "add_lora: rank=0; B A has a rank of at least 1; give rank >= 1"),
        ({"scaling": "r"}, "add_lora: scaling='r'; alpha is divided by r or its root; choose from rank, root"),
    ],
)
def test_what_lora_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        add_lora(Decoder(CONFIG), **options)


def spread_out(model):
    """The same numbers in plain maps."""
    for name, module in [*model.named_modules()]:
        if isinstance(module, NF4Linear):
            parent, _, own = name.rpartition(".")
            plain = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            plain.weight.data = module.dense().data
            if module.bias is not None:
                plain.bias.data = module.bias.data
            setattr(model.get_submodule(parent), own, plain)
    return model


def test_a_map_in_codes_computes_and_learns_as_the_plain_map_of_its_numbers():
    quantised = quantise(Decoder(CONFIG))
    plain = spread_out(copy.deepcopy(quantised))
    for model in (quantised, plain):
        torch.manual_seed(1)
        train(add_lora(model))
    assert (quantised(TOKENS) - plain(TOKENS)).abs().max() < 1e-13
    ours = {name: p for name, p in quantised.named_parameters() if p.requires_grad}
    theirs = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    assert ours.keys() == theirs.keys()
    assert max((ours[name] - theirs[name]).abs().max() for name in ours) < 1e-12


def test_merging_beside_codes_meets_the_weight_that_the_codes_say():
    model = train(add_lora(quantise(Decoder(CONFIG)), 4, 16.0))
    before = model(TOKENS)
    assert (merge_adapters(model)(TOKENS) - before).abs().max() < 1e-13


def test_codes_are_all_that_is_kept_of_a_weight():
    torch.set_default_dtype(torch.float32)
    linear = nn.Linear(256, 128, bias=False)
    whole = linear.weight.nbytes
    quantised = NF4Linear(linear)
    kept = sum(p.nbytes for p in quantised.parameters())
    assert kept == 256 * 128 // 2 + 512 + 4 * 2 + 4
    x = torch.randn(4, 256, requires_grad=True)
    assert saved_bytes(quantised, lambda: quantised(x)) == 0
    assert saved_bytes(linear, lambda: linear(x)) == x.nbytes

    def step():
        y = quantised(x)
        mark.append(peak_bytes(lambda: y.sum().backward()))

    mark: list[int] = []
    step()
    assert mark[0] >= whole  # it is spread out again for backward, and gone then
    assert sum(p.nbytes for p in quantised.parameters()) == kept


def test_adapters_of_a_short_model_have_32_bits():
    torch.set_default_dtype(torch.float32)
    for base in (Decoder(CONFIG).bfloat16(), quantise(Decoder(CONFIG).bfloat16())):
        model = add_lora(base)
        assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
        assert model(TOKENS).dtype == torch.bfloat16
        train(model, 1)


@pytest.mark.parametrize("adapt", [add_lora, add_ia3], ids=["lora", "ia3"])
def test_a_plan_of_tensor_parallelism_says_of_adapted_maps_what_it_says_of_plain_ones(adapt):
    plain, model = Decoder(CONFIG), adapt(Decoder(CONFIG))
    found = [str(finding) for finding in lint(model, plan_for(model), 4)]
    assert found == [str(finding) for finding in lint(plain, plan_for(plain), 4)]
    assert any("lie on 2 ranks each" in line for line in found)


def test_codes_cannot_be_cut_and_the_plan_says_so_first():
    model = add_lora(quantise(Decoder(CONFIG)))
    faults = [finding for finding in lint(model, plan_for(model), 2) if finding.fault]
    assert faults and "a NF4Linear; the style 'column' cuts a Linear" in str(faults[0])
