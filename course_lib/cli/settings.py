"""What a command can be told: one table, from which its defaults, checks, help, completion and page follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from course_lib.cli.compose import refuse, require_number, require_whole, require_word

Kind = Literal[
    "preset",  # a group of Hydra's, or a folder where the command takes one
    "whole",  # a number without a fraction, of either sign
    "positive",
    "number",
    "word",  # whether it is a known one, its reader says: it has its own words for that
    "choice",  # one of `choices`
    "switch",
    "wholes",  # one or several
    "other",  # read by the command alone: paths, times, functions
]
NEEDED = "???"  # what Hydra and OmegaConf call a value that has to be given


@dataclass(frozen=True)
class Setting:
    """One name=value that a command takes. None is a legal value where it is the default."""

    name: str
    default: Any
    kind: Kind
    help: str
    since: str = ""  # the lesson from which on it is understood
    choices: tuple[str, ...] = ()
    free: bool = False  # a run that goes on may change it: what is computed stays the same, but for rounding


@dataclass(frozen=True)
class Group:
    """Settings that belong together, under the heading that they have in help."""

    title: str
    settings: tuple[Setting, ...]


def every(groups: Iterable[Group]) -> list[Setting]:
    """The settings of several groups, in order."""
    return [setting for group in groups for setting in group.settings]


def names(groups: Iterable[Group]) -> tuple[str, ...]:
    """What may stand before an equals sign."""
    return tuple(setting.name for setting in every(groups))


def defaults(groups: Iterable[Group]) -> dict[str, Any]:
    """What Hydra composes where nothing is given; presets have lists of their own."""
    return {setting.name: setting.default for setting in every(groups) if setting.kind != "preset"}


def composed(groups: Sequence[Group]) -> dict[str, Any]:
    """The node that Hydra composes under the command's name: its own values first, then the presets."""
    presets = [{setting.name: setting.default} for setting in every(groups) if setting.kind == "preset"]
    return {"defaults": ["_self_", *presets], **defaults(groups)}


def check_kinds(command: str, groups: Iterable[Group], values: Mapping[str, Any]) -> None:
    """Each value of the right kind.

    Raises: ValueError for the first that is not.
    """
    for setting in every(groups):
        value = values[setting.name]
        if value is not None or setting.default is not None:
            _check(command, setting, value)


def _check(command: str, setting: Setting, value: Any) -> None:
    name = setting.name
    if setting.kind in ("whole", "positive"):
        require_whole(command, name, value)
        if setting.kind == "positive" and value < 1:
            refuse(command, f"{name}={value}", f"{name} is positive", f"give {name} >= 1")
    elif setting.kind == "number":
        require_number(command, name, value)
    elif setting.kind == "wholes":
        for one in value if isinstance(value, list) else [value]:
            require_whole(command, name, one)
    elif setting.kind == "switch":
        if type(value) is not bool:
            refuse(command, f"{name}={value!r}", f"{name} is a switch", f"give {name}=true or false")
    elif setting.kind in ("word", "choice"):
        require_word(command, name, value)
        if setting.kind == "choice" and value not in setting.choices:
            choices = ", ".join(setting.choices)
            refuse(command, f"{name}={value!r}", "not a known kind", f"choose from {choices}")


def typed(value: Any) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def said(group: Group, values: Mapping[str, Any]) -> str:
    """What of a group is not as it would be anyway, as it would be typed."""
    changed = [setting.name for setting in group.settings if values[setting.name] != setting.default]
    return " ".join(f"{name}={typed(values[name])}" for name in changed)
