"""Memory of one GPU for arrays of policies: `gpu_memory`'s own lines, its formulas asked once for each combination."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np

from course_lib.config import ParallelConfig
from course_lib.costs.sweep.assembly import CATEGORIES, GpuMemory, Pieces, Spread, assembled, fullest
from course_lib.costs.sweep.gpu_memory import stage_pieces
from course_lib.costs.sweep.job import Job
from course_lib.sim.policies import CHUNK, Policies

_PIECES = tuple(field.name for field in fields(Pieces))
_SHAPE = ("tp", "pp", "ep", "etp", "micro_batch", "sequence", "cp", "sequence_parallel")


def memory_of(job: Job, policies: Policies) -> GpuMemory:
    """`gpu_memory` of the job under each policy, its fields of shape (n,): of a pipeline's fullest stage.

    Of the job the model and the assumptions count; how it is spread and cut up says a policy.
    Raises: ValueError if a policy does not divide the model.
    """
    parts = [_of_chunk(job, chunk) for chunk in policies.pieces(CHUNK)]
    return GpuMemory(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in CATEGORIES})


def _of_chunk(job: Job, p: Policies) -> GpuMemory:
    """Of the first, the second and the last stage the one with most."""
    pp = np.asarray(p.pp)
    found = [_of_stage(job, p, stage) for stage in (0 * pp, np.minimum(1, pp - 1), pp - 1)]
    memory = fullest(found)
    return GpuMemory(**{name: np.broadcast_to(getattr(memory, name), (len(p),)) for name in CATEGORIES})


def _of_stage(job: Job, p: Policies, stage: Any) -> GpuMemory:
    spread = Spread(
        pp=np.asarray(p.pp),
        zero_stage=np.asarray(p.zero_stage),
        shards=np.asarray(p.shards),
        expert_shards=np.floor(p.expert_shards),
        recompute=np.asarray(p.recompute),
        schedule=np.asarray(p.schedule),
        stages_per_rank=np.asarray(p.stages_per_rank),
        n_microbatches=np.asarray(p.n_microbatches),
        offload=np.asarray(p.offload, dtype=bool) | (job.offload == "optimizer"),
    )
    keys, where = _combinations([*(getattr(p, name) for name in _SHAPE), stage])
    rows = np.array([_pieces(job, *key) for key in keys], dtype=np.float64)
    return assembled(job, spread, Pieces(**dict(zip(_PIECES, rows[where].T, strict=True))), stage)


@cache
def _pieces(
    job: Job, tp: int, pp: int, ep: int, etp: int, micro_batch: int, sequence: int, cp: int, shared: int, stage: int
) -> tuple[float, ...]:
    """What the formulas say of one stage under one combination."""
    parallel = ParallelConfig(dp=ep, ep=ep, tp=tp, pp=pp, cp=cp, sequence_parallel=bool(shared))
    one = replace(job, sequence=sequence, microbatch=micro_batch)
    found = stage_pieces(one, parallel, stage, etp=etp if job.model.n_experts > 1 else None)
    return tuple(getattr(found, name) for name in _PIECES)


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
