"""What 04.11 and 04.12 ask of a pipeline that is a learner's own file: that all stages learn, and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from course_lib.checks.kit.own_tensors import Tensors, agree
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran
from course_lib.ranks.counted import Call
from course_lib.ranks.script import Ended

_NUMBER = 8  # bytes of one


def bounds(task: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The first layer of each stage, and the first that is no longer its own."""
    return list(pairwise([0, *accumulate(task["layers"])]))


def untouched_stages(reason: str, found: Tensors, task: Mapping[str, Any]) -> str:
    """Of weights that are wrong by themselves: which stages' are as at the start; empty if none of them is."""
    if not (reason.endswith("at the end") or "has moved" in reason):
        return ""  # it says more already
    start = task["weights"]
    parts = [
        {name: start[name] for name in start if begin <= int(name.partition(".")[0]) < end}
        for begin, end in bounds(task)
    ]
    untouched = [number for number, part in enumerate(parts) if agree(found, part)]
    who = f"stage{'s' * (len(untouched) > 1)} {', '.join(map(str, untouched))}"
    asked = "does a gradient reach them, does each process step, and do its weights reach the file?"
    return f"the weights of {who} are those of the start: {asked}" if untouched else ""


def numbers(calls: Sequence[Call], *operations: str) -> list[Call]:
    """Sends and receives of activations and gradients: shapes and the like, in other dtypes, are left out."""
    return [call for call in calls if call.operation in (operations or ("send", "recv")) and call.dtype == "float64"]


def wrong_messages(ran: Ran, micro_batches: int) -> str | None:
    """What each rank sends: of each micro-batch its output to the next stage, and a gradient to the one before.

    Weights may follow, of the rank's own size, where a script collects them at the end by messages.
    """
    parts = [len(part) for x, _ in ran.task["batches"] for part in x.tensor_split(micro_batches)]
    for (rank, one), (begin, end) in zip(enumerate(ran.ended), bounds(ran.task), strict=True):
        widths = [ran.task["widths"][layer] for layer in (begin, end) if 0 < layer < len(ran.task["widths"]) - 1]
        wanted = sorted(_NUMBER * rows * width for rows in parts for width in widths)
        sent = [call.bytes for call in numbers(one.calls, "send")]
        if reason := _wrong_sizes(one, sent, wanted):
            return f"values right, but rank {rank} sends {reason}"
    return None


def _wrong_sizes(one: Ended, sent: list[int], wanted: list[int]) -> str:
    """How the messages of a rank differ from the wanted ones, if they do."""
    dtypes = {call.dtype for call in one.calls if call.operation == "send" and call.dtype.startswith(("float", "bf"))}
    if other := ", ".join(sorted(dtypes - {"float64"})):
        return f"tensors of {other}; the target is float64, as all of the model is"
    if not sent:
        return "no other process anything: does each have the whole model?"
    if len(sent) < len(wanted) or sum(sent[: len(wanted)]) != sum(wanted):
        target = (
            f"its cuts need {len(wanted)}, {sum(wanted)} B in all: each micro-batch's output, and its gradient back"
        )
        return f"{plural(len(sent), 'message')}, {sum(sent)} B in all; {target}"
    if sorted(sent[: len(wanted)]) != wanted:
        found, right = (f"{few[0]} to {few[-1]} B" for few in (sorted(sent[: len(wanted)]), wanted))
        return f"messages of {found}, where tensor_split's parts give {right}"
    return ""
