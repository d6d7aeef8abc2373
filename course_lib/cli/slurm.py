"""`python -m course_lib slurm`: print the sbatch file that trains on a cluster, from the configuration of `train`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from course_lib.cli import train_config
from course_lib.cli.slurm_config import COMMAND, OPTIONS, Job, read_job

_FIRST_PORT, _PORTS = 10_000, 20_000  # below them are the system's, above those that Linux lends to connections


def slurm_command(overrides: Sequence[str]) -> int:
    """Print the script that the overrides ask for.

    Raises: ValueError for what could not start, or not as asked.
    """
    print(_script(read_job(overrides)), end="")
    return 0


def _script(job: Job) -> str:
    """One task on each node starts the node's ranks; they find each other at the first node."""
    return "\n".join([*_header(job), *_options(job), "", *_meeting(), "", *_launch(job), ""])


def _header(job: Job) -> Iterator[str]:
    run, nodes, gpus = job.run, job.values["nodes"], job.values["gpus_per_node"]
    where = f"{nodes} node{'s' * (nodes > 1)} of {gpus} GPU{'s' * (gpus > 1)}"
    yield "#!/bin/bash"
    yield f"# {run.model.name} on {where}: {run.parallel.in_words or 'one rank'}, engine={run.engine}."
    yield f"# Made by: {shlex.join(['python', '-m', 'course_lib', COMMAND, *job.overrides])}"
    yield "# Activate the course's environment, which comes along, and submit from a folder that all nodes see:"
    yield f"#   sbatch {job.name}.sh    (with --account=… where your cluster asks for one)"


def _options(job: Job) -> Iterator[str]:
    yield f"#SBATCH --job-name={job.name}"
    for name in OPTIONS:
        if job.values[name] is not None:
            yield f"#SBATCH --{name.replace('_', '-')}={job.values[name]}"
    yield "#SBATCH --ntasks-per-node=1    # one torchrun, which starts a rank for each GPU"
    yield "#SBATCH --requeue              # after a node's failure; the run goes on from its last checkpoint"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --output=%x-%j.out"


def _meeting() -> Iterator[str]:
    yield "set -euo pipefail"
    yield 'first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield f"port=$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))"


def _launch(job: Job) -> Iterator[str]:
    """The command over several lines."""
    cpus = [] if job.values["cpus_per_task"] is None else ['--cpus-per-task="$SLURM_CPUS_PER_TASK"']
    words = [
        " ".join(["srun", "--kill-on-bad-exit=1", *cpus, "torchrun"]),
        f'--nnodes="$SLURM_NNODES" --nproc-per-node={job.values["gpus_per_node"]}',
        '--rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$first_node:$port"',
        f"-m course_lib {train_config.COMMAND}",
        *map(shlex.quote, job.run.overrides),
    ]
    yield from (f"{'    ' * (number > 0)}{word} \\" for number, word in enumerate(words[:-1]))
    yield f"    {words[-1]}"
