"""03.1 and 03.6: gradients averaged after backward, one by one and in buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import comm
from course_lib.checks.kit import models
from course_lib.checks.kit.judge import over_cost
from course_lib.checks.kit.models import Kind
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.scene import Report, Scene
from course_lib.checks.kit.spec import FP32, Level
from course_lib.checks.kit.step import causes_of_averages, step_exercise
from course_lib.comm.ledger import Ledger
from course_lib.comm.traces import payloads
from course_lib.costs.comm.ddp import ddp_step, fill_buckets


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A model on so many ranks; `bucket_bytes` 0 is one call for each gradient, `lonely` reaches rank 0 alone."""

    world_size: int
    model: Kind
    bucket_bytes: int = 0
    lonely: str = ""
    look: bool = False

    def __str__(self) -> str:
        parts = [plural(self.world_size, "rank"), models.WORDS[self.model]]
        parts += [f"buckets of {self.bucket_bytes} bytes"] * bool(self.bucket_bytes)
        parts += [f"{self.lonely} is reached on rank 0 only"] * bool(self.lonely)
        return ", ".join(parts)


def _scene(case: Averaging, seed: int) -> Scene:
    """Each rank has gradients of its own, as if backward had run on its share."""
    model, p = models.build(case.model, seed), case.world_size
    found = models.exact_gradients(model, p, seed)
    for rank in range(1, p if case.lonely else 0):
        del found[rank][case.lonely]

    def arguments(model: nn.Module, rank: int) -> tuple[Any, ...]:
        for name, parameter in model.named_parameters():
            parameter.grad = found[rank].get(name)
        return (model, case.bucket_bytes) if case.bucket_bytes else (model,)

    def alone(rank: int) -> Tensor:
        """Has just the gradients that the rank was given."""
        return torch.stack([(x * model.get_parameter(name)).sum() for name, x in found[rank].items()]).sum()

    def loss() -> Tensor:
        return torch.stack([alone(rank) for rank in range(p)]).mean()

    return Scene(parts=[model] * p, arguments=arguments, loss=loss, alone=alone)


def _everyone(p: nn.Parameter) -> float:
    """Among how many the sum is divided."""
    return dist.get_world_size()


def _holders(p: nn.Parameter) -> float:
    """How many ranks have a gradient."""
    return comm.all_reduce(torch.tensor([float(p.grad is not None)])).item()


def _average_in_buckets(
    model: nn.Module,
    bucket_bytes: int,
    *,
    order: Callable[[list[nn.Parameter]], Any] = reversed,
    full: Callable[[int, int, int], bool] = lambda held, more, limit: held >= limit,
    among: Callable[[nn.Parameter], float] = _everyone,
    also_frozen: bool = False,
) -> None:
    """Right, unless a part is chosen otherwise; buckets of one byte hold one gradient each."""
    buckets: list[list[nn.Parameter]] = [[]]
    for p in order([p for p in model.parameters() if p.requires_grad or also_frozen]):
        if buckets[-1] and full(sum(q.nbytes for q in buckets[-1]), p.nbytes, bucket_bytes):
            buckets.append([])
        buckets[-1].append(p)
    for bucket in buckets:
        shares = [among(p) for p in bucket]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        parts = comm.all_reduce(flat).split([p.numel() for p in bucket])
        for p, part, share in zip(bucket, parts, shares, strict=True):
            p.grad = part.view_as(p) / share if p.requires_grad else None


def _wrong_calls(case: Averaging, given: Scene, reports: Sequence[Report], book: Ledger) -> str | None:
    lengths = [p.numel() for p in models.trained(given.parts[0]).values()][::-1]
    buckets = fill_buckets(lengths, bucket_bytes=case.bucket_bytes or 1, itemsize=FP32)
    got, want = payloads(book), [FP32 * sum(bucket) for bucket in buckets]
    if got != want if case.bucket_bytes else len(got) != len(want):
        return f"values right, but the all-reduces are of {_listed(got)} bytes, target {_listed(want)}"
    step = ddp_step(lengths, world_size=case.world_size, bucket_bytes=case.bucket_bytes or 1, itemsize=FP32)
    return over_cost(step, book.events, case.world_size)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


_BY_HAND = step_exercise(
    key="03.1",
    title="average gradients by hand",
    scene=_scene,
    slips={
        "what one share alone reaches is divided by 1 here: divide by all ranks, since the others add zero": (
            lambda model: _average_in_buckets(model, 1, among=_holders)
        ),
        "values right, but all gradients travel in one all-reduce; here each has its own": (
            lambda model: _average_in_buckets(model, 1 << 20)
        ),
        "values right, but frozen parameters are sent as well": (
            lambda model: _average_in_buckets(model, 1, also_frozen=True)
        ),
    },
    causes=causes_of_averages(),
    look=_wrong_calls,
    levels={
        "values": Level(
            points=2,
            again=True,
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
                Averaging(world_size=4, model="deep", look=True),
                Averaging(world_size=3, model="frozen", look=True),
            ),
            praise="one all-reduce for each trained parameter, 2(p-1)/p of its bytes sent",
        ),
    },
    hints=(
        "`for p in model.parameters()` gives you each parameter once, a tied one too. A frozen one has "
        "requires_grad False. Nobody trains it, so leave it out.",
        "comm.all_reduce(p.grad) returns the *sum* over the ranks, and leaves p.grad as it was. What makes a sum an "
        "average, and where do you put it?",
        "All ranks must make the same calls in the same order. So where p is trained but p.grad is None, this rank "
        "takes part with torch.zeros_like(p), because zero is what its share adds.",
        "Let `mine` be p.grad, or those zeros if there is none. Then p.grad = comm.all_reduce(mine) / "
        "dist.get_world_size().",
    ),
)

_IN_BUCKETS = step_exercise(
    key="03.6",
    title="gradients in buckets",
    scene=_scene,
    slips={
        "values right, but the buckets are filled from the first parameter on: backward has the last gradients first": (
            partial(_average_in_buckets, order=list)
        ),
        "values right, but each parameter has an all-reduce: put several gradients into one flat tensor": (
            lambda model, bucket_bytes: _average_in_buckets(model, 1)
        ),
        "values right, but everything is in one bucket: a full one is sent, and a new one begun": (
            lambda model, bucket_bytes: _average_in_buckets(model, 1 << 20)
        ),
        "values right, but a bucket is sent before it is full: it is once it holds bucket_bytes or more": (
            partial(_average_in_buckets, full=lambda held, more, limit: held + more > limit)
        ),
    },
    causes=causes_of_averages(),
    look=_wrong_calls,
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
            again=True,
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
                Averaging(world_size=2, model="mlp", bucket_bytes=40, look=True),
                Averaging(world_size=4, model="deep", bucket_bytes=120, look=True),
                Averaging(world_size=3, model="deep", bucket_bytes=1 << 20, look=True),
                Averaging(world_size=2, model="frozen", bucket_bytes=16, look=True),
            ),
            praise="one all-reduce for each bucket, filled from the last parameter on, and no byte more",
        ),
    },
    hints=(
        "There are two loops. The first one deals the trained parameters out, from the last to the first: put one "
        "into the open bucket and add its p.nbytes. Once the bucket holds bucket_bytes or more, open a new one. The "
        "last bucket may stay half full, and it is sent too.",
        "The second loop goes over the buckets. torch.cat of the flattened gradients makes one long tensor, and "
        "comm.all_reduce_(flat, op=dist.ReduceOp.AVG) averages it in place.",
        "flat.split([p.numel() for p in bucket]) cuts it again, in the order in which you have put it together. "
        "Each piece gets its own shape back by p.grad = part.view_as(p).",
    ),
)
