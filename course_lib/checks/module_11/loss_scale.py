"""11.2: a dynamic loss scaler over several processes in plain PyTorch, whose weights are cut over the processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.verify.equality import close
from course_lib.verify.numbers import number_of

_LENGTH, _STEPS, _PATIENCE, _SCALE = 12, 14, 3, 2.0**14
_LARGEST = 65504.0  # of fp16
_TOLERANCE = 1e-9
_EVERY = {"plain": (), "one": (2, 3, 11), "first": (0, 1)}  # steps in which one part of the gradient is large


class _Trained(NamedTuple):
    """After each step: the whole weight at the end, the scales, and which steps were skipped."""

    weight: Tensor
    scales: list[float]
    skipped: list[int]


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Gradients of a whole weight, step by step; in some steps the last number is too large for this scale."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1013 * seed + 17)
        gradients = 0.02 * torch.randn(_STEPS, _LENGTH).double()  # small: no scale of these steps is too large
        weight = torch.randn(_LENGTH).double()
    for step in _EVERY[case.look]:
        gradients[step, -1 - (seed + step) % 2 * (_LENGTH - 1)] = 3 * _LARGEST / _SCALE
    return {
        "weight": weight,
        "gradients": gradients,
        "rate": 0.01,
        "momentum": 0.9,
        "scale": _SCALE,
        "patience": _PATIENCE,
    }


def _train(task: Mapping[str, Any], *, ranks: int, mistake: str = "") -> _Trained:
    """On one device, or as ranks do that make a mistake."""
    weight, momentum = task["weight"].clone(), torch.zeros_like(task["weight"])
    parts = [slice(int(one[0]), int(one[-1]) + 1) for one in torch.arange(len(weight)).tensor_split(ranks)]
    own = [[task["scale"], 0] for _ in parts]  # scale, good steps in a row
    scales, skipped = [], []
    for step, gradient in enumerate(task["gradients"]):
        found, over = gradient.clone(), []
        for part, (scale, _) in zip(parts, own, strict=True):
            half = (gradient[part] * scale).half()
            over.append(not bool(half.isfinite().all()))
            found[part] = half.double() / scale
        if mistake != "each for itself":
            over = [any(over)] * ranks
        for number, (part, one) in enumerate(zip(parts, own, strict=True)):
            if over[number]:
                one[:] = one[0] / {"quarter": 4}.get(mistake, 2), one[1] if mistake == "patient" else 0
                if mistake != "momentum":
                    continue
                momentum[part] *= task["momentum"]
                continue
            momentum[part] = task["momentum"] * momentum[part] + found[part] / (
                1 if mistake != "not unscaled" else 1 / one[0]
            )
            weight[part] -= task["rate"] * momentum[part]
            one[1] += 1
            if one[1] >= task["patience"] + (mistake == "late"):
                one[:] = one[0] * 2, 0
                if mistake == "grows on":
                    one[1] = task["patience"]
        scales.append(own[0][0])
        skipped += [step] * over[0]
    return _Trained(weight, scales, skipped)


_WRONG_WAYS = {
    "each for itself": "a rank skips and halves its scale where its own part overflows, and the others go on. Then "
    "parts of one weight are of different steps: tell each other",
    "patient": "good steps are counted on after a skipped one. They are to be in a row",
    "late": "the scale grows a step too late: after `patience` good steps, not with the next one",
    "grows on": "the count of good steps does not begin again once the scale has grown",
    "quarter": "the scale is divided by 4, and by 2 is asked",
    "momentum": "a skipped step has changed the momentum. Nothing may move in it",
    "not unscaled": "the gradients are not divided by the scale before the step",
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """Skipped steps, then scales, then the weight, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    right = _train(task, ranks=ranks)
    for rank in range(ranks):
        answer = ran.saved(f"answer-{rank}.pt")
        if reason := _wrong_answer(answer, rank, task, right, ranks):
            return f"rank {rank}: {reason}"
    return _wrong_calls(ran)


def _wrong_answer(answer: Any, rank: int, task: Mapping[str, Any], right: _Trained, ranks: int) -> str | None:
    if not isinstance(answer, Mapping):
        return f"answer-{rank}.pt is to hold a dict with 'weight', 'scales' and 'skipped'"
    skipped = answer.get("skipped")
    if not isinstance(skipped, list) or [number_of(one) for one in skipped] != right.skipped:
        return f"skipped is {skipped}, and {right.skipped} is right{_why(task, 'skipped', skipped, ranks)}"
    scales = answer.get("scales")
    if not isinstance(scales, list) or [number_of(one) for one in scales] != right.scales:
        return (
            f"skipped is right, but not the scales{_first(scales, right.scales)}{_why(task, 'scales', scales, ranks)}"
        )
    weight = answer.get("weight")
    want = right.weight.tensor_split(ranks)[rank]
    if not isinstance(weight, Tensor):
        return "the weight is missing"
    if weight.shape != want.shape:
        return f"the weight has shape {tuple(weight.shape)}, and its part of it is {tuple(want.shape)}"
    if weight.dtype != want.dtype:
        return f"the weight is {weight.dtype}, and {want.dtype} is right"
    if not close(weight.detach(), want, tolerance=_TOLERANCE):
        for mistake, says in _WRONG_WAYS.items():
            other = _train(task, ranks=ranks, mistake=mistake).weight.tensor_split(ranks)[rank]
            if close(weight.detach(), other, tolerance=_TOLERANCE):
                return f"skipped and scales are right, but not the weight: {says}"
        return "skipped and scales are right, but not the weight: does a skipped step leave all as it was?"
    return None


def _why(task: Mapping[str, Any], name: str, found: Any, ranks: int) -> str:
    """What gives these steps or scales, behind a colon."""
    for mistake, says in _WRONG_WAYS.items():
        if getattr(_train(task, ranks=ranks, mistake=mistake), name) == found:
            return f": {says}"
    return ""


def _first(found: Any, right: list[float]) -> str:
    if not isinstance(found, list) or len(found) != len(right):
        return f", one after each of {len(right)} steps"
    step = next(step for step, (one, other) in enumerate(zip(found, right, strict=True)) if one != other)
    return f": {found[step]:g} after step {step}, and {right[step]:g} is right"


def _wrong_calls(ran: Ran) -> str | None:
    """One number in each step, and nothing else."""
    for rank, one in enumerate(ran.ended):
        calls = [call for call in one.calls if call.bytes]
        if long := [call for call in calls if call.bytes > FP64]:
            return f"values right, but rank {rank} makes {long[0]}: one number says whether anybody has overflowed"
        if len(calls) != _STEPS:
            made = plural(len(calls), "call")
            return f"values right, but rank {rank} makes {made}, and one in each of {_STEPS} is right"
    return None


_SCALER = ScriptExercise(
    key="11.2",
    title="your own loss scaler over several ranks",
    task=_task,
    verdict=_verdict,
    levels={
        "together": Level(
            points=3,
            cases=(Start(world_size=2, look="one"), Start(world_size=4, look="one")),
            praise="all ranks skip together, and one number a step is all that they tell each other",
        ),
        "edges": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="first"), Start(world_size=2, look="plain")),
            praise="also if the very first steps overflow, and if none does",
        ),
    },
    hints=(
        "A rank's part of a step: half = (gradient * scale).half(). It is inf where it does not fit. Then "
        "half.double() / scale is the gradient that the optimizer gets.",
        "bad = torch.tensor([0.0 or 1.0]) and dist.all_reduce(bad, op=dist.ReduceOp.MAX): it is 1 on all ranks as soon "
        "as one of them has an inf.",
        "If it is bad: no optimizer step, scale / 2, and the count of good steps is 0. Else: a step, the count goes "
        "up, and at `patience` the scale doubles and the count begins again.",
        "torch.optim.SGD with momentum changes its state in step() alone, so without that call nothing moves.",
    ),
)
