"""The sweep of the memory explorer: one row for every legal way to spread a model over GPUs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from io import StringIO
from math import inf
from typing import Any

from course_lib.config import ModelConfig
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.published.explorer import STRATEGIES, explorer_memory
from course_lib.costs.sweep.assumptions import job_fields
from course_lib.costs.sweep.gpu_memory import gpu_memory
from course_lib.costs.sweep.grid import Candidate, Grid, candidates
from course_lib.costs.sweep.job import Job
from course_lib.errors import four_parts
from course_lib.hardware import load_device
from course_lib.units import GiB

EXPLORER = "explorer-2024"  # the convention whose rows are those of the LLM Parallelism Explorer


@dataclass(frozen=True, kw_only=True)
class ExploreRow:
    """One row of the table, with the Explorer's names of the columns.

    Units: the columns that end in `_gb` are in `memory_unit`, because the Explorer's are.
    """

    name: str
    ngpus: int
    TP: int
    PP: int
    EP: int
    CP: int
    DP: int
    sub_seq_length: int
    micro_batch_size: int
    num_of_micro_batches: float
    pipeline_parallelism_bubble_rate: float  # idle over ideal time, (pp - 1)/m
    data_parallel_sharding_strategy: str
    total_memory_gb: float
    model_and_optimizer_states_memory_gb: float
    activations_memory_gb: float
    token_imbalance_hypothesis: float
    memory_unit: str
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What is explored besides the degrees; what is assumed of the code is as in `Job`."""

    sequence: int = 8192
    global_batch: int = 4096  # sequences
    convention: str = "megatron"  # one of CONVENTIONS, or EXPLORER
    token_imbalance: float = 1.0
    recompute: str = Job.recompute
    group: int = Job.group
    assumed: Mapping[str, Any] = field(default_factory=dict)  # of the code, in the words of `job_fields`
    device_bytes: int = load_device("h100_sxm_80").usable_bytes  # of one GPU: what fits is decided by it

    def __post_init__(self) -> None:
        if self.convention != EXPLORER:
            find_convention(self.convention)
        if not 1 <= self.token_imbalance < inf:
            values, rule = f"token_imbalance={self.token_imbalance}", "the busiest expert has at least its share"
            raise ValueError(four_parts("sweep", values, rule, "give token_imbalance >= 1"))


def explore(model: ModelConfig, exploration: Exploration, grid: Grid | None = None) -> list[ExploreRow]:
    """All legal combinations of a grid (the Explorer's, if none is given) with their memory per GPU.

    Raises: ValueError if no combination is legal, or the model has no positions for the sequence.
    """
    legal = candidates(
        model,
        grid or Grid(),
        sequence=exploration.sequence,
        global_batch=exploration.global_batch,
        whole_heads=exploration.convention != EXPLORER,
    )
    return [_row(model, candidate, exploration) for candidate in legal]


def as_csv(rows: Iterable[ExploreRow]) -> str:
    """The table as text, memory to two decimals as the Explorer's blog prints it."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(ExploreRow)]
    writer.writerow(names)
    for row in rows:
        writer.writerow(
            f"{value:.2f}" if name.endswith("_gb") else value for name, value in zip(names, astuple(row), strict=True)
        )
    return text.getvalue()


def _row(model: ModelConfig, candidate: Candidate, exploration: Exploration) -> ExploreRow:
    parallel = candidate.parallel
    states, activations = _memory(model, candidate, exploration)
    return ExploreRow(
        name=model.name,
        ngpus=parallel.world_size,
        TP=parallel.tp,
        PP=parallel.pp,
        EP=parallel.ep,
        CP=parallel.cp,
        DP=parallel.dp,
        sub_seq_length=exploration.sequence // parallel.cp,
        micro_batch_size=candidate.microbatch,
        num_of_micro_batches=float(candidate.n_microbatches),
        pipeline_parallelism_bubble_rate=(parallel.pp - 1) / candidate.n_microbatches,
        data_parallel_sharding_strategy=STRATEGIES[parallel.zero_stage],
        total_memory_gb=(states + activations) / GiB,
        model_and_optimizer_states_memory_gb=states / GiB,
        activations_memory_gb=activations / GiB,
        token_imbalance_hypothesis=exploration.token_imbalance,
        memory_unit="GiB",
        fits=states + activations <= exploration.device_bytes,
    )


def _memory(model: ModelConfig, candidate: Candidate, exploration: Exploration) -> tuple[float, float]:
    """Bytes of states, and of all else, of one GPU; ours are those of the fullest pipeline stage."""
    if exploration.convention == EXPLORER:
        memory = explorer_memory(
            model,
            candidate.parallel,
            STRATEGIES[candidate.parallel.zero_stage],
            sequence=exploration.sequence,
            microbatch=candidate.microbatch,
            token_imbalance=exploration.token_imbalance,
        )
        return memory.states, memory.activations
    fullest = gpu_memory(job_of(model, candidate, exploration))
    states = fullest.weights + fullest.gradients + fullest.optimizer + fullest.gathered
    return states, fullest.total - states


def job_of(model: ModelConfig, candidate: Candidate, exploration: Exploration) -> Job:
    """The job that one row is of."""
    return Job(
        model=model,
        parallel=candidate.parallel,
        microbatch=candidate.microbatch,
        batch=candidate.microbatch * candidate.n_microbatches * candidate.parallel.dp,
        sequence=exploration.sequence,
        recompute=exploration.recompute,
        group=exploration.group,
        **job_fields({**exploration.assumed, "convention": exploration.convention}),
    )
