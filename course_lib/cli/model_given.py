"""The model that a formula is asked about: a preset's, with fields changed, or that of a folder of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from course_lib import presets
from course_lib.cli.compose import path_given, refuse
from course_lib.config import ModelConfig, parse_model


def model_folder(command: str, name: Any, parsed: Sequence[Override]) -> Path | None:
    """The folder that takes the place of a preset, if it is one.

    Raises: ValueError for a name that is neither, or a field of a folder's model.
    """
    names = presets.names("model")
    if name in names:
        return None
    folder = path_given(command, "model", name)
    if not folder.is_dir():
        rule, way_out = "neither a preset nor a folder", f"choose one of {', '.join(names)}, or a folder"
        refuse(command, f"model={name!r}", rule, way_out)
    for override in parsed:
        if override.key_or_group.startswith("model."):
            rule = "the folder says its model's shape"
            refuse(command, str(override.input_line), rule, "leave it out, or change config.json")
    return folder


def without_folder(parsed: Sequence[Override]) -> list[str]:
    """The overrides for Hydra, which composes some preset where a folder's shape takes the place of one."""
    lines = [str(one.input_line) for one in parsed if one.key_or_group != "model"]
    return [*lines, f"model={presets.names('model')[0]}"]


def shape_given(folder: Path | None, values: Mapping[str, Any]) -> ModelConfig:
    """The folder's shape, or that of a preset's composed values; torch is loaded for a folder alone.

    Raises: ValueError for what is no model.
    """
    if folder is None:
        return parse_model(values).config
    from course_lib.training.pretrained import Pretrained

    return Pretrained(folder).shape()
