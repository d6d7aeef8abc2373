"""03.2: one model on all ranks, however they were seeded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.runner import Trial
from course_lib.checks.kit.said import plural, wrong_means
from course_lib.checks.kit.spec import Level
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.verify.equality import close
from course_lib.verify.ratios import times

Look = Literal["values", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """A model that every rank has made with a seed of its own."""

    world_size: int
    model: Kind
    look: Look = "values"

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {models.WORDS[self.model]}"


class _Given(NamedTuple):
    """The kind of model, and the seed of rank 0; rank r adds r."""

    model: Kind
    seed: int


class _Replica(NamedTuple):
    """A rank's state before and after, the first parameter that is a new object, and the first tensor elsewhere."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    replaced: str
    moved: str
    thawed: str


def _draw(case: Wrapping, seed: int) -> _Given:
    """Other weights for each seed."""
    return _Given(case.model, 10 * seed + case.world_size)


def _attempt(function: Callable[[nn.Module], Any], given: _Given) -> _Replica:
    """Runs on a rank."""
    model = models.build(given.model, given.seed + dist.get_rank())
    objects = dict(model.named_parameters(remove_duplicate=False))
    needed = {name: p.requires_grad for name, p in objects.items()}
    before = models.state(model)
    held = model.state_dict()  # as an optimizer holds them: no new tensor can come to lie in their memory
    ledger.clear()
    function(model)
    now = dict(model.named_parameters(remove_duplicate=False))
    replaced = next((name for name, p in objects.items() if now.get(name) is not p), "")
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    moved = next((name for name, tensor in held.items() if places.get(name) != tensor.data_ptr()), "")
    thawed = next((name for name, p in now.items() if p.requires_grad != needed.get(name)), "")
    return _Replica(before, models.state(model), replaced, moved, thawed)


def _verdict(case: Wrapping, given: _Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Values, then whether the model is still the one that the optimizer holds, then bytes."""
    reason = _wrong_values(given, reports) or _wrong_objects(reports)
    if reason is None:
        reason = wrong_means(book, "comm.broadcast")
    if reason is None and case.look == "bytes":
        reason = _too_many_bytes(case, reports[0].before, book)
    return f"{case}: {reason}" if reason else None


def _wrong_values(given: _Given, reports: tuple[_Replica, ...]) -> str | None:
    want, parameters = reports[0].before, dict(models.build(given.model, given.seed).named_parameters())
    for name in want:
        got = [report.after.get(name) for report in reports]
        if all(close(tensor, want[name]) for tensor in got):
            continue
        rank = next(r for r, tensor in enumerate(got) if not close(tensor, want[name]))
        if close(got[rank], reports[rank].before[name]):
            kind = "buffer" if name not in parameters else "parameter"
            frozen = "" if kind == "buffer" or parameters[name].requires_grad else "frozen "
            return f"the {frozen}{kind} {name} on rank {rank} is still its own, not rank 0's"
        return f"{name} on rank {rank} is not rank 0's"
    return None


def _wrong_objects(reports: tuple[_Replica, ...]) -> str | None:
    for rank, report in enumerate(reports):
        if report.replaced:
            return (
                f"right values, but {report.replaced} on rank {rank} is a new object: an optimizer that was made "
                "before would go on training the old one; copy into the tensors that are there"
            )
        if report.moved:
            return (
                f"right values, but another tensor stands in place of {report.moved} on rank {rank}: what shares "
                "the old one's memory, a view perhaps, keeps the old numbers; copy into the tensors that are there"
            )
        if report.thawed:
            return f"right values, but requires_grad of {report.thawed} has changed"
    return None


def _too_many_bytes(case: Wrapping, tensors: dict[str, Tensor], book: Ledger) -> str | None:
    target = (case.world_size - 1) * sum(tensor.nbytes for tensor in tensors.values())
    got = sum(map(sum, book.matrix()))
    if got == target:
        return None
    text = f"values right, bytes {times(got / target)} the target: {got} sent by all ranks, target {target}"
    return f"{text}; each tensor must reach each other rank once"


def fill(tensors: Iterable[Tensor], numbers: Callable[[Tensor], Tensor]) -> None:
    """Write numbers into tensors."""
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(numbers(tensor))


def _left(case: Wrapping, given: _Given, trial: Trial) -> Any:
    """What every rank has now; if that is right, what it took."""
    if _wrong_values(given, trial.reports):
        return [report.after for report in trial.reports]
    return Ledger(trial.events, case.world_size).matrix()


_SAME_START = ProbeExercise(
    key="03.2",
    title="one model everywhere",
    inputs=_draw,
    probe=_attempt,
    verdict=_verdict,
    left=_left,
    slips={
        "these are the averages of all ranks' numbers: rank 0's are to be everywhere": lambda model: fill(
            model.parameters(), lambda x: comm.all_reduce(x, op=dist.ReduceOp.AVG)
        ),
        "these are the last rank's numbers: src is the rank that sends": lambda model: fill(
            model.parameters(), lambda x: comm.broadcast(x, src=dist.get_world_size() - 1)
        ),
        "values right, but the tied weight was sent twice: state_dict() has it under both its names": lambda model: (
            fill(model.state_dict().values(), lambda x: comm.broadcast(x, src=0))
        ),
    },
    levels={
        "parameters": Level(
            points=1,
            cases=(Wrapping(world_size=4, model="mlp"), Wrapping(world_size=2, model="mlp")),
            praise="all ranks start from rank 0's weights, in the tensors that they had",
        ),
        "edges": Level(
            points=2,
            again=True,
            cases=(
                Wrapping(world_size=2, model="frozen"),
                Wrapping(world_size=3, model="buffers"),
                Wrapping(world_size=3, model="tied"),
                Wrapping(world_size=1, model="buffers"),
            ),
            praise="frozen weights and buffers too, an int64 counter among them; tied weights stay tied",
        ),
        "bytes": Level(
            points=1,
            cases=(
                Wrapping(world_size=4, model="tied", look="bytes"),
                Wrapping(world_size=3, model="buffers", look="bytes"),
            ),
            praise="(p-1) times the model's bytes, and no tensor twice",
        ),
    },
    hints=(
        "comm.broadcast(x, src=0) returns a new tensor with rank 0's numbers, and leaves x as it was. How do the "
        "numbers get into the tensor that the model has?",
        "tensor.copy_(other) writes in place. PyTorch refuses that on a weight whose gradient it tracks, so do it "
        "under `with torch.no_grad():`.",
        "model.parameters() holds frozen weights too, and tied ones once, but no buffers. So go through "
        "[*model.parameters(), *model.buffers()], and for each of them call tensor.copy_(comm.broadcast(tensor, "
        "src=0)).",
    ),
)
