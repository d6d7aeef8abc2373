"""10.11: a hook of DDP in plain PyTorch, top-k with a memory, that goes on after a stop as if there had been none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.module_10.hooked_run import Weights, make_task, run, sent_bytes
from course_lib.ranks.counted import Call
from course_lib.verify.equality import close, no_multiple
from course_lib.verify.ratios import exactly

_STEPS, _STOP, _SOONER = 6, 3, 1
_INT32, _SMALL = 4, 8  # bytes of a place, and of a loss or a count
_TOLERANCE = 1e-9


def task_of(case: Start, seed: int) -> dict[str, Any]:
    stop, one_in = (_SOONER, 7) if case.look == "sooner" else (_STOP, 10)
    return make_task(_STEPS, stop, one_in, 1009 * seed + 61)


WRONG_WAYS = {
    "everything": "these come from whole gradients: is the hook registered?",
    "sum": "the messages are summed. DDP does not divide what a hook returns, so divide by the ranks",
    "forgets": "nothing is kept: what was not sent is lost",
    "last only": "what is kept is what the last gradient has left, without what was kept before it",
    "all": "what has been sent is kept as well",
    "by gradient": "the memory does not help to choose: the largest numbers of the gradient alone are sent",
    "written": "a place that several ranks have sent has the last one's number alone: add them up",
    "by size": "what the first step has kept is lost. Is a memory kept by bucket? After that step DDP fills its "
    "buckets anew, so keep it by name",
    "by place": "what the first step has kept is added to other parameters. After that step DDP fills its buckets "
    "anew, so keep it by name, and not by a place in the buckets",
    "cut": "what the first step has kept of bucket 0 is added to other parameters. After that step DDP fills its "
    "buckets anew, so keep it by name",
    "by senders": "each place is divided by the number of ranks that sent it, and by all ranks is asked",
}
WRONG_RESTARTS = {
    "lost": "the memory is empty after the restart: what had been kept is lost",
    "rank 0": "all ranks go on with rank 0's memory. Each rank has kept something else, and has to save its own",
    "momentum": "the momentum of the optimizer is lost in the restart",
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """The run that was not stopped, then the one that went on, to the bit, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    whole = [ran.saved(f"ended-0-{rank}.pt") for rank in range(ranks)]
    again = [ran.saved(f"ended-{task['stop']}-{rank}.pt") for rank in range(ranks)]
    if reason := _wrong_form(whole, task) or _wrong_values(whole, task):
        return reason
    if reason := _wrong_form(again, task) or _wrong_restart(again, whole, task):
        return f"the start that goes on: {reason}"
    for done, ended in zip((0, task["stop"]), ran.starts, strict=True):
        for rank, one in enumerate(ended):
            if reason := _wrong_calls(one.calls, task, _STEPS - done):
                return f"values right, but rank {rank} {reason}"
    return None


def _wrong_form(found: list[Any], task: Mapping[str, Any]) -> str | None:
    for rank, one in enumerate(found):
        if not isinstance(one, Mapping) or not all(isinstance(x, Tensor) for x in one.values()):
            return f"rank {rank} has saved no state dict"
        if one.keys() != task["weights"].keys():
            prefix = next(iter(sorted(one.keys() - task["weights"].keys())), "")
            why = ": that is DDP's own. Save the state dict of the model inside" * prefix.startswith("module.")
            return f"rank {rank}'s state dict has {prefix or 'fewer names'}, and the model's names are asked{why}"
        for name, x in task["weights"].items():
            if one[name].shape != x.shape or one[name].dtype != x.dtype:
                return f"rank {rank}'s {name} is {one[name].dtype} of {tuple(one[name].shape)}"
    return None


def _same(one: Weights, other: Weights) -> bool:
    return all(close(one[name].detach(), x, tolerance=_TOLERANCE) for name, x in other.items())


def _wrong_values(found: list[Weights], task: Mapping[str, Any]) -> str | None:
    ranks, right = len(found), run(task, len(found))
    if all(_same(one, right) for one in found):
        return None
    if _same(found[0], task["weights"]):
        return "the weights are as they were before the first step"
    for mistake, says in WRONG_WAYS.items():
        if _same(found[0], run(task, ranks, mistake=mistake)):
            return says
    for rank, one in enumerate(found):
        if not _same(one, right):
            name = next(name for name, x in right.items() if not close(one[name], x, tolerance=_TOLERANCE))
            return f"rank {rank}'s {name} {no_multiple(one[name], right[name])}"
    return None


def _wrong_restart(found: list[Weights], whole: list[Weights], task: Mapping[str, Any]) -> str | None:
    for rank, (one, other) in enumerate(zip(found, whole, strict=True)):
        if all(torch.equal(one[name], x) for name, x in other.items()):
            continue
        for mistake, says in WRONG_RESTARTS.items():
            if _same(one, run(task, len(found), mistake=mistake)):
                return says
        if _same(one, other):
            return f"rank {rank}'s weights are those of the run without a stop up to rounding, and not to the bit"
        return (
            f"rank {rank}'s weights are not those of the run without a stop: does every parameter get back what this "
            "rank had kept of it? In its first step a fresh DDP fills its buckets in another order"
        )
    return None


def _wrong_calls(calls: tuple[Call, ...], task: Mapping[str, Any], steps: int) -> str | None:
    """Values and places are gathered; DDP itself gathers one count when it is made."""
    reduced = [call for call in calls if "reduce" in call.operation and call.bytes > _SMALL]
    if reduced:
        return f"makes {reduced[0]}: each rank sends other places, so messages are gathered and not added on the way"
    sent = sum(call.bytes for call in calls if call.operation.startswith("all_gather")) - _SMALL
    due = steps * sent_bytes(task, value=FP64, place=_INT32)
    if sent == due:
        return None
    if sent == steps * sent_bytes(task, value=FP64, place=FP64):
        return f"gathers {sent:,} B in {plural(steps, 'step')}, and {due:,} B are right: places go as int32, of 4 bytes"
    return f"gathers {sent:,} B in {plural(steps, 'step')}, {exactly(sent / due)} the {due:,} B of values and places"


_HOOK = ScriptExercise(
    key="10.11",
    title="your own hook in DDP, stopped and resumed",
    task=task_of,
    verdict=_verdict,
    errors={
        "must match the size": "is a memory kept by bucket? After its first step DDP fills its buckets anew, so keep "
        "it by name",
    },
    levels={
        "resumed": Level(
            points=4,
            cases=(Start(world_size=2, then=2), Start(world_size=4, then=4)),
            praise="a top-k hook with a memory, and a stop that nobody can see in the weights, to the bit",
        ),
        "sooner": Level(
            points=1,
            again=True,
            cases=(Start(world_size=2, then=2, look="sooner"),),
            praise="also if the stop comes before DDP has filled its buckets anew",
        ),
    },
    hints=(
        "names = {one: name for name, one in model.named_parameters()}. A hook gets a bucket, whose parameters() and "
        "gradients() go together, one by one.",
        "For each of them: due = gradient + kept, the places of its largest numbers, and what is left goes into the "
        "memory under its name. All ranks send equally many numbers, so dist.all_gather takes values and places.",
        "A gradient of the bucket is a view of its buffer: gradient.copy_(mean) puts the mean there. At the end: "
        "future = torch.futures.Future(), future.set_result(bucket.buffer()), and return the future.",
        "At the stop each rank saves under a name of its own: the step, model.state_dict(), optimizer.state_dict(), "
        "and the memory. If that file is there at the start, load all of it and go on at its step.",
    ),
)
