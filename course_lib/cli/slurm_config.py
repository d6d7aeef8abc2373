"""What a job for Slurm is asked to be: what it takes of a cluster, and a training run that fits into it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib import presets
from course_lib.cli import settings, train_checks, train_run
from course_lib.cli.commands import CLUSTER, JOB, SLURM
from course_lib.cli.compose import parse_overrides, refuse
from course_lib.cli.train_config import TrainRun, read_train
from course_lib.cli.train_settings import TRAIN
from course_lib.split import divisors

COMMAND = "slurm"
OPTIONS = settings.defaults([CLUSTER])
_PATTERNS = {
    "time": (r"(\d+-)?\d?\d:\d\d:\d\d", "write it as time=04:00:00 or time=1-12:00:00"),
    "mem": (r"\d+[KMGT]?", "write it as mem=360G"),
    "partition": (r"[\w.-]+", "write the name that sinfo shows"),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job, checked."""

    name: str
    values: Mapping[str, Any]  # of OPTIONS
    run: TrainRun
    overrides: tuple[str, ...]  # that it was asked for with


def read_job(overrides: Sequence[str]) -> Job:
    """The job that name=value overrides ask for, those of a training run among them.

    Raises: ValueError for an unknown name or an illegal value, for ranks that are not the nodes' GPUs, for ranks along
        tp on several nodes, and for a run that could not start.
    """
    keys = settings.names((*SLURM, *TRAIN))
    parsed = parse_overrides(COMMAND, "a job", overrides, keys=keys, groups=("model", JOB.name))
    asked = {override.key_or_group: override for override in parsed}
    name = str(asked[JOB.name].value()) if JOB.name in asked else "train"
    preset = presets.read("job", name) if JOB.name in asked else {}
    values = {key: asked[key].value() if key in asked else preset.get(key, x) for key, x in OPTIONS.items()}
    _check(values)
    train = {key: f"{key}={settings.typed(value)}" for key, value in preset.get("train", {}).items()}
    train |= {key: str(x.input_line) for key, x in asked.items() if key not in (JOB.name, *OPTIONS)}
    train.setdefault("out", f"out={name}")
    run = read_train([*train.values()], lambda ranks: _check_ranks(ranks, values))
    _check_nodes(run, values)
    train_checks.check_shape(run)
    train_checks.check_weights(run)
    train_run.make_batches(run)
    return Job(name=name, values=values, run=run, overrides=tuple(overrides))


def _check(values: Mapping[str, Any]) -> None:
    """Each value as `sbatch` takes it."""
    settings.check_kinds(COMMAND, [CLUSTER], values)
    for name, (pattern, way_out) in _PATTERNS.items():
        if values[name] is not None and not re.fullmatch(pattern, str(values[name])):
            refuse(COMMAND, f"{name}={values[name]}", f"sbatch takes no such {name}", way_out)


def _check_ranks(ranks: int, values: Mapping[str, Any]) -> None:
    """One rank for each GPU."""
    nodes, per_node = values["nodes"], values["gpus_per_node"]
    if ranks != nodes * per_node:
        asked, rule = f"nodes={nodes} x gpus_per_node={per_node}", f"a rank has a GPU, and dp x pp x cp x tp is {ranks}"
        refuse(COMMAND, asked, rule, f"give degrees whose product is {nodes * per_node}, or other nodes")


def _check_nodes(run: TrainRun, values: Mapping[str, Any]) -> None:
    """Ranks along tp are neighbours; they talk in every layer, and between nodes that is slow."""
    tp, per_node = run.parallel.tp, values["gpus_per_node"]
    if per_node % tp:
        choices = divisors(per_node)
        rule = "ranks that share matrices talk in every layer, so one node has them all"
        refuse(COMMAND, f"tp={tp} on nodes of {per_node} GPUs", rule, f"choose tp in {choices}")
