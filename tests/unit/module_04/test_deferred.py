"""Backward in two parts gives the gradients of one, and keeps what it says until then."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.config import ModelConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.deferred import Deferred

CONFIG = ModelConfig(
    name="small", hidden_size=12, n_layers=2, n_heads=2, n_kv_heads=1, ffn_size=20, vocab_size=16, tied=True
)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def decoder():
    torch.manual_seed(0)
    return Decoder(CONFIG).double()


@pytest.mark.parametrize("frozen", [(), ("layers.0.attention.q_proj.weight", "layers.1.ffn.up_proj.weight")])
def test_both_parts_together_are_backward(frozen):
    model, tokens = decoder(), torch.randint(16, (3, 5))
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    for _ in range(2):  # two micro-batches add up
        model(tokens).square().sum().backward()
    want = gradients(model)
    model.zero_grad()
    left = []
    for _ in range(2):
        with Deferred() as later:
            loss = model(tokens).square().sum()
        loss.backward()
        left.append(later)
    linear = {name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "head"}
    assert gradients(model).keys().isdisjoint(f"{name}.weight" for name in linear)
    assert "layers.0.attention_norm.weight" in gradients(model)  # what is not linear does not wait
    for later in left:
        later.finish()
        assert later.retained_bytes == 0
    assert gradients(model).keys() == want.keys()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, want[name], rtol=1e-13, atol=1e-13)


def test_biases_wait_too_and_the_input_s_gradient_does_not():
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 3).double(), torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    with Deferred() as later:
        y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.detach().sum(0).expand(4, 5))
    assert layer.weight.grad is None and layer.bias.grad is None
    later.finish()
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), 4.0, dtype=torch.float64))
    torch.testing.assert_close(layer.weight.grad, x.detach().sum(0).expand(3, 5))


def test_what_is_retained_are_inputs_and_gradients_of_outputs():
    """One input for the three projections, which have a gradient each."""
    torch.manual_seed(0)
    projections = nn.ModuleList(nn.Linear(6, size, bias=False) for size in (6, 4, 2))
    x = torch.randn(7, 6, requires_grad=True)
    with Deferred() as later:
        y = torch.cat([projection(x).square() for projection in projections], dim=1)
    assert later.retained_bytes == 0
    y.sum().backward()
    assert later.retained_bytes == 7 * (6 + 6 + 4 + 2) * 4


def test_outside_and_under_no_grad_a_linear_layer_is_as_ever():
    layer, x = nn.Linear(5, 3), torch.randn(4, 5)
    with Deferred() as later, torch.no_grad():
        y = layer(x)
    assert torch.equal(y, layer(x)) and later.retained_bytes == 0
    layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_a_linear_layer_may_be_called_with_words():
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((4, 5), (3, 5), (3,)))
    with Deferred() as later:
        y = F.linear(x, weight=weight, bias=bias)
        scaled = torch.add(y, y, alpha=2)
    scaled.sum().backward()
    later.finish()
    torch.testing.assert_close(weight.grad, 3 * x.detach().sum(0).expand(3, 5))
    assert bias.grad.tolist() == [12.0] * 3
