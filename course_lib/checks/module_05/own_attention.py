"""05.12: a tensor-parallel attention block by hand: heads are cut, and heads of keys that several ranks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_05.own_attention_cut import WIDTH, Parts, cut, make_task, on_ranks, share
from course_lib.verify.alike import born_with
from course_lib.verify.equality import close, scale_of
from course_lib.verify.ratios import exactly

_TOLERANCE = 1e-9
_ORDER = ("x", "norm", "q", "k", "v", "o")


def _verdict(case: Start, ran: Ran) -> str | None:
    """Each rank's output, then the gradients of what it holds, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    with born_with(0, torch.float64):
        output, whole, alone = on_ranks(task, ranks)
        reasons = (
            _wrong_answer(ran.saved(f"answer-{rank}.pt"), rank, task, output, whole[rank], alone)
            for rank in range(ranks)
        )
        reason = next(filter(None, reasons), None) or _wrong_calls(ran, task, whole[0])
    return reason and f"{task['kv_heads']} heads of keys: {reason}"


def _wrong_answer(
    answer: Any, rank: int, task: dict[str, Any], output: Tensor, whole: Parts, alone: list[Parts]
) -> str | None:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("gradients"), Mapping):
        return f"answer-{rank}.pt is to hold a dict with 'output' and 'gradients'"
    reason = _unlike(answer.get("output"), output, "the output", _instead_of_output(task, rank, len(alone), output))
    if reason:
        return f"rank {rank}: {reason}"
    for name in _ORDER:
        instead = _instead_of_gradient(name, rank, task["gradient"], whole[name], [one[name] for one in alone])
        if reason := _unlike(answer["gradients"].get(name), whole[name], f"the gradient of {name}", instead):
            return f"output right; rank {rank}: {reason}"
    return None


def _instead_of_output(task: dict[str, Any], rank: int, ranks: int, output: Tensor) -> dict[str, Tensor]:
    """What else an output may be, by what is said of it."""
    x, weights = task["x"], task["weights"]
    mine = cut(weights, rank, ranks, task["kv_heads"])
    return {
        "only this rank's share of the sum over the ranks": x + share(x, mine),
        "without the input, which the block adds to what attention gives": output - x,
        f"with the input added {ranks} times, once on each rank: add it after the sum": output + (ranks - 1) * x,
        "what attention gives that sees later positions too": x + share(x, weights, causal=False),
        "what comes out if head h reads the keys of head h % kv_heads": x + share(x, weights, cyclic=True),
        "what comes out if scores are not divided by the root of a head's 3 numbers": x + share(x, weights, scale=1.0),
        "what comes out if scores are divided by the root of the width": x + share(x, weights, scale=WIDTH**-0.5),
    }


def _instead_of_gradient(name: str, rank: int, added: Tensor, whole: Tensor, alone: list[Tensor]) -> dict[str, Tensor]:
    """What else a gradient may be; `alone` is what each rank's share of the sum gives, `added` is the output's."""
    if name == "x":
        ranks = len(alone)
        return {
            "only this rank's share; the gradients of all ranks' shares add up": added + alone[rank],
            "what flows through attention; that of the input which is added to it is missing": whole - added,
            f"with what flows through attention {ranks} times: the output's gradient is whole on every rank, and an "
            "all-reduce of it counts it once for each": added + ranks * (whole - added),
            f"with that of the added input {ranks} times: it is whole on every rank already": whole
            + (ranks - 1) * added,
        }
    instead = {_ALONE[name]: alone[rank]} if name in _ALONE else {}
    if name in "kv":
        instead["the sum over all ranks, and some of them hold other heads"] = sum(alone, torch.zeros(()))
    return instead


_ALONE = {
    "norm": "only this rank's share: where it is computed, the gradient that comes in is not summed over the ranks yet",
    "k": "only what this rank's own heads give, and the same keys are read on other ranks",
    "v": "only what this rank's own heads give, and the same values are read on other ranks",
}


def _unlike(found: Any, right: Tensor, what: str, instead: Mapping[str, Tensor]) -> str | None:
    if not isinstance(found, Tensor):
        return f"{what} is missing"
    if found.shape != right.shape:
        return f"{what} has shape {tuple(found.shape)}, expected {tuple(right.shape)}"
    if found.dtype != right.dtype:
        return f"{what} is {found.dtype}, expected {right.dtype}"
    if close(found, right, tolerance=_TOLERANCE):
        return None
    for sentence, other in instead.items():
        if close(found, other, tolerance=_TOLERANCE):
            return f"{what} is {sentence}"
    ratio = scale_of(found, right)
    return (
        f"{what} is {exactly(ratio)} the right one" if ratio is not None else f"{what} is no multiple of the right one"
    )


def _wrong_calls(ran: Ran, task: dict[str, Any], held: Parts) -> str | None:
    """One all-reduce as large as x forward, one backward, and a sum of what is shared, among those who share."""
    whole, ranks = task["x"].nbytes, len(ran.ended)
    shared = (held["k"].nbytes + held["v"].nbytes) if task["kv_heads"] < ranks else 0
    for rank, one in enumerate(ran.ended):
        large = [call for call in one.calls if call.bytes == whole and call.operation == "all_reduce"]
        if len(large) != 2:
            lines = ", ".join(str(call.line) for call in large) or "none"
            made = f"{plural(len(large), 'all-reduce')} of {whole} B, as large as x (lines: {lines})"
            return f"values right, but rank {rank} makes {made}; the target is one in forward and one in backward"
        rest = [call for call in one.calls if call not in large and call.bytes]
        sent = sum(call.bytes for call in rest)
        if sent != shared:
            last = f", at last to {rest[-1]}" if rest else ""
            target = f"{shared} B, its gradients of keys and values" if shared else "0, since no keys are shared here"
            return f"values right, but besides these two rank {rank} hands over {sent} B{last}; the target is {target}"
        if any(call.ranks != ranks // task["kv_heads"] for call in rest):
            return f"values right, but rank {rank} sums shared gradients among {rest[0].ranks} ranks, not among sharers"
    return None


_ATTENTION = ScriptExercise(
    key="05.12",
    title="your own attention on several ranks",
    task=make_task,
    verdict=_verdict,
    levels={
        "cut": Level(
            points=3,
            cases=(Start(world_size=2, look="4"), Start(world_size=4, look="4")),
            praise="output and gradients of one device, with one all-reduce forward and one backward",
        ),
        "shared": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="2"), Start(world_size=4, look="1")),
            praise="and heads of keys that several ranks share keep one gradient",
        ),
    },
    hints=(
        "Which of a rank's numbers are whole, and which are its share of a sum? Go through the block and write it "
        "beside each line, forward first, then backward.",
        "Two autograd.Functions are enough: one passes its input on and sums the gradient, one sums its input and "
        "passes the gradient on. Between them stands what is cut; norm and the added input stand outside.",
        "A rank's first head is rank * heads // ranks. Heads in groups of heads // kv_heads read one head of keys. So "
        "which heads of keys do the rank's heads read, first and last?",
        "dist.new_group is called by all ranks for all groups, in the same order, also for those that a rank is not "
        "in. k and v can travel together: concatenate, sum, split.",
    ),
)
