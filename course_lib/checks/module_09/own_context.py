"""09.11: a sequence over several ranks in plain PyTorch, by a gather of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.own_tensors import agree, malformed, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.module_09.own_context_trained import (
    BATCH,
    DIM,
    KV_HEADS,
    LAYERS,
    LENGTH,
    STEPS,
    WRONG_WAYS,
    Trained,
    Way,
    make_task,
    trained,
)
from course_lib.ranks.counted import Call
from course_lib.verify.alike import born_with
from course_lib.verify.ratios import exactly, times

_TOLERANCE = 1e-9
_OF_LOSSES = 4 * FP64  # bytes of a step's loss and its like, which are no gradient
_NO_LABEL = "the mean over no label is nan, and their sum is 0"
_SET_UP = ("broadcast", "barrier")  # by which replicas begin alike


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights after all steps, then each step's loss and share, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    answers = [ran.saved(f"answer-{rank}.pt") for rank in range(ranks)]
    for rank, answer in enumerate(answers):
        if not isinstance(answer, dict) or {"weights", "losses", "shares"} - answer.keys():
            return f"answer-{rank}.pt is to hold a dict with 'weights', 'losses' and 'shares'"
    with born_with(0, torch.float64):
        want = trained(task, Way())
        reasons = (
            (_wrong_weights(answer, task, want) if rank == 0 else _unlike_rank_0(answer, task, want))
            or _wrong_losses(answer, rank, want)
            for rank, answer in enumerate(answers)
        )
        found = next(((rank, reason) for rank, reason in enumerate(reasons) if reason), None)
    return f"rank {found[0]}: {found[1]}" if found else _wrong_traffic(ran, ranks)


def _wrong_weights(answer: dict[str, Any], task: dict[str, Any], want: Trained) -> str | None:
    found, start = answer["weights"], task["weights"]
    reason = wrong_tensors(found, want.weights, start=start, instead={}, tolerance=_TOLERANCE)
    if reason is None or malformed(found, want.weights):
        return reason
    for sentence, way in () if agree(found, start, _TOLERANCE) else WRONG_WAYS:
        if agree(found, trained(task, way).weights, _TOLERANCE):
            return f"the weights are {sentence}"
    losses = _numbers(answer["losses"], want)
    if losses is None:
        return reason
    first = "right, and its gradient is not" if _near(losses[0], want.losses[0]) else "wrong already"
    return f"{reason}; by the losses, the first forward is {first}"


def _unlike_rank_0(answer: dict[str, Any], task: dict[str, Any], want: Trained) -> str | None:
    """Rank 0 is right, so what others have may only differ from it."""
    reason = wrong_tensors(answer["weights"], want.weights, start=task["weights"], instead={}, tolerance=_TOLERANCE)
    return reason and f"{reason}; rank 0's weights are right"


def _numbers(found: Any, want: Trained) -> list[float] | None:
    """A number for each batch; None if it is no list of so many."""
    found = found.tolist() if isinstance(found, Tensor) else found
    if not isinstance(found, list | tuple) or len(found) != len(want.losses):
        return None
    return [float(one) for one in found]


def _near(one: float, other: float) -> bool:
    return abs(one - other) < 1e-6


def _wrong_losses(answer: dict[str, Any], rank: int, want: Trained) -> str | None:
    for name in ("losses", "shares"):
        numbers = _numbers(answer[name], want)
        if numbers is None:
            return f"weights right; '{name}' is to be a list of {len(want.losses)} numbers, one for each batch"
        for step, number in enumerate(numbers):
            whole, own = want.losses[step], want.shares[step][rank]
            if not _near(number, whole if name == "losses" else own):
                why = _instead_of_loss(number, whole, own) if name == "losses" else _instead_of_share(number, whole)
                return f"weights right, but of batch {step + 1} '{name}' has {number:.4f}{why}"
    return None


def _instead_of_loss(number: float, whole: float, own: float) -> str:
    if isnan(number):
        return f": {_NO_LABEL}"
    if _near(number, own):
        return ", and that is this rank's share: the ranks' shares add up to the loss"
    return f", {exactly(number / whole)} the mean over all labels that count, on all ranks, before the step"


def _instead_of_share(number: float, whole: float) -> str:
    if isnan(number):
        return f": {_NO_LABEL}"
    if _near(number, whole):
        return ", and that is the loss of all ranks"
    return (
        ", and that is not what this rank's positions add to the loss: the task says which positions it reads, and "
        "the sum of their losses is divided by all labels that count"
    )


def _wrong_traffic(ran: Ran, ranks: int) -> str | None:
    """Keys and values gathered once a layer, their gradients scattered once, and one sum of the model's gradients."""
    own = STEPS * LAYERS * 2 * BATCH * KV_HEADS * LENGTH // ranks * DIM * FP64
    model = STEPS * sum(one.nbytes for one in ran.task["weights"].values())
    for rank, one in enumerate(ran.ended):
        calls = [call for call in one.calls if call.bytes and call.dtype.startswith("float")]
        gathered = [call for call in calls if call.operation.startswith("all_gather")]
        scattered = [call for call in calls if call.operation.startswith(("reduce_scatter", "all_to_all"))]
        summed = [call for call in calls if call.operation == "all_reduce"]
        known = [*gathered, *scattered, *summed]
        if other := [call for call in calls if call not in known and call.operation not in _SET_UP]:
            return (
                f"values right, but rank {rank} makes {other[0]}: nothing but keys, values and gradients has to travel"
            )
        if (sent := _bytes(gathered)) != own:
            return (
                f"values right, but rank {rank} gives {sent} B to all-gathers, {times(sent / own)} its keys and values "
                f"of {STEPS} steps: {_why_gathered(sent, own)}"
            )
        if (sent := _of_parts(scattered, ranks)) != own:
            return (
                f"values right, but of the gradients of keys and values rank {rank} is left {sent} B by "
                f"reduce-scatters, {times(sent / own)} its own keys and values: the backward of each gather is one of "
                "these"
            )
        if not model <= (sent := _bytes(summed)) <= model + STEPS * _OF_LOSSES:
            return (
                f"values right, but rank {rank} hands {sent} B to all-reduces, {times(sent / model)} the gradients of "
                f"{STEPS} steps: each is summed once a step, and besides that a loss"
            )
    return None


def _why_gathered(sent: int, own: int) -> str:
    if sent < own:
        return "does another call bring them, or does each rank compute positions of others?"
    more = "gather them once in each layer, and nothing else"
    return f"are they copied for their query heads first? {more}" if sent % own == 0 else more


def _bytes(calls: Sequence[Call]) -> int:
    return sum(call.bytes for call in calls)


def _of_parts(calls: Sequence[Call], ranks: int) -> int:
    """What a rank keeps of gradients; an all-to-all of terms that it adds up itself sends one for each rank."""
    return sum(call.bytes // (ranks if call.operation.startswith("all_to_all") else 1) for call in calls)


_CONTEXT = ScriptExercise(
    key="09.11",
    title="your own context parallelism",
    task=make_task,
    verdict=_verdict,
    errors={
        "Expected parameter `tensor` of type torch.Tensor": (
            "a weight has no gradient on this rank. Does the gather give nothing back, or has it left backward out?"
        )
    },
    levels={
        "sgd": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="the weights of one device, and no rank has read more than its part of the sequence",
        ),
        "adamw": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="adamw"), Start(world_size=2, look="adamw")),
            praise="and by AdamW, in another order, and where a rank has no label to guess",
        ),
    },
    hints=(
        "Write `main` for one device first: logits of all positions, the sum of the losses over the number of labels "
        "that count, backward, step. Then ask of each line what a rank with a few positions has to do otherwise.",
        "Attention: rotate by this rank's own positions, then gather k and v along the dimension of positions. They "
        "lie rank by rank, so torch.tensor(positions).flatten() says where each key stands. A mask compares with that.",
        "A query head reads the key head of its group: enable_gqa=True does it after the gather, so that only two "
        "heads travel. Backward of all_gather_single_autograd adds up what all ranks' queries say of a key.",
        "tokens[:, :-1] and labels[:, 1:] first, then [:, mine] of both. F.cross_entropy(..., reduction='sum') skips "
        "-100, and of no label it is 0. Every rank can count the labels of the whole batch, so all divide by the same.",
        "A weight's gradient on a rank is a term, from this rank's positions. An all-reduce of each .grad before the "
        "step makes it whole; do not divide. Do the same with the loss, to report it.",
    ),
)
