"""What one layer of other families keeps: written here in plain PyTorch, measured, and equal to the formula's bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.config import ModelConfig, ParallelConfig, load_model
from course_lib.config.model import LatentAttention
from course_lib.costs import Work, attention_activations, layer_activations, layer_bytes
from course_lib.gauges.allocated import saved_bytes
from course_lib.models.decoder import Attention, GatedFeedForward, Layer, rotary_angles, rotate

WIDE = ModelConfig(
    name="wide heads",
    hidden_size=96,
    n_layers=1,
    n_heads=6,
    n_kv_heads=2,
    ffn_size=160,
    vocab_size=50,
    tied=True,
    head_dim=32,
)
LATENT = LatentAttention(kv_rank=40, query_rank=24, plain_size=16, rotary_size=8, value_size=24)
BATCH, SEQUENCE = 3, 20


class NormedHeads(Attention):
    """As Qwen3's, of each head, or as OLMo 2's, of all together."""

    def __init__(self, config):
        super().__init__(config)
        each = config.qk_norm == "head"
        self.each = each
        self.q_norm = nn.RMSNorm(config.head_size if each else config.query_size, eps=1e-6)
        self.k_norm = nn.RMSNorm(config.head_size if each else config.kv_size, eps=1e-6)

    def forward(self, x, angles):
        q, k, v = self.q_proj(x), self.k_proj(x), self._heads(self.v_proj(x))
        if self.each:  # (B, S, A, D)
            q, k = (one.unflatten(-1, (-1, self.head_size)) for one in (q, k))
        q, k = (self._heads(one.flatten(2)) for one in (self.q_norm(q), self.k_norm(k)))
        mixed = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Latent(nn.Module):
    """As DeepSeek-V2's."""

    def __init__(self, config):
        super().__init__()
        self.latent, self.heads, H = config.latent, config.n_heads, config.hidden_size
        rank, latent = config.latent.query_rank, config.latent
        self.query_down = nn.Linear(H, rank) if rank else nn.Identity()
        self.query_norm = nn.RMSNorm(rank, eps=1e-6) if rank else nn.Identity()
        self.query_up = nn.Linear(rank or H, config.query_size)
        self.down = nn.Linear(H, latent.kv_rank + latent.rotary_size)
        self.norm = nn.RMSNorm(latent.kv_rank, eps=1e-6)
        self.up = nn.Linear(latent.kv_rank, self.heads * (latent.plain_size + latent.value_size))
        self.output = nn.Linear(config.mixed_size, H)

    def forward(self, x, angles):
        latent = self.latent
        q = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (self.heads, -1))
        down, turned = self.down(x).split([latent.kv_rank, latent.rotary_size], -1)
        kv = self.up(self.norm(down)).unflatten(-1, (self.heads, -1))
        k, v = kv.split([latent.plain_size, latent.value_size], -1)
        q_plain, q_turned = q.split([latent.plain_size, latent.rotary_size], -1)
        q = torch.cat([q_plain, self.turn(q_turned, angles)], -1)  # (B, S, A, D)
        k = torch.cat([k, self.turn(turned.unsqueeze(2), angles).expand(-1, -1, self.heads, -1)], -1)
        mixed = F.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)), is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def turn(self, x, angles):
        return rotate(x.transpose(1, 2), angles).transpose(1, 2)


class FourNorms(Layer):
    """As Gemma 2's: another norm after each block."""

    def __init__(self, config):
        super().__init__(config)
        self.after = nn.ModuleList([nn.RMSNorm(config.hidden_size, eps=1e-6) for _ in range(2)])

    def forward(self, x, angles):
        x = x + self.after[0](self.attention(self.attention_norm(x), angles))
        return x + self.after[1](self.ffn(self.ffn_norm(x)))


def layer_of(config):
    layer = FourNorms(config) if config.norms_per_layer == 4 else Layer(config)
    if config.latent is not None:
        layer.attention = Latent(config)
    elif config.qk_norm != "none":
        layer.attention = NormedHeads(config)
    return layer


def measured(layer, config, dtype):
    x = torch.randn(BATCH, SEQUENCE, config.hidden_size, dtype=dtype, requires_grad=True)
    turned = config.latent.rotary_size if config.latent else config.head_size
    angles = rotary_angles(SEQUENCE, turned, x.device)
    kept = []
    found = saved_bytes(layer.to(dtype), lambda: kept.append(layer(x, angles)))
    return found


FAMILIES = {
    "wide heads": WIDE,
    "Qwen3": replace(WIDE, qk_norm="head"),
    "OLMo 2": replace(WIDE, qk_norm="full"),
    "Gemma 2": replace(WIDE, norms_per_layer=4),
    "OLMo": replace(WIDE, norm="layer_unweighted"),
    "LayerNorm": replace(WIDE, norm="layer"),
    "latent": replace(WIDE, latent=LATENT, head_dim=None, n_kv_heads=6),
    "latent, queries from tokens": replace(WIDE, latent=replace(LATENT, query_rank=None), head_dim=None, n_kv_heads=6),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_keeps_the_formula_s_bytes(name):
    config = FAMILIES[name]
    formula = layer_activations(config, batch=BATCH, sequence=SEQUENCE, itemsize=2)
    assert measured(layer_of(config), config, torch.bfloat16) == sum(saved.nbytes for saved in formula)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_its_block_it_keeps_that_much_less(name):
    config, work = FAMILIES[name], {"batch": BATCH, "sequence": SEQUENCE, "itemsize": 2}
    block = GatedFeedForward(config).to(torch.bfloat16)
    x = torch.randn(BATCH, SEQUENCE, config.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    difference = set(layer_activations(config, **work)) - set(attention_activations(config, **work))
    assert saved_bytes(block, lambda: block(x)) == sum(saved.nbytes for saved in difference)


@pytest.mark.parametrize("name", ["gemma2_9b", "qwen3_8b", "olmo2_7b", "deepseek_v2"])
def test_a_gpu_holds_the_heads_as_wide_as_they_are(name):
    """Of a GPT's shape, 34 bytes for each number of the hidden size, it would be too little."""
    model, work = load_model(name), Work(sequence=1024, microbatch=1)
    _, kind = model.layer_kinds[-1]
    heads = 2 * 1024 * (kind.query_size + 2 * kind.kv_size + kind.mixed_size)
    attention = attention_activations(kind, batch=1, sequence=1024, itemsize=2, fused_norms=True)
    found = layer_bytes(kind, ParallelConfig(), work)
    assert found > sum(saved.nbytes for saved in attention) > heads
    assert layer_bytes(kind, ParallelConfig(tp=2), work) < found
