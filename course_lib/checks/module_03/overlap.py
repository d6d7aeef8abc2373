"""03.10: all-reduces that run while backward goes on; their time is the emulated clock's."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import isclose
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind, Tensors
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.replicas import all_same, causes_of, why_wrong
from course_lib.checks.kit.spec import Level
from course_lib.comm import clock, ledger
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import first_start_s, last_end_s, payloads
from course_lib.costs.comm.ddp import DdpTime, ddp_time
from course_lib.hardware import ETHERNET
from course_lib.training.pace import pace
from course_lib.verify.ratios import times

LAYERS, WIDTH = 4, 96  # of the model whose time is taken, a bucket for each layer
FORWARD_S, BACKWARD_S = 2e-4, 4e-4  # of a layer, emulated
SLOWDOWN = 10.0
FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A model whose parameters come in buckets of `per_bucket`, from the last to the first; or one on the clock."""

    world_size: int
    model: Kind = "gelu"
    per_bucket: int = 2
    timed: bool = False

    def __str__(self) -> str:
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}"
        if self.timed:
            return f"{ranks}, {LAYERS} layers on the emulated clock"
        return f"{ranks}, {models.WORDS[self.model]}, {self.per_bucket} to a bucket"


class Given(NamedTuple):
    """What a rank builds its model and its inputs from."""

    case: Backward
    seed: int


class Report(NamedTuple):
    """One rank: its gradients and those of its share alone, and what the call left behind."""

    gradients: Tensors
    own: Tensors
    dropped: int  # handles that nobody waited for
    hooks: int  # left on its parameters
    later_calls: int  # all-reduces of a plain backward afterwards
    end_s: float  # emulated
    first_send_s: float
    computed_s: float


def draw(case: Backward, seed: int) -> Given:
    """Other weights and inputs for each seed."""
    return Given(case, seed)


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank: the same weights everywhere, other inputs on each rank."""
    case = given.case
    model, buckets = _build(case, given.seed)
    inputs = _inputs(given, dist.get_rank())
    _loss(model, inputs).backward()
    own = models.gradients(model)
    model.zero_grad()
    ledger.clear()
    with ExitStack() as stack, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if case.timed:
            stack.enter_context(comm.emulated(comm.EmulatedClock(inside=ETHERNET, slowdown=SLOWDOWN)))
            layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
            stack.enter_context(pace(layers, FORWARD_S, BACKWARD_S))
        loss = _loss(model, inputs)
        function(model, loss, buckets)
        found, end_s = models.gradients(model), clock.now_s()
        gc.collect(1)
        clock.finish_background()
    dropped = sum("before wait()" in str(warning.message) for warning in caught)
    hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    later = _later_calls(model, inputs)
    first_send_s, computed_s = first_start_s(ledger.current(), "send"), last_end_s(ledger.current(), "compute")
    return Report(found, own, dropped, hooks, later, end_s, first_send_s, computed_s)


def _build(case: Backward, seed: int) -> tuple[nn.Module, list[list[nn.Parameter]]]:
    if case.timed:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model: nn.Module = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    else:
        model = models.build(case.model, seed)
    order, size = [*models.trained(model).values()][::-1], case.per_bucket
    return model, [order[start : start + size] for start in range(0, len(order), size)]


def _inputs(given: Given, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1009 * given.seed + rank)
    return torch.randn(5, WIDTH if given.case.timed else models.IN, generator=generator)


def _loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).square().mean()


def _later_calls(model: nn.Module, inputs: torch.Tensor) -> int:
    """All-reduces of a plain backward, which must have none; the ledger is as before."""
    seen = list(ledger.current())
    ledger.clear()
    model.zero_grad()
    failures = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hook that was left drops its handles
        try:
            _loss(model, inputs).backward()
        except Exception:  # in such a hook, since nothing else is in the way
            failures = 1
        gc.collect(1)
    clock.finish_background()
    calls = len({event.call for event in ledger.current() if event.operation == "all_reduce"})
    ledger.clear()
    ledger.current().extend(seen)
    return calls + failures


def verdict(case: Backward, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Handles, values, means, what is left behind, then the number of calls and the time."""
    reason = None
    if any(report.dropped for report in reports):
        rank = next(rank for rank, report in enumerate(reports) if report.dropped)
        lost = f"{reports[rank].dropped} all-reduce{'s' * (reports[rank].dropped > 1)}"
        reason = f"rank {rank} launched {lost} and never waited: each handle needs its wait()"
    reason = reason or _wrong_values(case, reports)
    if reason is None and case.world_size > 1 and not any(event.kind == "send" for event in book.events):
        reason = "right values, but nothing is in the ledger: use comm.iall_reduce_"
    if reason is None and any(report.hooks or report.later_calls for report in reports):
        reason = (
            "right values, but a hook is left on the model: the next backward, under no_sync perhaps, would run it as "
            "well; .remove() what register_... returned"
        )
    if reason is None and case.timed and case.world_size > 1:
        reason = _wrong_calls(case, given, book) or _too_long(case, reports)
    return f"{case}: {reason}" if reason else None


def _wrong_values(case: Backward, reports: Sequence[Report]) -> str | None:
    own = [report.own for report in reports]
    want: dict[str, torch.Tensor | None] = dict.fromkeys(own[0])
    for name in want:
        parts = [gradient for mine in own if (gradient := mine[name]) is not None]
        want[name] = torch.stack(parts).mean(0) if parts else None
    got = [report.gradients for report in reports]
    if all_same(got, [want] * len(got)):
        return None
    return why_wrong(got, want, own=own if len(own) > 1 else (), causes=causes_of(case.world_size))


def _wrong_calls(case: Backward, given: Given, book: Ledger) -> str | None:
    want = [sum(FP32 * p.numel() for p in bucket) for bucket in _build(case, given.seed)[1]]
    got = payloads(book)
    if got == want:
        return None
    text = f"values right, but all-reduces of {', '.join(map(str, got))} bytes, target {', '.join(map(str, want))}"
    return f"{text}: one for each bucket, in their order"


def target(world_size: int) -> DdpTime:
    """What a step of the timed model takes, by formula."""
    layer = [WIDTH * WIDTH, WIDTH]
    return ddp_time(
        [layer] * LAYERS,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        world_size=world_size,
        inside=ETHERNET,
        bucket_bytes=FP32 * sum(layer),
    )


def _too_long(case: Backward, reports: Sequence[Report]) -> str | None:
    """The emulated clock is exact: a step takes the formula's time, or something waited."""
    want, got = target(case.world_size), max(report.end_s for report in reports)
    if isclose(got, want.overlapped_s, rel_tol=1e-6):
        return None
    text = f"values right, but a step takes {got * 1e6:.0f} us, {times(got / want.overlapped_s)} the target"
    text += f" of {want.overlapped_s * 1e6:.0f} us"
    if not isclose(got, want.in_turn_s, rel_tol=1e-6):
        return text
    first = min(report.first_send_s for report in reports)
    if first < max(report.computed_s for report in reports):
        return f"{text}: backward stood still during each all-reduce; launch in the hook, wait after backward"
    return f"{text}: the first all-reduce started when backward was over; launch it in a hook"


OVERLAP = ProbeExercise(
    key="03.10",
    title="communication behind backward",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "values": Level(
            points=2,
            cases=(Backward(world_size=2), Backward(world_size=4, model="deep")),
            praise="the average of all ranks' gradients when the call returns",
        ),
        "overlap": Level(
            points=2,
            cases=(Backward(world_size=4, timed=True), Backward(world_size=2, timed=True)),
            praise="a step takes as long as its formula says: only the last bucket is not hidden",
        ),
        "edges": Level(
            points=2,
            cases=(
                Backward(world_size=3, model="tied", per_bucket=3),
                Backward(world_size=3, timed=True),
                Backward(world_size=2, model="frozen", per_bucket=1),
                Backward(world_size=2, model="deep", per_bucket=8),
                Backward(world_size=1),
            ),
            praise="tied and frozen weights, buckets of one gradient and of all, 3 ranks and 1",
        ),
    },
    hints=(
        "Inside the hook: take the parameter off what its bucket still waits for. Is nothing missing any more? Then "
        "torch.cat the bucket's gradients and launch.",
        "Keep (bucket, flat tensor, handle) in a list. Do not wait in the hook: backward stands still meanwhile.",
        "After loss.backward(): for each entry handle.wait(), then cut the flat tensor as in 03.6 and put the parts "
        "into p.grad. Last, .remove() every hook.",
    ),
)
