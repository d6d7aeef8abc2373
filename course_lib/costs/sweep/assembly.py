"""A GPU's memory put together, for one job or for thousands at once.

Every value may be a number or an array with one entry for each job: nothing but arithmetic and comparisons is done
with them, so that the same lines serve `gpu_memory(Job)` and a planner's search.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from course_lib.costs.model.conventions import BLOCK, Convention
from course_lib.costs.sweep.job import EVERY_SCHEDULE, RECOMPUTE, Job
from course_lib.units import GB

_PIPELINED = 6  # bytes of a number that FSDP leaves gathered beside a pipeline: the bf16 weight, its fp32 gradient
_KEPT = {
    "none": 1.0,
    "attention": 1.0,
    "operators": 0.35,
    "half": 0.5,
    "layers": 0.0,
    "selective": 0.0,
}  # beyond a layer's input
BESIDE_BYTES, FRAGMENTS = 1.5 * GB, 0.06  # context and communication buffers; what the allocator loses
_GPIPE, _INTERLEAVED, _ZB, _ZB_2P, _ZB_V = map(EVERY_SCHEDULE.index, ("gpipe", "interleaved", "zb-h1", "zb-2p", "zb-v"))


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Bytes of one GPU, or of one for each of many jobs; not all are alive at once: the peak is at most `total`."""

    weights: Any
    gradients: Any
    optimizer: Any
    gathered: Any  # with ZeRO-3: weights that are whole for a moment
    activations: Any  # of the layers
    head: Any  # of last norm, head and loss: mostly logits
    other: Any = 0  # context, buffers, fragments

    @property
    def total(self) -> Any:
        """All of it."""
        return sum(getattr(self, name) for name in CATEGORIES)


CATEGORIES = tuple(field.name for field in fields(GpuMemory))


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How jobs are spread and cut up, as far as a stage's memory depends on it beside its `Pieces`."""

    pp: Any
    zero_stage: Any
    shards: Any  # ranks over which ZeRO cuts
    expert_shards: Any  # over which it cuts an expert's states: fewer, for ep has cut them already
    recompute: Any  # place in RECOMPUTE
    schedule: Any  # place in EVERY_SCHEDULE
    stages_per_rank: Any
    n_microbatches: Any
    offload: Any  # whether the optimizer's states lie in the host's memory


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What the formulas of `costs.model` say of one stage, for each job."""

    frozen: Any  # bytes of weights that are not trained, 0 where all are
    shared: Any  # numbers of its trained weights without experts
    experts: Any  # and in these
    unit: Any  # numbers of the largest unit that is gathered at a time
    layers: Any  # bytes that its layers keep of one micro-batch: everything
    scores: Any  # of these attention's scores, where its kernel keeps them
    inputs: Any  # their inputs alone
    products: Any  # results of products with weights, which selective recomputation keeps beside the inputs
    largest: Any  # bytes of one layer beyond its input: what is computed again at a time
    head: Any  # bytes of last norm, head and loss, 0 on other stages than the last


def in_flight(p: Spread, stage: Any) -> Any:
    """Micro-batches whose activations a stage holds at once; `costs.pipeline_in_flight`, with what ZB-H1 owes.

    Of schedules without a pause all ranks have alike: ZB-2p 2p - 1, and ZB-V p. Source: Qi et al. 2023, table 2; Qi et
    al. 2024, Pipeline parallelism with controllable memory, table 2.
    """
    ranks, m, v = p.pp, p.n_microbatches, p.stages_per_rank
    turns = least(2 * (ranks - stage - 1) + (v - 1) * ranks + 1, v * m) / v
    plain = least(_chosen(p.schedule == _ZB, most(ranks - stage, stage + 1), ranks - stage), m)
    alike = least(_chosen(p.schedule == _ZB_2P, 2 * ranks - 1, ranks), m)
    plain = _chosen((p.schedule == _ZB_2P) | (p.schedule == _ZB_V), alike, plain)
    return _chosen(p.schedule == _GPIPE, m, _chosen(p.schedule == _INTERLEAVED, turns, plain))


def assembled(job: Job, p: Spread, n: Pieces, stage: Any) -> GpuMemory:
    """What a GPU of this stage holds; of `job` only the assumptions count, what is spread how says `p`."""
    states = job.states if job.adapters is None else job.states_beside
    zero, away = p.zero_stage, job.offload == "all"

    def lasting(from_stage: int) -> Any:
        cut = zero >= from_stage
        return up(n.shared, _chosen(cut, p.shards, 1)) + up(n.experts, _chosen(cut, p.expert_shards, 1))

    gathered = job.gathered_units * job.itemsize * n.unit
    if job.software.is_torch and job.beside:
        gathered = _chosen(p.pp > 1, _PIPELINED * (n.shared + n.experts), gathered)
    at_home = (not away) * _chosen(p.offload, 0, 1)
    parts = {
        "weights": (not away) * (states.weights * lasting(3) + up(n.frozen, _chosen(zero >= 3, p.shards, 1))),
        "gradients": (not away) * states.gradients * lasting(2),
        "optimizer": at_home * _optimizer(states, lasting(1)),
        "gathered": gathered * (zero >= 3),
        "activations": _activations(p, n, stage),
        "head": n.head,
    }
    beside = BESIDE_BYTES + FRAGMENTS * sum(parts.values()) if job.beside else 0
    return GpuMemory(**parts, other=beside)


def _optimizer(states: Convention, numbers: Any) -> Any:
    return states.optimizer * numbers + states.scales * up(numbers, BLOCK)


def _activations(p: Spread, n: Pieces, stage: Any) -> Any:
    """Layers of all micro-batches in flight, and the one that is computed again."""
    share = sum((p.recompute == code) * _KEPT[name] for code, name in enumerate(RECOMPUTE))
    everything = n.layers - n.scores * (p.recompute == RECOMPUTE.index("attention"))
    kept = n.inputs + share * (everything - n.inputs) + n.products * (p.recompute == RECOMPUTE.index("selective"))
    return kept * in_flight(p, stage) + _chosen(share < 1, n.largest, 0)


def up(numbers: Any, parts: Any) -> Any:
    """Of the fullest of so many parts."""
    return -(-numbers // parts)


def _chosen(condition: Any, yes: Any, no: Any) -> Any:
    """One of two, for each job."""
    return no + (yes - no) * condition


def least(one: Any, other: Any) -> Any:
    """The smaller, for each job."""
    return _chosen(one < other, one, other)


def most(one: Any, other: Any) -> Any:
    """The larger, for each job."""
    return _chosen(one > other, one, other)


def fullest(stages: list[GpuMemory]) -> GpuMemory:
    """Of several stages the one with most, for each job."""
    first, *others = stages
    for other in others:
        more = other.total > first.total
        first = GpuMemory(**{n: _chosen(more, getattr(other, n), getattr(first, n)) for n in CATEGORIES})
    return first
