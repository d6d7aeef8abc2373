"""A model's layers and a cluster's kinds of GPU as one problem of stages: embedding and head are layers too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.costs.model.activations import HALF, bytes_on_rank, head_activations
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.flops import forward_flops
from course_lib.costs.model.parameters import layer_parameters, outer_weights
from course_lib.costs.sweep.gpu_memory import Work, layer_bytes
from course_lib.hardware import load_device
from course_lib.planner.assignment import Layer, StageGpu, StageProblem

_REACHED = 0.5  # of a GPU's dense peak: usual, and the same share for all kinds


def stage_problem(
    model: ModelConfig,
    gpus: Mapping[str, int],
    *,
    sequence: int,
    micro_batch: int = 1,
    n_microbatches: int = 8,
    tp: int = 1,
    convention: str = "megatron",
) -> StageProblem:
    """Which layers of `model` on which stage; `gpus` says by device how many stages are of it, as {"h100_sxm_80": 4}.

    Numbers are those of one of a stage's `tp` GPUs: operations, bytes of weights and states, activations.
    Raises: ValueError for heads or widths that tp does not divide, an unknown device, or more stages than layers.
    """
    parallel = ParallelConfig(tp=tp, sequence_parallel=tp > 1)
    parallel.check(model, sequence=sequence)
    work = Work(sequence=sequence, microbatch=micro_batch)
    tokens, state = micro_batch * sequence, find_convention(convention).bytes_per_parameter
    flops = forward_flops(model, sequence=sequence, causal=True)
    middle = [
        Layer(
            name=f"layer {number}",
            flops=3 * tokens * (_matrices(kind, sequence) + flops.scores / model.n_layers) / tp,
            state_bytes=state * layer_parameters(kind) / tp,
            kept_bytes=layer_bytes(kind, parallel, work),
        )
        for number, kind in enumerate(kind for count, kind in model.layer_kinds for _ in range(count))
    ]
    tables = {weight.name: weight.parameters for weight in outer_weights(model)}
    ends = head_activations(model, batch=micro_batch, sequence=sequence, itemsize=HALF, fused_norms=True)
    embedding = Layer(name="embedding", flops=0.0, state_bytes=state * tables["embedding"] / tp)
    head = Layer(
        name="head",
        flops=3 * tokens * flops.head / tp,
        state_bytes=state * tables.get("head", tables["embedding"]) / tp,  # a tied head is a copy on the last stage
        kept_bytes=bytes_on_rank(ends, parallel),
    )
    kinds = tuple(_gpu(*one) for one in gpus.items())
    return StageProblem(layers=(embedding, *middle, head), gpus=kinds, n_microbatches=n_microbatches)


def _gpu(name: str, n_stages: int) -> StageGpu:
    """A device by its preset, at the share of its peak that it reaches."""
    device = load_device(name)
    reached = _REACHED * device.peak_flops_per_s("bf16")
    return StageGpu(name=device.name, flops_per_s=reached, n_stages=n_stages, room_bytes=float(device.memory_bytes()))


def _matrices(kind: ModelConfig, sequence: int) -> float:
    """Operations of one token in one layer's matrices."""
    alone = replace(kind, n_layers=1, window=None, windowed_layers=0)
    return forward_flops(alone, sequence=sequence).matrices
