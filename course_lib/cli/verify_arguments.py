"""What `python -m course_lib verify` is told: two functions that make trainers, their batches, how to compare."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

import torch

from course_lib.cli.commands import VERIFY
from course_lib.cli.compose import did_you_mean, refuse
from course_lib.cli.settings import names
from course_lib.training.batches import Batch
from course_lib.verify.equality import TOLERANCES, name_of
from course_lib.verify.trainable import Make

_COMMAND = "verify"
_EXAMPLE = "write: verify my_file:reference my_file:parallel ranks=2"
DTYPES = {name_of(dtype): dtype for dtype in TOLERANCES}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is to be compared."""

    reference: Make
    parallel: Make
    batches: Callable[[int], Batch]
    ranks: int
    dtype: torch.dtype
    out: str | None
    files: tuple[ModuleType, ...]  # that the user wrote


def read(arguments: Sequence[str], started: int | None = None) -> Comparison:
    """The arguments, with the functions that they name; `started` are torchrun's ranks.

    Raises: ValueError for anything else.
    """
    named = [argument for argument in arguments if "=" not in argument]
    values = _values([argument for argument in arguments if "=" in argument])
    if len(named) != 2:
        rule = "two functions make the trainers: one device's, and a rank's"
        refuse(_COMMAND, f"{len(named)} functions are named", rule, _EXAMPLE)
    dtype = values.get("dtype", "float64")
    if dtype not in DTYPES:
        refuse(_COMMAND, f"dtype={dtype}", "a precision needs a known tolerance", f"choose from {', '.join(DTYPES)}")
    (here, reference), (there, parallel) = map(_function, named)
    files, batches = [here, there], getattr(here, "batches", None)
    if "batches" in values:
        file, batches = _function(values["batches"])
        files.append(file)
    if batches is None:
        way_out = f"write a function batches in {here.__name__}.py, or give batches=my_file:batches"
        refuse(_COMMAND, "there are no batches", "both sides train on batches(step) -> inputs, targets", way_out)
    return Comparison(
        reference=reference,
        parallel=parallel,
        batches=getattr(batches, "batch", batches),
        ranks=_ranks(values.get("ranks"), started),
        dtype=DTYPES[dtype],
        out=values.get("out"),
        files=tuple(files),
    )


def _values(given: Sequence[str]) -> dict[str, str]:
    """What stands as name=value, each name known and given once."""
    values: dict[str, str] = {}
    *most, last = known = names(VERIFY)
    for argument in given:
        name, _, value = argument.partition("=")
        if name not in known:
            way_out = f"take {', '.join(most)} or {last}{did_you_mean(name, known, '=')}"
            refuse(_COMMAND, argument, f"there is no {name}", way_out)
        if name in values:
            refuse(_COMMAND, f"{name}={values[name]} and {argument}", f"{name} is given twice", "give it once")
        values[name] = value
    return values


def _ranks(asked: str | None, started: int | None) -> int:
    if asked is None and started is not None:
        return started
    if asked is None or not asked.isdecimal() or int(asked) < 1:
        values = "without ranks" if asked is None else f"ranks={asked}"
        refuse(_COMMAND, values, "the parallel side runs on a whole number of ranks, at least 1", "give ranks=2")
    if started not in (None, int(asked)):
        refuse(_COMMAND, f"ranks={asked}, torchrun has started {started}", "they are the same", "leave ranks= out")
    return int(asked)


def _function(named: str) -> tuple[ModuleType, Any]:
    """`my_file:function` of the working folder, and its module."""
    file, colon, name = named.partition(":")
    if not colon:
        refuse(_COMMAND, named, "a function is named by its file and its name", _EXAMPLE)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(file.removesuffix(".py"))
    except Exception as error:  # of the user's own code: Python's own status would be that of ranks that are not equal
        _refuse_file(named, file.removesuffix(".py"), error)
    if not callable(getattr(module, name, None)) and not hasattr(getattr(module, name, None), "batch"):
        refuse(_COMMAND, named, f"{file} has no function {name}", "name one that it has")
    return module, getattr(module, name)


def _refuse_file(named: str, module: str, error: Exception) -> NoReturn:
    """Say whether the file is not there, or what came out of it."""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        refuse(_COMMAND, named, str(error), "start the command in the file's folder")
    said, way_out = f"its file raises {type(error).__name__}: {error}", f'see where: python -c "import {module}"'
    refuse(_COMMAND, named, said, way_out)
