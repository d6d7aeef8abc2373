"""After ranks have met in calls that do not fit: who makes a call that the others do not.

A collective only sees that lengths differ, which a call too many does as well as a wrong tensor. So each rank runs once
more, alone: it makes its calls, and nobody answers. What it computes then is nothing, but its calls are told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import SequenceMatcher
from typing import Any, NamedTuple
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.checks.kit.runner import run_call
from course_lib.checks.kit.said import plural
from course_lib.comm import guard
from course_lib.comm.p2p import Port, Work

DO_NOT_FIT = "all ranks must call with the same "  # how a collective's error says it
_LIMIT_S = 5.0
_Members = tuple[int, ...]


class _Call(NamedTuple):
    """One collective: which, of how many numbers, and among which ranks."""

    operation: str
    numbers: int
    members: _Members

    def __str__(self) -> str:
        article = "an" if self.operation[0] in "aeiou" else "a"
        return f"{article} {self.operation} of {plural(self.numbers, 'number')}"


def who_calls_otherwise(answer: Any, probe: Callable[[Any, Any], Any], given: Any, world_size: int) -> str:
    """Which call not all ranks of its group make; empty if that is not what went wrong, or cannot be seen."""
    trial = run_call(_calls, (answer, probe, given), world_size, timeout=_LIMIT_S)
    if trial.error is not None or any(calls is None for calls in trial.reports):
        return ""
    groups = dict.fromkeys(call.members for calls in trial.reports for call in calls)
    found = (_odd_one({rank: _within(trial.reports[rank], group) for rank in group}) for group in groups)
    return next(filter(None, found), "")


def _within(calls: Sequence[_Call], group: _Members) -> tuple[_Call, ...]:
    return tuple(call for call in calls if call.members == group)


def _calls(answer: Callable[..., Any], probe: Callable[[Any, Any], Any], given: Any) -> list[_Call] | None:
    """Runs on a rank; None if it could not go on without the others' numbers."""
    made: list[_Call] = []
    with _nobody_answers(made), suppress(Exception):
        probe(answer, given)
        return made
    return None


@contextmanager
def _nobody_answers(made: list[_Call]) -> Iterator[None]:
    """Calls are noted in `made`. Ones come in, since a zero might be a divisor, and of objects copies of one's own."""

    def note(mine: guard.Descriptor, problem: str, group: ProcessGroup) -> None:
        made.append(_Call(mine.operation, mine.length * mine.row, tuple(dist.get_process_group_ranks(group))))

    def send(port: Port, x: Tensor, peer: int) -> Work:
        return Work("", None)

    def receive(port: Port, into: Tensor, peer: int) -> Work:
        into.fill_(1)
        return Work("", None)

    def gather(found: list[Any], mine: Any, group: ProcessGroup | None = None) -> None:
        found[:] = [mine] * len(found)

    ends = {"isend": send, "isend_labelled": send, "irecv": receive, "irecv_labelled": receive}
    with patch.object(guard, "agree", note), patch.object(dist, "all_gather_object", gather), ExitStack() as ports:
        for name, end in ends.items():
            ports.enter_context(patch.object(Port, name, end))
        yield


def _odd_one(calls: dict[int, tuple[_Call, ...]]) -> str:
    """The first rank whose calls are others than most ranks', and the first call that only one side makes."""
    usual = Counter(calls.values()).most_common(1)[0][0]
    for rank, mine in calls.items():
        if len(mine) == len(usual):
            continue
        theirs = f"rank{'s' * (len(calls) > 2)} " + ", ".join(str(one) for one in calls if calls[one] == usual)
        for kind, start, _, own_start, _ in SequenceMatcher(None, usual, mine, autojunk=False).get_opcodes():
            if kind == "insert":
                return f"rank {rank} makes {mine[own_start]}, which {theirs} do{'es' * (len(calls) == 2)} not make"
            if kind == "delete":
                make = f"make{'s' * (theirs.startswith('rank '))}"
                return f"{theirs} {make} {usual[start]}, which rank {rank} does not make"
    return ""
