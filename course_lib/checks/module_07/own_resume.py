"""07.11: a run of one's own that stops with torch's distributed checkpoint and goes on with other processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.checks.kit.own_tensors import wrong_tensors
from course_lib.checks.kit.script import Ran, ScriptExercise, Start
from course_lib.checks.kit.spec import Level
from course_lib.verify.ratios import times

_WIDTHS, _ROWS, _STEPS, _STOP, _FALL = (16, 64, 8), 8, 5, 3, 0.8
_FOLDER, _WHOLE = "checkpoint", ".metadata"  # what torch writes last
_SMALL = 64  # bytes of lengths and their like, which no piece of the model is as short as
_FILE = re.compile(r"__(\d+)_\d+\.distcp")


def _model() -> nn.Module:
    """The one that stands in the learner's file."""
    return nn.Sequential(nn.Linear(_WIDTHS[0], _WIDTHS[1]), nn.GELU(), nn.Linear(_WIDTHS[1], _WIDTHS[2])).double()


def _task(case: Start, seed: int) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1019 * seed + 37)
        weights = _model().state_dict()
        batches = [
            (torch.randn(_ROWS, _WIDTHS[0]).double(), torch.randint(_WIDTHS[2], (_ROWS,))) for _ in range(_STEPS)
        ]
    return {"weights": weights, "batches": batches, "rate": 0.02, "stop": _STOP}


_Batches = list[tuple[Tensor, Tensor]]


class _Run:
    """One device's training, in parts."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.model = _model()
        self.model.load_state_dict(weights)
        self.renew()

    def renew(self) -> None:
        """An optimizer that remembers nothing."""
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def steps(self, batches: _Batches, rate: float) -> _Run:
        """A step on each; `rate` is that of the first."""
        for number, (x, y) in enumerate(batches):
            self.optimizer.param_groups[0]["lr"] = rate * _FALL**number
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        return self


def _trained(task: Mapping[str, Any], mistake: str = "") -> dict[str, Tensor]:
    """The weights after both starts, as they are if the second one makes a mistake in going on."""
    batches, rate, stop = task["batches"], task["rate"], task["stop"]
    run = _Run(task["weights"]).steps(batches[: stop - (mistake == "saved early")], rate)
    if mistake == "no weights":
        run.model.load_state_dict(task["weights"])
    if mistake == "nothing":
        run = _Run(task["weights"])
    if mistake == "no states":
        run.renew()
    first = 0 if mistake == "no number" else stop - (mistake == "once more")
    rows = _ROWS // 2 if mistake == "half" else _ROWS
    left = [(x[:rows], y[:rows]) for x, y in batches[first:]]
    run.steps(left, rate * _FALL ** (0 if mistake == "own rate" else first))
    return run.model.state_dict()


_MISTAKES = {
    "no states": "the second start has the checkpoint's weights, and an AdamW that remembers no step",
    "no weights": "the second start has the checkpoint's AdamW, and the weights of the first start's beginning",
    "nothing": "the second start goes on with the right batches, but nothing of the checkpoint is in use: is what was "
    "loaded put back into the model and the optimizer?",
    "no number": "the second start has weights and AdamW, and begins with batch 1 again",
    "own rate": "the second start begins with the rate of step 1, on the batches that are left",
    "half": "the second start trains on the first half of each batch: among how many ranks does it share the rows?",
    "saved early": "one batch is left out: the checkpoint is that before its last step",
    "once more": "one batch is trained on twice: the second start begins with the batch that the first ended with",
}


def _verdict(case: Start, ran: Ran) -> str | None:
    """How many steps each start has made, what came out, by whose rows, then how the checkpoint was written."""
    task = dict(ran.task)
    if not (ran.folder / _FOLDER / _WHOLE).is_file():
        return f"the first start left no whole checkpoint: there is no {_FOLDER}/{_WHOLE}, which dcp.save writes last"
    wrong_start = _wrong_steps(case, ran)
    want, mistakes = _trained(task), {why: _trained(task, mistake) for mistake, why in _MISTAKES.items()}
    for rank in range(case.then):
        found = ran.saved(f"rank{rank}.pt")
        right = _pieces(want, case.then, rank)
        reason = wrong_tensors(
            found,
            right,
            start=_pieces(task["weights"], case.then, rank),
            instead={why: _pieces(tensors, case.then, rank) for why, tensors in mistakes.items()},
        )
        if reason is not None:
            return f"rank {rank} of {case.then}: {reason}" + f"; {wrong_start}" * (wrong_start is not None)
    return wrong_start or _too_many_rows(case, ran) or (_whole(case, ran) if case.look else None)


def _pieces(whole: Mapping[str, Tensor], ranks: int, rank: int) -> dict[str, Tensor]:
    """What FSDP leaves on a rank."""
    return {name: tensor.chunk(ranks)[rank] for name, tensor in whole.items()}


def _wrong_steps(case: Start, ran: Ran) -> str | None:
    """By the gradients that are cut and added up in each step."""
    bytes_of_all = sum(tensor.nbytes for tensor in ran.task["weights"].values())
    ranks, right = (case.world_size, case.then), (_STOP, _STEPS - _STOP)
    for number, (ended, size, want) in enumerate(zip(ran.starts, ranks, right, strict=True)):
        sent = sum(call.bytes for call in ended[0].calls if call.operation.startswith("reduce_scatter"))
        if (steps := sent * size / bytes_of_all) != want:
            return f"the {('first', 'second')[number]} start makes {steps:g} steps where {want} are due"
    return None


def _too_many_rows(case: Start, ran: Ran) -> str | None:
    """Whoever computes the whole batch on each rank gets the right average, and gains nothing by the ranks."""
    for number, (ended, ranks) in enumerate(zip(ran.starts, (case.world_size, case.then), strict=True)):
        steps = (_STOP, _STEPS - _STOP)[number]
        own = steps * _ROWS // ranks
        for rank, found in enumerate(sum(one.rows) for one in ended):
            if found > own:
                text = f"the layers of rank {rank} of {ranks} are given {found} rows in {steps} steps"
                return f"values right, but {text}, {times(found / own)} its part: which rows does each rank take?"
    return None


def _whole(case: Start, ran: Ran) -> str | None:
    """Who gathers more than its forward needs, or writes more than its own pieces."""
    weights = sum(tensor.nbytes for tensor in ran.task["weights"].values())
    for number, (ended, ranks) in enumerate(zip(ran.starts, (case.world_size, case.then), strict=True)):
        target = (_STOP, _STEPS - _STOP)[number] * weights // ranks
        for rank, one in enumerate(ended):
            found = sum(c.bytes for c in one.calls if c.operation.startswith("all_gather") and c.bytes > _SMALL)
            if found > target:
                return (
                    f"values right, but rank {rank} of {ranks} hands {found} B to all-gathers, {times(found / target)} "
                    "what its forwards need: so a rank holds a whole state, and each is to save and load its pieces"
                )
    sizes: Counter[int] = Counter()
    for path in (ran.folder / _FOLDER).iterdir():
        if (named := _FILE.fullmatch(path.name)) is not None:
            sizes[int(named[1])] += path.stat().st_size
    if missing := [rank for rank in range(case.world_size) if not sizes[rank]]:
        return f"values right, but rank {missing[0]} has written no file into the checkpoint; each writes its pieces"
    rank, most = sizes.most_common(1)[0]
    if most > 1.6 * sizes.total() / case.world_size:
        return f"values right, but rank {rank} writes {most} of {sizes.total()} B: each is to write its own pieces"
    return None


_RESUME = ScriptExercise(
    key="07.11",
    title="your own run that goes on elsewhere",
    task=_task,
    verdict=_verdict,
    levels={
        "goes-on": Level(
            points=3,
            cases=(Start(world_size=4, then=2),),
            praise="stopped on 4 processes, it goes on with 2 as one device does that never stopped",
        ),
        "pieces": Level(
            points=2,
            again=True,
            cases=(Start(world_size=2, then=4, look="pieces"),),
            praise="and from 2 to 4, and no rank ever gathers or writes a whole state",
        ),
    },
    hints=(
        "A run has a state: the weights, what AdamW remembers of each, and how many steps are done, from which the "
        "next batch and its rate follow. Which of them does each of your lines save, and load?",
        "get_state_dict(model, optimizer) returns two dicts of DTensors, so each rank has its own pieces, under names "
        "that do not depend on how many ranks there are. dcp.save takes a dict of both.",
        "dcp.load fills a dict that has the right shapes already: get_state_dict makes one, of a fresh optimizer too. "
        "Afterwards set_state_dict puts both back.",
        "A number of steps is no tensor that dcp.load could fill in place: a Python number is replaced in the dict, "
        "so read it from there afterwards. And the checkpoint is whole when its .metadata is there.",
    ),
)
