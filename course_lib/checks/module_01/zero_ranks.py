"""01.6: ZeRO-1 in mixed precision on real ranks: values, bytes that a rank keeps, and bytes that it sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit.judge import over_cost
from course_lib.checks.kit.lasting import Lasting
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import import_optimizers, plural, wrong_kind, wrong_means
from course_lib.checks.kit.spec import BF16, FP32, Level
from course_lib.checks.kit.turns import Turns, not_in_each_step
from course_lib.comm import ledger
from course_lib.comm.ledger import Ledger
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime
from course_lib.split import split_sizes
from course_lib.verify.ratios import times

Look = Literal["values", "memory", "bytes"]
# With Adam's own eps, a sum in place of an average would not show.
_ADAMW = {"lr": 0.25, "eps": 1.0, "weight_decay": 0.0}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A few steps on so many ranks, and what is looked at besides the values."""

    world_size: int
    length: int
    steps: int = 20
    look: Look = "values"

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {self.length} weights, {self.steps} steps"


class RanksRun(NamedTuple):
    """bf16 weights, and the bf16 gradients of each step by rank. Their sums and averages are exact."""

    weights: Tensor
    gradients: list[list[Tensor]]


class ZeroRank(NamedTuple):
    """One rank: what it returned, and the bytes that its optimizers hold."""

    result: Any
    kept_bytes: int
    holds_a_view: bool  # of more than it needs
    beside_bytes: int  # of whole fp32 copies that no optimizer holds
    turns: Mapping[str, int]  # when it talked


def draw(case: Training, seed: int) -> RanksRun:
    """Weights in which one update alone is rounded away; for each, one rank's gradients are large."""
    generator = torch.Generator().manual_seed(seed * 1009 + case.world_size * 101 + case.length)
    weights = torch.randint(160, 240, (case.length,), generator=generator) / 2
    signs = torch.randint(0, 2, (case.length,), generator=generator) * 2 - 1
    loudest = torch.randint(0, case.world_size, (case.length,), generator=generator)

    def gradient(rank: int) -> Tensor:
        size = torch.randint(0, 3, (case.length,), generator=generator) + 12 * (loudest == rank)
        return (signs * size * 12 / 128).bfloat16()

    return RanksRun(
        weights.bfloat16(), [[gradient(rank) for rank in range(case.world_size)] for _ in range(case.steps)]
    )


def train(function: Callable[..., Any], run: RanksRun) -> ZeroRank:
    """Runs on a rank: give the answer its weights, its own gradients, and an optimizer whose bytes are counted."""
    rank, mine = dist.get_rank(), run.weights.clone()
    made: list[torch.optim.AdamW] = []
    copies, turns = Lasting(len(mine), torch.float32), Turns()

    def make_optimizer(parameters: Iterable[Tensor]) -> torch.optim.AdamW:
        made.append(torch.optim.AdamW(parameters, **_ADAMW))  # type: ignore[arg-type]
        made[-1].register_step_pre_hook(lambda *_: copies.step())
        turns.watch(made[-1])
        return made[-1]

    ledger.clear()
    result = function(mine, [step[rank].clone() for step in run.gradients], make_optimizer)
    kept = result.detach().clone() if isinstance(result, Tensor) else type(result).__name__
    held = [tensor for optimizer in made for tensor in _held(optimizer)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in held)}
    holds_a_view = any(tensor.untyped_storage().nbytes() > tensor.nbytes for tensor in held)
    beside = [nbytes for address, nbytes in copies.nbytes.items() if address not in storages]
    return ZeroRank(kept, sum(storages.values()), holds_a_view, sum(beside), turns.notes())


def _held(optimizer: torch.optim.AdamW) -> list[Tensor]:
    """An optimizer's parameters and moments; its count of the steps is no tensor of numbers."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    moments = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor) and x.dim()]
    return own + moments


def _verdict(case: Training, run: RanksRun, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """Values, then who kept what, then the traffic."""
    reason = _wrong_form(case, reports) or _wrong_values(run, [report.result for report in reports])
    if reason is None:
        reason = wrong_means(book, "comm's collectives, not torch.distributed's own")
    if reason is None and case.look == "memory":
        reason = _kept_too_much(case, reports)
    if reason is None and case.look == "bytes":
        reason = _wrong_traffic(case, book) or _not_in_each_step(case, reports)
    return f"{case}: {reason}" if reason else None


def _wrong_form(case: Training, reports: Sequence[ZeroRank]) -> str | None:
    for rank, report in enumerate(reports):
        if not isinstance(report.result, Tensor):
            return f"rank {rank} {wrong_kind(report.result, 'a tensor')}"
        found = str(report.result.dtype).removeprefix("torch."), tuple(report.result.shape)
        if found != ("bfloat16", (case.length,)):
            return f"rank {rank} returned {found[0]} of shape {found[1]}, expected bfloat16 of shape {(case.length,)}"
        if not report.kept_bytes:
            return f"rank {rank} made no optimizer by make_optimizer: it stands for torch.optim.AdamW, and is counted"
    return None


def _wrong_values(run: RanksRun, results: list[Tensor]) -> str | None:
    right, p = trained(run), len(results)
    if all(_rounded(result, right) for result in results):
        return None
    own = [trained(run, only=rank) for rank in range(p)]
    if all(_rounded(result, alone) for result, alone in zip(results, own, strict=True)):
        return "every rank trained on its own gradients: nothing was summed"
    if all(torch.equal(result, run.weights) for result in results):
        return "no weight moved: each update is rounded away, unless an fp32 copy collects them"
    for of, meaning in ((trained(run, divisor=1), "the sum of the gradients in place of their average"),):
        if all(_rounded(result, of) for result in results):
            return f"the weights are those of {meaning}: {p} ranks, so the gradient is exactly {p}.0 x the right one"
    return _which_shard(run, results, right)


def _which_shard(run: RanksRun, results: list[Tensor], right: Tensor) -> str:
    """The first shard that is wrong, and on which rank."""
    p = len(results)
    for rank, result in enumerate(results):
        parts = zip(result.tensor_split(p), right.tensor_split(p), run.weights.tensor_split(p), strict=True)
        for owner, (got, want, start) in enumerate(parts):
            if _rounded(got, want):
                continue
            place = f"rank {rank} has wrong weights in the shard of rank {owner}"
            if torch.equal(got, start):
                return f"{place}: they are those before the first step; were the new ones gathered?"
            share = float((got.float() - start.float()).abs().sum() / (want - start.float()).abs().sum())
            return f"{place}: they moved {share:.3g} of the way"
    raise AssertionError("_which_shard: called with right results")


def trained(run: RanksRun, *, only: int | None = None, divisor: int | None = None) -> Tensor:
    """The fp32 copy after training on one device, by the average over ranks or the gradients of one rank alone."""
    copy = torch.nn.Parameter(run.weights.float())
    optimizer = torch.optim.AdamW([copy], **_ADAMW)  # type: ignore[arg-type]
    for step in run.gradients:
        total = torch.stack(step).float().sum(0) / (divisor or len(step))
        copy.grad = total if only is None else step[only].float()
        optimizer.step()
    return copy.detach()


def _rounded(got: Tensor, exact: Tensor) -> bool:
    """Whether bf16 numbers are as near to exact ones as 8 bits allow."""
    half_a_step = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 9)
    return bool(((got.float() - exact).abs() <= 1.001 * half_a_step).all())


def _kept_too_much(case: Training, reports: Sequence[ZeroRank]) -> str | None:
    shards = split_sizes(case.length, case.world_size)
    for rank, (report, shard) in enumerate(zip(reports, shards, strict=True)):
        got, limit = report.kept_bytes, 3 * FP32 * shard
        if got == limit and not report.beside_bytes:
            continue
        if got == limit:
            whole = f"all {case.length} weights in fp32, {report.beside_bytes} bytes, from step to step"
            return f"values right, but beside its optimizer rank {rank} keeps {whole}; its part is enough"
        if report.holds_a_view:
            text = f"{times(got / limit)} the target: your part is a view, and the whole copy is still behind it"
        elif got == 3 * FP32 * case.length:
            text = f"exactly {times(got / limit)} the target: the state of all weights; a rank needs its shard's"
        else:
            text = f"{times(got / limit)} the target: an fp32 copy and two moments for each of its {shard} weights"
        return f"values right, rank {rank} keeps {got} bytes, target {limit}, {text}"
    return None


def _wrong_traffic(case: Training, book: Ledger) -> str | None:
    cost = _traffic(case)
    reason = over_cost(cost, book.events, case.world_size)
    if reason is None:
        return _sent_too_little(sum(map(sum, book.matrix())), cost.total_bytes)
    found = reason.split(";")[0]
    if any(event.operation == "all_reduce" for event in book.events):
        return f"{found}; all_reduce brings all of the sum to every rank: each needs its own chunk"
    if "B sent" not in found:
        return f"{found}; one reduce-scatter and one all-gather are enough in each step"
    return f"{found}; do gradients and weights travel as bf16, with 2 bytes a number?"


def _sent_too_little(sent: int, target: int) -> str | None:
    if sent == target:
        return None
    found = f"values right, bytes {times(sent / target)} the target: {sent} B sent by all ranks, target {target}"
    return f"{found}; when does the next forward pass get its weights? In training every step needs them whole"


def _not_in_each_step(case: Training, reports: Sequence[ZeroRank]) -> str | None:
    when = not_in_each_step(reports[0].turns, case.steps)
    return f"values right, {when}" if when else None


def _traffic(case: Training) -> CommTime:
    """A ring reduce-scatter of bf16 gradients and a ring all-gather of bf16 weights in each step."""
    halves = [
        comm_time(operation, "ring", world_size=case.world_size, length=case.length, itemsize=BF16)
        for operation in ("reduce_scatter", "all_gather")
    ]
    return CommTime(
        sent_bytes=_each(case, [half.sent_bytes for half in halves]),
        received_bytes=_each(case, [half.received_bytes for half in halves]),
        messages=_each(case, [half.messages for half in halves]),
        path=tuple(step for half in halves for step in half.path) * case.steps,
    )


def _each(case: Training, by_rank: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(case.steps * sum(both) for both in zip(*by_rank, strict=True))


_ZERO_1 = ProbeExercise(
    key="01.6",
    title="ZeRO-1 in mixed precision",
    inputs=draw,
    probe=train,
    verdict=_verdict,
    warm_up=import_optimizers,
    levels={
        "values": Level(
            points=2,
            again=True,
            cases=(
                Training(world_size=2, length=12),
                Training(world_size=4, length=26),
                Training(world_size=3, length=13),
                Training(world_size=1, length=5),
            ),
            praise="the weights of one device, on 1 to 4 ranks and for lengths that do not divide",
        ),
        "memory": Level(
            points=2,
            cases=(Training(world_size=4, length=24, look="memory"), Training(world_size=3, length=13, look="memory")),
            praise="each rank's optimizer holds 12 bytes for each weight of its shard, and for no other",
        ),
        "bytes": Level(
            points=2,
            cases=(Training(world_size=4, length=64, look="bytes"), Training(world_size=3, length=60, look="bytes")),
            praise="each step sends 2(p-1)/p of the bf16 weights, which is what a ring all-reduce of them sends",
        ),
    },
    hints=(
        "Before the loop: cut the weights with tensor_split, take this rank's part, make it fp32, and give it alone to "
        "make_optimizer, as a torch.nn.Parameter.",
        "In each step: comm.reduce_scatter(gradient) gives this rank the sum of its part. Turn it into fp32, divide by "
        "the number of ranks, put it into .grad, and step.",
        "Then the others need the new part: round it to bf16 and comm.all_gather(part, length=len(weights)). "
        "In training the next forward pass would read the result.",
        "Only what travels is bf16. The fp32 part stays as it is from step to step.",
    ),
)
