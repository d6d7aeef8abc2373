"""name=value overrides, composed by Hydra with the presets; a mistake is one line in four parts.

Hydra only composes: it moves no working directory and writes no log.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from course_lib.errors import four_parts


def parse_overrides(
    command: str, thing: str, overrides: Sequence[str], *, keys: Collection[str], groups: Collection[str]
) -> list[Override]:
    """The overrides of a thing ("a sweep"), each of a known key with one value; a group's preset is named once.

    Raises: ValueError for any other.
    """
    with _hydra_errors(command, overrides):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        chosen: dict[str, str] = {}
        for override in parsed:
            key, line = override.key_or_group, str(override.input_line)
            if key.split(".")[0] not in keys:
                refuse(command, line, f"{thing} has no '{key}'", f"choose from {', '.join(keys)}")
            if override.is_sweep_override():
                refuse(command, line, "several values stand in brackets", f"write {key}=[value,value]")
            if override.is_delete():
                refuse(command, line, f"{thing} needs all its values", f"give {key} another value")
            if key in groups and (override.package is not None or key in chosen):
                refuse(command, line, f"{thing} has one {key}", f"give {key}=NAME once")
            if key in chosen:
                refuse(command, f"{chosen[key]} and {line}", f"{key} is given twice", "give it once")
            override.value()
            chosen[key] = line
        return parsed


def compose_values(command: str, lines: Sequence[str], *, typed: Sequence[str]) -> dict[str, Any]:
    """The values of the configuration that is stored under the command's name; an error quotes what was typed.

    Raises: ValueError for what Hydra cannot compose.
    """
    with _hydra_errors(command, typed):
        with initialize_config_module("course_lib.presets", version_base=None):
            composed = compose(command, overrides=list(lines))
        values: Any = OmegaConf.to_container(composed, resolve=True)
        return values


@contextmanager
def _hydra_errors(command: str, typed: Sequence[str]) -> Iterator[None]:
    """Say in one line what Hydra says in several."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        rule, *more = str(error).split("\n")
        way_out = more[0] if more and more[0].startswith("To append") else "write name=value or name=[value,value]"
        refuse(command, " ".join(shlex.join(typed).split()), rule.rstrip(". "), way_out)


def require_whole(command: str, name: str, value: Any) -> None:
    """Refuse all but whole numbers."""
    if type(value) is not int:
        refuse(command, f"{name}={value!r}", f"{name} is of whole numbers", "write them without quotes and units")


def refuse(command: str, values: str, rule: str, way_out: str) -> NoReturn:
    """Raise the four-part error of a command."""
    raise ValueError(four_parts(command, values, rule, way_out)) from None
