"""06.11: PyTorch's own FSDP with bfloat16 weights and float32 sums, in units that are gathered as often as asked."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from course_lib.checks.kit.own_tensors import wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import BF16, FP32, Level
from course_lib.checks.module_06.own_fsdp_trained import (
    BLOCKS,
    MICRO_BATCHES,
    RIGHT,
    STEPS,
    WRONG,
    Residual,
    make_model,
    make_task,
    trained,
)
from course_lib.verify.alike import born_with
from course_lib.verify.ratios import times

_SMALL = 16  # bytes of a loss and its like


def _verdict(case: Start, ran: Ran) -> str | None:
    """In which dtype things travel, then weights after all steps, then how often each unit travels."""
    if reason := _wrong_dtypes(ran):
        return reason
    task, answer = dict(ran.task), ran.saved("answer.pt")
    with born_with(0, torch.float32):
        want = trained(task, case.world_size, RIGHT)
        if wrong_tensors(answer, want, start=task["weights"], instead={}) is None:
            return _wrong_units(ran, bool(task["keep"]), case.world_size)
        instead = {sentence: trained(task, case.world_size, how) for sentence, how in WRONG.items()}
    return wrong_tensors(answer, want, start=task["weights"], instead=instead)


def _wrong_dtypes(ran: Ran) -> str | None:
    """Weights must be gathered in bfloat16 and gradients added up in float32; that is seen before any value."""
    calls = ran.ended[0].calls
    low = [call for call in calls if _is_gather(call.operation) and call.dtype == "bfloat16"]
    if not low:
        seen = Counter(f"{call.operation} of {call.dtype}" for call in calls if call.dtype)
        found = ", ".join(f"{number} {what}" for what, number in seen.most_common(3)) or "no call at all"
        return f"no weights are gathered in bfloat16; rank 0's calls: {found}"
    for call in calls:
        if "reduce" in call.operation and call.dtype == "bfloat16" and call.bytes > _SMALL:
            return f"gradients are added up in bfloat16, which keeps 8 bits of each sum: {call}"
    return None


def _wrong_units(ran: Ran, keep: bool, ranks: int) -> str | None:
    """Each rank's pieces: how often they are gathered, and that they are reduced once a step."""
    names = {"block": _piece(Residual(), ranks), "root": _piece(nn.ModuleList(_ends(make_model())), ranks)}
    often = 1 if keep else 2 * MICRO_BATCHES
    gathers = Counter({names["block"]: BLOCKS * often, names["root"]: 1 if keep else MICRO_BATCHES})
    reduces = Counter({names["block"]: BLOCKS, names["root"]: 1})
    for rank, one in enumerate(ran.ended):
        low = [call.bytes // BF16 for call in one.calls if _is_gather(call.operation) and call.dtype == "bfloat16"]
        sums = [call.bytes // FP32 for call in one.calls if "reduce_scatter" in call.operation]
        for what, found, want in (("gathers", low, gathers), ("reduce-scatters", sums, reduces)):
            if odd := sorted(set(found) - set(want)):
                sizes = f"{names['block']} (a block's) and {names['root']} (the root's)"
                return (
                    f"values right, but rank {rank} {what} pieces of {odd[0]} numbers; as asked they have {sizes}: "
                    "is each block a unit, and the rest the root's?"
                )
            if Counter(found) != Counter({size: STEPS * number for size, number in want.items()}):
                return f"values right, but in {STEPS} steps rank {rank} {what} {_told(names, found, want)}"
        whole = sum(call.bytes for call in one.calls if _is_gather(call.operation) and call.dtype == "float32")
        limit = FP32 * (BLOCKS * names["block"] + names["root"])
        if whole > limit:
            ratio = times(whole / limit)
            return (
                f"values right, but rank {rank} gives {whole} B in float32 to gathers, {ratio} its part of the weights"
            )
    return None


def _told(names: dict[str, int], found: list[int], want: Counter[int]) -> str:
    """`a block's piece 9 times (target 18)`, for each kind of unit whose number is not right."""
    seen = Counter(found)
    parts = [
        f"the {name}{'s' * (name == 'block')} {seen[size]} times in all (target {STEPS * want[size]})"
        for name, size in names.items()
        if seen[size] != STEPS * want[size]
    ]
    return " and ".join(parts)


def _piece(module: nn.Module, ranks: int) -> int:
    """Numbers of a rank's piece: of each tensor as many rows as the longest part has."""
    return sum(-(-len(weight) // ranks) * weight[0].numel() for weight in module.parameters())


def _ends(model: nn.Sequential) -> list[nn.Module]:
    return [model[0], model[-1]]


def _is_gather(operation: str) -> bool:
    return operation.startswith("all_gather")


_FSDP = ScriptExercise(
    key="06.11",
    title="your own fully_shard",
    task=make_task,
    verdict=_verdict,
    levels={
        "freed": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="bfloat16 weights, float32 sums, and every block is whole only while it computes",
        ),
        "kept": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="kept"),),
            praise="and with memory to spare each unit is gathered once a step",
        ),
    },
    hints=(
        "A unit is what one call of fully_shard is given. Which modules are called first, the parts or the whole? What "
        "an inner call has taken is no longer the outer one's.",
        "MixedPrecisionPolicy has two dtypes: one in which weights are gathered and forward and backward compute, one "
        "in which gradients are added up. The third thing in float32, the loss, is yours.",
        "Three switches decide when something travels: an argument of fully_shard for the time between forward and "
        "backward, and two methods of the model that are set before each micro-batch: set_requires_gradient_sync and "
        "set_reshard_after_backward.",
        "Whatever is kept whole in a step must be freed after its last backward: the optimizer steps the pieces. And "
        "a whole state dict is a collective: every rank asks for it, and rank 0 alone saves it.",
    ),
)
