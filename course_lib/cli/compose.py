"""name=value overrides, composed by Hydra with the presets; a mistake is one line in four parts.

Hydra only composes: it moves no working directory and writes no log.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from course_lib.errors import four_parts
from course_lib.units import LARGEST

_SHOWN = 120  # characters of a value
_WAY_OUT = "write name=value or name=[value,value]"
_UNREADABLE = re.compile(r"^(Lexer|token recognition)")
_QUOTED = """write a value with quotes that the shell leaves: "name='a value'\""""


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
                way_out = f"choose from {', '.join(keys)}{did_you_mean(key, keys, '=')}"
                refuse(command, line, f"{thing} has no '{key}'", way_out)
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
    except Exception as error:  # Hydra's own and its parser's are of many kinds, all about what was typed
        if isinstance(error, ValueError) and not isinstance(error, (HydraException, OmegaConfBaseException)):
            raise  # it is ours
        rule, *more = str(error).split("\n") or [type(error).__name__]
        way_out = _WAY_OUT
        if more and more[0].startswith("To append"):
            way_out = more[0]
        elif _UNREADABLE.search(rule):
            rule, way_out = "it has blanks or signs that mean something else", _QUOTED
        refuse(command, " ".join(shlex.join(typed).split()), rule.rstrip(". ") or type(error).__name__, way_out)


def did_you_mean(word: str, known: Collection[str], ending: str = "") -> str:
    """The end of a way out: the known word that is most alike, if one is."""
    found = get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]}{ending}?" if found else ""


def require_whole(command: str, name: str, value: Any) -> None:
    """Refuse all but whole numbers, and those that nothing has so many of."""
    if type(value) is not int:
        refuse(command, f"{name}={value!r}", f"{name} is of whole numbers", "write them without quotes and units")
    if abs(value) > LARGEST:
        refuse(command, f"{name}={shown(value)}", f"nothing here is more than {LARGEST}", f"give {name} a smaller one")


def require_number(command: str, name: str, value: Any) -> None:
    """Refuse all but numbers, and whole ones that no float holds."""
    if type(value) not in (int, float):
        refuse(command, f"{name}={shown(value)}", f"{name} is a number", "write it without quotes and units")
    if type(value) is int:
        require_whole(command, name, value)


def require_word(command: str, name: str, value: Any) -> None:
    """Refuse lists, tables and numbers where a name is asked for; None is one that was not given."""
    if value is not None and not isinstance(value, str):
        refuse(command, f"{name}={shown(value)}", f"{name} is a word", "write one, without brackets")


def path_given(command: str, name: str, given: Any) -> Path:
    """A path that the system can look for; `~` is the user's home.

    Raises: ValueError for any other text.
    """
    try:
        path = Path(str(given)).expanduser()
        path.is_dir()
        os.fsencode(path)
    except (OSError, RuntimeError, ValueError) as error:
        rule = f"it is no path: {getattr(error, 'strerror', None) or ' '.join(str(error).split())}"
        refuse(command, f"{name}={shown(given)}", rule, "name another")
    return path


def shown(value: Any) -> str:
    """A value as it is written; of a long one the beginning."""
    text = repr(value) if not isinstance(value, int) or abs(value) <= LARGEST else f"{'-' * (value < 0)}{LARGEST}…"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def refuse(command: str, values: str, rule: str, way_out: str) -> NoReturn:
    """Raise the four-part error of a command."""
    line = values if values.isprintable() else ascii(values)  # a line break in it would make two lines of one
    raise ValueError(four_parts(command, line, rule, way_out)) from None
