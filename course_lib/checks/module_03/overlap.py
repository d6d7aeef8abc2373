"""03.10: all-reduces that run while backward goes on; their time is the emulated clock's."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import Report, Scene
from course_lib.checks.kit.spec import FP32, Level
from course_lib.checks.kit.step import Words, causes_of_averages, step_exercise
from course_lib.comm import clock, ledger
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import first_start_s, last_end_s, payloads
from course_lib.costs.comm.ddp import DdpTime, ddp_time
from course_lib.hardware import ETHERNET
from course_lib.training.pacing import pace
from course_lib.verify import ratios
from course_lib.verify.equality import TOLERANCES

LAYERS, _WIDTH = 4, 96  # of the model whose time is taken, a bucket for each layer
FORWARD_S, BACKWARD_S = 2e-4, 4e-4  # of a layer, emulated
SLOWDOWN = 10.0


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A model whose parameters come in buckets of `per_bucket`, from the last to the first; or one on the clock."""

    world_size: int
    model: Kind = "gelu"
    per_bucket: int = 2
    look: bool = False

    def __str__(self) -> str:
        ranks = plural(self.world_size, "rank")
        if self.look:
            return f"{ranks}, {LAYERS} layers on the emulated clock"
        return f"{ranks}, {models.WORDS[self.model]}, {self.per_bucket} to a bucket"


@dataclass(frozen=True, kw_only=True)
class _OnTheClock(Scene):
    """A backward that is timed if it is looked at, and what it leaves behind."""

    inputs: list[Tensor]  # by rank
    timed: bool

    @contextmanager
    def around(self, part: nn.Module) -> Iterator[dict[str, Any]]:
        """Report when the step ended, and how many handles nobody waited for."""
        more: dict[str, Any] = {}
        with ExitStack() as stack, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self.timed:
                stack.enter_context(comm.emulated(comm.EmulatedClock(inside=ETHERNET, slowdown=SLOWDOWN)))
                layers = [module for module in part.modules() if isinstance(module, nn.Linear)]
                stack.enter_context(pace(layers, FORWARD_S, BACKWARD_S))
            yield more
            more["end_s"] = clock.now_s()
            gc.collect(1)
            clock.finish_background()
        more["dropped"] = sum("before wait()" in str(warning.message) for warning in caught)

    def after(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Hooks that are left, and what a plain backward does then."""
        model, inputs = arguments[0], self.inputs[0]
        hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
        ledger.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a hook that was left drops its handles
            model.zero_grad()
            try:
                _loss(model, inputs).backward()
            except Exception:  # in such a hook, since nothing else is in the way
                hooks += 1
            gc.collect(1)
        clock.finish_background()
        return {"left": hooks + sum(event.operation == "all_reduce" for event in ledger.current())}


def _scene(case: Backward, seed: int) -> _OnTheClock:
    """The same weights everywhere, other inputs on each rank."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        timed = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(LAYERS)])
    model = timed if case.look else models.build(case.model, seed)
    generator = torch.Generator().manual_seed(1009 * seed)
    width = _WIDTH if case.look else models.IN
    inputs = [torch.randn(5, width, generator=generator) for _ in range(case.world_size)]
    return _OnTheClock(
        parts=[model] * case.world_size,
        arguments=lambda model, rank: (model, _loss(model, inputs[rank]), _buckets_of(model, case.per_bucket)),
        loss=lambda: torch.stack([_loss(model, mine) for mine in inputs]).mean(),
        alone=lambda rank: _loss(model, inputs[rank]),
        inputs=inputs,
        timed=case.look,
    )


def _buckets_of(model: nn.Module, size: int) -> list[list[nn.Parameter]]:
    """The trained parameters, from the last to the first."""
    order = [*models.trained(model).values()][::-1]
    return [order[start : start + size] for start in range(0, len(order), size)]


def _loss(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = model(inputs).square().mean()
    return loss


def _never_waited(case: Backward, given: Scene, reports: Sequence[Report]) -> str | None:
    for rank, report in enumerate(reports):
        if many := report.more["dropped"]:
            return f"rank {rank} launched {plural(many, 'all-reduce')} and never waited: each handle needs its wait()"
    return None


def _hooks_left(case: Backward, given: Scene, reports: Sequence[Report]) -> str | None:
    if not any(report.more["left"] for report in reports):
        return None
    next_one = "the next backward, under no_sync perhaps, would run it as well"
    return f"right values, but a hook is left on the model: {next_one}; .remove() what register_... returned"


def _wrong_time(case: Backward, given: Scene, reports: Sequence[Report], book: Ledger) -> str | None:
    want = [sum(FP32 * p.numel() for p in bucket) for bucket in _buckets_of(given.parts[0], case.per_bucket)]
    if (got := payloads(book)) != want:
        text = f"values right, but all-reduces of {', '.join(map(str, got))} bytes, target {', '.join(map(str, want))}"
        return f"{text}: one for each bucket, in their order"
    return _too_long(case, reports, book)


def target(world_size: int) -> DdpTime:
    """What a step of the timed model takes, by formula."""
    layer = [_WIDTH * _WIDTH, _WIDTH]
    return ddp_time(
        [layer] * LAYERS,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        world_size=world_size,
        inside=ETHERNET,
        bucket_bytes=FP32 * sum(layer),
    )


def _too_long(case: Backward, reports: Sequence[Report], book: Ledger) -> str | None:
    """The emulated clock is exact: a step takes the formula's time, or something waited."""
    want, got = target(case.world_size), max(report.more["end_s"] for report in reports)
    if isclose(got, want.overlapped_s, rel_tol=1e-6):
        return None
    text = f"values right, but a step takes {got * 1e6:.0f} us, {ratios.times(got / want.overlapped_s)} the target"
    text += f" of {want.overlapped_s * 1e6:.0f} us"
    if not isclose(got, want.in_turn_s, rel_tol=1e-6):
        return text
    if first_start_s(book.events, "send") < last_end_s(book.events, "compute"):
        return f"{text}: backward stood still during each all-reduce; launch in the hook, wait after backward"
    return f"{text}: the first all-reduce started when backward was over; launch it in a hook"


_OVERLAP = step_exercise(
    key="03.10",
    title="communication behind backward",
    scene=_scene,
    causes=causes_of_averages(),
    first=_never_waited,
    also=_hooks_left,
    look=_wrong_time,
    roughly=TOLERANCES[torch.float32],  # the model that is timed is seen in no other case
    words=Words(means="comm.all_reduce_(…, async_op=True)"),
    levels={
        "values": Level(
            points=2,
            cases=(Backward(world_size=2), Backward(world_size=4, model="deep")),
            praise="the average of all ranks' gradients when the call returns",
        ),
        "overlap": Level(
            points=2,
            again=True,
            cases=(Backward(world_size=4, look=True), Backward(world_size=2, look=True)),
            praise="a step takes as long as its formula says: only the last bucket is not hidden",
        ),
        "edges": Level(
            points=2,
            cases=(
                Backward(world_size=3, model="tied", per_bucket=3),
                Backward(world_size=3, look=True),
                Backward(world_size=2, model="frozen", per_bucket=1),
                Backward(world_size=2, model="deep", per_bucket=8),
                Backward(world_size=1),
            ),
            praise="tied and frozen weights, buckets of one gradient and of all, 3 ranks and 1",
        ),
    },
    hints=(
        "A hook is called with its parameter as soon as that one's gradient is complete. So keep for each bucket "
        "which parameters are still missing, for example missing = [set(bucket) for bucket in buckets], and let the "
        "hook take its own off.",
        "Is nothing missing in the bucket any more? Then torch.cat its flattened gradients, and launch "
        "comm.all_reduce_(flat, op=dist.ReduceOp.AVG, async_op=True). Do not wait in the hook, because backward "
        "would stand still. Keep (bucket, flat, handle) in a list.",
        "After loss.backward() go through that list. For each entry call handle.wait(), then cut the flat tensor as "
        "in 03.6 and put the parts into p.grad. Last, call .remove() on every hook.",
    ),
)
