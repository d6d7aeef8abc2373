"""09.12: experts over several ranks in plain PyTorch: rows go to them and come back, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_09.own_experts_whole import Whole, make_task, mixture, on_one_device
from course_lib.ranks.counted import Call
from course_lib.verify.equality import close, scale_of
from course_lib.verify.ratios import exactly

_TOLERANCE = 1e-9
_ORDER = ("x", "router", "experts")


def _verdict(case: Start, ran: Ran) -> str | None:
    """Each rank's output, then the gradients of what it holds, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    whole = on_one_device(task, ranks)
    reasons = (_wrong_answer(ran.saved(f"answer-{rank}.pt"), rank, task, whole) for rank in range(ranks))
    reason = next(filter(None, reasons), None) or _wrong_calls(ran, task, whole)
    return reason and f"{plural(len(task['experts']), 'expert')}: {reason}"


def _wrong_answer(answer: Any, rank: int, task: Mapping[str, Any], whole: Whole) -> str | None:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("gradients"), Mapping):
        return f"answer-{rank}.pt is to hold a dict with 'output' and 'gradients'"
    right = whole.parts[rank]
    if reason := _unlike(answer.get("output"), right["output"], "the output", _instead_of_output(task, rank, whole)):
        return f"rank {rank}: {reason}"
    for name in _ORDER:
        instead = _instead_of_gradient(name, rank, task, whole)
        if reason := _unlike(answer["gradients"].get(name), right[name], f"the gradient of {name}", instead):
            return f"output right; rank {rank}: {reason}"
    return None


def _instead_of_output(task: Mapping[str, Any], rank: int, whole: Whole) -> dict[str, Tensor]:
    """What else an output may be, by what is said of it."""
    rows = task["x"].tensor_split(len(whole.parts))[rank]
    router, experts, k = task["router"], task["experts"], task["k"]
    own = torch.arange(len(experts)).tensor_split(len(whole.parts))[rank]
    here = torch.zeros_like(experts).index_copy(0, own, experts[own])
    return {
        "only what this rank's own experts give. Rows for other ranks' experts have to travel": mixture(
            rows, router, here, k
        ),
        "weighed by the softmax's own numbers. Those of the k chosen experts are to be divided by their sum": mixture(
            rows, router, experts, k, renormalised=False
        ),
        "not weighed: each expert's result counts by its share": mixture(rows, router, experts, k, weighed=False),
    }


def _instead_of_gradient(name: str, rank: int, task: Mapping[str, Any], whole: Whole) -> dict[str, Tensor]:
    """What else a gradient may be."""
    alone, right, ranks = whole.alone[rank][name], whole.parts[rank][name], len(whole.parts)
    if name == "x":
        return {"only what flows through the weights: none comes back from the experts": whole.weights_alone[rank]}
    if name == "router":
        return {
            "only this rank's share. The router is on every rank, so the shares of all of them add up": alone,
            f"divided by {ranks}. The loss is a sum over all rows, not a mean over the ranks": right / ranks,
        }
    ratio = "The rows of all ranks have come here already, so it is whole"
    instead = {
        "only what this rank's own rows give. The others' rows have to come back with their gradients": alone,
        f"divided by {ranks}. {ratio}": right / ranks,
        f"{ranks} times too large. {ratio}": right * ranks,
    }
    others = [part["experts"] for part in whole.parts]
    if len({part.shape for part in others}) == 1:
        instead["the sum of all ranks' parts. But each rank has other experts"] = torch.stack(others).sum(0)
    return instead


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
    if close(*(one.flatten().sort().values for one in (found, right)), tolerance=_TOLERANCE):
        return f"{what} has the right numbers in other places: is the order of the rows undone?"
    ratio = scale_of(found, right)
    return (
        f"{what} is {exactly(ratio)} the right one" if ratio is not None else f"{what} is no multiple of the right one"
    )


def _wrong_calls(ran: Ran, task: Mapping[str, Any], whole: Whole) -> str | None:
    """Rows twice out and twice home, the counts, and one sum of the router's gradient."""
    router, counts = task["router"].nbytes, len(task["experts"]) * 8
    for rank, one in enumerate(ran.ended):
        calls = [call for call in one.calls if call.bytes]
        numbers = [call for call in calls if call.dtype.startswith("float")]
        rows = [call for call in numbers if call.operation.startswith("all_to_all")]
        if others := [call for call in numbers if call not in rows and call.operation != "all_reduce"]:
            return f"values right, but rank {rank} makes {others[0]}: a row goes to the ranks of its experts alone"
        due = 2 * (whole.leaving[rank] + whole.coming[rank]) * task["x"][0].nbytes
        if (sent := _bytes(rows)) != due:
            why = "is something computed with rows or experts of other ranks?" if sent < due else "what else travels?"
            return (
                f"values right, but rank {rank} hands {sent} B of rows to all-to-alls, and {due} B are right: "
                f"{plural(whole.leaving[rank], 'row')} to experts, {plural(whole.coming[rank], 'result')} home, and as "
                f"many gradients; {why}"
            )
        summed = [call for call in numbers if call.operation == "all_reduce"]
        if _bytes(summed) != router:
            return (
                f"values right, but rank {rank} all-reduces {_bytes(summed)} B, and {router} B are right: the "
                "router's gradient, once, and nothing of the experts"
            )
        told = [call for call in calls if call not in numbers]
        if _bytes(told) > counts:
            return (
                f"values right, but rank {rank} tells others {_bytes(told)} B besides rows, and {counts} B are enough: "
                "a count for each expert"
            )
    return None


def _bytes(calls: list[Call]) -> int:
    return sum(call.bytes for call in calls)


_EXPERTS = ScriptExercise(
    key="09.12",
    title="your own experts on several ranks",
    task=make_task,
    verdict=_verdict,
    levels={
        "equal": Level(
            points=3,
            cases=(Start(world_size=2, look="8"), Start(world_size=4, look="8")),
            praise="outputs and gradients of one device, and no row goes where nobody asked for it",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="6 idle"), Start(world_size=2, look="5")),
            praise="also if experts do not divide by the ranks, and if a rank is sent nothing",
        ),
    },
    hints=(
        "Write it for one device first: choose, sort the copies of the rows by expert, compute each expert's stretch, "
        "weigh, and add up with index_add. Only the middle will change.",
        "The counts for each expert are integers without a gradient: dist.all_to_all_single(coming, counts, "
        "output_split_sizes, input_split_sizes) with the numbers of experts on each rank.",
        "all_to_all_single_autograd(x, output_split_sizes, input_split_sizes, group) does the same with rows, and its "
        "backward sends the gradients the other way. It wants lists of plain numbers.",
        "After backward, an expert's gradient is whole: the rows of all ranks have been here. The router has seen this "
        "rank's rows alone, so its gradient is a share of a sum.",
    ),
)
