"""Memory of one GPU for arrays of policies: the formulas of `costs`, asked once for each combination that occurs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.costs.model.activations import HALF, bytes_on_rank, head_activations
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.states import RankParameters, rank_parameters
from course_lib.costs.sweep.gpu_memory import Work, layer_bytes
from course_lib.sim.machine import Software
from course_lib.sim.policies import CHUNK, RECOMPUTE, SCHEDULES, Policies
from course_lib.units import GB

_LOGIT_BYTES = {"eager": 12, "compiled": 12, "megatron": 8, "legacy": 8}  # bf16 and fp32 logits, their gradients
_FUSED_LOGIT_BYTES = 6  # of a loss in one kernel
_TORCH, _FUSED_SWIGLU = ("eager", "compiled"), ("compiled", "megatron")
_PIPELINED = 6  # bytes of a number that FSDP leaves gathered beside a pipeline: the bf16 weight, its fp32 gradient
_SCORE_BYTES = 5  # of one score that is kept: twice in 16 bits, and a mask
_MASKS = 2  # bytes of dropout's masks for each number of the stream
_GATHERED = 2  # layers that ZeRO-3 has whole at a time: this one and the next
_KEPT = np.array([1.0, 1.0, 0.35, 0.5, 0.0])  # in RECOMPUTE's order, of what a layer keeps beyond its input
_BESIDE_BYTES, _FRAGMENTS = 1.5 * GB, 0.06  # context and communication buffers; what the allocator loses
_GPIPE, _INTERLEAVED, _ZB = (SCHEDULES.index(name) for name in ("gpipe", "interleaved", "zb-h1"))


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the fullest GPU by category, each of shape (n,)."""

    weights: Any
    gradients: Any
    optimizer: Any
    gathered: Any  # with ZeRO-3: layers that are whole for a moment
    activations: Any
    head: Any  # of last norm, head and loss: mostly logits
    other: Any  # context, buffers, fragments

    @property
    def total(self) -> Any:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


CATEGORIES = tuple(field.name for field in fields(Memory))


def memory_of(model: ModelConfig, policies: Policies, software: Software, convention: Convention) -> Memory:
    """The first or the last stage's memory, whichever is more, of each policy.

    States, activations and the head's tensors are those of `costs`; what no formula has (context, buffers,
    fragments, the copies that a loss makes of its logits) is added here.
    Raises: ValueError if a policy does not divide the model.
    """
    parts = [_fullest(model, chunk, software, convention) for chunk in policies.pieces(CHUNK)]
    return Memory(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in CATEGORIES})


def in_flight(policies: Policies, last: bool) -> Any:
    """Activations of whole micro-batches that a stage holds at once; `costs.pipeline_in_flight` for arrays."""
    p, m, v = (np.asarray(x, dtype=float) for x in (policies.pp, policies.n_microbatches, policies.stages_per_rank))
    schedule = np.asarray(policies.schedule)
    interleaved = np.minimum((0 if last else 2 * (p - 1)) + (v - 1) * p + 1, v * m) / v
    plain = np.minimum(np.where((schedule == _ZB) | (not last), p, 1), m)  # ZB-H1's last rank owes gradients of weights
    return np.where(schedule == _GPIPE, m, np.where(schedule == _INTERLEAVED, interleaved, plain))


def _fullest(model: ModelConfig, p: Policies, software: Software, convention: Convention) -> Memory:
    """Of the pipeline's two ends the one with more."""
    first, last = (_stage(model, p, software, convention, end) for end in (False, True))
    fuller = np.asarray(last.total) > np.asarray(first.total)
    whole = {name: np.where(fuller, getattr(last, name), getattr(first, name)) for name in CATEGORIES}
    return Memory(**{name: np.broadcast_to(values, (len(p),)) for name, values in whole.items()})


def _stage(model: ModelConfig, p: Policies, software: Software, convention: Convention, last: bool) -> Memory:
    """Bytes of one end of the pipeline."""
    n = _Numbers(model, p, software, last)
    stage, group = np.asarray(p.zero_stage), np.floor(p.expert_shards)

    def lasting(number_bytes: int, from_stage: int) -> Any:
        cut = stage >= from_stage
        return number_bytes * (
            np.ceil(n.shared / np.where(cut, p.shards, 1)) + np.ceil(n.experts / np.where(cut, group, 1))
        )

    whole = np.where(stage >= 3, _GATHERED * HALF * n.unit, 0)
    if software.kind in _TORCH:
        whole = np.where((stage >= 3) & (np.asarray(p.pp) > 1), _PIPELINED * (n.shared + n.experts), whole)
    parts = {
        "weights": lasting(convention.weights, 3),
        "gradients": lasting(convention.gradients, 2),
        "optimizer": np.where(np.asarray(p.offload, dtype=bool), 0, lasting(convention.optimizer, 1)),
        "gathered": whole,
        "activations": _activations(model, p, n, last),
        "head": n.head if last else np.where(np.asarray(p.pp) > 1, 0, n.head),
    }
    return Memory(**parts, other=_BESIDE_BYTES + _FRAGMENTS * sum(parts.values()))


def _activations(model: ModelConfig, p: Policies, n: _Numbers, last: bool) -> Any:
    """Of the layers in flight, with the one that is computed again."""
    code = np.asarray(p.recompute, dtype=int)
    full = np.where(code == RECOMPUTE.index("attention"), n.without_scores, n.whole)
    kept = n.bare + _KEPT[code] * (full - n.bare)
    layers = np.ceil(model.n_layers / np.asarray(p.pp, dtype=float))
    again = np.where(_KEPT[code] < 1, full - n.bare, 0.0)
    return kept * layers * in_flight(p, last) + again


class _Numbers:
    """What the formulas of `costs` say, for each policy: asked once for each combination of degrees that occurs."""

    def __init__(self, model: ModelConfig, p: Policies, software: Software, last: bool) -> None:
        names = ("tp", "pp", "ep", "etp", "micro_batch", "sequence", "cp", "sequence_parallel")
        keys, where = _combinations([getattr(p, name) for name in names])
        rows = np.array([_numbers(model, software, last, *key) for key in keys], dtype=np.float64)
        self.shared, self.unit, self.experts, self.whole, self.bare, self.without_scores, self.head = rows[where].T


@cache
def _numbers(
    model: ModelConfig, software: Software, last: bool, tp: int, pp: int, ep: int, etp: int, *sizes: int
) -> tuple[float, ...]:
    """Numbers of the stage's weights (shared, the largest unit, in experts), bytes of a layer's tensors and the head's.

    A layer's: all; its input alone; all but scores.
    """
    held = _held(model, tp, pp, ep, last)
    experts = _held(model, etp, pp, ep, last).experts if model.n_experts > 1 else 0
    b, s, cp, sp = sizes
    layer = [
        _layer(model, kernel, software.kind, recompute, b, s, cp, tp, sp, ep)
        for kernel, recompute in ((software.kernel, "none"), ("flash2", "full"), ("flash2", "none"))
    ]
    return held.shared, held.largest_unit, experts, *layer, _head(model, software, b, s, cp, tp, sp)


@cache
def _held(model: ModelConfig, tp: int, pp: int, ep: int, last: bool) -> RankParameters:
    """The parameters of a stage's ranks; where layers do not divide, of a stage with more of them."""
    even = replace(model, n_layers=-(-model.n_layers // pp) * pp)
    return rank_parameters(even, ParallelConfig(dp=ep, tp=tp, pp=pp, ep=ep), stage=pp - 1 if last else 0)


@cache
def _layer(
    model: ModelConfig, kernel: str, stack: str, recompute: str, b: int, s: int, cp: int, tp: int, sp: int, ep: int
) -> int:
    """Bytes of one layer and micro-batch; scores on top where a kernel keeps them, less where SwiGLU is one kernel."""
    parallel = ParallelConfig(dp=ep, ep=ep, tp=tp, cp=cp, sequence_parallel=bool(sp))
    kind = model.layer_kinds[-1][1]
    work = Work(sequence=s, microbatch=b, keep_gathered=stack in _TORCH)
    kept = layer_bytes(kind, parallel, work, recompute="full" if recompute == "full" else "none")
    if recompute == "full":
        return kept
    scores = _SCORE_BYTES * b * s * s // cp * model.n_heads // tp if kernel == "scores" else 0
    fused = kind.gated_ffn and kind.n_experts == 1 and stack in _FUSED_SWIGLU  # silu(gate) is computed again
    unmasked = not kind.gated_ffn and stack != "legacy"  # a GPT without dropout: two masks of a byte less
    spared = HALF * kind.ffn_size * fused + _MASKS * kind.hidden_size * unmasked
    return kept + scores - b * s // cp * spared // tp


@cache
def _head(model: ModelConfig, software: Software, b: int, s: int, cp: int, tp: int, sp: int) -> int:
    """The head's tensors, but for its logits as many bytes as the stack's loss makes of them."""
    parallel = ParallelConfig(tp=tp, cp=cp, sequence_parallel=bool(sp))
    found = head_activations(model, batch=b, sequence=s // cp, itemsize=HALF, fused_norms=True)
    others = [saved for saved in found if saved.name != "log-probabilities"]
    each = _FUSED_LOGIT_BYTES if software.fused_loss else _LOGIT_BYTES[software.kind]
    return bytes_on_rank(others, parallel) + each * b * s // cp * model.vocab_size // tp


def _combinations(columns: list[Any]) -> tuple[list[tuple[int, ...]], Any]:
    """The different rows of these columns, and for each row the place of its like."""
    arrays = [np.atleast_1d(np.asarray(column)).astype(np.int64) for column in columns]
    bases = [int(array.max()) + 1 for array in arrays]
    code = np.zeros(1, dtype=np.int64)
    for array, base in zip(arrays, bases, strict=True):
        code = code * base + array if base > 1 else code
    _, first, where = np.unique(code, return_index=True, return_inverse=True)
    rows = [[int(array[place if len(array) > 1 else 0]) for array in arrays] for place in first.tolist()]
    return [tuple(row) for row in rows], where.reshape(-1)
