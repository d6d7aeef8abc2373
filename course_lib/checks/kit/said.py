"""What several judges say alike."""

from __future__ import annotations

import torch

from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import unmatched


def plural(number: int, word: str) -> str:
    """A number of things.

    >>> plural(1, "rank"), plural(4, "rank"), plural(2, "batch"), plural(2, "process")
    ('1 rank', '4 ranks', '2 batches', '2 processes')
    """
    ending = "es" if word.endswith(("ch", "ss")) else "s"
    return f"{number} {word}{ending * (number != 1)}"


def wrong_kind(returned: str, wanted: str) -> str:
    """Something else came back than was asked for; where it is nothing at all, that suggests a cause.

    >>> wrong_kind("str", "a number")
    'returned str, not a number'
    """
    return f"returned {returned}, not {wanted}{': is there a return on every path?' * returned.startswith('None')}"


def besides(reason: str, more: str) -> str:
    """Two things that are wrong, in two sentences.

    >>> besides("is it cut?", "it is late")
    'is it cut? Besides, it is late'
    """
    return f"{reason}{'' if reason.endswith('?') else '.'} Besides, {more}"


def by_the_library(name: str) -> str | None:
    """A right result that an answer of the library's own gave; None if none was called."""
    return f"right, but by {name}: this exercise asks you to write it" if name else None


def wrong_means(book: Ledger, means: str) -> str | None:
    """Right values, but nothing that the ledger saw was sent for them, or messages are left over."""
    if book.world_size > 1 and not any(event.kind == "send" for event in book.events):
        return f"right values, but nothing is in the ledger: use {means}"
    return unmatched(book.events)


def import_optimizers() -> None:
    """Runs on a rank, outside the learner's time: a process's first optimizer imports PyTorch's compiler."""
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
