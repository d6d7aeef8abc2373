"""12.9: a script in which rank 0 alone evaluates a model that FSDP has cut, and all stand still."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import Tensors, wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level

_WIDTH, _CLASSES, _ROWS, _VALIDATED, _STEPS, _EVERY = 8, 4, 8, 11, 8, 2  # 11 rows: no number of ranks divides them


def _model() -> nn.Module:
    """The one that stands in the script."""
    layers = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(_WIDTH, _CLASSES)).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    """The same on any number of processes."""
    return _chosen(seed)


@cache
def _chosen(seed: int) -> dict[str, Any]:
    """Drawn until the loss rises at the second or third evaluation, of four."""
    return next(task for turn in count() if len(_losses(_trained(task := _drawn(seed, turn)), task)) in (2, 3))


def _drawn(seed: int, turn: int) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1033 * seed + 7919 * turn + 61)
        weights = _model().state_dict()
        batches = [_rows(_ROWS) for _ in range(_STEPS)]
        return {"weights": weights, "batches": batches, "validation": _rows(_VALIDATED), "every": _EVERY, "rate": 0.1}


def _rows(number: int) -> tuple[Tensor, Tensor]:
    return torch.randn(number, _WIDTH).double(), torch.randint(_CLASSES, (number,))


class _Times(NamedTuple):
    """Weights at each evaluation, and before the optimizer's step that it follows; as if the run never stopped."""

    after: list[Tensors]
    before: list[Tensors]


_Metric = Callable[[nn.Module, Tensor, Tensor], float]


def _trained(task: Mapping[str, Any]) -> _Times:
    """On one device."""
    model, times = _model(), _Times([], [])
    model.load_state_dict(task["weights"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["rate"])
    for step, (x, y) in enumerate(task["batches"], start=1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        due = step % task["every"] == 0
        times.before.extend([copy.deepcopy(model.state_dict())] * due)
        optimizer.step()
        times.after.extend([copy.deepcopy(model.state_dict())] * due)
    return times


def _mean(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return F.cross_entropy(model(x), y).item()


@torch.no_grad()
def _losses(
    times: _Times, task: Mapping[str, Any], metric: _Metric = _mean, *, early: bool = False, stops: bool = True
) -> list[float]:
    """Of the evaluations, up to the first that is above the smallest so far."""
    model, losses = _model(), list[float]()
    for weights in times.before if early else times.after:
        model.load_state_dict(weights)
        losses.append(metric(model, *task["validation"]))
        if stops and losses[-1] > min(losses):
            break
    return losses


def _wrong_ways(times: _Times, task: Mapping[str, Any], ranks: int) -> dict[str, list[float]]:
    """What is said of a list of losses, by the mistake that gives it."""

    def parts(how: Callable[[list[float]], float]) -> list[float]:
        def metric(model: nn.Module, x: Tensor, y: Tensor) -> float:
            pairs = zip(x.tensor_split(ranks), y.tensor_split(ranks), strict=True)
            return how([_mean(model, rows, targets) for rows, targets in pairs])

        return _losses(times, task, metric)

    whole = _losses(times, task)
    return {
        "that is the mean over rank 0's own rows": parts(lambda means: means[0]),
        "that is the mean of the ranks' means, and their parts are not equally long: add up losses and rows": parts(
            lambda means: sum(means) / ranks
        ),
        "that is the sum over the rows, and the mean is asked": [mean * _VALIDATED for mean in whole],
        "that is too large by the number of ranks: each of them has the whole mean, and they were added up": [
            mean * ranks for mean in whole
        ],
        "that is too small by the number of ranks: was it divided by them once more?": [mean / ranks for mean in whole],
        "that is before the optimizer's step; the suspect evaluates after it": _losses(times, task, early=True),
        "it has not stopped when the loss had risen": _losses(times, task, stops=False),
    }


def _verdict(case: Start, ran: Ran) -> str | None:
    """The losses, then the weights, then that the model is still cut."""
    task, answer = dict(ran.task), ran.saved("answer.pt")
    if not isinstance(answer, dict) or {"metrics", "weights"} - answer.keys():
        return "answer.pt is to hold a dict with 'metrics' and 'weights', as the suspect saves it"
    times, found = _trained(task), _numbers(answer["metrics"])
    right = _losses(times, task)
    if found is None:
        return "'metrics' is to be a list of numbers, one for each time that it evaluates"
    if not _alike(found, right):
        ways = _wrong_ways(times, task, case.world_size)
        why = next((f": {says}" for says, one in ways.items() if _alike(found, one)), "")
        return f"the validation losses are {_shown(found)}, on one device they are {_shown(right)}{why}"
    instead = {"the losses are right, but it has trained on after it should have stopped": times.after[-1]}
    if reason := wrong_tensors(
        answer["weights"],
        times.after[len(right) - 1],
        start=task["weights"],
        instead=instead,
        tolerance=1e-9,
    ):
        return reason
    return _whole(case, ran, len(found))


def _numbers(metrics: Any) -> list[float] | None:
    if not isinstance(metrics, list | tuple | Tensor):
        return None
    return [float(metric) for metric in metrics]


def _alike(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-9 for a, b in zip(one, other, strict=True))


def _shown(metrics: list[float]) -> str:
    return ", ".join(f"{metric:.7g}" for metric in metrics) or "none"


def _whole(case: Start, ran: Ran, evaluations: int) -> str | None:
    """Each step reduces each gradient once, and a rank gets its piece."""
    steps = evaluations * ran.task["every"]
    due = steps * sum(tensor.nbytes for tensor in ran.task["weights"].values()) // case.world_size
    for rank, one in enumerate(ran.ended):
        if (got := sum(call.bytes for call in one.calls if call.operation.startswith("reduce_scatter"))) != due:
            return (
                f"all numbers are right, but rank {rank} gets {got} B of gradients by reduce-scatters, and {due} are "
                "its pieces: the model is to stay cut"
            )
    return None


_EVALUATED = ScriptExercise(
    key="12.9",
    title="mend a run that stands still after its second step",
    task=_task,
    verdict=_verdict,
    levels={
        "two": Level(
            points=2,
            cases=(Start(world_size=2),),
            praise="nothing stands still on 2 processes, and the losses are those of one device",
        ),
        "four": Level(
            points=2,
            again=True,
            cases=(Start(world_size=4),),
            praise="and so it is on 4: all ranks stop together",
        ),
    },
    hints=(
        "Ask every rank where it is: py-spy dump --pid PID, or faulthandler.dump_traceback_later(5) as the first line "
        "of main. In which operation does rank 0 wait, and in which the others?",
        "They wait in two operations of the same line. So somebody has made more calls than the others before. "
        "The flight recorder has them, with their lines: which is the first that another line made on rank 0?",
        "A forward of a model that fully_shard has cut gathers its weights, whether it trains or evaluates. So who "
        "has to take part? And what else does rank 0 decide by itself?",
        "If all ranks evaluate all rows, the loss is the same on each, and so is what follows from it. If they share "
        "the rows, add up losses and rows over the ranks before anybody decides.",
    ),
)
