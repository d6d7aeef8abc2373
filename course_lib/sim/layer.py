"""Seconds of one layer's forward pass on one rank for one micro-batch, by closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from course_lib.sim.policies import Policies, Value
from course_lib.sim.rates import Rates
from course_lib.sim.shape import Shape

BACKWARD_ATTENTION, BACKWARD_POINTWISE = 2.5, 1.7  # times the forward pass, where matmuls take twice
_SMALL_HEAD = 64
_TILE, _ALIGNED = 64, 8  # numbers; NVIDIA, Matrix Multiplication Background User's Guide, sections 2 and 4
_ADDED_BYTES = 10.0  # for each number that LoRA makes: it is scaled, and added to what the frozen map has made
_LOGIT_BYTES = 10.0  # of memory traffic for each logit, forward


@dataclass(frozen=True)
class Forward:
    """Seconds of one layer, and of the head with its loss; recompute repeats the layer alone."""

    matmul: Value
    attention: Value
    scores: Value  # attention's memory traffic where scores are kept
    pointwise: Value
    head: Value
    head_pointwise: Value
    beside: Value  # products with A and B of LoRA
    added: Value  # memory traffic where what they make is added


def forward_of(shape: Shape, rates: Rates, p: Policies) -> Forward:
    """One layer and the head, by cause.

    Matmul M x K x N: 2MKN/rate (1 + c (1/M + 1/K + 1/N)), summed over the layer's matrices.
    Source of the flash kernel's operations: Dao 2023, FlashAttention-2, section 4.1 (backward: 2.5 times).
    """
    tokens = p.tokens
    per_token = tokens / p.tp
    scores = per_token * p.sequence * _seen(shape, p)  # of one head; divided by a head's share below
    attention, traffic = _attention(shape, rates, p, scores)
    head = per_token * shape.hidden * shape.vocab
    size = rates.size_penalty * (shape.hidden * shape.vocab / p.tp + tokens * (shape.hidden + shape.vocab / p.tp))
    return Forward(
        matmul=_matmul(shape, rates, p, tokens),
        attention=attention,
        scores=traffic,
        pointwise=_pointwise(shape, rates, p, tokens),
        head=2 / rates.head_flops_per_s * (head + size),
        head_pointwise=_LOGIT_BYTES * per_token * shape.vocab / rates.pointwise_bytes_per_s,
        beside=_beside(shape, rates, tokens, p.tp),
        added=_ADDED_BYTES * per_token * shape.adapted_outputs / rates.pointwise_bytes_per_s,
    )


def _seen(shape: Shape, p: Policies) -> Value:
    """Share of the causal scores that windows leave: of a layer that sees x of the sequence, x(2 - x)."""
    return 1 - shape.windowed * (1 - np.minimum(1.0, shape.window / p.sequence)) ** 2


def _matmul(shape: Shape, rates: Rates, p: Policies, tokens: Value) -> Value:
    """The mean layer's matrices: four that tp shares, and two for each of the rank's experts."""
    width = shape.dense_width / p.tp
    products = tokens * shape.hidden * width
    traffic = shape.hidden * width + tokens * (4 * shape.hidden + width)
    if np.any(np.asarray(shape.sparse) > 0):
        routed = tokens * shape.active * p.etp / p.tp  # token passes on this rank
        cut = shape.expert_width / p.etp
        local = shape.experts / p.ep
        products = products + shape.sparse * routed * shape.hidden * cut
        traffic = traffic + shape.sparse * (local * shape.hidden * cut + routed * (2 * shape.hidden + cut))
    odd = np.where(np.mod(shape.query / p.tp, _TILE) == 0, 1.0, rates.odd_width)
    return odd * 2 / rates.matmul_flops_per_s * (products + rates.size_penalty * traffic)


def _beside(shape: Shape, rates: Rates, tokens: Value, tp: Value) -> Value:
    """The products of LoRA by the same formula, in which 1/r weighs most: they take the time that memory takes."""
    wide = (shape.adapted_inputs + shape.adapted_outputs) / tp
    traffic = np.where(np.asarray(shape.rank) > 0, (tokens + shape.rank) * wide, 0.0)
    return 2 / rates.matmul_flops_per_s * (tokens * shape.rank * wide + rates.size_penalty * traffic)


def _attention(shape: Shape, rates: Rates, p: Policies, scores: Value) -> tuple[Value, Value]:
    """A flash kernel computes the causal half; one that keeps scores computes all and moves them through memory."""
    flops = (2 + 2 * rates.keeps_scores) * scores * shape.query
    small = np.where(np.asarray(shape.head_size) <= _SMALL_HEAD, rates.small_head, 1.0)
    odd = np.where(np.mod(shape.head_size, _ALIGNED) == 0, 1.0, rates.odd_head)
    short = 1 + rates.attention_knee / p.sequence
    return (
        flops * small * odd * short / rates.attention_flops_per_s,
        scores * shape.heads * rates.score_s * rates.keeps_scores,
    )


def _pointwise(shape: Shape, rates: Rates, p: Policies, tokens: Value) -> Value:
    """Norms, residuals, rotations, activation functions, casts: memory traffic of 2 bytes a number."""
    cut = tokens / p.tp
    stream = np.where(p.sequence_parallel, cut, tokens)
    numbers = (7 + rates.norm_numbers) * stream * shape.hidden + cut * (
        3 * (shape.query + 2 * shape.kv) + shape.pointwise_ffn
    )
    cast = cut * shape.dense_width + 4 * tokens * shape.hidden
    if np.any(np.asarray(shape.sparse) > 0):
        routed = cut * shape.active * shape.sparse
        numbers = numbers + routed * (shape.expert_inner + 6 * shape.hidden)  # permuted there and back
        cast = cast + routed * (shape.expert_width + 2 * shape.hidden)
    casts = rates.cast_bytes * cast
    return (2 * numbers + casts) / rates.pointwise_bytes_per_s
