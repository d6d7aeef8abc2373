"""Memory of one GPU in training: the one question that lessons, `doctor`, `plan`, `sweep` and `predict` ask."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.config.parallel import CUT_IN_ALL, Piece
from course_lib.costs.model.activations import (
    HALF,
    Recompute,
    Saved,
    bytes_on_rank,
    checkpointed_activations,
    is_counted,
    layer_activations,
    left_whole,
)
from course_lib.costs.model.adapter_activations import adapted_layer, adapter_results, frozen_ends
from course_lib.costs.model.adapters import Adapters, nf4_saving
from course_lib.costs.model.autocast import head_under_autocast, under_autocast
from course_lib.costs.model.checkpointing import chunked_head_activations, kept_results
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.expert_activations import expert_layer_activations
from course_lib.costs.model.kv_cache import kv_heads_on_rank
from course_lib.costs.model.states import RankParameters, fullest_parameters, layers_of_stage
from course_lib.costs.sweep.assembly import CATEGORIES, GpuMemory, Pieces, Spread, assembled, fullest
from course_lib.costs.sweep.job import RECOMPUTE, SCHEDULES, Job
from course_lib.costs.sweep.software import Software
from course_lib.errors import four_parts
from course_lib.sequence_cut import ContextMethod

_FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one GPU computes at a time, and what it keeps of it; attention keeps no scores."""

    sequence: int  # S, before context parallelism
    microbatch: int  # sequences
    n_microbatches: int = 1  # in one step of one replica
    itemsize: int = HALF  # bytes of a number that is computed with
    products: int | None = None  # and of one that products read, where autocast shortens it
    recompute: Recompute = "none"
    fused_norms: bool = True  # PyTorch's RMSNorm on a GPU; False: on a CPU, and written out in Python
    keep_gathered: bool = False  # sequence parallelism by DTensor; False: gathered again in backward, as in Megatron

    def __post_init__(self) -> None:
        for name in ("sequence", "microbatch", "n_microbatches", "itemsize"):
            if getattr(self, name) < 1:
                values, rule = f"{name}={getattr(self, name)}", f"{name} is positive"
                raise ValueError(four_parts("Work", values, rule, f"give {name} >= 1"))
        if self.recompute not in get_args(Recompute):
            values, rule = f"recompute={self.recompute!r}", "not a known way"
            raise ValueError(four_parts("Work", values, rule, f"choose from {', '.join(get_args(Recompute))}"))

    @property
    def operand(self) -> int:
        """Bytes of a number that a product reads or makes."""
        return self.products or self.itemsize


def gpu_memory(job: Job, *, stage: int | None = None) -> GpuMemory:
    """Bytes of a job's fullest GPU, or of those of one pipeline stage.

    Activations are exact; where ranks share experts, they are those of ranks whose experts see as many rows.
    Raises: ValueError if model, sequence or stage do not fit the degrees.
    """
    if isinstance(job, ModelConfig):  # what `tensor_memory` takes first
        way_out = "make a Job of it, or ask tensor_memory"
        raise ValueError(four_parts("gpu_memory", job.name, "a model alone is no job", way_out))
    pp = job.parallel.pp
    if stage is not None and stage not in range(pp):
        values, rule = f"stage={stage}, pp={pp}", "stages count from 0"
        raise ValueError(four_parts("gpu_memory", values, rule, f"choose stage in 0..{pp - 1}"))
    stages = dict.fromkeys((0, min(1, pp - 1), pp - 1)) if stage is None else [stage]
    even = job.evened
    one_stage = replace(job.parallel, pp=1, sequence_parallel=False)
    one_stage.check(even.model, whole=job.whole)
    found = fullest([assembled(even, _spread(even), stage_pieces(even, job.parallel, one), one) for one in stages])
    return GpuMemory(**{name: int(getattr(found, name)) for name in CATEGORIES})


def tensor_memory(
    model: ModelConfig,
    parallel: ParallelConfig,
    work: Work,
    convention: Convention,
    *,
    stage: int = 0,
    whole: Set[Piece] = CUT_IN_ALL,
) -> GpuMemory:
    """Bytes of the model's own tensors on a GPU of one pipeline stage: `gpu_memory` of a job with nothing beside them.

    One unit is gathered at a time, logits are as they are, and no context, buffers and fragments are counted.
    Raises: ValueError as `gpu_memory`, also for what the degrees divide unevenly.
    """
    parallel.check(model, sequence=work.sequence, whole=whole)
    tensors_alone = Job(
        model=model,
        parallel=parallel,
        sequence=work.sequence,
        batch=work.microbatch * work.n_microbatches * parallel.dp,
        microbatch=work.microbatch,
        itemsize=work.itemsize,
        products=work.products,
        recompute=work.recompute,
        fused_norms=work.fused_norms,
        keep_gathered=work.keep_gathered,
        convention=convention,
        whole=whole,
        software=Software(kind="legacy", kernel="flash2"),
        logit_bytes=work.itemsize,
        gathered_units=1,
        beside=False,
    )
    return gpu_memory(tensors_alone, stage=stage)


def _spread(job: Job) -> Spread:
    parallel = job.parallel
    return Spread(
        pp=parallel.pp,
        zero_stage=parallel.zero_stage,
        shards=parallel.shards,
        expert_shards=parallel.shards // parallel.ep,
        recompute=RECOMPUTE.index(job.recompute),
        schedule=SCHEDULES.index(job.schedule),
        stages_per_rank=job.stages_per_rank,
        n_microbatches=job.n_microbatches,
        offload=job.offload == "optimizer",
    )


def stage_pieces(job: Job, parallel: ParallelConfig, stage: int, *, etp: int | None = None) -> Pieces:
    """What one stage's ranks hold, with `parallel` in place of the job's degrees; `etp` ranks share an expert."""
    model, whole = job.model, job.whole
    held = fullest_parameters(model, parallel, stage=stage, whole=whole)
    apart = replace(parallel, tp=etp or parallel.tp)
    experts = held if apart == parallel else fullest_parameters(model, apart, stage=stage, whole=whole)
    how, axes = _how(job), _axes(parallel)
    layers = [(count, _layer(kind, axes, how)) for count, kind in layers_of_stage(model, parallel.pp, stage)]
    if job.adapters is not None and stage == 0:  # whose first layer has an input without a gradient
        (count, kind), *_ = layers_of_stage(model, parallel.pp, stage)
        first = _layer(kind, axes, replace(how, stream=False))
        layers = [(1, first), (count - 1, layers[0][1]), *layers[1:]]
    lasting = _lasting(job, parallel, held, experts.experts, stage)
    everything, scores, products = (sum(count * sizes[place] for count, sizes in layers) for place in (0, 2, 3))
    here, largest, bare = sum(count for count, _ in layers), max(sizes[0] for _, sizes in layers), layers[0][1][1]
    return Pieces(
        **lasting,
        layers=everything,
        inputs=-(-here // job.group) * bare,
        products=products,
        scores=scores,
        largest=min(job.group, here) * largest - bare,
        head=_head(model, axes, how, job.bytes_of_logit) if stage == parallel.pp - 1 else 0,
    )


def _lasting(job: Job, parallel: ParallelConfig, held: RankParameters, experts: int, stage: int) -> dict[str, int]:
    """What of a stage's `Pieces` lasts from step to step."""
    if job.adapters is None:
        return {"frozen": 0, "shared": held.shared, "experts": experts, "unit": held.largest_unit}
    itemsize, trained, frozen, largest = job.states.weights, 0, held.total * job.states.weights, held.outer
    kinds = layers_of_stage(job.model, parallel.pp, stage)
    for (count, kind), (_, numbers) in zip(kinds, held.layers, strict=True):
        each = job.adapters.of_layer(kind, tp=parallel.tp, whole=job.whole)
        saved = nf4_saving(kind, itemsize) if job.nf4 else 0
        trained, frozen = trained + count * each, frozen - count * saved
        largest = max(largest, numbers.total + each - saved // itemsize)
    return {"frozen": frozen, "shared": trained, "experts": 0, "unit": largest}


@dataclass(frozen=True)
class _How:
    """What a layer's tensors depend on beside its shape and the degrees."""

    work: Work
    software: Software
    whole: frozenset[Piece]
    context: ContextMethod
    loss_pieces: int
    adapters: Adapters | None
    nf4: bool
    stream: bool = True  # whether a layer's input has a gradient


def _how(job: Job) -> _How:
    cp = job.parallel.cp
    work = Work(
        sequence=-(-job.sequence // cp) * cp,  # so that each rank has as many positions as the one with most
        microbatch=job.sequences,
        itemsize=job.itemsize,
        products=job.products,
        fused_norms=job.fused_norms,
        keep_gathered=job.gathers_once,
    )
    return _How(work, job.software, frozenset(job.whole), job.context, job.loss_pieces, job.adapters, job.nf4)


def _axes(parallel: ParallelConfig) -> ParallelConfig:
    """The degrees alone that a layer's activations depend on."""
    return ParallelConfig(
        dp=parallel.ep, ep=parallel.ep, tp=parallel.tp, cp=parallel.cp, sequence_parallel=parallel.sequence_parallel
    )


@cache
def _layer(kind: ModelConfig, parallel: ParallelConfig, how: _How) -> tuple[int, int, int, int]:
    """Bytes of one layer and micro-batch: everything; its input alone; scores where the kernel keeps them; products."""
    work, software = how.work, how.software
    kept = layer_bytes(kind, parallel, work, whole=how.whole)
    if how.adapters is not None:
        beside = adapted_layer(
            kind,
            how.adapters,
            batch=work.microbatch,
            sequence=work.sequence // parallel.cp,
            itemsize=work.itemsize,
            fused_norms=work.fused_norms,
            stream=how.stream,
            autocast=work.products is not None,
            nf4=how.nf4,
        )
        kept = bytes_on_rank(left_whole(beside, how.whole), parallel, keep_gathered=work.keep_gathered)
    bare = layer_bytes(kind, parallel, work, recompute="layers", whole=how.whole)
    tokens = work.microbatch * (work.sequence // parallel.cp)
    tp = parallel.tp if "attention" not in how.whole else 1
    twice = 2 * work.operand + 1  # of one score: before and after dropout, and a mask
    scores = 0
    if software.kernel == "scores":  # which need no logarithm of their sums beside them
        scores = tokens * (twice * work.sequence - _FP32) * kind.n_heads // tp
    elif software.kernel == "naive":
        scores = _naive(kind, work, tokens, tp)
    if how.context == "all_gather" and kind.latent is None:  # of keys and values attention has the other ranks' too
        others = work.sequence - work.sequence // parallel.cp
        row = 2 * kv_heads_on_rank(kind, tp) * kind.head_size * work.operand
        kept += work.microbatch * others * row
    spared = _spared(kind, work.operand) if software.fuses_swiglu else 0
    if not kind.gated_ffn and software.kind == "legacy":  # a GPT with dropout after each of its two blocks
        masks = Saved(name="masks", elements=2 * tokens * kind.hidden_size, itemsize=1, shared_by="sequence")
        kept += masks.on_rank(parallel)
    sizes = {"batch": work.microbatch, "sequence": work.sequence // parallel.cp, "itemsize": work.operand}
    results = kept_results(kind, **sizes, keep="matmuls")
    if how.adapters is not None:
        results += adapter_results(kind, how.adapters, **sizes)
    products = bytes_on_rank(left_whole(results, how.whole), parallel)
    return kept + scores - tokens * spared // parallel.tp, bare, scores, products


def _spared(kind: ModelConfig, operand: int) -> int:
    """Bytes of a token that fused kernels make again: silu(gate), and what comes out of experts times its weight."""
    k = kind.experts_per_token
    inner = kind.gated_ffn * (k * kind.ffn_size + kind.shared_ffn_size)
    return operand * (inner + (k * kind.hidden_size if kind.n_experts > 1 else 0))


def _naive(kind: ModelConfig, work: Work, tokens: int, tp: int) -> int:
    """What attention keeps more where it is written out: weights, which positions are later, a copy of keys and values
    for each head of queries; and less: the logarithm of each sum. A GPU's autocast computes the softmax in fp32, and
    keeps that beside what the product reads; a CPU's does not.
    """
    heads, kv = kind.n_heads // tp, kv_heads_on_rank(kind, tp)
    softmax = 0 if work.products is None else _FP32
    weights = tokens * work.sequence * heads * (work.operand + softmax)
    copies = 2 * tokens * (heads - kv) * kind.head_size * work.operand
    return weights + work.sequence**2 + copies - _FP32 * tokens * heads


@cache
def _head(model: ModelConfig, parallel: ParallelConfig, how: _How, logit_bytes: int) -> int:
    """Last norm, head and loss, of whose logits the loss makes so many bytes each."""
    work = how.work
    sizes = {"batch": work.microbatch, "sequence": work.sequence // parallel.cp, "itemsize": work.itemsize}
    found = chunked_head_activations(model, **sizes, pieces=how.loss_pieces, fused_norms=work.fused_norms)
    if how.adapters is not None:
        found = frozen_ends(found, pieces=how.loss_pieces)
    if work.products is not None:
        found = head_under_autocast(found, model)
    kept = [replace(x, itemsize=logit_bytes) if x.name == "log-probabilities" else x for x in found]
    return bytes_on_rank(left_whole(kept, how.whole), parallel, keep_gathered=work.keep_gathered)


def layer_bytes(
    model: ModelConfig,
    parallel: ParallelConfig,
    work: Work,
    *,
    recompute: Recompute = "none",
    whole: Set[Piece] = CUT_IN_ALL,
) -> int:
    """Bytes that one layer keeps of one microbatch on one GPU, before what its software spares."""
    sequence = work.sequence // parallel.cp
    if recompute == "layers":
        kept = checkpointed_activations(model, batch=work.microbatch, sequence=sequence, itemsize=work.itemsize)
        return bytes_on_rank(kept, parallel)
    sizes = {"batch": work.microbatch, "sequence": sequence, "itemsize": work.itemsize}
    rows = layer_activations if is_counted(model) else expert_layer_activations
    kept = rows(model, **sizes, fused_norms=work.fused_norms)
    if work.products is not None:
        kept = under_autocast(kept, model)
    return bytes_on_rank(left_whole(kept, whole), parallel, keep_gathered=work.keep_gathered)
