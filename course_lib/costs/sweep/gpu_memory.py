"""Memory of one GPU in training: states, activations, and what is gathered for a moment."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.config.parallel import CUT_IN_ALL, Piece
from course_lib.costs.comm.pipeline import pipeline_in_flight
from course_lib.costs.model.activations import (
    HALF,
    Recompute,
    attention_activations,
    bytes_on_rank,
    checkpointed_activations,
    head_activations,
    is_counted,
    layer_activations,
    left_whole,
)
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.states import layers_of_stage, rank_parameters
from course_lib.costs.published.activations import korthikanti_layer_bytes
from course_lib.costs.published.explorer import explorer_block_bytes
from course_lib.errors import four_parts


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Bytes of one GPU; not all are alive at the same instant, so that the peak is at most `total`."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int  # with ZeRO-3: the weights of the largest unit, whole
    activations: int  # of the layers
    head: int  # of last norm, head and loss: mostly logits

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations + self.head


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one GPU computes at a time, and what it keeps of it; attention keeps no scores."""

    sequence: int  # S, before context parallelism
    microbatch: int  # sequences
    n_microbatches: int = 1  # in one step of one replica
    itemsize: int = HALF  # bytes of a number that is computed with
    recompute: Recompute = "none"
    fused_norms: bool = True  # PyTorch's RMSNorm on a GPU; False: on a CPU, and written out in Python
    keep_gathered: bool = False  # sequence parallelism by DTensor; False: gathered again in backward, as in Megatron

    def __post_init__(self) -> None:
        for name in ("sequence", "microbatch", "n_microbatches", "itemsize"):
            if getattr(self, name) < 1:
                values, rule = f"{name}={getattr(self, name)}", f"{name} is positive"
                raise ValueError(four_parts("Work", values, rule, f"give {name} >= 1"))
        if self.recompute not in ("none", "full"):
            values, rule = f"recompute={self.recompute!r}", "not a known way"
            raise ValueError(four_parts("Work", values, rule, "choose 'none' or 'full'"))


def gpu_memory(
    model: ModelConfig,
    parallel: ParallelConfig,
    work: Work,
    convention: Convention,
    *,
    stage: int = 0,
    whole: Set[Piece] = CUT_IN_ALL,
) -> GpuMemory:
    """Memory of a GPU of one pipeline stage, under the schedule 1F1B.

    Activations are exact for a gated block without experts, the Explorer's for experts, and for all others
    Korthikanti's without scores, which are a GPT's; the published ones count 16 bits, and scale with the numbers. What
    is `whole`, every rank along tp has all of, and computes.
    Raises: ValueError if model, sequence or stage do not fit the degrees.
    """
    parallel.check(model, sequence=work.sequence, whole=whole)
    held = rank_parameters(model, parallel, stage=stage, whole=whole)
    states = held.state_bytes(parallel, convention)
    last = stage == parallel.pp - 1
    return GpuMemory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        gathered=work.itemsize * held.largest_unit if parallel.zero_stage == 3 else 0,
        activations=_stage_activations(model, parallel, work, stage, whole),
        head=_head_bytes(model, parallel, work, whole) if last else 0,
    )


def layer_bytes(
    model: ModelConfig,
    parallel: ParallelConfig,
    work: Work,
    *,
    recompute: Recompute = "none",
    whole: Set[Piece] = CUT_IN_ALL,
) -> int:
    """Bytes that one layer keeps of one microbatch on one GPU."""
    sequence = work.sequence // parallel.cp
    if recompute == "full":
        kept = checkpointed_activations(model, batch=work.microbatch, sequence=sequence, itemsize=work.itemsize)
        return bytes_on_rank(kept, parallel)
    sizes = {"batch": work.microbatch, "sequence": sequence, "itemsize": work.itemsize}
    if is_counted(model):
        kept = layer_activations(model, **sizes, fused_norms=work.fused_norms)
        return bytes_on_rank(left_whole(kept, whole), parallel, keep_gathered=work.keep_gathered)
    if model.n_experts > 1:
        kept = attention_activations(model, **sizes, fused_norms=work.fused_norms)
        cut = replace(parallel, tp=1) if whole & {"experts", "shared_ffn"} else parallel
        experts = explorer_block_bytes(model, cut, sequence=work.sequence, microbatch=work.microbatch)
        held = bytes_on_rank(left_whole(kept, whole), parallel, keep_gathered=work.keep_gathered)
        return held + int(experts) * work.itemsize // HALF
    some_whole = bool(whole & {"attention", "ffn"})
    return int(
        korthikanti_layer_bytes(
            model,
            batch=work.microbatch,
            sequence=sequence,
            tp=1 if some_whole else parallel.tp,
            sequence_parallel=parallel.sequence_parallel and not some_whole,
            recompute="selective",
        )
        * work.itemsize
        / HALF
    )


def _stage_activations(model: ModelConfig, parallel: ParallelConfig, work: Work, stage: int, whole: Set[Piece]) -> int:
    """Layers of all microbatches in flight; under full recompute also the one layer that backward is in."""
    kinds = layers_of_stage(model, parallel.pp, stage)
    kept = sum(
        count * layer_bytes(kind, parallel, work, recompute=work.recompute, whole=whole) for count, kind in kinds
    )
    kept *= pipeline_in_flight("1f1b", n_ranks=parallel.pp, rank=stage, n_microbatches=work.n_microbatches)
    if work.recompute == "none":
        return kept
    largest = max(layer_bytes(kind, parallel, work, whole=whole) for _, kind in kinds)
    return kept + largest - layer_bytes(model, parallel, work, recompute="full")  # its first norm has what it kept


def _head_bytes(model: ModelConfig, parallel: ParallelConfig, work: Work, whole: Set[Piece]) -> int:
    sequence = work.sequence // parallel.cp
    kept = head_activations(
        model, batch=work.microbatch, sequence=sequence, itemsize=work.itemsize, fused_norms=work.fused_norms
    )
    return bytes_on_rank(left_whole(kept, whole), parallel, keep_gathered=work.keep_gathered)
