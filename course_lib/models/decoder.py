"""One decoder in plain PyTorch, of the GPT, OLMo or Llama shape as its config says; it knows nothing of ranks.

How many heads a layer works on follows from the width of its projections, so that whoever shards them from
outside changes no line here. Letters as in `course_lib.config`, with D = H/A the size of one head, K the kv
heads and F the inner size of the feed-forward block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.errors import four_parts

_INIT_STD = 0.02

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (B, A, S, D), k and v (B, K, S, D) -> (B, A, S, D)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """To each position a weighted mean of the values up to its own."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Attention(nn.Module):
    """Causal self-attention in which A/K query heads share one head of keys and values.

    Source: Ainslie et al. 2023 (grouped queries).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.clip = config.clip_qkv
        bias = "qkv" in config.biases
        self.q_proj = nn.Linear(config.hidden_size, config.query_size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_size, bias=bias)
        self.o_proj = nn.Linear(config.query_size, config.hidden_size, bias="attention_output" in config.biases)
        self.mix: Mix = causal  # the one place where positions meet: who cuts the sequence replaces it

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        q = self._heads(self.q_proj(x))  # (B, A, S, D)
        k = self._heads(self.k_proj(x))  # (B, K, S, D)
        v = self._heads(self.v_proj(x))  # (B, K, S, D)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        mixed = self.mix(q, k, v)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # (B, S, H)

    def _heads(self, x: Tensor) -> Tensor:
        """(B, S, heads * D) -> (B, heads, S, D), with as many heads as there are."""
        if self.clip is not None:
            x = x.clamp(-self.clip, self.clip)
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class GatedFeedForward(nn.Module):
    """SwiGLU: a gate decides how much of each inner feature passes.

    Source: Shazeer 2020.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = "ffn" in config.biases
        self.gate_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=bias)
        self.down_proj = nn.Linear(config.ffn_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # inside: (B, S, F)


class FeedForward(nn.Module):
    """Two matrices with a GELU between them, in the approximation by tanh that GPT-2 was trained with."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = "ffn" in config.biases
        self.up_proj = nn.Linear(config.hidden_size, config.ffn_size, bias=bias)
        self.down_proj = nn.Linear(config.ffn_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))  # inside: (B, S, F)


class Layer(nn.Module):
    """Attention, then feed-forward, each on the normalised input and added back to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _make_norm(config)
        self.attention = Attention(config)
        self.ffn_norm = _make_norm(config)
        self.ffn = GatedFeedForward(config) if config.gated_ffn else FeedForward(config)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """Tokens in, logits of the next token out.

    Shapes: (B, S) int64 -> (B, S, V).
    Raises: ValueError for a shape that is not built here, and for a sequence longer than the table of positions.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        _check(config)
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = None
        if config.positions == "learned" and config.max_sequence is not None:
            self.positions = nn.Embedding(config.max_sequence, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = _make_norm(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias="head" in config.biases)
        if config.tied:
            self.head.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            init_weight(name, parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # (B, S, H)
        sequence, angles = tokens.shape[1], None
        if self.positions is not None:
            self.config.check_sequence(sequence)
            x = x + self.positions(torch.arange(sequence, device=x.device))
        else:
            angles = rotary_angles(sequence, self.config.head_size, x.device, self.config.rotary_base)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))

    def mix_by(self, mix: Mix) -> None:
        """Let positions meet otherwise, in every layer."""
        for layer in self.layers:
            attention: Any = layer.get_submodule("attention")
            attention.mix = mix


def init_weight(name: str, weight: Tensor) -> None:
    """Fill one of a decoder's weights for the start of training: matrices at random, biases with 0, norms with 1."""
    if weight.dim() > 1:
        nn.init.normal_(weight, std=_INIT_STD)
    else:
        nn.init.constant_(weight, 0 if name.endswith("bias") else 1)


def _make_norm(config: ModelConfig) -> nn.Module:
    """RMSNorm (Llama), LayerNorm with weight and bias (GPT), or LayerNorm without either (OLMo)."""
    if config.norm == "rms":
        return nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, elementwise_affine=config.norm == "layer")


def rotary_angles(sequence: int, head_size: int, device: torch.device, base: float = 10_000.0) -> Tensor:
    """The angle by which position s turns pair i: s / base^(2i/D), in float32 whatever the model's dtype.

    Shapes: -> (S, D/2).
    Source: Su et al. 2021, section 3.2.
    """
    exponents = torch.arange(0, head_size, 2, device=device) / head_size
    return torch.outer(torch.arange(sequence, device=device), 1.0 / base**exponents)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of a head's numbers by its position's angle.

    Shapes: (B, heads, S, D), (S, D/2) -> (B, heads, S, D), laid out in memory as x is: attention's output then
    follows, and joining its heads again copies nothing.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = (torch.cat([turn, turn], dim=-1).to(x.dtype) for turn in (angles.cos(), angles.sin()))  # (S, D)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _check(config: ModelConfig) -> None:
    if config.n_experts > 1:
        rule, way_out = "this decoder has one feed-forward block in a layer", "give n_experts=1"
        raise ValueError(four_parts("Decoder", f"n_experts={config.n_experts}", rule, way_out))
    if config.norms_per_layer != 2:
        rule, way_out = "this decoder has a norm before each of a layer's two blocks", "give norms_per_layer=2"
        raise ValueError(four_parts("Decoder", f"norms_per_layer={config.norms_per_layer}", rule, way_out))
    if config.qk_norm != "none":
        rule, way_out = "this decoder does not normalise queries and keys", "give qk_norm='none'"
        raise ValueError(four_parts("Decoder", f"qk_norm={config.qk_norm!r}", rule, way_out))
    if config.latent is not None:
        rule, way_out = "this decoder has keys and values for its heads", "leave latent out"
        raise ValueError(four_parts("Decoder", "latent attention", rule, way_out))
    if config.positions == "rotary" and config.head_size % 2:
        rule = "rotary positions turn pairs of numbers"
        way_out = "choose n_heads such that hidden_size/n_heads is even, or an even head_dim"
        raise ValueError(four_parts("Decoder", f"head_size={config.head_size}", rule, way_out))
    if config.window is not None or config.uncomputed:
        settings = [f"window={config.window}"] * (config.window is not None) + [*config.uncomputed]
        rule, way_out = "this decoder computes without that", "give a config without it, where that is what you mean"
        raise ValueError(four_parts("Decoder", ", ".join(settings), rule, way_out))
