"""The small perceptron: 38 parameters, by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from course_lib.models.mlp import MLP, SIZES


def test_it_has_38_parameters_stored_as_out_in():
    shapes = {name: tuple(parameter.shape) for name, parameter in MLP().named_parameters()}
    assert shapes == {"layer1.weight": (4, 6), "layer1.bias": (4,), "layer2.weight": (2, 4), "layer2.bias": (2,)}
    inputs, hidden, outputs = SIZES
    assert sum(parameter.numel() for parameter in MLP().parameters()) == (inputs + 1) * hidden + (hidden + 1) * outputs
    assert sum(parameter.numel() for parameter in MLP(gelu=True).parameters()) == 38


def test_the_linear_one_is_one_matrix():
    model, x = MLP().double(), torch.randn(5, 6, dtype=torch.float64)
    w1, b1, w2, b2 = model.parameters()
    torch.testing.assert_close(model(x), x @ (w2 @ w1).T + w2 @ b1 + b2)


def test_the_twin_has_a_gelu_between_its_matrices():
    model, x = MLP(gelu=True).double(), torch.randn(5, 6, dtype=torch.float64)
    w1, b1, w2, b2 = model.parameters()
    torch.testing.assert_close(model(x), F.gelu(x @ w1.T + b1) @ w2.T + b2)
    linear = MLP().double()
    linear.load_state_dict(model.state_dict())
    assert not torch.allclose(linear(x), model(x))
