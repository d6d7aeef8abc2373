"""03.5: which samples each rank reads in an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from course_lib.checks.kit.formula import watched
from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.said import by_the_library, plural, wrong_kind
from course_lib.checks.kit.spec import Level
from course_lib.comm.ledger import Ledger
from course_lib.training.sampler import DistributedSampler
from course_lib.verify.numbers import whole_of


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """So many samples on so many ranks, and the epochs that are asked for."""

    world_size: int
    samples: int
    epochs: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        epochs = f"epoch{'s' * (len(self.epochs) > 1)} {', '.join(map(str, self.epochs))}"
        return f"{plural(self.samples, 'sample')} on {plural(self.world_size, 'rank')}, {epochs}"


class _Epochs(NamedTuple):
    """What the answer is called with, besides rank and world size."""

    samples: int
    seed: int
    epochs: tuple[int, ...]


class _Sampled(NamedTuple):
    """One rank's samples in each epoch, or the type of what is no list of whole numbers; what it changed and called."""

    served: list[list[int]]
    strange: str
    random_changed: bool
    library: str


def _draw(case: Epochs, seed: int) -> _Epochs:
    """Another shuffling seed for each seed."""
    return _Epochs(case.samples, 17 + 100 * seed, case.epochs)


def _attempt(function: Callable[..., Any], given: _Epochs) -> _Sampled:
    """Runs on a rank; the global random numbers differ between ranks, as they do in training."""
    n, seed, epochs = given
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with torch.random.fork_rng():
        torch.manual_seed(rank)
        before = torch.get_rng_state()
        results, library = watched(lambda: [function(n, rank, world_size, seed, epoch) for epoch in epochs], ())
        changed = not torch.equal(before, torch.get_rng_state())
    lists = [result.tolist() if isinstance(result, torch.Tensor) else result for result in results]
    strange = next((type(x).__name__ for x in lists if not _is_list(x)), "")
    return _Sampled([] if strange else [[int(number) for number in x] for x in lists], strange, changed, library)


def _is_list(x: Any) -> bool:
    return isinstance(x, list | tuple | range) and all(whole_of(number) is not None for number in x)


def dealt(order: list[int], rank: int, world_size: int) -> list[int]:
    """Right: padded with the first ones again, then dealt out like cards."""
    return (order * world_size)[: -(-len(order) // world_size) * world_size][rank::world_size]


def shuffled(n: int, seed: int) -> list[int]:
    """By a generator of its own."""
    order: list[int] = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _in_blocks(n: int, rank: int, world_size: int, seed: int, epoch: int) -> list[int]:
    """Each rank has one stretch of the padded order."""
    each = -(-n // world_size)
    return (shuffled(n, seed + epoch) * world_size)[rank * each : (rank + 1) * each]


def _verdict(case: Epochs, given: _Epochs, reports: tuple[_Sampled, ...], book: Ledger) -> str | None:
    """What every sampler must do, then what PyTorch's does, then side effects."""
    strange = next((report.strange for report in reports if report.strange), "")
    if strange:
        return f"{case}: {wrong_kind(strange, 'a list of whole numbers')}"
    for place, epoch in enumerate(case.epochs):
        served = [report.served[place] for report in reports]
        if reason := _wrong_share(case, served) or _wrong_order(case, given, epoch, served):
            which = f"epoch {epoch}: " if len(case.epochs) > 1 else ""
            return f"{case}: {which}{reason}"
    if any(report.random_changed for report in reports):
        changed = "right samples, but PyTorch's own random numbers were seeded"
        return f"{case}: {changed}: dropout would now be the same on all ranks; pass a torch.Generator to randperm"
    return f"{case}: {copied}" if (copied := by_the_library(reports[0].library)) else None


def _wrong_share(case: Epochs, served: Sequence[list[int]]) -> str | None:
    """Every rank has equally many samples, every sample is served, and none too often."""
    sizes = [len(numbers) for numbers in served]
    if len(set(sizes)) > 1:
        most, least = (sizes.index(pick(sizes)) for pick in (max, min))
        return (
            f"rank {most} has {plural(sizes[most], 'sample')}, rank {least} has {sizes[least]}: in its last step "
            f"rank {most} waits for an all-reduce that rank {least} never calls"
        )
    outside = [number for numbers in served for number in numbers if not 0 <= number < case.samples]
    if outside:
        return f"sample {outside[0]} does not exist: they are 0 to {case.samples - 1}"
    missing = sorted(set(range(case.samples)) - {number for numbers in served for number in numbers})
    if missing:
        return f"sample {missing[0]} is served by nobody: what does not divide is padded with the first ones again"
    return None


def _wrong_order(case: Epochs, given: _Epochs, epoch: int, served: Sequence[list[int]]) -> str | None:
    for rank, got in enumerate(served):
        sampler = DistributedSampler(case.samples, rank=rank, world_size=case.world_size, seed=given.seed)
        sampler.set_epoch(epoch)
        if got != (want := list(sampler)):
            found = f"rank {rank} serves {got[:6]}, PyTorch's sampler {want[:6]}"
            return f"each sample is served, but not in PyTorch's order: {found}"
    return None


_SAMPLES = ProbeExercise(
    key="03.5",
    title="who reads which samples",
    inputs=_draw,
    probe=_attempt,
    verdict=_verdict,
    left=lambda case, given, trial: [report.served for report in trial.reports],
    slips={
        "the samples are in their own order: shuffle them": (
            lambda n, rank, p, seed, epoch: dealt(list(range(n)), rank, p)
        ),
        "all epochs have one order: shuffle by seed + epoch": (
            lambda n, rank, p, seed, epoch: dealt(shuffled(n, seed), rank, p)
        ),
        "each rank shuffles in its own order, so some samples come twice, others never: leave rank out of the seed": (
            lambda n, rank, p, seed, epoch: dealt(shuffled(n, seed + epoch + rank), rank, p)
        ),
        "all ranks serve the same samples: the work is done several times, and shared by nobody": (
            lambda n, rank, p, seed, epoch: shuffled(n, seed + epoch)
        ),
        "right order, cut in blocks: deal it out like cards, rank r gets r, r + p, r + 2p, ...": _in_blocks,
    },
    levels={
        "shares": Level(
            points=2,
            cases=(Epochs(world_size=2, samples=12), Epochs(world_size=4, samples=20)),
            praise="every sample once, dealt out in a shuffled order that all ranks agree on",
        ),
        "epochs": Level(
            points=1,
            cases=(Epochs(world_size=2, samples=10, epochs=(0, 1, 5)), Epochs(world_size=3, samples=12, epochs=(2, 3))),
            praise="another order in every epoch, index for index PyTorch's",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(
                Epochs(world_size=3, samples=13),
                Epochs(world_size=4, samples=9),
                Epochs(world_size=4, samples=1),
                Epochs(world_size=1, samples=7),
            ),
            praise="equally many samples on each rank, padded with the first ones again",
        ),
    },
    hints=(
        "All ranks must shuffle in the same way, so nothing in the shuffling may depend on the rank: order = "
        "torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed + epoch)).tolist().",
        "Each rank gets -(-n_samples // world_size) samples, which is n_samples / world_size rounded up. Lengthen "
        "the order by its own first entries until there are enough for all ranks. If samples are few, you go round "
        "more than once.",
        "With `each` samples for a rank, (order * world_size)[: each * world_size] is long enough in any case. A "
        "slice [rank::world_size] of that deals it out like cards.",
    ),
)
