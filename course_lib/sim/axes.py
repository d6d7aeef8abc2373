"""Seconds that each axis of parallelism spends on communication: alpha-beta collectives by placement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from course_lib.hardware import leaving_of_rings, seconds_per_byte
from course_lib.sim.policies import CONTEXTS, Policies, Value
from course_lib.sim.rates import Rates
from course_lib.sim.shape import Shape

BF16 = 2  # bytes of an activation, and of a gathered weight
_HIDEABLE = 0.9  # of what may hide a message, at most this share does
_BUCKET = 50e6  # numbers in one bucket of gradients
_ALL_GATHER, _ULYSSES = CONTEXTS.index("all_gather"), CONTEXTS.index("ulysses")
_HIDING_BEHIND = 0.75  # of one micro-batch: where ZeRO-1 finds something to hide behind


@dataclass(frozen=True)
class Held:
    """Numbers of the fullest stage's weights on one rank, before ZeRO cuts them."""

    shared: Value
    experts: Value

    @property
    def total(self) -> Value:
        """Both."""
        return self.shared + self.experts


def held(shape: Shape, p: Policies) -> Held:
    """A stage's layers, and one table of the vocabulary; both tables if there is one stage."""
    layers = shape.layers / p.pp
    tables = np.where(np.asarray(p.pp) > 1, 1.0, 2.0) * shape.vocab
    shared = shape.hidden / p.tp * (layers * shape.dense_width + tables)
    local = shape.experts / (p.ep * p.etp)
    return Held(shared=shared, experts=layers * shape.sparse * local * shape.hidden * shape.expert_width)


def trained(shape: Shape, p: Policies) -> Held:
    """What of these has gradients: all, or what is beside them."""
    everything, share = held(shape, p), 1 - shape.frozen
    beside = shape.hidden / p.tp * (shape.layers / p.pp * shape.beside)
    return Held(shared=everything.shared * share + beside, experts=everything.experts * share)


def kept(numbers: Held, p: Policies, *, from_stage: int) -> Value:
    """Of these numbers what a rank has for itself: all of them, or its piece from this stage of ZeRO on."""
    cut = np.asarray(p.zero_stage) >= from_stage
    return numbers.shared / np.where(cut, p.shards, 1.0) + numbers.experts / np.where(cut, p.expert_shards, 1.0)


def _exposed(rest: Value, communication: Value, hiding: Value) -> Value:
    """A share that nothing hides, and of the other what is longer than the work beside it."""
    return rest * communication + np.maximum(0.0, (1 - rest) * communication - _HIDEABLE * hiding)


def tensor_s(shape: Shape, rates: Rates, p: Policies, repeated: Value) -> Value:
    """One layer's exchanges, forward and backward, for one micro-batch.

    Two all-reduces forward and two backward; with sequence parallelism backward gathers once more; a layer that is
    recomputed repeats its two.
    Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.
    """
    calls = 4 + p.sequence_parallel + 2 * repeated
    around = 2 * _ring_s(rates, p.tokens * shape.hidden * BF16, p.tp, 1)
    return rates.tp_exposed * calls * (around + 2 * (p.tp - 1) * rates.inside_alpha_s)


def context_s(shape: Shape, rates: Rates, p: Policies, attention: Value) -> Value:
    """One layer's attention over cp ranks, forward and backward, by the policy's way: `costs.comm.context` for arrays.

    A ring passes keys and values on in cp - 1 hops forward, again in backward, and their gradients home in cp hops;
    attention hides what it can. The all-gather and its reduce-scatter are a ring through all cards, and Ulysses has six
    all-to-alls: attention can begin only after them, so nothing hides them.
    """
    ways, more_ranks = np.asarray(p.context), np.asarray(p.cp) > 1
    of_keys = np.maximum(shape.kv / p.tp, shape.head_size)  # where tp ranks are more than kv heads, each has one
    own = 2 * p.tokens * of_keys * BF16
    hops = np.where(more_ranks, 3 * p.cp - 2, 0)
    messages = hops * (own * _message_s(rates, p.tp * p.cp) + rates.inside_alpha_s)
    found = _exposed(rates.cp_exposed, messages, attention)
    if np.any(ways == _ALL_GATHER):
        each = _ring_s(rates, p.cp * own, p.cp, p.tp) + (p.cp - 1) * rates.inside_alpha_s
        found = np.where(ways == _ALL_GATHER, 2 * each, found)
    if np.any(ways == _ULYSSES):
        queries, keys = shape.query / p.tp / p.cp, np.maximum(of_keys / p.cp, shape.head_size)
        to_each = p.tokens * 2 * (queries + keys) * BF16  # queries there, keys and values there, outputs back
        each = (p.cp - 1) * (to_each * _all_to_all_s(rates, p.tp * p.cp) + 3 * rates.inside_alpha_s)
        found = np.where(ways == _ULYSSES, 2 * each, found)
    return found


def expert_s(shape: Shape, rates: Rates, p: Policies, repeated: Value) -> Value:
    """One mean layer's all-to-alls (two forward, two backward) and the host's work for its experts."""
    if not np.any(np.asarray(shape.sparse) > 0):
        return 0.0
    leaving = (p.ep - 1) / p.ep
    passes = p.tokens / p.tp * shape.active * shape.hidden * BF16
    each = leaving * passes * _all_to_all_s(rates, p.ep * p.etp) + (p.etp - 1) * passes / rates.inside_bytes_per_s
    latency = (p.ep - 1) * rates.inside_alpha_s
    return shape.sparse * ((4 + 2 * repeated) * (each + latency) + rates.expert_layer_s)


def transfer_s(shape: Shape, rates: Rates, p: Policies) -> Value:
    """One micro-batch's activations over one cut, and its gradients back."""
    tokens = p.tokens
    cut = np.where(p.sequence_parallel, tokens / p.tp, tokens)
    seconds = cut * shape.hidden * BF16 * _message_s(rates, p.world_size) + rates.inside_alpha_s
    return np.where(np.asarray(p.pp) > 1, 2 * seconds, 0.0)


def data_s(shape: Shape, rates: Rates, p: Policies, microbatch_s: Value) -> Value:
    """What of a step's gathers and reductions over the replicas nothing hides; `microbatch_s` is a stage's work.

    ZeRO-3 gathers twice and reduces once for each micro-batch, and hides behind all of them; the others reduce (and
    with ZeRO-1 or 2 gather) once a step, behind a part of one. `reduce_each` is ZeRO-2 that reduces after every
    micro-batch, each time behind a part of it. A ring's latency grows with its ranks.
    """
    whole = np.asarray(p.zero_stage) >= 3
    reductions = np.where(whole | np.asarray(p.reduce_each, dtype=bool), p.n_microbatches, 1.0)
    everything, reduced = held(shape, p), trained(shape, p)
    replicas = p.dp * p.cp

    def moved(numbers: Value, with_gradients: Value) -> Value:
        gathered = np.where(whole, 2.0 * p.n_microbatches * numbers, with_gradients) * BF16
        return gathered + reductions * with_gradients * rates.gradient_bytes

    seconds = _ring_s(rates, moved(everything.shared, reduced.shared), p.shards, p.tp)
    seconds = seconds + _across_s(
        rates, reductions * reduced.shared * rates.gradient_bytes / p.shards, replicas / p.shards
    )
    if np.any(np.asarray(shape.sparse) > 0):
        seconds = seconds + _ring_s(rates, moved(everything.experts, reduced.experts), p.expert_shards, p.ep * p.etp)
    buckets = np.ceil(reduced.total / _BUCKET)
    calls = np.where(whole, 3 * p.n_microbatches * shape.layers / p.pp, (1 + reductions) * buckets)
    seconds = seconds + np.where(np.asarray(p.shards) > 1, calls * rates.ring_alpha_s * p.shards, 0.0)
    hiding = np.where(whole, 1.0, _HIDING_BEHIND) * reductions * microbatch_s
    return _exposed(rates.dp_exposed, seconds, hiding)


def _per_byte_s(rates: Rates, leaving: Value, inside: Value) -> Value:
    """What a byte takes in each of messages of which so many leave a domain at once."""
    network = rates.between_bytes_per_s * rates.domain
    return seconds_per_byte(leaving, inside_bytes_per_s=inside, network_bytes_per_s=network)


def _all_if_away(rates: Rates, ranks: Value) -> Value:
    """What leaves a domain at once if all of its GPUs send to others that do not fit in."""
    return np.where(np.asarray(ranks) > rates.domain, rates.domain, 0.0)


def _message_s(rates: Rates, ranks: Value) -> Value:
    """Of a byte to a neighbour, so many together; if no domain has them all, on each GPU's share of the cards."""
    return _per_byte_s(rates, _all_if_away(rates, ranks), rates.pair_bytes_per_s)


def _all_to_all_s(rates: Rates, ranks: Value) -> Value:
    """The same if each sends to all others, on all its links.

    Where a row leaves its domain, all of it counts as leaving: the two published runs with such experts (ep 64 on nodes
    of 8) take longer than even so.
    """
    return _per_byte_s(rates, _all_if_away(rates, ranks), _among(rates, ranks))


def _ring_s(rates: Rates, nbytes: Value, ranks: Value, stride: Value) -> Value:
    """Bytes of a whole row around a ring of ranks that are `stride` apart: through all cards of a domain."""
    leaving = leaving_of_rings(ranks, stride, rates.domain)
    together = np.minimum(ranks, np.maximum(1.0, rates.domain // stride))
    return (ranks - 1) / ranks * nbytes * _per_byte_s(rates, leaving, _among(rates, together))


def _among(rates: Rates, ranks: Value) -> Value:
    """Bytes a second of a GPU's links to the others of so many, as `Wires.joining`."""
    return np.minimum(rates.inside_bytes_per_s, np.maximum(1.0, ranks - 1) * rates.pair_bytes_per_s)


def _across_s(rates: Rates, nbytes: Value, groups: Value) -> Value:
    """Groups that shard among themselves: each rank averages its piece with its peers of the other groups."""
    seconds = _per_byte_s(rates, rates.domain, rates.inside_bytes_per_s)
    return 2 * (groups - 1) / groups * nbytes * seconds
