"""Model, cluster, policies: how long a step takes and why, how much memory it needs, what it is bound by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from course_lib.config import ModelConfig
from course_lib.costs.model.adapters import Adapters
from course_lib.costs.model.flops import ForwardFlops, forward_flops
from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.costs.sweep.job import Job
from course_lib.sim.constants import rates_for
from course_lib.sim.machine import machine_of
from course_lib.sim.memory import memory_of
from course_lib.sim.policies import CHUNK, Policies
from course_lib.sim.rates import Rates
from course_lib.sim.shape import shape_of
from course_lib.sim.step import AGAIN, CAUSE_NAMES, CAUSES, StepTime, step_time


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the simulator says of n policies; every field has the shape (n,).

    Utilisation counts the model's operations as `costs.training_flops` does: three forward passes, all scores of
    attention, nothing recomputed (PaLM's convention), over the dense bf16 peak, also where FP8 computes. The
    hardware's counts what is recomputed too.
    """

    time: StepTime
    step_s: npt.NDArray[np.float64]
    tokens_per_s_per_gpu: npt.NDArray[np.float64]
    mfu: npt.NDArray[np.float64]
    hfu: npt.NDArray[np.float64]
    memory: GpuMemory  # of each policy's fullest GPU
    fits: npt.NDArray[np.bool_]


def simulate(job: Job, policies: Policies) -> Prediction:
    """Predict every policy for a job, of which model, cluster and assumptions count; memory is the fullest GPU's.

    Cost: 250 array operations and a sum for each policy; about a million a second on one core.
    Raises: ValueError for a device without constants, or a policy that does not divide the model.
    """
    rates = rates_for(job)
    times = step_times(job.model, rates, policies, job.adapters)
    memory = memory_of(job, policies)
    total = np.asarray(times.total)
    per_gpu, mfu, hfu = utilisation(job.model, policies, total, rates, frozen=job.adapters is not None)
    return Prediction(
        time=times,
        step_s=total,
        tokens_per_s_per_gpu=per_gpu,
        mfu=mfu,
        hfu=hfu,
        memory=memory,
        fits=memory.total <= machine_of(job.cluster).memory_bytes,
    )


def step_times(model: ModelConfig, rates: Rates, policies: Policies, adapters: Adapters | None = None) -> StepTime:
    """The closed form over all policies, a cacheful at a time."""
    shape, pieces = shape_of(model, adapters), policies.pieces(CHUNK, np.float64)
    parts = [step_time(shape, rates, piece) for piece in pieces]
    return StepTime(**{cause: _joined(parts, cause, pieces) for cause in CAUSES})


def _joined(parts: Sequence[StepTime], cause: str, pieces: Sequence[Policies]) -> npt.NDArray[np.float64]:
    each = zip(parts, pieces, strict=True)
    return np.concatenate([np.broadcast_to(np.float64(getattr(part, cause)), (len(piece),)) for part, piece in each])


def bottleneck_in_words(times: StepTime, index: int) -> str:
    """What one policy spends most on beyond matrix products, if that is a quarter of theirs or more; else these."""
    seconds = {cause: float(getattr(times, cause)[index]) for cause in CAUSES}
    seconds["matmul"] /= 4
    return CAUSE_NAMES[max(seconds, key=lambda cause: seconds[cause])]


def utilisation(
    model: ModelConfig, policies: Policies, step_s: Any, rates: Rates, *, frozen: bool = False
) -> tuple[Any, Any, Any]:
    """Tokens/s of a GPU, and the shares of the dense bf16 peak without and with what is recomputed.

    Of `frozen` weights there are two passes, and products with adapters are not counted.
    """
    per_gpu = policies.global_batch * policies.sequence / policies.world_size / step_s
    lengths, where = np.unique(np.asarray(policies.sequence, dtype=int), return_inverse=True)
    forward = [forward_flops(model, sequence=length) for length in lengths.tolist()]
    plain, matrices, scores = np.array([(_trained(one, frozen), one.matrices, one.scores) for one in forward])[where].T
    again = AGAIN[np.asarray(policies.recompute, dtype=int)]
    per_s = per_gpu / rates.peak_flops_per_s
    return per_gpu, per_s * plain, per_s * (plain + again[..., 0] * matrices + again[..., 1] * scores)


def _trained(forward: ForwardFlops, frozen: bool) -> float:
    """Operations of one token's forward and backward."""
    return 3 * forward.scores + (2 if frozen else 3) * (forward.matrices + forward.head)
