"""04.1: model parallelism by hand: two ranks, one half of a model each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks.module_03 import models
from course_lib.checks.module_04.compare import Guess, gradients_on, why_wrong, wrong_loss, wrong_traffic
from course_lib.checks.probe import ProbeExercise
from course_lib.checks.spec import Level
from course_lib.checks.steps import unmatched
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.parallel.stages import cut
from course_lib.training.batches import Batch

FP32 = 4
NO_LEDGER = "right values, but nothing is in the ledger: use comm.send and comm.recv, not torch.distributed's own"


@dataclass(frozen=True, kw_only=True)
class Halves:
    """A 6-width-2 perceptron with GELU, cut before its second layer, and a batch of so many rows."""

    rows: int = 8
    width: int = 4
    look_at_bytes: bool = False
    world_size: int = 2

    def __str__(self) -> str:
        return f"2 ranks, a 6-{self.width}-2 MLP, {self.rows} row{'s' * (self.rows > 1)}"


class Given(NamedTuple):
    """What the model is made of, the batch, and the shape of what passes the cut."""

    width: int
    seed: int
    batch: Batch
    shape: tuple[int, int]


class Report(NamedTuple):
    """What a rank's call returned, its gradients, and whether its weights have changed."""

    loss: Any
    gradients: dict[tuple[int, str], Tensor | None]
    weights_changed: bool


def build(width: int, seed: int) -> nn.Sequential:
    """The whole model."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, second = nn.Linear(models.IN, width), nn.Linear(width, models.OUT)
    return nn.Sequential(OrderedDict(layer1=first, activation=nn.GELU(), layer2=second))


def half_of(model: nn.Module, rank: int) -> nn.Module:
    """Its layers before the cut, or those behind it."""
    return cut(model, (2, 1))[rank]


def rows_of(number: int, seed: int) -> Batch:
    """Random rows and classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, models.IN, generator=generator), torch.randint(
        models.OUT, (number,), generator=generator
    )


def draw(case: Halves, seed: int) -> Given:
    """The same on both ranks."""
    batch = rows_of(case.rows, seed * 1009 + case.rows)
    return Given(case.width, seed + 1, batch, (case.rows, case.width))


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank."""
    rank = dist.get_rank()
    half = half_of(build(given.width, given.seed), rank)
    before = models.state(half)
    ledger.clear()
    with explained():
        loss = function(half, *given.batch, given.shape)
    after = models.state(half)
    changed = any(not before[name].equal(after[name]) for name in before)
    kept = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
    return Report(kept if isinstance(kept, int | float) else None, gradients_on(rank, half), changed)


@contextmanager
def explained() -> Iterator[None]:
    """An error about a gradient that is not there says why it may not be."""
    try:
        yield
    except AttributeError as error:
        if "'NoneType'" in str(error):
            error.args = (f"{error}: a .grad that is None? x.requires_grad_() comes before what is computed from x",)
        raise


def verdict(case: Halves, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Gradients, the loss, then means and bytes."""
    model = build(given.width, given.seed)
    loss = F.cross_entropy(model(given.batch[0]), given.batch[1])
    loss.backward()
    want = {place: x for rank in (0, 1) for place, x in gradients_on(rank, half_of(model, rank)).items()}
    got = reports[0].gradients | reports[1].gradients
    causes = [(case.rows, "was the loss summed over the rows? F.cross_entropy takes their mean")]
    reason = why_wrong(got, want, guesses=_guesses(given), causes=causes)
    if reason is None and any(report.weights_changed for report in reports):
        reason = "right gradients, but the weights have changed: the optimizer comes later"
    reason = reason or wrong_loss(reports[1].loss, loss.item(), rank=1) or unmatched(book.events, 2)
    if reason is None and not any(event.kind == "send" for event in book.events):
        reason = NO_LEDGER
    if reason is None and case.look_at_bytes:
        one = (1, FP32 * case.rows * case.width)
        advice = "the whole batch passes the cut once each way, in fp32"
        reason = wrong_traffic(book, [[(0, 0), one], [one, (0, 0)]], advice)
    return f"{case}: {reason}" if reason else None


def _guesses(given: Given) -> list[Guess]:
    """What rank 0 has if something else than the gradient of its output comes back."""
    return [
        (
            _first_half(given, lambda y: y.detach()),
            "layer1's gradients are those for the *activation* in place of its gradient: send x.grad back, not x",
        ),
        (
            _first_half(given, torch.ones_like),
            "layer1's gradients are those of the sum of its outputs: give y.backward(...) what rank 1 sends back",
        ),
    ]


def _first_half(given: Given, incoming: Callable[[Tensor], Tensor]) -> dict[tuple[int, str], Tensor | None]:
    half = half_of(build(given.width, given.seed), 0)
    y = half(given.batch[0])
    y.backward(incoming(y))
    return gradients_on(0, half)


HALVES = ProbeExercise(
    key="04.1",
    title="a model on two ranks",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "values": Level(
            points=2, cases=(Halves(), Halves(rows=3)), praise="28 and 10 parameters, the gradients of one device"
        ),
        "bytes": Level(
            points=1,
            cases=(Halves(look_at_bytes=True),),
            praise="one message each way, as large as the activation at the cut",
        ),
        "edges": Level(
            points=1,
            cases=(Halves(rows=1, look_at_bytes=True), Halves(rows=5, width=7, look_at_bytes=True)),
            praise="right for one row, and for another width",
        ),
    },
    hints=(
        "Autograd ends where a rank ends. So the two ranks do its work at the cut: the activation travels forward, "
        "the gradient of the loss with respect to it travels back.",
        "Rank 0: y = half(inputs), send y.detach(), receive a tensor like y, and y.backward(that tensor).",
        "Rank 1: x = comm.recv(torch.empty(shape), 0), then x.requires_grad_() *before* half(x): "
        "only then does loss.backward() leave x.grad, which goes back to rank 0.",
    ),
)
