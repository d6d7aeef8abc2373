"""Models in which bugs are planted, and models that are bugs."""

from __future__ import annotations

from ladder_models import GPT, Toy
from torch import nn

from course_lib.models.decoder import Decoder


def tied():
    return Toy(tied=True)


class OneUse(Toy):
    """The head's use of the shared weight is hidden from autograd."""

    def __init__(self):
        super().__init__(tied=True)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions * self.known[tokens].unsqueeze(-1)
        return nn.functional.gelu(self.inner(x)) @ self.head.weight.detach().T


class Between(Toy):
    """Something between the hidden layer and the head."""

    def __init__(self, between):
        super().__init__()
        self.between = between

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions * self.known[tokens].unsqueeze(-1)
        return self.head(self.between(nn.functional.gelu(self.inner(x))))


class OverBatch(nn.Module):
    """BatchNorm of the last dim, as in training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(x.flatten(0, 1)).view_as(x)


class Rounding(nn.Module):
    """Autocast left on."""

    def forward(self, x):
        return x.bfloat16().to(x.dtype)


def dropping():
    return Between(nn.Dropout(0.2))


def normalising():
    return Between(OverBatch())


def sound_between():
    return Between(nn.Identity())


def squashing():
    return Between(nn.Tanh())


def rounding():
    return Between(Rounding())


def gpt():
    """A key's bias has a gradient that is zero by mathematics."""
    return Decoder(GPT)


def frozen():
    return Toy(frozen=True)
