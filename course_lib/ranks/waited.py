"""When a process knew that a call had ended: the moments at which a wait for one came back.

A call without `async_op` waits in its last line, and so does a barrier: both ask the `Work` that PyTorch hands out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import torch
from torch.distributed import Work, _functional_collectives

_ASKED: tuple[tuple[Any, str], ...] = (
    (Work, "wait"),
    (Work, "is_completed"),
    (torch._C.Future, "wait"),
    (_functional_collectives, "wait_tensor"),
)


def note_waits_into(path: str) -> None:
    """Write a line for each wait of this process that ended, with the moment: `perf_counter`'s seconds."""
    book = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 (open as long as the process lives)
    for owner, name in _ASKED:
        setattr(owner, name, _noted(getattr(owner, name), book))


def waits_in(path: Path) -> tuple[float, ...]:
    """What `note_waits_into` has written; a line that a kill cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return tuple(float(line) for line in lines if line.endswith("\n"))


def _noted(ask: Callable[..., Any], book: TextIO) -> Callable[..., Any]:
    """The same question. An answer of False, that a call is still under way, is no end."""

    @functools.wraps(ask)
    def asked(*arguments: Any, **options: Any) -> Any:
        answer = ask(*arguments, **options)
        if answer is not False:
            book.write(f"{perf_counter()!r}\n")
        return answer

    return asked
