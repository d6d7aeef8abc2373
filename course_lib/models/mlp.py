"""The multilayer perceptron of 38 parameters that is small enough to follow every number by hand."""

from __future__ import annotations

from torch import Tensor, nn

SIZES = (6, 4, 2)


class MLP(nn.Module):
    """y = W2 f(W1 x + b1) + b2, with f the identity or a GELU.

    Linear, it is right for hand arithmetic: (6 + 1) 4 + (4 + 1) 2 = 38 parameters. With the GELU a forgotten
    reduction shows, since f(a) + f(b) is not f(a + b).

    Shapes: (B, 6) -> (B, 2); torch stores W1 as (4, 6) and W2 as (2, 4), which is (out, in).
    Source: Kempner Institute 2024, workshop on distributed training.
    """

    def __init__(self, *, gelu: bool = False) -> None:
        super().__init__()
        inputs, hidden, outputs = SIZES
        self.layer1 = nn.Linear(inputs, hidden)
        self.activation = nn.GELU() if gelu else nn.Identity()
        self.layer2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(self.activation(self.layer1(x)))
