"""`python -m course_lib slurm`: print the sbatch file that trains on a cluster, from the configuration of `train`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from course_lib.cli import train_config, train_folder
from course_lib.cli.slurm_config import COMMAND, OPTIONS, Job, read_job

_NOTICE_S, _LEAVE_S = 120, 100  # a long step and a checkpoint fit in, and the ranks end before Slurm ends them
_RESTARTS = 3
FIRST_PORT, PORTS = 10_000, 20_000  # below them are the system's, above those that Linux lends to connections


def slurm_command(overrides: Sequence[str]) -> int:
    """Print the script that the overrides ask for.

    Raises: ValueError for what could not start, or not as asked.
    """
    print(_script(read_job(overrides)), end="")
    return 0


def _script(job: Job) -> str:
    """One task on each node starts the node's ranks; they find each other at the first node.

    A run without a folder has nothing to go on from, so it is not told that its time is up.
    """
    parts = [[*_header(job), *_options(job)], _meeting(), _launch(job), _ending(job)]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


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
    if job.run.out is not None:
        yield f"#SBATCH --signal=USR1@{_NOTICE_S}      # to torchrun, so many seconds before the limit"
    yield "#SBATCH --requeue              # after a node's failure; the run goes on from its last checkpoint"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --output=%x-%j.out"


def _meeting() -> Iterator[str]:
    yield "set -euo pipefail"
    yield 'first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield f"port=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"


def _launch(job: Job) -> Iterator[str]:
    """The command over several lines; its status is for the last line of the script."""
    yield f"# If a rank dies, torchrun starts all again, {_RESTARTS} times at most; it hands signals on to them."
    yield "status=0"
    cpus = [] if job.values["cpus_per_task"] is None else ['--cpus-per-task="$SLURM_CPUS_PER_TASK"']
    words = [
        " ".join(["srun", "--kill-on-bad-exit=1", *cpus, "torchrun"]),
        f'--nnodes="$SLURM_NNODES" --nproc-per-node={job.values["gpus_per_node"]}',
        '--rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$first_node:$port"',
        f"--max-restarts={_RESTARTS} --signals-to-handle=SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout={_LEAVE_S}",
        f"-m course_lib {train_config.COMMAND}",
        *map(shlex.quote, job.run.overrides),
    ]
    yield from (f"{'    ' * (number > 0)}{word} \\" for number, word in enumerate(words[:-1]))
    yield f"    {words[-1]} || status=$?"


def _ending(job: Job) -> Iterator[str]:
    """Into the queue again, if nothing but time was missing."""
    if job.run.out is not None:
        file = shlex.quote(f"{job.run.values['out']}/{train_folder.TIME_IS_UP}")
        yield "# torchrun ends with 1 for a rank that failed and for a time that is up. Only then is this file there."
        yield f"if [ -e {file} ]; then"
        yield f"    rm {file}"
        yield '    scontrol requeue "$SLURM_JOB_ID"  # which ends this script; the run goes on from its checkpoint'
        yield "fi"
    yield 'exit "$status"'
