"""07.10: a mesh of one's own with torch's TP and FSDP2, and a norm over parameters of two meshes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, isclose
from typing import Any

from torch import Tensor

from course_lib.checks.kit.own_tensors import malformed, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_07.meshes import MISTAKES, ROWS, STEPS, WIDTH, Mesh, make_task, mistaken_norms, trained
from course_lib.verify.ratios import exactly, times

_SMALL = 128  # bytes of norms and their like; the smallest activation has twice as many


def _verdict(case: Mesh, ran: Ran) -> str | None:
    """Shapes of the pieces, norms, then the pieces themselves, then what has travelled."""
    task, saved = dict(ran.task), [ran.saved(f"rank{rank}.pt") for rank in range(case.world_size)]
    if not all(isinstance(one, dict) and {"pieces", "norms"} <= one.keys() for one in saved):
        return "each rank's file is to hold a dict with 'pieces' and 'norms'"
    want, norms = trained(task)
    for rank, one in enumerate(saved):
        if reason := malformed(one["pieces"], case.pieces(want, rank)):
            return f"rank {rank}: {reason}"
        if reason := _wrong_norms(case, task, one["norms"], norms):
            return f"rank {rank}: {reason}{_other_rows(case, ran)}"
    wrong = {sentence: trained(task, mistake)[0] for mistake, sentence in MISTAKES.items()}
    for rank, one in enumerate(saved):
        start, right = case.pieces(task["weights"], rank), case.pieces(want, rank)
        instead = {sentence: case.pieces(tensors, rank) for sentence, tensors in wrong.items()}
        for other in range(case.world_size):
            instead[f"these are the pieces of rank {other}; on this mesh neighbours share a block"] = case.pieces(
                want, other
            )
        if reason := wrong_tensors(one["pieces"], right, start=start, instead=instead, tolerance=1e-5):
            return f"rank {rank}: {reason}"
    return next(filter(None, (_traffic(case, ran, rank) for rank in range(case.world_size))), None)


def _wrong_norms(case: Mesh, task: Mapping[str, Any], found: Any, want: list[float]) -> str | None:
    if not isinstance(found, list | tuple) or len(found) != len(want) or any(isinstance(x, str) for x in found):
        return f"'norms' is to be a list of {len(want)} numbers, one for each step"
    for step, (got, right) in enumerate(zip(map(float, found), want, strict=True), start=1):
        if isclose(got, right, rel_tol=1e-6):
            continue
        text = f"the norm of step {step} is {got:.6g}, one device's {right:.6g}"
        if isclose(got, min(right, task["max_norm"]), rel_tol=1e-4):
            return f"{text}: that is the norm after clipping"
        if step > 1:
            later = {why: trained(task, mistake)[1][step - 1] for mistake, why in MISTAKES.items()}
            return f"{text}, and those before are right{_named(later, got)}"
        return text + (_named(mistaken_norms(case, task), got) or f", so yours is {exactly(got / right)} it")
    return None


def _named(mistakes: Mapping[str, float], got: float) -> str:
    return next((f": {why}" for why, norm in mistakes.items() if isclose(got, norm, rel_tol=1e-6)), "")


def _other_rows(case: Mesh, ran: Ran) -> str:
    """A hint at the rows, if the activations that are added up along tp have another number of them."""
    sizes = {call.bytes for call in ran.ended[0].calls if call.operation == "all_reduce" and call.bytes > _SMALL}
    right = ROWS // case.dp * WIDTH * 8
    if case.tp == 1 or not sizes or right in sizes:
        return ""
    rows = f"{min(sizes) / (WIDTH * 8):g} rows"
    return f"; a block's sum along tp has {rows}, and its ranks are to read the same {ROWS // case.dp}"


def _traffic(case: Mesh, ran: Ran, rank: int) -> str | None:
    """On dp each unit is gathered and its gradients are scattered; on tp a block adds up forward and backward."""
    i, j = divmod(rank, case.tp)
    dp, tp = (", ".join(map(str, range(case.world_size)[cut])) for cut in _groups(case, i, j))
    unit = {name: ceil(len(p) / case.dp) * p[:1].nbytes for name, p in _cut_along_tp(case, ran).items()}
    blocks, everything = sum(n for name, n in unit.items() if name.count(".") == 2), sum(unit.values())
    rows = ROWS // case.dp * WIDTH * 8
    targets = {
        ("dp", dp, "all_gather"): (case.dp > 1) * (everything + blocks),
        ("dp", dp, "reduce_scatter"): (case.dp > 1) * everything,
        ("tp", tp, "all_reduce"): (case.tp > 1) * 2 * 2 * rows,
    }
    calls = [call for call in ran.ended[rank].calls if call.ranks > 1 and call.bytes > _SMALL]
    for (axis, members, operation), target in targets.items():
        made = [call for call in calls if call.operation.startswith(operation)]
        if target and (elsewhere := next((call for call in made if call.members != members), None)) is not None:
            return (
                f"values right, but rank {rank} makes {elsewhere} with ranks {elsewhere.members}; along {axis} its "
                f"group is {members}: ranks that are neighbours share a block"
            )
        if (found := sum(call.bytes for call in made)) != STEPS * target:
            return _in_a_step(rank, operation, axis, found / STEPS, target)
    return None


def _groups(case: Mesh, i: int, j: int) -> tuple[slice, slice]:
    return slice(j, None, case.tp), slice(i * case.tp, (i + 1) * case.tp)


def _cut_along_tp(case: Mesh, ran: Ran) -> dict[str, Tensor]:
    alone = replace(case, world_size=case.tp)
    return alone.pieces(ran.task["weights"], 0)


def _in_a_step(rank: int, operation: str, axis: str, found: float, target: int) -> str:
    way_out = {
        "all_gather": "each block is a unit that is gathered for forward and once more for backward, the rest once",
        "reduce_scatter": "each gradient is averaged and cut once",
        "all_reduce": "each block adds up once in forward and once in backward",
    }[operation]
    ratio = f", {times(found / target)} the target" if target else ", where none is needed"
    return f"values right, but rank {rank} hands {found:g} B a step to {operation} along {axis}{ratio}: {way_out}"


_OWN_MESH = ScriptExercise(
    key="07.10",
    title="your own mesh of dp and tp",
    task=make_task,
    verdict=_verdict,
    levels={
        "axes": Level(
            points=2,
            cases=(Mesh(world_size=2, tp=2), Mesh(world_size=2, tp=1)),
            praise="each axis alone trains as one device does, clipped by one norm",
        ),
        "mesh": Level(
            points=3,
            again=True,
            cases=(Mesh(world_size=4, tp=2), Mesh(world_size=4, tp=2, optimizer="AdamW")),
            praise="and so do both together, with SGD and AdamW; each axis carries what it has to",
        ),
    },
    hints=(
        "Cut along tp first: parallelize_module(block, mesh['tp'], plan), with ColwiseParallel for up and "
        "RowwiseParallel for down. Then fully_shard each block and the model, along mesh['dp'].",
        "What are the ranks of one tp group to read? They compute one block together. So the part of a batch follows "
        "from mesh['dp'].get_local_rank(), and not from the rank.",
        "clip_grad_norm_ refuses: some parameters are DTensors of the whole mesh, others of dp alone. One parameter "
        "is never on two meshes. So ask each gradient for its own norm first, whole.",
        "p.grad.norm().full_tensor() adds up over the axes along which p is cut, and over no others. The total is the "
        "root of the sum of their squares, and p.grad.mul_(number) scales what the optimizer will read.",
    ),
)
