"""What a long sequence costs in memory, and what is left of it when ranks share the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.config import ParallelConfig, load_model
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.sweep.gpu_memory import Work, tensor_memory
from course_lib.errors import four_parts
from course_lib.hardware import load_device
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.memory.gpu import plot_gpu_memory

_CONVENTION = "zero"


def plot_context_memory(
    model: str = "llama3_1_405b",
    sequence: int = 131_072,
    *,
    tp: int = 8,
    pp: int = 14,
    shards: int = 128,
    cps: Sequence[int] = (4, 16),
    device: str = "h100_sxm_80",
) -> Drawing:
    """The first stage's memory for one sequence: under tensor parallelism, with sequence parallelism, and with each cp.

    Weights, gradients and optimizer states are sharded over dp x cp = `shards` ranks in every bar (ZeRO-3), and the
    number of GPUs is the same, so that activations alone differ.
    Raises: ValueError for a cp that does not divide `shards` or the sequence, or more bars than a page holds.
    """
    uneven = [cp for cp in cps if cp < 1 or shards % cp]
    if uneven:
        rule, way_out = f"dp x cp is {shards} in every bar", f"choose divisors of {shards}"
        raise ValueError(four_parts("plot_context_memory", f"cp={uneven[0]}", rule, way_out))
    layouts = {f"tp {tp}": (1, False), f"tp {tp} with sequence parallelism": (1, True)}
    layouts |= {f"tp {tp} with sequence parallelism, and cp {cp}": (cp, True) for cp in cps}
    shape, convention = load_model(model), find_convention(_CONVENTION)
    work = Work(sequence=sequence, microbatch=1, n_microbatches=1, recompute="none")
    rows = {}
    for name, (cp, cut) in layouts.items():
        parallel = ParallelConfig(tp=tp, pp=pp, cp=cp, dp=shards // cp, zero_stage=3, sequence_parallel=cut)
        rows[name] = tensor_memory(shape, parallel, work, convention, stage=0)
    return plot_gpu_memory(
        rows,
        load_device(device),
        title=f"{shape.name}: one sequence of {sequence:,} tokens",
        subtitle=f"stage 1 of {pp} on {tp * pp * shards:,} GPUs, dp × cp = {shards}, ZeRO-3, one micro-batch",
        unit="GB",
    )
