"""What a sweep is asked to do: name=value overrides, composed by Hydra with the presets, then checked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override

from course_lib import presets
from course_lib.cli import settings
from course_lib.cli.assumed import ASSUMED, check_codes, of_code
from course_lib.cli.compose import compose_values, parse_overrides, path_given, refuse, require_whole, shown
from course_lib.cli.model_given import model_folder, shape_given, without_folder
from course_lib.cli.recompute_words import read_recompute
from course_lib.cli.sweep_settings import AXES, SWEEP
from course_lib.config import ModelConfig
from course_lib.costs.model.conventions import CONVENTIONS
from course_lib.costs.sweep.explore import EXPLORER, Exploration
from course_lib.costs.sweep.grid import Grid
from course_lib.costs.sweep.job import RECOMPUTE
from course_lib.hardware import Device, device_called
from course_lib.units import is_number

_COMMAND = "sweep"
GROUPS: tuple[presets.Kind, ...] = ("model", "device")
OPTIONS = settings.defaults(SWEEP)
_AXES = settings.names([AXES])
_EXPLORER_FILES = {"grok_1": "grok_1_explorer"}  # what that tool reads under the name of another model
_GLOBAL_BATCH = {"grok_1_explorer": 2048}  # of that file; all others: Exploration's default

ConfigStore.instance().store(name=_COMMAND, node=settings.composed(SWEEP))


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """One sweep, checked."""

    model: ModelConfig
    device: Device
    exploration: Exploration
    grid: Grid
    out: Path | None
    values: Mapping[str, Any]  # the composition that all the others come from
    overrides: tuple[str, ...]  # that it was composed of

    @property
    def given(self) -> set[str]:
        """The settings among them."""
        return {override.partition("=")[0] for override in self.overrides}

    def as_yaml(self) -> str:
        """The exact configuration, under the command that gives it."""
        command = shlex.join(["python", "-m", "course_lib", "sweep", *self.overrides]).replace("\n", "\n# ")
        return f"# {command}\n{yaml.safe_dump(self.values, sort_keys=False, default_flow_style=None, width=120)}"


def read_sweep(overrides: Sequence[str]) -> SweepConfig:
    """The sweep that name=value overrides ask for.

    Raises: ValueError for what Hydra cannot compose, an unknown name, or an illegal value.
    """
    parsed = parse_overrides(_COMMAND, "a sweep", overrides, keys=settings.names(SWEEP), groups=GROUPS)
    chosen = {"convention": None, **{one.key_or_group: one.value() for one in parsed}}
    if "device" in chosen:
        presets.read("device", str(chosen["device"]))
    if "model" not in chosen:
        way_out = f"give model=NAME, one of {', '.join(presets.names('model'))}, or a folder"
        refuse(_COMMAND, "no model", "a sweep is of one model", way_out)
    folder = model_folder(_COMMAND, chosen["model"], parsed)
    name = "" if folder is not None else str(chosen["model"])
    if chosen["convention"] == EXPLORER:
        name = _EXPLORER_FILES.get(name, name)
    lines = without_folder(parsed) if folder is not None else [_chosen(override, name) for override in parsed]
    values = compose_values(_COMMAND, lines, typed=overrides)
    if values["global_batch"] is None:
        values["global_batch"] = _GLOBAL_BATCH.get(name, Exploration.global_batch)
    model = shape_given(folder, values["model"])
    if folder is not None:
        values["model"] = {"folder": str(folder)}
    return _checked(values, model, tuple(overrides))


def _chosen(override: Override, model: str) -> str:
    """The override for Hydra, with the preset that its model stands for."""
    return f"model={model}" if override.key_or_group == "model" else str(override.input_line)


def _checked(values: dict[str, Any], model: ModelConfig, overrides: tuple[str, ...]) -> SweepConfig:
    """Each value of the right kind, then in its place."""
    settings.check_kinds(_COMMAND, SWEEP, values)
    check_codes(_COMMAND, values, [word.partition("=")[0] for word in overrides])
    for axis in _AXES:
        if type(values[axis]) is int:
            values[axis] = [values[axis]]
    imbalance = values["token_imbalance"]
    if not is_number(imbalance):
        given, rule = f"token_imbalance={shown(imbalance)}", "token_imbalance is a number"
        refuse(_COMMAND, given, rule, "give token_imbalance >= 1")
    if values["convention"] not in (known := (EXPLORER, *CONVENTIONS)):
        refuse(
            _COMMAND, f"convention={values['convention']!r}", "nobody counts so", f"choose one of {', '.join(known)}"
        )
    _check_explorer(values, overrides)
    recompute, group = read_recompute(_COMMAND, values["recompute"], RECOMPUTE)
    device = _device(values["device"])
    axes: dict[str, Any] = {axis: tuple(given) if isinstance(given := values[axis], list) else given for axis in _AXES}
    return SweepConfig(
        model=model,
        device=device,
        exploration=Exploration(
            sequence=values["sequence"],
            global_batch=values["global_batch"],
            convention=values["convention"],
            token_imbalance=float(imbalance),
            device_bytes=device.usable_bytes,
            recompute=recompute,
            group=group,
            assumed={k: v for k, v in of_code(values).items() if k != "convention"},
        ),
        grid=Grid(**axes, sequence_parallel=values["sequence_parallel"] != "none"),
        out=_csv_path(values["out"]),
        values=values,
        overrides=overrides,
    )


def _check_explorer(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse assumptions for a convention that has its own."""
    known = (*settings.names([ASSUMED]), "recompute")
    typed = [word for word in overrides if word.partition("=")[0] in known]
    if values["convention"] == EXPLORER and typed:
        rule, way_out = "that tool's formula assumes its own", f"leave {' '.join(typed)} out, or choose a convention"
        refuse(_COMMAND, f"convention={EXPLORER} with {typed[0]}", rule, way_out)


def _device(values: Mapping[str, Any]) -> Device:
    names = {field.name for field in fields(Device)}
    for name in values:
        if name not in names:
            refuse(_COMMAND, f"device.{name}", "not a field of Device", f"choose from {', '.join(sorted(names))}")
    require_whole(_COMMAND, "device.memory_gb", values["memory_gb"])
    if values["memory_gb"] < 1:
        refuse(_COMMAND, f"device.memory_gb={values['memory_gb']}", "memory is positive", "give device.memory_gb >= 1")
    if values["memory_gb"] != _printed(values["cuda_name"]):  # the preset's log is of another card
        values = {**values, "usable_gib": None, "usable_source": Device.usable_source}
    usable = values["usable_gib"]
    if usable is not None and not (is_number(usable) and 0 < usable <= values["memory_gb"]):
        rule = f"a program can use some of the printed memory, {values['memory_gb']} GB, or nobody has looked: null"
        refuse(_COMMAND, f"device.usable_gib={usable}", rule, "give a number of GiB, or device.usable_gib=null")
    return Device(**values)


def _printed(cuda_name: str) -> int | None:
    known = device_called(cuda_name)
    return None if known is None else known.memory_gb


def _csv_path(out: Any) -> Path | None:
    """Where the table goes; the configuration lies beside it under the same name."""
    if out is None:
        return None
    path = path_given(_COMMAND, "out", out)
    if path.suffix != ".csv":
        refuse(
            _COMMAND, f"out={out!r}", "the table is CSV, with its configuration beside it in .yaml", "give out=NAME.csv"
        )
    if not path.parent.is_dir():
        refuse(_COMMAND, f"out={out!r}", f"there is no folder {str(path.parent)!r}", "make it, or name another")
    return path
