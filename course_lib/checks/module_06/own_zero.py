"""06.12: ZeRO-1 of one's own around any optimizer: a piece of the row is stepped, with a piece of the states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.module_06.own_zero_trained import RIGHT, STEPS, WRONG, make_task, piece_size, trained
from course_lib.verify.alike import born_with
from course_lib.verify.equality import close, scale_of
from course_lib.verify.ratios import exactly, times

_TOLERANCE = 1e-9
_SMALL = 16  # bytes of a loss and its like


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights of every rank after all steps, then what each remembers, then what has travelled."""
    task, ranks = dict(ran.task), case.world_size
    answers = [ran.saved(f"answer-{rank}.pt") for rank in range(ranks)]
    for rank, answer in enumerate(answers):
        if not isinstance(answer, dict) or {"weights", "states"} - answer.keys():
            return f"answer-{rank}.pt is to hold a dict with 'weights' and 'states'"
    with born_with(0, torch.float64):
        want, states = trained(task, ranks, RIGHT)
        for rank, answer in enumerate(answers):
            if wrong_tensors(answer["weights"], want, start=task["weights"], instead={}, tolerance=_TOLERANCE):
                instead = {sentence: trained(task, ranks, how)[0] for sentence, how in WRONG.items()}
                return _wrong_weights(answers, rank, want, task["weights"], instead)
    length = next(len(one) for one in states.values())
    size = piece_size(length, ranks)
    return _wrong_states(answers, states, size) or _too_much_inside(ran, len(states) * size) or _wrong_calls(ran, size)


def _wrong_weights(
    answers: list[Any], rank: int, want: Tensors, start: Tensors, instead: dict[str, Tensors]
) -> str | None:
    reason = wrong_tensors(answers[rank]["weights"], want, start=start, instead=instead, tolerance=_TOLERANCE)
    other = (rank + 1) % len(answers)
    alike = wrong_tensors(answers[other]["weights"], answers[rank]["weights"], start=start, instead={}) is None
    apart = f"; and the weights of rank {other} are other ones: does each rank get every piece?" * (not alike)
    return f"rank {rank}: {reason}{apart}"


def _wrong_states(answers: list[Any], want: Tensors, size: int) -> str | None:
    """Each rank remembers of its own piece, and all of them together what one device remembers."""
    for rank, answer in enumerate(answers):
        found = answer["states"]
        if not isinstance(found, dict) or any(not isinstance(found.get(name), Tensor) for name in want):
            names = " and ".join(map(repr, want))
            return f"weights right, but rank {rank}'s states are to be a dict with {names}, as the optimizer names them"
        for name, one in found.items():
            if isinstance(one, Tensor) and one.numel() > size:
                memory = f"{one.numel()} numbers as {name!r}, {times(one.numel() / size)} its piece of {size}"
                return f"weights right, but rank {rank} remembers {memory}"
    for name, right in want.items():
        whole = torch.cat([answer["states"][name].flatten() for answer in answers])[: len(right)]
        if not close(whole, right, tolerance=_TOLERANCE):
            ratio = scale_of(whole, right) if whole.shape == right.shape else None
            how = f"{exactly(ratio)} what" if ratio is not None else "not what"
            return f"weights right, but {name!r} of all ranks' pieces, joined, is {how} one device remembers of the row"
    return None


def _too_much_inside(ran: Ran, target: int) -> str | None:
    """What the optimizer inside remembers, seen from outside: `states()` may tell of a part of it alone."""
    for rank, one in enumerate(ran.ended):
        if one.remembered > target:
            seen = f"remembers {one.remembered} numbers, {times(one.remembered / target)} the {target} of its piece"
            return (
                f"weights right, but the optimizer inside rank {rank} {seen}: it is to be given its piece and no more"
            )
    return None


def _wrong_calls(ran: Ran, size: int) -> str | None:
    """One reduce-scatter of gradients and one all-gather of weights a step, each of a piece."""
    for rank, one in enumerate(ran.ended):
        for operation, why in _TOO_MUCH.items():
            sent = sum(call.bytes for call in one.calls if call.operation == operation and call.bytes > _SMALL)
            if sent:
                return f"values right, but rank {rank} hands {sent} B to {operation}: {why}"
        for kind, what in (("reduce_scatter", "gradients"), ("all_gather", "weights")):
            sizes = [call.bytes for call in one.calls if call.operation.startswith(kind)]
            if sum(sizes) != STEPS * size * FP64 or len(sizes) != STEPS:
                ratio = times(sum(sizes) / (STEPS * size * FP64))
                seen = f"{len(sizes)} calls of {kind} for {what} in {STEPS} steps, with {ratio} the bytes of its pieces"
                return f"values right, but rank {rank} makes {seen}; the target is one call a step"
    return None


_TOO_MUCH = {
    "all_reduce": "every rank gets the mean of all gradients, and needs that of its piece alone",
    "broadcast": "one all-gather brings all pieces at once",
    "all_to_all": "one all-gather brings all pieces at once",
}


_ZERO = ScriptExercise(
    key="06.12",
    title="your own sharded optimizer",
    task=make_task,
    verdict=_verdict,
    levels={
        "sgd": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="momentum is cut into pieces, the rates of the loop arrive, and the weights are those of one device",
        ),
        "adamw": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="adamw"),),
            praise="AdamW is cut alike, and what is frozen stays where it is",
        ),
    },
    hints=(
        "What does the optimizer inside need? A tensor of its own that learns, this rank's piece of the row, and a "
        "gradient of the same shape before each step. It need not know that there is a model.",
        "torch.cat makes the row, and F.pad its zeros: -length % ranks of them. The row of gradients is laid in the "
        "same way, from the .grad of the same tensors in the same order.",
        "dist.reduce_scatter_single(piece, row) adds up and leaves each rank its piece; gloo cannot average, so divide "
        "yourself. dist.all_gather_single(row, piece) is the way back.",
        "The loop writes into optimizer.param_groups, and the optimizer inside reads its own: let both be one list. "
        "optimizer.state[tensor] is a dict of what it remembers of a tensor; not all in it is as long as the piece.",
    ),
)
