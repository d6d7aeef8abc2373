"""A decoder of the Llama shape in plain PyTorch; it knows nothing of ranks.

How many heads a layer works on follows from the width of its projections, so that whoever shards them from
outside changes no line here. Letters as in `course_lib.config`, with D = H/A the size of one head, K the kv
heads and F the inner size of the feed-forward block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.errors import four_parts

ROTARY_BASE = 10_000.0
NORM_EPS = 1e-5
INIT_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention in which A/K query heads share one head of keys and values.

    Source: Ainslie et al. 2023 (grouped queries).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q = rotate(self._heads(self.q_proj(x)), angles)  # (B, A, S, D)
        k = rotate(self._heads(self.k_proj(x)), angles)  # (B, K, S, D)
        v = self._heads(self.v_proj(x))  # (B, K, S, D)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # (B, S, H)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, S, heads * D) -> (B, heads, S, D), with as many heads as there are."""
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU: a gate decides how much of each inner feature passes.

    Source: Shazeer 2020.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down_proj = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # inside: (B, S, F)


class Layer(nn.Module):
    """Attention, then feed-forward, each on the normalised input and added back to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """Tokens in, logits of the next token out.

    Shapes: (B, S) int64 -> (B, S, V).
    Raises: ValueError if a head's size is odd, since rotary positions turn pairs of numbers.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.head_size % 2:
            values, rule = f"head_size={config.head_size}", "rotary positions turn pairs of numbers"
            raise ValueError(
                four_parts("Decoder", values, rule, "choose n_heads such that hidden_size/n_heads is even")
            )
        self.head_size = config.head_size
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:  # norms stay 1
                nn.init.normal_(parameter, std=INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # (B, S, H)
        angles = rotary_angles(tokens.shape[1], self.head_size, x.device)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


def rotary_angles(sequence: int, head_size: int, device: torch.device) -> Tensor:
    """The angle by which position s turns pair i: s / base^(2i/D), in float32 whatever the model's dtype.

    Shapes: -> (S, D/2).
    Source: Su et al. 2021, section 3.2.
    """
    exponents = torch.arange(0, head_size, 2, device=device) / head_size
    return torch.outer(torch.arange(sequence, device=device), ROTARY_BASE**-exponents)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of a head's numbers by its position's angle.

    Shapes: (B, heads, S, D), (S, D/2) -> (B, heads, S, D), laid out in memory as x is: attention's output then
    follows, and joining its heads again copies nothing.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = (torch.cat([turn, turn], dim=-1).to(x.dtype) for turn in (angles.cos(), angles.sin()))  # (S, D)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
