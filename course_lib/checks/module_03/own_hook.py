"""03.12: a communication hook for torch's DDP: gradients travel as int8, and what rounding cuts off is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.ranks.script import Ended
from course_lib.verify.ratios import times

ROWS, STEPS = 12, 5
_SMALL = 16  # bytes of a loss and its like
# The order of gradients in DDP's bucket from the second step on; in the first it is the model's own.
_LATER = ("head.bias", "head.weight", "body.2.bias", "body.2.weight", "body.0.bias", "body.0.weight")


class _Model(nn.Module):
    """The one that stands in the learner's file."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 3)
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def _task(case: Start, seed: int) -> dict[str, Any]:
    """A head of zeros, as for fine-tuning, so that in the first step the other parameters' gradients are zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1009 * seed + 31)
        weights = _Model().state_dict()
        weights["head.weight"].zero_()
        batches = [(torch.randn(ROWS, 6).double(), torch.randint(3, (ROWS,))) for _ in range(STEPS)]
    optimizer, rate = ("AdamW", 0.01) if case.look == "adamw" else ("SGD", 0.5)
    return {"weights": weights, "batches": batches, "optimizer": optimizer, "rate": rate}


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How gradients are averaged; the defaults are what the text asks for."""

    steps: Callable[[int], float] = lambda ranks: 127 // ranks  # of int8, up to the largest number
    largest: Callable[[list[Tensor]], Tensor] = lambda values: torch.stack([v.abs().max() for v in values]).max()
    whole: Callable[[Tensor], Tensor] = torch.round
    shared: bool = False  # one largest number for the bucket
    keeps: str = "own"  # what rounding has cut off: own, minus, none, last, average
    moved: bool = False  # the remainders stay where they were in the bucket, whose order changes
    exact: bool = False
    factor: Callable[[int], float] = lambda ranks: 1.0


def _sent(way: _Way, gradients: list[dict[str, Tensor]], kept: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The average of the ranks' gradients that this way gives; it replaces what they have kept."""
    ranks, average = len(gradients), {}
    values = [{name: own[name] + rest.get(name, 0) for name in own} for own, rest in zip(gradients, kept, strict=True)]
    for name in values[0]:
        largest = way.largest([own[one].flatten() for own in values for one in (own if way.shared else [name])])
        unit = largest / way.steps(ranks)
        whole = [way.whole(own[name] / unit) if largest > 0 else 0 * own[name] for own in values]
        total = torch.stack([number.to(torch.int8) for number in whole]).sum(0).to(torch.int8)  # as it travels
        average[name] = way.factor(ranks) * unit * total.double() / ranks
        if way.exact:
            average[name] = torch.stack([own[name] for own in gradients]).mean(0)
        for own, gradient, rest, number in zip(values, gradients, kept, whole, strict=True):
            back = unit * number.to(torch.int8).double()
            left = {
                "own": own[name] - back,
                "minus": back - own[name],
                "last": gradient[name] - back,
                "average": own[name] - average[name],
            }
            rest[name] = left.get(way.keeps, torch.zeros_like(back))
    return average


def _moved(kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remainders by their place in the bucket: what each parameter finds there after its order has changed."""
    flat = torch.cat([kept[name].flatten() for name, _ in _Model().named_parameters()])
    parts = flat.split([kept[name].numel() for name in _LATER])
    return {name: part.view_as(kept[name]) for name, part in zip(_LATER, parts, strict=True)}


def _trained(task: dict[str, Any], ranks: int, way: _Way) -> Tensors:
    """The same training in one process, rank by rank."""
    model = _Model()
    model.load_state_dict(task["weights"])
    named = dict(model.named_parameters())
    optimizer = getattr(torch.optim, task["optimizer"])(named.values(), lr=task["rate"])
    kept: list[dict[str, Tensor]] = [{} for _ in range(ranks)]
    for step, (x, y) in enumerate(task["batches"]):
        parts = zip(x.chunk(ranks), y.chunk(ranks), strict=True)
        losses = [F.cross_entropy(model(rows), targets) for rows, targets in parts]
        gradients = [dict(zip(named, torch.autograd.grad(loss, [*named.values()]), strict=True)) for loss in losses]
        if way.moved and step == 1:
            kept = [_moved(one) for one in kept]
        for name, gradient in _sent(way, gradients, kept).items():
            named[name].grad = gradient
        optimizer.step()
    return model.state_dict()


_NO_HOOK = "the weights are those of an exact average: is the hook registered before the first backward?"
_WRONG = {
    _NO_HOOK: _Way(exact=True),
    "nothing of what rounding cuts off comes back: add it to the same parameter's gradient in the next step": (
        _Way(keeps="none")
    ),
    "what is kept is the remainder of the last gradient alone: subtract what was sent from gradient and remainder "
    "together": _Way(keeps="last"),
    "each rank keeps what it lacks to the average: keep what its own rounding has cut off": _Way(keeps="average"),
    "remainders reach another parameter: after the first step DDP puts the gradients into its bucket in another order; "
    "keep each by its parameter": _Way(moved=True),
    "numbers are cut to whole ones and not rounded: int8 has no halves, and .to(torch.int8) drops them": (
        _Way(whole=torch.trunc)
    ),
    "numbers are rounded down: torch.round goes to the nearest": _Way(whole=torch.floor),
    "s is the sum of the ranks' largest numbers and not the largest of them: which op does its all-reduce have?": (
        _Way(largest=lambda values: torch.stack([v.abs().max() for v in values]).sum())
    ),
    "all parameters of a bucket share one s: take the largest number of each parameter": _Way(shared=True),
    "what is kept has the wrong sign: it is v less what was sent, and is added to the next gradient": _Way(
        keeps="minus"
    ),
    "s is the mean of the ranks' largest numbers and not the largest of them: which op does its all-reduce have?": (
        _Way(largest=lambda values: torch.stack([v.abs().max() for v in values]).mean())
    ),
    "s is cut into 128 // p steps, and int8 ends at 127": _Way(steps=lambda ranks: 128 // ranks),
    "s is cut into 127 / p steps, which is no whole number: 127 // p": _Way(steps=lambda ranks: 127 / ranks),
    "too large by the number of processes: where a hook is, DDP does not divide": _Way(factor=float),
    "too small by the number of processes: it is divided by twice": _Way(factor=lambda ranks: 1 / ranks),
    "a sum of int8 has passed 127 and come out negative: how large may each rank's number be, so that the sum of all "
    "fits?": _Way(steps=lambda ranks: 127),
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """Weights after all steps, then what has travelled."""
    task, ranks, found = dict(ran.task), case.world_size, ran.saved("answer.pt")
    want, start = _trained(task, ranks, _Way()), task["weights"]
    if wrong_tensors(found, want, start=start, instead={}, tolerance=1e-9) is None:
        return _traffic(ran)
    instead = {sentence: _trained(task, ranks, way) for sentence, way in _WRONG.items()}
    other = {"SGD": "AdamW", "AdamW": "SGD"}[task["optimizer"]]
    by_other = _trained(task | {"optimizer": other}, ranks, _Way())
    instead[f"these are the weights of {other}: the task names the optimizer"] = by_other
    reason = wrong_tensors(found, want, start=start, instead=instead, tolerance=1e-9) or ""
    if "holds nan" in reason:
        return f"{reason.partition(':')[0]}: is anything divided by s where all of a parameter's gradients are 0?"
    if not reason.endswith("at the end"):
        return reason
    if not any(_handed(one, "float") for one in ran.ended):
        return f"{reason}; no s goes through an all-reduce: if each rank has its own, their numbers do not add up"
    mine, rule = (_apart(one, instead[_NO_HOOK], start) for one in (found, want))
    return f"{reason}; {_other_rows(ran) or _how_far(mine, rule)}"


def _other_rows(ran: Ran) -> str:
    """How many rows a process computes, if they are not as many as its parts have; else empty."""
    right = STEPS * ROWS // len(ran.ended)
    given = [sum(one.rows) for one in ran.ended]
    rank = next((rank for rank, rows in enumerate(given) if rows not in (0, right)), None)
    if rank is None:
        return ""
    return f"the layers of rank {rank} are given {given[rank]} rows in {STEPS} steps, and its parts have {right}"


def _how_far(mine: float, rule: float) -> str:
    """What the distance to the weights of an exact average, in parts of the way there, says of what is wrong."""
    text = f"they are {mine:.2g} of the way off those of an exact average, and by the rule {rule:.2g}"
    if mine < 2 * rule:
        return (
            f"{text}: the average is right up to rounding, so look at what decides how each number is rounded: the "
            "rows, s, the whole steps that it is cut into, and the remainder that is added before"
        )
    if mine < 20 * rule:
        return (
            f"{text}: more than where all that is cut off comes back in the next step, so look at what is cut off "
            "anywhere, and what is kept of it, with which sign and until when"
        )
    return (
        f"{text}: no rounding does that, so look at the average itself: the loss, the rows, the rate, the gradients of "
        "this step alone, what comes back of the last one, and whether each number fits into int8"
    )


def _apart(found: Tensors, other: Tensors, start: Tensors) -> float:
    """The distance of two results, in parts of the way from the start to the second one."""
    off = torch.cat([(found[name] - other[name]).flatten() for name in start])
    way = torch.cat([(other[name] - start[name]).flatten() for name in start])
    return float(off.norm() / way.norm())


def _handed(one: Ended, dtype: str = "") -> list[int]:
    """Bytes of each all-reduce of a rank, if its dtype starts so; a loss and its like are none of the hook's."""
    calls = [call for call in one.calls if call.operation == "all_reduce" and call.bytes > _SMALL]
    return [call.bytes for call in calls if call.dtype.startswith(dtype)]


def _traffic(ran: Ran) -> str | None:
    """A byte for each number, one s for each parameter, and two all-reduces a step, since all fits into one bucket."""
    numbers = STEPS * sum(tensor.numel() for tensor in ran.task["weights"].values())
    scales = STEPS * 8 * len(ran.task["weights"])
    for rank, one in enumerate(ran.ended):
        total, whole = sum(_handed(one)), sum(_handed(one, "int8"))
        who = f"values right, but rank {rank} hands"
        if whole != numbers or total > numbers + scales:
            dtypes = ", ".join(sorted({call.dtype for call in one.calls if call.operation == "all_reduce"})) or "none"
            ratio = times(total / (numbers + scales))
            return f"{who} {total} B to all-reduces ({dtypes}), {ratio} the target: one of int8 for each number, and s"
        if len(_handed(one)) > 2 * STEPS:
            calls = f"{len(_handed(one))} tensors to all-reduces in {STEPS} steps"
            return f"{who} {calls}; DDP calls the hook once a step, where two are enough: all s, then all int8"
    return None


_HOOK = ScriptExercise(
    key="03.12",
    title="your own DDP hook",
    task=_task,
    verdict=_verdict,
    levels={
        "sgd": Level(
            points=3,
            cases=(Start(world_size=2), Start(world_size=4)),
            praise="on 2 and on 4 processes SGD ends at the weights that the rule gives",
        ),
        "adamw": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4, look="adamw"),),
            praise="and AdamW does, with a byte for each number",
        ),
    },
    hints=(
        "Write the rule first as a function of one process's gradients: tensors in, int8 and one s for each "
        "out. Then hang it into DDP: model.register_comm_hook(state, hook), and DDP calls hook(state, bucket).",
        "bucket.parameters() and bucket.gradients() are lists in the same order; the gradients are views of "
        "bucket.buffer(). Their order is another one after the first step. A dict by parameter does not care.",
        "torch.stack([v.abs().max() for v in values]) is one tensor of all s: its all-reduce with ReduceOp.MAX may "
        "wait inside the hook. torch.cat of the flat numbers is the tensor for the second all-reduce.",
        "dist.all_reduce(whole, async_op=True).get_future() is a future, and .then(finish) another one, whose value is "
        "what finish(future) returns: a tensor of the shape and dtype of bucket.buffer().",
    ),
)
