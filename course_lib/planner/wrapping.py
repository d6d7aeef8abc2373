"""The run book's table: each wrapping policy under each sharding strategy, in memory, messages and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.config import ModelConfig
from course_lib.costs.comm.sharding import sharding_rows, sharding_step
from course_lib.costs.model.step_memory import NumberBytes, UnitActivations, peak, step_memory
from course_lib.costs.model.strategies import DataParallel, shards_of
from course_lib.costs.model.units import UnitShapes, decoder_units
from course_lib.costs.sweep.assembly import BESIDE_BYTES, FRAGMENTS
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.job import RECOMPUTE, Job
from course_lib.hardware import wires
from course_lib.sim.constants import rates_for
from course_lib.sim.policies import Policies
from course_lib.sim.simulate import step_times

_STRATEGIES: tuple[DataParallel, ...] = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD")
_SIZE_BASED = 100_000_000  # parameters that make a unit, where PyTorch's policy is given no number
_FP32, _NOTHING = 4, 10**18  # a size that no module has: then all of the model is the root's


@dataclass(frozen=True, kw_only=True)
class WrappingRow:
    """One way: what its fullest GPU holds, what a rank sends in a step, and what that may cost in time."""

    wrapping: str
    strategy: DataParallel
    units: int  # the root's among them
    calls: int  # collectives of a step
    sent_bytes: int
    memory_bytes: int
    fits: bool
    messages_s: float  # one after the other, with nothing beside them
    compute_s: float

    @property
    def step_s(self) -> tuple[float, float]:
        """The shortest and the longest a step can be: all that can be hidden is hidden, or nothing is."""
        return max(self.compute_s, self.messages_s), self.compute_s + self.messages_s


def olmo_wrappings(model: ModelConfig, group: int = 4) -> dict[str, tuple[UnitShapes, ...]]:
    """The units of each policy that OLMo has a name for, and of none; `group` blocks are one of by_block_group's."""
    return {
        "no_wrap": decoder_units(model, "size_based", _NOTHING),
        "by_block": decoder_units(model),
        "by_block_and_size": decoder_units(model, "by_block_and_size"),
        "by_block_group": decoder_units(model, "by_block_group", group),
        "size_based": decoder_units(model, "size_based", _SIZE_BASED),
    }


def wrapping_rows(
    job: Job,
    wrappings: Mapping[str, Sequence[UnitShapes]],
    strategies: Sequence[DataParallel] = _STRATEGIES,
    shards: int = 2,
) -> list[WrappingRow]:
    """All pairs, for a job that has data parallelism alone; `shards` are HYBRID_SHARD's.

    Weights, gradients and Adam's states are in fp32, weights are gathered in the format that is computed in, gradients
    are reduced in fp32: FSDP's "mixed". Activations, and what no formula has, are counted as `gpu_memory` does.
    Raises: ValueError as `shards_of`, and for a device without constants.
    """
    computing = _compute_s(job)
    return [
        _row(job, name, units, strategy, shards if strategy == "HYBRID_SHARD" else None, computing)
        for name, units in wrappings.items()
        for strategy in strategies
    ]


def _row(
    job: Job, name: str, units: Sequence[UnitShapes], strategy: DataParallel, shards: int | None, compute_s: float
) -> WrappingRow:
    world_size, node = job.parallel.dp, job.cluster.gpus_per_node
    rows = sharding_rows(
        units,
        strategy=strategy,
        world_size=world_size,
        shards=shards,
        itemsize=job.itemsize,
        reduce_itemsize=_FP32,
        microbatches=job.n_microbatches,
    )
    sent = sharding_step(rows, node_size=node)
    talking = shards_of(strategy, world_size, shards) if shards else world_size
    memory = _memory(job, units, strategy, shards)
    return WrappingRow(
        wrapping=name,
        strategy=strategy,
        units=len(units),
        calls=sum(row.times for row in rows),
        sent_bytes=max(sent.sent_bytes),
        memory_bytes=memory,
        fits=memory <= job.cluster.device.usable_bytes,
        messages_s=sent.time_s(wires(job.cluster).joining(min(talking, node))),
        compute_s=compute_s,
    )


def _memory(job: Job, units: Sequence[UnitShapes], strategy: DataParallel, shards: int | None) -> int:
    """What the units keep at their fullest moment, and on top all activations: no less than what is ever there."""
    none = UnitActivations(units=(0,) * (len(units) - 1), root=0, stream=0)
    moments = step_memory(
        units,
        none,
        strategy=strategy,
        world_size=job.parallel.dp,
        shards=shards,
        numbers=NumberBytes(computing=job.itemsize),
        accumulated=job.n_microbatches > 1,
    )
    passing = gpu_memory(job)
    tensors = peak(moments).total + passing.activations + passing.head
    return int(BESIDE_BYTES + (1 + FRAGMENTS) * tensors)


def _compute_s(job: Job) -> float:
    """A rank's own work of a step, with the constants of the device and the software."""
    policy = Policies(
        micro_batch=np.array([job.sequences]),
        n_microbatches=job.n_microbatches,
        sequence=job.sequence,
        recompute=RECOMPUTE.index(job.recompute),
    )
    rates = rates_for(job)
    times = step_times(job.model, rates, policy, job.adapters)
    return float(np.asarray(times.total).item())
