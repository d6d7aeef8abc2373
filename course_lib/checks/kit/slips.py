"""Slips: wrong programs, each with the sentence that is said of an answer which does the same.

A slip is its own mutant: the tests hand each one in as an answer and wait for its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from course_lib.checks.kit.runner import Trial, run_call
from course_lib.verify.equality import close

LIMIT_S = 10.0  # a slip ends by itself; on a busy machine it may take its time
Says = str | Callable[..., str]
Slips = Mapping[Says, Callable[..., Any]]  # a sentence, or one from case and trial, and what the wrong program is


def like(
    slips: Slips,
    probe: Callable[[Any, Any], Any],
    given: Any,
    left: Callable[[tuple[Any, ...]], Any],
    trial: Trial,
    world_size: int,
) -> Says:
    """What is said of the first slip that leaves what the answer left; empty if there is none.

    They run one after the other on the answer's own input, and only if the answer left something wrong.
    """
    mine = left(trial.reports)
    for says, program in slips.items() if mine is not None else ():
        other = run_call(probe, (program, given), world_size, timeout=LIMIT_S)
        if other.error is None and alike(left(other.reports), mine):
            return says
    return ""


def alike(one: Any, other: Any) -> bool:
    """Equal, tensors up to rounding."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return close(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and not isinstance(one, Tensor) and bool(one == other)
