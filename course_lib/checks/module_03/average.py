"""03.1 and 03.6: gradients averaged after backward, one by one and in buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch.distributed as dist

from course_lib.checks.kit import models
from course_lib.checks.kit.judge import over_cost
from course_lib.checks.kit.models import Kind, Tensors
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.replicas import causes_of, why_wrong
from course_lib.checks.kit.spec import Level
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import payloads, unmatched
from course_lib.costs.comm.ddp import ddp_step, fill_buckets

Look = Literal["values", "calls"]
FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A model on so many ranks; `bucket_bytes` 0 is one call for each gradient, `lonely` reaches rank 0 alone."""

    world_size: int
    model: Kind
    bucket_bytes: int = 0
    lonely: str = ""
    look: Look = "values"

    def __str__(self) -> str:
        parts = [f"{self.world_size} rank{'s' * (self.world_size > 1)}", models.WORDS[self.model]]
        parts += [f"buckets of {self.bucket_bytes} bytes"] * bool(self.bucket_bytes)
        parts += [f"{self.lonely} is reached on rank 0 only"] * bool(self.lonely)
        return ", ".join(parts)


class Given(NamedTuple):
    """What a rank needs to set the scene, and the answer's arguments after the model."""

    model: Kind
    seed: int
    gradients: list[dict[str, Any]]  # by rank
    arguments: tuple[int, ...]


class Report(NamedTuple):
    """One rank's gradients afterwards, and whether its weights have changed."""

    gradients: Tensors
    weights_changed: bool


def draw(case: Averaging, seed: int) -> Given:
    """Each rank has gradients of its own, as if backward had run on its share."""
    found = models.exact_gradients(models.build(case.model, seed), case.world_size, seed)
    for rank in range(1, case.world_size if case.lonely else 0):
        found[rank][case.lonely] = None  # type: ignore[assignment]
    arguments = (case.bucket_bytes,) if case.bucket_bytes else ()
    return Given(case.model, seed, found, arguments)


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank."""
    model = models.build(given.model, given.seed)
    for name, p in model.named_parameters():
        gradient = given.gradients[dist.get_rank()].get(name)
        p.grad = None if gradient is None else gradient.clone()
    before = models.state(model)
    ledger.clear()
    function(model, *given.arguments)
    after = models.state(model)
    return Report(models.gradients(model), any(not before[name].equal(after[name]) for name in before))


def verdict(case: Averaging, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Values, then weights, then means, then calls and bytes."""
    reason = _wrong_values(case, given, [report.gradients for report in reports])
    if reason is None and any(report.weights_changed for report in reports):
        reason = "right gradients, but the weights have changed: only gradients are averaged"
    if reason is None and case.world_size > 1 and not any(event.kind == "send" for event in book.events):
        reason = "right values, but nothing is in the ledger: use comm's collectives, not torch.distributed's own"
    if reason is None:
        reason = unmatched(book.events)
    if reason is None and case.look == "calls":
        reason = _wrong_calls(case, given, book)
    return f"{case}: {reason}" if reason else None


def _wrong_values(case: Averaging, given: Given, got: Sequence[Tensors]) -> str | None:
    p, own = case.world_size, given.gradients
    model = models.build(given.model, given.seed)
    want: dict[str, Any] = {name: None for name, _ in model.named_parameters()}
    for name, parameter in models.trained(model).items():
        parts = [mine[name] for mine in own if mine[name] is not None]
        want[name] = sum(parts[1:], parts[0]).reshape(parameter.shape) / p
    return why_wrong(got, want, own=own if p > 1 else (), causes=causes_of(p))


def _wrong_calls(case: Averaging, given: Given, book: Ledger) -> str | None:
    lengths = [p.numel() for p in models.trained(models.build(given.model, given.seed)).values()]
    buckets = fill_buckets(lengths[::-1], bucket_bytes=case.bucket_bytes or 1, itemsize=FP32)
    want = [FP32 * sum(bucket) for bucket in buckets] if case.bucket_bytes else [FP32 * n for n in lengths]
    got = payloads(book)
    forward = [FP32 * sum(b) for b in fill_buckets(lengths, bucket_bytes=case.bucket_bytes or 1, itemsize=FP32)]
    if case.bucket_bytes and got != want and got in (forward, want[::-1]):
        order = "backward has the last layer's gradients first: fill from the last parameter on"
        return f"values right, but the buckets hold {_listed(got)} bytes, target {_listed(want)}; {order}"
    if len(got) != len(want):
        return f"values right, but {len(got)} all-reduces, target {len(want)}{_hint_of_number(case, got, lengths)}"
    if case.bucket_bytes and got != want:
        text = f"values right, but the buckets hold {_listed(got)} bytes, target {_listed(want)}"
        return f"{text}; a bucket is full once it holds bucket_bytes or more"
    step = ddp_step(lengths, world_size=case.world_size, bucket_bytes=case.bucket_bytes or 1, itemsize=FP32)
    return over_cost(step, book.events, case.world_size)


def _hint_of_number(case: Averaging, got: Sequence[int], lengths: Sequence[int]) -> str:
    total = FP32 * sum(lengths)
    if case.bucket_bytes and len(got) == len(lengths):
        return ": one for each parameter; put several gradients into one flat tensor"
    if len(got) == 1 and got[0] == total:
        return ": everything in one; a full bucket is sent, and a new one begun"
    if len(got) > len(lengths):
        return ": is a frozen or a tied parameter sent as well?"
    return f": they hold {_listed(got)} bytes"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


BY_HAND = ProbeExercise(
    key="03.1",
    title="average gradients by hand",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "values": Level(
            points=2,
            cases=(Averaging(world_size=4, model="mlp"), Averaging(world_size=2, model="mlp")),
            praise="the average of all ranks' gradients, on 4 and on 2 ranks",
        ),
        "edges": Level(
            points=1,
            cases=(
                Averaging(world_size=3, model="frozen"),
                Averaging(world_size=3, model="tied"),
                Averaging(world_size=2, model="mlp", lonely="layer2.bias"),
                Averaging(world_size=1, model="mlp"),
            ),
            praise="frozen and tied parameters, one that a share does not reach, 3 ranks and 1",
        ),
        "calls": Level(
            points=1,
            cases=(
                Averaging(world_size=4, model="deep", look="calls"),
                Averaging(world_size=3, model="frozen", look="calls"),
            ),
            praise="one all-reduce for each trained parameter, 2(p-1)/p of its bytes sent",
        ),
    },
    hints=(
        "for p in model.parameters() gives each parameter once, tied ones too. A frozen one has requires_grad False.",
        "comm.all_reduce(p.grad) returns the *sum* over the ranks, and leaves p.grad as it was. "
        "What makes a sum an average?",
        "All ranks must make the same calls in the same order. Where p.grad is None and p is trained, this rank takes "
        "part with torch.zeros_like(p): zero is what its share adds.",
    ),
)

IN_BUCKETS = ProbeExercise(
    key="03.6",
    title="gradients in buckets",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
    levels={
        "values": Level(
            points=2,
            cases=(
                Averaging(world_size=4, model="mlp", bucket_bytes=40),
                Averaging(world_size=2, model="deep", bucket_bytes=120),
            ),
            praise="the average of all ranks' gradients, in their own shapes",
        ),
        "edges": Level(
            points=1,
            cases=(
                Averaging(world_size=3, model="frozen", bucket_bytes=16),
                Averaging(world_size=3, model="tied", bucket_bytes=100),
                Averaging(world_size=2, model="deep", bucket_bytes=1),
                Averaging(world_size=2, model="deep", bucket_bytes=1 << 20),
                Averaging(world_size=2, model="deep", bucket_bytes=120, lonely="2.bias"),
                Averaging(world_size=1, model="mlp", bucket_bytes=40),
            ),
            praise="frozen, tied and unreached parameters, buckets of one gradient and of all",
        ),
        "calls": Level(
            points=2,
            cases=(
                Averaging(world_size=2, model="mlp", bucket_bytes=40, look="calls"),
                Averaging(world_size=4, model="deep", bucket_bytes=120, look="calls"),
                Averaging(world_size=3, model="deep", bucket_bytes=1 << 20, look="calls"),
                Averaging(world_size=2, model="frozen", bucket_bytes=16, look="calls"),
            ),
            praise="one all-reduce for each bucket, filled from the last parameter on, and no byte more",
        ),
    },
    hints=(
        "Two loops. The first deals the trained parameters out, from the last to the first: put one into the open "
        "bucket, add its p.nbytes, and once bucket_bytes or more are in, open a new one. Forget no half-full bucket.",
        "The second goes over the buckets: torch.cat of the flattened gradients makes one long tensor, and "
        "comm.all_reduce_(flat, op=dist.ReduceOp.AVG) averages it in place.",
        "flat.split([p.numel() for p in bucket]) cuts it again; view_as(p) gives a piece its shape.",
    ),
)
