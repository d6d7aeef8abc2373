"""04.1: model parallelism by hand: two ranks, one half of a model each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks.kit import models
from course_lib.checks.kit.parts import Guess, Place, Sizes, gradients_on, wrong_traffic
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.stages import FP32, Report, attempt_on, wrong_step
from course_lib.comm.ledger import Ledger
from course_lib.parallel.stages import cut
from course_lib.training.batches import Batch


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
    half = half_of(build(given.width, given.seed), dist.get_rank())
    return attempt_on(half, lambda: function(half, *given.batch, given.shape))


def verdict(case: Halves, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Gradients and loss, then bytes."""
    model = build(given.width, given.seed)
    loss = F.cross_entropy(model(given.batch[0]), given.batch[1])
    loss.backward()
    causes = [
        (case.rows, "was the loss summed over the rows? F.cross_entropy takes their mean"),
        (1 / (case.rows * case.width), "y.backward(gradient) is all that rank 0 does: was a mean taken there?"),
    ]
    reason = wrong_step(
        reports,
        gradients_of_halves(model),
        loss.item(),
        book,
        guesses=_guesses(given),
        causes=causes,
        sizes=sizes_of_terms(given.width, given.seed, given.batch),
    )
    if reason is None and case.look_at_bytes:
        one = (1, FP32 * case.rows * case.width)
        advice = "the whole batch passes the cut once each way, in fp32"
        reason = wrong_traffic(book, [[(0, 0), one], [one, (0, 0)]], advice)
    return f"{case}: {reason}" if reason else None


def sizes_of_terms(width: int, seed: int, batch: Batch) -> Sizes:
    """How large the rows' gradients are that the mean's gradient is the sum of, signs left out."""
    sizes: dict[Place, Tensor] = {}
    for row, target in zip(*(tensor.split(1) for tensor in batch), strict=True):
        model = build(width, seed)
        (F.cross_entropy(model(row), target) / len(batch[1])).backward()
        for place, gradient in gradients_of_halves(model).items():
            if gradient is not None:
                sizes[place] = sizes.get(place, torch.zeros(())) + gradient.abs()
    return {place: float(size.max()) for place, size in sizes.items()}


def gradients_of_halves(model: nn.Module) -> dict[Place, Tensor | None]:
    """Those of a whole model, by the rank that has them."""
    return {place: x for rank in (0, 1) for place, x in gradients_on(rank, half_of(model, rank)).items()}


def _guesses(given: Given) -> list[Guess]:
    """What is there without the GELU or with two, and what rank 0 has if no gradient of its output comes back."""
    layer1, gelu, layer2 = build(given.width, given.seed)
    skipped, twice = nn.Sequential(layer1, layer2), nn.Sequential(layer1, gelu, gelu, layer2)
    return [
        (
            _gradients_with(skipped, layer1, layer2, given.batch),
            "these are the gradients without the GELU: call half(inputs), not one of its layers",
        ),
        (
            _gradients_with(twice, layer1, layer2, given.batch),
            "these are the gradients with two GELUs, one after the other: half(inputs) has one in it",
        ),
        (
            _first_half(given, lambda y: y.detach()),
            "layer1's gradients are those for the *activation* in place of its gradient: send x.grad back, not x",
        ),
        (
            _first_half(given, torch.ones_like),
            "layer1's gradients are those of the sum of its outputs: give y.backward(...) what rank 1 sends back",
        ),
    ]


def _gradients_with(model: nn.Module, layer1: nn.Module, layer2: nn.Module, batch: Batch) -> dict[Place, Tensor | None]:
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    parts = enumerate((("layer1", layer1), ("layer2", layer2)))
    return {
        (rank, f"{name}.{key[1]}"): x for rank, (name, layer) in parts for key, x in gradients_on(rank, layer).items()
    }


def _first_half(given: Given, incoming: Callable[[Tensor], Tensor]) -> dict[Place, Tensor | None]:
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
