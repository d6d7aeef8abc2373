"""06.11: PyTorch's own FSDP with bfloat16 weights and float32 sums, in units that are gathered as often as asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import BF16, FP32, Level
from course_lib.verify.alike import born_with
from course_lib.verify.ratios import times

BLOCKS, MICRO_BATCHES, STEPS = 3, 2, 3
WIDTH, HIDDEN = 10, 26  # neither divides by 4, nor do the 3 classes, of which one rank has none
INPUTS, CLASSES, ROWS = 6, 3, 32


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _model() -> nn.Sequential:
    """The one that stands in the learner's file."""
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), *(_Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES))


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Weights, batches, an optimizer, and whether a unit is kept whole for the time of a step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 31)
        weights = _model().state_dict()
        batches = [(torch.randn(ROWS, INPUTS), torch.randint(CLASSES, (ROWS,))) for _ in range(STEPS)]
    keep = case.look == "kept"
    optimizer, rate = ("AdamW", 0.01) if keep else ("SGD", 0.5)
    return {"weights": weights, "batches": batches, "optimizer": optimizer, "rate": rate, "keep": keep}


@dataclass(frozen=True, kw_only=True)
class _How:
    """What of a training may be otherwise; as it stands, it is right."""

    low: torch.dtype = torch.bfloat16  # in which forward and backward compute
    kept: torch.dtype = torch.float32  # of the weights that the optimizer steps
    loss: torch.dtype = torch.float32
    micro_batches: int = MICRO_BATCHES  # by which a loss is divided
    last_only: bool = False  # one micro-batch's gradients are all there is
    stale: bool = False  # weights are gathered before the first step alone
    cleared: bool = True
    averaged: int = 1  # times that the ranks' sum is divided by their number
    part: Callable[[Tensor, int], Sequence[Tensor]] = torch.chunk  # which rows each rank takes


_RIGHT = _How()
_WRONG = {
    "the loss is computed in bfloat16, as the scores come: is cross_entropy given scores.float()?": replace(
        _RIGHT, loss=torch.bfloat16
    ),
    "the weights that the optimizer steps are in bfloat16; a policy gathers them in bfloat16 and leaves them as they "
    "are": replace(_RIGHT, kept=torch.bfloat16),
    "too large by the micro-batches: each loss is a mean over one of them, and the batch's is the mean of both": (
        replace(_RIGHT, micro_batches=1)
    ),
    "this is what the last micro-batches alone would teach: the gradients of the first are lost": replace(
        _RIGHT, last_only=True
    ),
    "after the first step, forward and backward still compute with the weights of the start: a unit that is kept "
    "whole is not gathered anew; when is it freed?": replace(_RIGHT, stale=True),
    "a gradient is left from the step before": replace(_RIGHT, cleared=False),
    "this is what comes out if each process takes all rows of the batch; a rank's are part r of x.chunk(world_size)": (
        replace(_RIGHT, part=lambda rows, ranks: [rows] * ranks)
    ),
    "this is what comes out if rank r takes every world_size-th row; its rows are part r of x.chunk(world_size), and "
    "what stands in a micro-batch decides what is rounded": replace(
        _RIGHT, part=lambda rows, ranks: [rows[rank::ranks] for rank in range(ranks)]
    ),
    "too small by the number of processes: fully_shard averages over them, and the loss is divided once more": (
        replace(_RIGHT, averaged=2)
    ),
}


def _trained(task: dict[str, Any], ranks: int, how: _How) -> Tensors:
    """The same training in one process.

    A float32 sum of a few gradients that were rounded to bfloat16 is exact in nearly every order, since their 8 bits
    leave 16 free. So what the ranks end at is the same to the last bits, though bfloat16 has hardly three digits.
    """
    model = _model()
    model.load_state_dict(task["weights"])
    model.to(how.kept)
    optimizer = getattr(torch.optim, task["optimizer"])(model.parameters(), lr=task["rate"])
    low = _model().to(how.low)
    for number, (x, y) in enumerate(task["batches"]):
        if number == 0 or not how.stale:
            low.load_state_dict(model.state_dict())
        if how.cleared or number == 0:
            sums = [torch.zeros(weight.shape) for weight in model.parameters()]
        for rows, targets in zip(how.part(x, ranks), how.part(y, ranks), strict=True):
            pairs = list(zip(rows.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True))
            for few, their in pairs[-1:] if how.last_only else pairs:
                low.zero_grad()
                loss = F.cross_entropy(low(few.to(how.low)).to(how.loss), their)
                (loss / how.micro_batches).backward()
                for total, one in zip(sums, low.parameters(), strict=True):
                    total += cast(Tensor, one.grad).float() / ranks**how.averaged
        for weight, total in zip(model.parameters(), sums, strict=True):
            weight.grad = total.to(how.kept)
        optimizer.step()
    return {name: weight.float() for name, weight in model.state_dict().items()}


def _verdict(case: Start, ran: Ran) -> str | None:
    """In which dtype things travel, then weights after all steps, then how often each unit travels."""
    if reason := _wrong_dtypes(ran):
        return reason
    task, answer = dict(ran.task), ran.saved("answer.pt")
    with born_with(0, torch.float32):
        want = _trained(task, case.world_size, _RIGHT)
        if wrong_tensors(answer, want, start=task["weights"], instead={}) is None:
            return _wrong_units(ran, bool(task["keep"]), case.world_size)
        instead = {sentence: _trained(task, case.world_size, how) for sentence, how in _WRONG.items()}
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
        if "reduce" in call.operation and call.dtype == "bfloat16":
            return f"gradients are added up in bfloat16, which keeps 8 bits of each sum: {call}"
    return None


def _wrong_units(ran: Ran, keep: bool, ranks: int) -> str | None:
    """Each rank's pieces: how often they are gathered, and that they are reduced once a step."""
    names = {"block": _piece(_Block(), ranks), "root": _piece(nn.ModuleList(_ends(_model())), ranks)}
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
    task=_task,
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
