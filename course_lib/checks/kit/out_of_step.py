"""Where the ranks of a script part: the first collective that not all of them make alike, and what each made last."""

from __future__ import annotations

import re
from collections.abc import Sequence

from course_lib.ranks.counted import Call
from course_lib.ranks.script import Ended

_OUTSIDE = re.compile(r"Running (\w+) on global rank \d+ which does not belong to the given group")
_IN_PAIRS = frozenset({"send", "recv"})
_OF_ANY_LENGTH = frozenset({"all_to_all", "all_to_all_single"})


def first_difference(ended: Sequence[Ended]) -> str:
    """The first collective of all ranks in which they differ, in a sentence; empty if there is none.

    Collectives of smaller groups are left out: which of them stand opposite to each other, their calls do not say.
    """
    everybody = [[call for call in one.calls if _concerns_all(call, len(ended))] for one in ended]
    for number in range(max(map(len, everybody), default=0)):
        made = [calls[number] if number < len(calls) else None for calls in everybody]
        if len({None if call is None else _kind(call) for call in made}) > 1:
            return f"collective {number + 1} of all ranks is {_by_rank(made)}"
    return ""


def last_calls(ended: Sequence[Ended]) -> str:
    """What each rank called last: where one that hangs may wait."""
    return f"the last call is {_by_rank([one.calls[-1] if one.calls else None for one in ended])}"


def why_they_wait(hanging: Sequence[Ended]) -> str:
    """Behind the last calls of the ranks that hang: the trap that these show, or the question that is left."""
    if len(hanging) > 1 and all(one.calls and one.calls[-1].operation == "send" for one in hanging):
        return (
            "each waits in a send until somebody takes its message, and nobody receives before its own send is done. "
            "Start all messages, with isend and irecv, and only then wait for them"
        )
    return "does every rank make every call that all must make?"


def outside_of_a_group(ended: Sequence[Ended]) -> str:
    """A call with a group to which the rank does not belong, which PyTorch leaves out with a warning; empty if none."""
    for rank, one in enumerate(ended):
        if found := _OUTSIDE.search(one.problems):
            return f"; rank {rank} calls {found[1]} with a group that it is not in, and PyTorch leaves the call out"
    return ""


def _concerns_all(call: Call, world_size: int) -> bool:
    return call.ranks == world_size and call.operation not in _IN_PAIRS


def _kind(call: Call) -> tuple[str, int, str]:
    return (call.operation, 0 if call.operation in _OF_ANY_LENGTH else call.bytes, call.dtype)


def _by_rank(made: Sequence[Call | None]) -> str:
    """`all_reduce of 12 B (line 7) on ranks 0, 2 and missing on rank 1`; equal ones are told once."""
    ranks: dict[str, list[int]] = {}
    for rank, call in enumerate(made):
        ranks.setdefault("missing" if call is None else str(call), []).append(rank)
    parts = [f"{what} on rank{'s' * (len(who) > 1)} {', '.join(map(str, who))}" for what, who in ranks.items()]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
