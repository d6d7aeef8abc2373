"""A decoder with several feed-forward blocks, experts, in a layer, of which each token passes a few.

It knows nothing of ranks. The weights of a layer's experts are one tensor of each kind, (E, …), so that whoever spreads
experts over ranks cuts dim 0. Letters as in `course_lib.models.decoder`, with E experts, k of them for a token, and T
tokens.
Source: Jiang et al. 2024, Mixtral, section 2.1; DeepSeek-AI 2024, DeepSeek-V2, section 2.2 (shared experts, first
layers without any).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder, GatedFeedForward, init_weight

Computed = Callable[[Tensor, Tensor], Tensor]  # rows in the order of experts, how many for each -> what experts make
Dispatch = Callable[[Tensor, Tensor, Computed], Tensor]


class Experts(nn.Module):
    """SwiGLU blocks side by side. `dispatch` sends rows to experts that are elsewhere; without it all are here."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_experts = E = config.n_experts
        H, inner = config.hidden_size, config.ffn_size
        self.gate_proj = nn.Parameter(torch.empty(E, inner, H))
        self.up_proj = nn.Parameter(torch.empty(E, inner, H))
        self.down_proj = nn.Parameter(torch.empty(E, H, inner))
        self.dispatch: Dispatch = lambda rows, counts, computed: computed(rows, counts)
        self.enter: Callable[[Tensor], Tensor] = lambda rows: rows  # for who cuts each expert, too
        self.leave: Callable[[Tensor], Tensor] = lambda rows: rows

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Shapes: rows (N, H) in the order of experts, counts (E,) -> (N, H)."""
        return self.dispatch(rows, counts, self.computed)

    def computed(self, rows: Tensor, counts: Tensor) -> Tensor:
        """By the experts that are here, one after the other."""
        of_expert = self.enter(rows).split(counts.tolist())
        found = []
        for x, gate, up, down in zip(of_expert, self.gate_proj, self.up_proj, self.down_proj, strict=True):
            found.append((F.silu(x @ gate.T) * (x @ up.T)) @ down.T)
        return self.leave(torch.cat(found))


class Routed(NamedTuple):
    """Which token goes to which expert, in the order of experts."""

    tokens: Tensor  # (N,)
    weights: Tensor  # (N,) what the expert's result counts for its token
    counts: Tensor  # (E,) how many go to each


class MixtureOfExperts(nn.Module):
    """A router chooses k experts for each token; the result is their outputs' mean, weighed by its softmax over the k.

    With `capacity` an expert takes of each sequence at most that many times its fair share, the first ones: what a
    sequence loses then depends on itself alone, and not on those that lie beside it in a batch or on a rank.
    """

    def __init__(self, config: ModelConfig, capacity: float | None) -> None:
        super().__init__()
        self.k, self.capacity = config.experts_per_token, capacity
        self.router = nn.Linear(config.hidden_size, config.n_experts, bias=False)
        self.experts = Experts(config)
        self.shared = None
        if config.shared_ffn_size:
            self.shared = GatedFeedForward(replace(_dense(config), ffn_size=config.shared_ffn_size))
        self.balance: Tensor | None = None  # of the last forward, for `balanced`
        self.over_sequence: Callable[[Tensor], Tensor] = lambda counts: counts  # for who cuts sequences

    def forward(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return torch.empty_like(x)  # which expert a token goes to depends on numbers
        B, S, H = x.shape
        rows = x.reshape(-1, H)  # (T, H), T = B S
        probabilities = self.router(rows).softmax(-1)  # (T, E)
        weights, chosen = probabilities.topk(self.k, -1)  # (T, k)
        weights = weights / weights.sum(-1, keepdim=True)
        self._note(probabilities.view(B, S, -1), chosen.view(B, S, -1))
        routed = self.routed(weights, chosen, S)
        made = self.experts(rows[routed.tokens], routed.counts) * routed.weights[:, None]
        made = made.to(rows.dtype)  # which autocast has left short; sums are exact
        mixed = torch.zeros_like(rows).index_add(0, routed.tokens, made).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def routed(self, weights: Tensor, chosen: Tensor, sequence: int) -> Routed:
        """Put the T k choices in the order of experts; leave out those beyond an expert's capacity."""
        E, choices = self.experts.n_experts, chosen.flatten()
        order = choices.argsort(stable=True)
        if self.capacity is not None:
            most = math.ceil(self.capacity * sequence * self.k / E)
            of_expert = F.one_hot(choices, E).view(-1, sequence * self.k, E)  # by sequence
            number = of_expert.cumsum(1).view(-1, E).gather(1, choices[:, None])[:, 0]  # from 1: the first of it, …
            order = order[number[order] <= most]
        counts = torch.bincount(choices[order], minlength=E)
        return Routed(order // self.k, weights.flatten()[order], counts)

    def _note(self, probabilities: Tensor, chosen: Tensor) -> None:
        """Remember how uneven the load is: per sequence E sum(f P), times its tokens, 1 a token where it is even.

        f is the share of choices that fell on an expert, P the router's mean probability for it. Only P has a gradient.
        Source: Fedus et al. 2021, Switch Transformer, section 2.2; by sequence DeepSeek-AI 2024, DeepSeek-V2, 2.2.3.
        """
        E = self.experts.n_experts
        chose = F.one_hot(chosen, E).sum((1, 2))  # (B, E)
        # Where ranks share a sequence, each has terms of P for its positions. Of f everyone needs the whole.
        chose = self.over_sequence(chose)
        fraction = chose / chose.sum(1, keepdim=True)
        self.balance = E * (fraction * probabilities.sum(1)).sum()


class MoEDecoder(Decoder):
    """A decoder with a mixture of experts in every layer but the config's first `dense_layers`.

    Shapes: (B, S) int64 -> (B, S, V).
    Raises: ValueError for a config without experts, or with another feed-forward block than SwiGLU without biases.
    """

    def __init__(self, config: ModelConfig, capacity: float | None = None) -> None:
        _check(config, capacity)
        super().__init__(_dense(config))
        self.config = config
        for number, layer in enumerate(self.layers):
            ffn: nn.Module = MixtureOfExperts(config, capacity)
            if number < config.dense_layers:
                ffn = GatedFeedForward(replace(_dense(config), ffn_size=config.dense_ffn_size or config.ffn_size))
            layer.add_module("ffn", ffn)
            for name, parameter in ffn.named_parameters():
                init_weight(name, parameter)


def mixtures_of(model: nn.Module) -> list[MixtureOfExperts]:
    """A model's layers of experts, in its order."""
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _dense(config: ModelConfig) -> ModelConfig:
    """The same shape with one block in each layer."""
    return replace(config, n_experts=1, experts_per_token=1, shared_ffn_size=0, dense_layers=0, dense_ffn_size=None)


def _check(config: ModelConfig, capacity: float | None) -> None:
    if config.n_experts == 1:
        rule, way_out = "a mixture has several experts", "give n_experts >= 2, or take a Decoder"
        raise ValueError(four_parts("MoEDecoder", "n_experts=1", rule, way_out))
    if not config.gated_ffn or "ffn" in config.biases:
        values = f"gated_ffn={config.gated_ffn}, biases={config.biases}"
        rule, way_out = "its experts are SwiGLU without biases", "give gated_ffn=True and no bias of 'ffn'"
        raise ValueError(four_parts("MoEDecoder", values, rule, way_out))
    if capacity is not None and not capacity > 0:
        rule, way_out = "it is so many times the fair share", "give a positive one, or None for no limit"
        raise ValueError(four_parts("MoEDecoder", f"capacity={capacity}", rule, way_out))
