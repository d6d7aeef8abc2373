"""11.11: LoRA under PyTorch's FSDP2: a frozen model in parts, adapters in parts beside it, and a small file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.said import plural
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import FP64, Level
from course_lib.verify.equality import close, no_multiple
from course_lib.verify.ratios import exactly

_STEPS, _SCALE = 3, 2.0
_SIZES = (6, 16, 4)  # inputs, inside, classes
_SMALL = 16  # bytes of a loss and its like
_TOLERANCE = 1e-9


class _Adapted(nn.Module):
    """The layer of the learner's file."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.A = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + _SCALE * (x @ self.A.T) @ self.B.T


def _make_model(rank: int) -> nn.Module:
    first, second = (_Adapted(*pair, rank) for pair in zip(_SIZES, _SIZES[1:], strict=False))
    return nn.Sequential(first, nn.GELU(), second).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    """Weights whose B is 0, batches, and the rank of the adapters."""
    rank, rows = (8, 7) if case.look == "uneven" else (4, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 43)
        weights = _make_model(rank).state_dict()
        batches = [(torch.randn(rows, _SIZES[0]).double(), torch.randint(_SIZES[-1], (rows,))) for _ in range(_STEPS)]
    return {"weights": weights, "batches": batches, "rank": rank, "rate": 0.05}


def _train(task: Mapping[str, Any], ranks: int, mistake: str = "") -> dict[str, Tensor]:
    """On one device; or what a mistake gives."""
    model = _make_model(task["rank"])
    model.load_state_dict(task["weights"])
    for name, one in model.named_parameters():
        one.requires_grad_(name.endswith((".A", ".B")) or mistake == "all")
    trained = [one for name, one in model.named_parameters() if one.requires_grad]
    if mistake == "B":
        trained = [one for name, one in model.named_parameters() if name.endswith(".B")]
    optimizer = torch.optim.AdamW(trained, lr=task["rate"])
    for number, (x, y) in enumerate(task["batches"]):
        parts = list(zip(x.tensor_split(ranks), y.tensor_split(ranks), strict=True))
        if mistake == "means":
            loss = sum((F.cross_entropy(model(rows), theirs) for rows, theirs in parts), torch.zeros(())) / ranks
        elif mistake == "alone":
            loss = F.cross_entropy(model(parts[0][0]), parts[0][1])
        else:
            loss = F.cross_entropy(model(x), y)
        if mistake != "left" or not number:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: one.detach() for name, one in model.named_parameters() if name.endswith((".A", ".B"))}


_WRONG_WAYS = {
    "means": "these come from a mean of the ranks' means. A row weighs more on a rank that has fewer: fully_shard "
    "divides by the ranks, so give it the sum over a rank's rows, times ranks, divided by all rows",
    "alone": "these come from rank 0's rows alone",
    "all": "the frozen weights were trained as well, so the adapters have learnt beside something else",
    "left": "a gradient is left from the step before",
    "B": "A has not been trained",
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """What is in the file, its values, then what has travelled."""
    task, answer = dict(ran.task), ran.saved("adapters.pt")
    if not isinstance(answer, Mapping) or not all(isinstance(one, Tensor) for one in answer.values()):
        return "adapters.pt is to hold a dict of tensors"
    right = _train(task, case.world_size)
    return _wrong_names(answer, right) or _wrong_values(answer, right, task, case.world_size) or _wrong_calls(ran)


def _wrong_names(answer: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> str | None:
    if more := sorted(answer.keys() - right.keys()):
        return f"adapters.pt holds {more[0]}, and only A and B belong there: whoever loads it has the rest"
    if fewer := sorted(right.keys() - answer.keys()):
        return f"adapters.pt has no {fewer[0]}"
    for name, want in right.items():
        got = answer[name]
        if type(got) is not Tensor and type(got) is not nn.Parameter:
            return f"{name} is a {type(got).__name__}, which only these ranks can read: take its full_tensor()"
        if got.shape != want.shape:
            return f"{name} has shape {tuple(got.shape)}, and {tuple(want.shape)} is right: is it one rank's part?"
    return None


def _wrong_values(
    answer: Mapping[str, Tensor], right: Mapping[str, Tensor], task: Mapping[str, Any], ranks: int
) -> str | None:
    name = next(
        (name for name, want in right.items() if not close(answer[name].detach(), want, tolerance=_TOLERANCE)), ""
    )
    if not name:
        return None
    if all(close(answer[one].detach(), task["weights"][one]) for one in right):
        return "the adapters are as they were before the first step"
    for mistake, says in _WRONG_WAYS.items():
        if all(close(answer[one].detach(), x, tolerance=_TOLERANCE) for one, x in _train(task, ranks, mistake).items()):
            return says
    return f"{name} {no_multiple(answer[name].detach(), right[name])}"


def _wrong_calls(ran: Ran) -> str | None:
    """Whole weights are gathered, and gradients of adapters alone are reduced, once a step."""
    weights, ranks = ran.task["weights"], len(ran.ended)
    trained = sum(one.nbytes for name, one in weights.items() if name.endswith((".A", ".B")))
    frozen = sum(one.nbytes for one in weights.values()) - trained
    for rank, one in enumerate(ran.ended):
        calls = [call for call in one.calls if call.dtype.startswith("float")]
        gathered = sum(call.bytes for call in calls if call.operation.startswith("all_gather"))
        if gathered * ranks < _STEPS * frozen:
            return (
                f"values right, but rank {rank} gives {gathered:,} B to all-gathers in {_STEPS} steps. To gather the "
                f"frozen weights once a step it takes {_STEPS * frozen // ranks:,} B: are they whole on every rank?"
            )
        if whole := [call for call in calls if call.operation.startswith("all_reduce") and call.bytes > _SMALL]:
            return f"values right, but rank {rank} makes {whole[0]}: adapters lie in parts too, and reduce-scatter"
        reduced = sum(call.bytes for call in calls if "reduce_scatter" in call.operation)
        if (due := _STEPS * trained // ranks) != reduced:
            return (
                f"values right, but rank {rank} gets {reduced // FP64} numbers from reduce-scatters in "
                f"{plural(_STEPS, 'step')}, {exactly(reduced / due)} the {due // FP64} of its part of the adapters: "
                "what is frozen has no gradient, so freeze before you shard"
            )
    return None


_OWN_LORA = ScriptExercise(
    key="11.11",
    title="your own LoRA under fully_shard",
    task=_task,
    verdict=_verdict,
    levels={
        "sharded": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="the frozen weights in parts, gradients of adapters alone, and a file with nothing but A and B",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="uneven"), Start(world_size=2, look="uneven")),
            praise="also where ranks have different numbers of rows",
        ),
    },
    hints=(
        "Freeze first: requires_grad_(False) for the model, then True for every parameter whose name ends in .A or .B. "
        "Then call fully_shard on each layer that has an adapter, and at last on the model.",
        "The optimizer is made after that, of [p for p in model.parameters() if p.requires_grad]: these are DTensors "
        "by then, of which a rank has its part.",
        "fully_shard averages gradients over the ranks. So a rank's loss is the sum over its own rows, times the "
        "number of ranks, divided by the rows of the whole batch.",
        "At the end every rank calls full_tensor() on each adapter, since it is a collective. Rank 0 alone saves.",
    ),
)
