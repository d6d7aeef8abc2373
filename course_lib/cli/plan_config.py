"""What a plan is asked for: name=value overrides, composed by Hydra with the presets, then checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from course_lib import presets
from course_lib.cli import settings
from course_lib.cli.assumed import check_codes, of_code
from course_lib.cli.compose import compose_values, parse_overrides, path_given, refuse, require_whole
from course_lib.cli.model_given import model_folder, shape_given, without_folder
from course_lib.cli.plan_settings import AXES, PLAN, SEQUENCE, TOKENS
from course_lib.cli.recompute_words import read_recompute
from course_lib.config import ModelConfig
from course_lib.costs.sweep.assumptions import job_fields
from course_lib.hardware import parse_cluster
from course_lib.planner.space import Job, Space
from course_lib.sim.policies import RECOMPUTE

COMMAND = "plan"
_GROUPS: tuple[presets.Kind, ...] = ("model", "cluster")
OPTIONS = settings.defaults(PLAN)
ConfigStore.instance().store(name=COMMAND, node=settings.composed(PLAN))


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """One plan, checked."""

    job: Job
    space: Space
    given: frozenset[str]  # settings that were typed
    retime: int
    out: Path | None
    train: Path | None


def read_plan(overrides: Sequence[str]) -> PlanConfig:
    """The plan that name=value overrides ask for.

    Raises: ValueError for what Hydra cannot compose, an unknown name, or an illegal value.
    """
    parsed = parse_overrides(COMMAND, "a plan", overrides, keys=settings.names(PLAN), groups=_GROUPS)
    chosen = {override.key_or_group: str(override.value()) for override in parsed}
    for key in _GROUPS:
        if key not in chosen:
            way_out = f"give {key}=NAME, one of {', '.join(presets.names(key))}"
            refuse(COMMAND, f"no {key}", f"a plan is for one {key}", way_out)
    presets.read("cluster", chosen["cluster"])
    for override in parsed:
        if override.key_or_group.startswith("cluster.device."):
            way_out = f"choose cluster.device from {', '.join(presets.names('device'))}"
            refuse(COMMAND, str(override.input_line), "a cluster's device is one of the presets", way_out)
    folder = model_folder(COMMAND, chosen["model"], parsed)
    lines = [str(one.input_line) for one in parsed] if folder is None else without_folder(parsed)
    values = compose_values(COMMAND, lines, typed=overrides)
    return _checked(values, shape_given(folder, values["model"]), frozenset(chosen))


def _checked(values: dict[str, Any], model: ModelConfig, given: frozenset[str]) -> PlanConfig:
    """Each value of the right kind, then in its place."""
    if values["sequence"] is None:
        values["sequence"] = min(SEQUENCE, model.max_sequence or SEQUENCE)
    require_whole(COMMAND, "sequence", values["sequence"])
    if values["batch"] is None:
        values["batch"] = max(1, TOKENS // max(1, values["sequence"]))
    settings.check_kinds(COMMAND, PLAN, values)
    cluster = parse_cluster(values["cluster"])
    if values["retime"] < 0:
        refuse(COMMAND, f"retime={values['retime']}", "it is a number of policies", "give retime >= 0")
    check_codes(COMMAND, values, given)
    axes: dict[str, Any] = {axis: _axis(values[axis]) for axis in settings.names([AXES])}
    axes["recompute"], group = _recompute(axes["recompute"])
    job = Job(
        model=model,
        cluster=cluster,
        batch=values["batch"],
        sequence=values["sequence"],
        group=group,
        **job_fields(of_code(values)),
    )
    return PlanConfig(
        given=given,
        job=job,
        space=Space(**axes, sequence_parallel=(values["sequence_parallel"] != "none",)),
        retime=values["retime"],
        out=_path("out", values["out"], suffix=".json"),
        train=_path("train", values["train"]),
    )


def _axis(value: Any) -> tuple[Any, ...] | None:
    """One or several values of an axis; None leaves it open."""
    return value if value is None else tuple(value) if isinstance(value, list) else (value,)


def _recompute(words: tuple[Any, ...]) -> tuple[tuple[str, ...], int]:
    """What layers may compute twice, and how many of them keep one input together where they do."""
    found = [read_recompute(COMMAND, word, RECOMPUTE) for word in words]
    groups = {group for way, group in found if way == "layers"} or {1}
    if len(groups) > 1:
        given = f"recompute=[{','.join(map(str, words))}]"
        refuse(COMMAND, given, "a plan has groups of one size", "ask for one size after the other")
    return tuple(way for way, _ in found), groups.pop()


def _path(name: str, given: Any, suffix: str = "") -> Path | None:
    """Where results go."""
    if given is None:
        return None
    path = path_given(COMMAND, name, given)
    if suffix and path.suffix != suffix:
        refuse(COMMAND, f"{name}={given!r}", "the plan is JSON", f"give {name}=NAME{suffix}")
    if not path.parent.is_dir():
        refuse(COMMAND, f"{name}={given!r}", f"there is no folder {str(path.parent)!r}", "make it, or name another")
    return path


def as_values(job: Job) -> Mapping[str, Any]:
    """The job as it is written down."""
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "gpus": job.cluster.n_gpus,
        "device": job.cluster.device.name,
        "batch": job.batch,
        "sequence": job.sequence,
        "convention": job.states.name,
        "assumed": dict(job.assumptions),
    }
