"""`python -m course_lib sweep`: every legal way to spread a model over GPUs, and its memory per GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from course_lib.cli.assumed import assumed_line
from course_lib.cli.sweep_config import SweepConfig, read_sweep
from course_lib.config import ParallelConfig
from course_lib.costs.sweep.explore import EXPLORER, ExploreRow, as_csv, explore, job_of
from course_lib.costs.sweep.grid import Candidate
from course_lib.costs.sweep.job import Job
from course_lib.errors import four_parts
from course_lib.units import GiB

SHOWN = 10
COLUMNS = {  # heading -> its format, in the order of `_cells`
    "GPUs": ">6",
    "TP": ">3",
    "PP": ">3",
    "EP": ">3",
    "CP": ">3",
    "DP": ">6",
    "microbatch": ">10",
    "sharding": "<26",
    "bubble": ">7",
    "states": ">10",
    "activations": ">11",
    "total": ">10",
    "fits": "<4",
}


def sweep(overrides: Sequence[str]) -> int:
    """Explore as the overrides say; print the table or write it, its configuration beside it.

    Raises: ValueError for an illegal value, if nothing is legal, or if the files cannot be written.
    """
    config = read_sweep(overrides)
    rows = explore(config.model, config.exploration, config.grid)
    explored = config.exploration
    print(
        f"{config.model.name}: convention {config.values['convention']}, "
        f"sequences of {explored.sequence} tokens, {explored.global_batch} of them in a global batch"
    )
    if explored.convention != EXPLORER:
        print(assumed_line(_one_job(config), config.device, config.given))
    if config.out is None:
        print(table(rows))
    print(_summary(config, rows))
    if config.out is not None:
        print(f"written: {' and '.join(_write(config, rows))}")
    return 0


def _one_job(config: SweepConfig) -> Job:
    """One with the assumptions of all."""
    parallel = ParallelConfig(tp=2, sequence_parallel=config.grid.sequence_parallel)
    return job_of(config.model, Candidate(parallel, 1, 1), config.exploration)


def table(rows: Sequence[ExploreRow]) -> str:
    """The first rows as text: what fits before what does not, on few GPUs before many, little memory before much."""
    best = sorted(rows, key=lambda row: (not row.fits, row.ngpus if row.fits else 0, row.total_memory_gb))[:SHOWN]
    order = "fewest GPUs first" if best[0].fits else "least memory first"
    return "\n".join([f"GiB per GPU; {order}", _line(COLUMNS), *(_line(_cells(row)) for row in best)])


def _summary(config: SweepConfig, rows: Sequence[ExploreRow]) -> str:
    """How many combinations there are, how many are legal, how many fit."""
    tried = sum(1 for _ in config.grid.combinations(config.model.n_experts))
    memory = f"{config.device.usable_bytes / GiB:.2f} GiB usable"
    fitting = sum(row.fits for row in rows)
    return f"{len(rows):,} of {tried:,} combinations are legal; {fitting:,} fit into {config.device.name}, {memory}"


def _write(config: SweepConfig, rows: Iterable[ExploreRow]) -> tuple[str, str]:
    """Write table and configuration; return the names of the files.

    Raises: ValueError if the system refuses.
    """
    assert config.out is not None
    beside = config.out.with_suffix(".yaml")
    try:
        config.out.write_text(as_csv(rows), encoding="utf-8")
        beside.write_text(config.as_yaml(), encoding="utf-8")
    except OSError as error:
        rule = f"cannot be written: {error.strerror}"
        raise ValueError(four_parts("sweep", f"out={str(config.out)!r}", rule, "name another file")) from None
    return str(config.out), str(beside)


def _cells(row: ExploreRow) -> list[str]:
    return [
        *map(str, (row.ngpus, row.TP, row.PP, row.EP, row.CP, row.DP, row.micro_batch_size)),
        row.data_parallel_sharding_strategy,
        f"{row.pipeline_parallelism_bubble_rate:.4f}",
        f"{row.model_and_optimizer_states_memory_gb:.2f}",
        f"{row.activations_memory_gb:.2f}",
        f"{row.total_memory_gb:.2f}",
        "yes" if row.fits else "no",
    ]


def _line(cells: Iterable[str]) -> str:
    return "  ".join(format(cell, spec) for cell, spec in zip(cells, COLUMNS.values(), strict=True)).rstrip()
