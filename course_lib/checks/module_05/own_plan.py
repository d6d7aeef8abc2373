"""05.11: a plan for PyTorch's own tensor parallelism, with the loss of logits that are never put together."""

from __future__ import annotations

import torch

from course_lib.checks.kit.own_tensors import wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.module_05.own_plan_trained import (
    BATCH,
    HIDDEN,
    LAYERS,
    LENGTH,
    STEPS,
    WIDTH,
    WORDS,
    make_task,
    trained,
)
from course_lib.checks.module_05.plan_errors import PLAN_ERRORS
from course_lib.ranks.counted import Call
from course_lib.verify.alike import born_with
from course_lib.verify.ratios import times

_OF_A_STEP = 1 + 4 * LAYERS + 1  # embedding forward, two in each block forward and backward, head backward
_EACH_READER = 3 * LAYERS  # more, if q, k and v, and gate and up, sum the gradient of their input apart
_BETWEEN = BATCH * LENGTH * WIDTH * FP64  # bytes of what flows between blocks
_OF_LOSSES = 4 * BATCH * LENGTH * FP64  # of a step: maximum, sum and target of each position, and one to spare
_TOLERANCE = 1e-9


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights after all steps, then what has travelled."""
    task, ranks, answer = dict(ran.task), case.world_size, ran.saved("answer.pt")
    with born_with(0, torch.float32):
        want = trained(task)
        if wrong_tensors(answer, want, start=task["weights"], instead={}, tolerance=_TOLERANCE) is None:
            reasons = (_wrong_calls(rank, one.calls, ranks) for rank, one in enumerate(ran.ended))
            return next(filter(None, reasons), None)
        instead = {
            "too small by the number of processes: all of them compute one loss, so nothing is averaged over them": (
                trained(task, 1 / ranks)
            ),
            "too large by the number of processes: all of them compute one loss, and nothing is averaged over them": (
                trained(task, float(ranks))
            ),
            "the norms have learnt, and what is cut has not: does the optimizer have the parameters that "
            "parallelize_module puts in place of the old ones?": trained(task, of="norm"),
            "a gradient is left from the step before": trained(task, cleared=False),
        }
    reason = wrong_tensors(answer, want, start=task["weights"], instead=instead, tolerance=_TOLERANCE)
    return reason and f"{reason}{_of_other_size(ran.ended[0].calls)}"


def _of_other_size(calls: tuple[Call, ...]) -> str:
    """All sums of activations have another size than the batch: each rank has its own rows, perhaps."""
    large = {call.bytes for call in calls if call.operation == "all_reduce" and call.bytes > _OF_LOSSES}
    if not large or _BETWEEN in large:
        return ""
    return (
        f"; the largest all-reduce is of {max(large)} B, and the whole batch between two blocks has {_BETWEEN} B: in "
        "tensor parallelism every rank has the same batch"
    )


def _wrong_calls(rank: int, calls: tuple[Call, ...], ranks: int) -> str | None:
    """No logits put together, one sum for each cut pair of layers and direction, small ones for the loss."""
    of_logits = BATCH * LENGTH * -(-WORDS // ranks) * FP64
    for call in calls:
        if call.operation.startswith("all_gather") and call.bytes == of_logits:
            each = f"{WORDS} numbers for each of {BATCH * LENGTH} positions"
            return f"values right, but rank {rank} takes part in an {call}: these are the logits put together, {each}"
    odd = [call for call in calls if call.operation.startswith(("reduce_scatter", "all_to_all")) and call.bytes]
    if odd:
        return f"values right, but rank {rank} calls {odd[0]}: between blocks every rank is to have all numbers"
    gathered = sum(call.bytes for call in calls if call.operation.startswith("all_gather"))
    if gathered > _held(ranks):
        ratio = times(gathered / _held(ranks))
        text = f"values right, but rank {rank} gives {gathered} B to all-gathers, {ratio} its part of the weights"
        others = [call for call in calls if call.operation.startswith("all_gather") and call.bytes not in _parts(ranks)]
        which = f"; for instance {others[0]} is no part of a weight" if others else ""
        return f"{text}: these are gathered once, at the end, and nothing is gathered in a step{which}"
    sums = [call.bytes for call in calls if call.operation == "all_reduce"]
    if (found := sums.count(_BETWEEN)) != STEPS * _OF_A_STEP:
        return f"values right, but rank {rank} {_told(found)}"
    small = sum(sums) - found * _BETWEEN
    if small > STEPS * _OF_LOSSES:
        return (
            f"values right, but rank {rank} hands {small} B more to all-reduces; the losses need {STEPS * _OF_LOSSES}"
        )
    return None


def _told(found: int) -> str:
    """So many sums as large as what flows between blocks, and what their number says."""
    target = STEPS * _OF_A_STEP
    text = f"makes {found} all-reduces of {_BETWEEN} B in {STEPS} steps (target {target})"
    if found - target == STEPS * _EACH_READER:
        return f"{text}, as many as if q, k and v, and gate and up, each sum the gradient of what they read together"
    if found > target:
        return f"{text}; is the gradient of what several layers read summed once for all of them?"
    return f"{text}: 1 for the embedding, 4 for each block and 1 for the head in each step; what of these is not cut?"


def _held(ranks: int) -> int:
    """Bytes of a rank's part of all weights but the norms."""
    of_words, of_attention, of_mlp = _parts(ranks)
    return 2 * of_words + LAYERS * (4 * of_attention + 3 * of_mlp)


def _parts(ranks: int) -> tuple[int, int, int]:
    """Bytes of a rank's part of a weight, the longest: of embedding or head, in attention, in the MLP."""
    return FP64 * -(-WORDS // ranks) * WIDTH, FP64 * WIDTH * WIDTH // ranks, FP64 * WIDTH * HIDDEN // ranks


_PLAN = ScriptExercise(
    key="05.11",
    title="your own plan for parallelize_module",
    task=make_task,
    verdict=_verdict,
    errors=PLAN_ERRORS,
    levels={
        "sgd": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="the weights of one device, and the logits are never in one place",
        ),
        "adamw": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="adamw"),),
            praise="and AdamW steps the parts, with the fewest sums",
        ),
    },
    hints=(
        "Go from layer to layer and ask for each weight: is it cut by its outputs or by its inputs, and what does the "
        "next one want? A pair of both needs no word between its two. In an embedding, words are the inputs.",
        "A plan is a dict from names to styles, and a name may hold a pattern: 'attention.[qkv]'. Print "
        "[name for name, _ in model.named_modules()] to see which there are.",
        "loss_parallel wants logits that are a DTensor, cut along the words: which two arguments of ColwiseParallel "
        "say so? Forward of the loss and backward both stand inside of it.",
        "q, k and v each get a plain x, so each makes a gradient of it that is summed. If x is a DTensor already when "
        "attention gets it, the three gradients meet before they are summed: PrepareModuleInput, for the module.",
    ),
)
