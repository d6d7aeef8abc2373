"""What 05.11 must end at: the small Llama of the learner's file, trained in one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors
from course_lib.checks.kit.script import Start

WORDS, WIDTH, HIDDEN, _HEADS, LAYERS = 42, 12, 20, 4, 2  # 4 ranks have 11, 11, 11 and 9 words
BATCH, LENGTH, STEPS = 2, 8, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, WIDTH // _HEADS)).transpose(1, 2) for one in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(seen.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.RMSNorm(WIDTH), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Model(nn.Module):
    """The one that stands in the learner's file."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return scores


def make_task(case: Start, seed: int) -> dict[str, Any]:
    """Weights, batches of tokens and an optimizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 73)
        weights = Model().double().state_dict()
        batches = [torch.randint(WORDS, (BATCH, LENGTH + 1)) for _ in range(STEPS)]
    optimizer, rate = ("AdamW", 0.01) if case.look == "adamw" else ("SGD", 0.5)
    return {"weights": weights, "batches": batches, "optimizer": optimizer, "rate": rate}


def trained(task: dict[str, Any], times: float = 1.0, cleared: bool = True, of: str = "") -> Tensors:
    """The same training in one process; perhaps of gradients that are so many times too large, or left from before.

    Only weights are stepped in whose names `of` stands.
    """
    model = Model().double()
    model.load_state_dict(task["weights"])
    optimizer = getattr(torch.optim, task["optimizer"])(
        [weight for name, weight in model.named_parameters() if of in name], lr=task["rate"]
    )
    for tokens in task["batches"]:
        if cleared:
            model.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        (times * loss).backward()
        optimizer.step()
    return model.state_dict()
