"""03.5: which samples each rank reads in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from course_lib.checks.kit.probe import ProbeExercise
from course_lib.checks.kit.spec import Level
from course_lib.comm import ledger
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
        return f"{_samples(self.samples)} on {self.world_size} rank{'s' * (self.world_size > 1)}, {epochs}"


class Given(NamedTuple):
    """What the answer is called with, besides rank and world size."""

    samples: int
    seed: int
    epochs: tuple[int, ...]


class Report(NamedTuple):
    """One rank's samples in each epoch, or the type of what is no list of whole numbers."""

    served: list[list[int]]
    strange: str
    random_changed: bool


def draw(case: Epochs, seed: int) -> Given:
    """Another shuffling seed for each seed."""
    return Given(case.samples, 17 + 100 * seed, case.epochs)


def attempt(function: Callable[..., Any], given: Given) -> Report:
    """Runs on a rank; the global random numbers differ between ranks, as they do in training."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with torch.random.fork_rng():
        torch.manual_seed(rank)
        before = torch.get_rng_state()
        ledger.clear()
        results = [function(given.samples, rank, world_size, given.seed, epoch) for epoch in given.epochs]
        changed = not torch.equal(before, torch.get_rng_state())
    lists = [result.tolist() if isinstance(result, torch.Tensor) else result for result in results]
    strange = next((type(x).__name__ for x in lists if not _is_list(x)), "")
    return Report([] if strange else [[int(number) for number in x] for x in lists], strange, changed)


def _is_list(x: Any) -> bool:
    return isinstance(x, list | tuple | range) and all(whole_of(number) is not None for number in x)


def verdict(case: Epochs, given: Given, reports: tuple[Any, ...], book: Ledger) -> str | None:
    """What every sampler must do, then what PyTorch's does, then side effects."""
    strange = next((report.strange for report in reports if report.strange), "")
    if strange:
        return f"{case}: returned {strange}, not a list of whole numbers: is there a return on every path?"
    for place, epoch in enumerate(case.epochs):
        reason = _wrong_share(case, [report.served[place] for report in reports])
        if reason:
            which = f"epoch {epoch}: " if len(case.epochs) > 1 else ""
            return f"{case}: {which}{reason}"
    reason = _wrong_order(case, given, reports)
    if reason is None and any(report.random_changed for report in reports):
        reason = (
            "right samples, but PyTorch's own random numbers were seeded: dropout would now be the same on all ranks; "
            "pass a torch.Generator to randperm"
        )
    return f"{case}: {reason}" if reason else None


def _wrong_share(case: Epochs, served: Sequence[list[int]]) -> str | None:
    """Every rank has equally many samples, every sample is served, and none too often."""
    sizes = [len(numbers) for numbers in served]
    if len(set(sizes)) > 1:
        most, least = (sizes.index(pick(sizes)) for pick in (max, min))
        return (
            f"rank {most} has {_samples(sizes[most])}, rank {least} has {sizes[least]}: in its last step rank {most} "
            f"waits for an all-reduce that rank {least} never calls"
        )
    outside = [number for numbers in served for number in numbers if not 0 <= number < case.samples]
    if outside:
        return f"sample {outside[0]} does not exist: they are 0 to {case.samples - 1}"
    if case.world_size > 1 and case.samples > 1 and all(numbers == served[0] for numbers in served):
        return "all ranks serve the same samples: the work is done several times, and shared by nobody"
    counts = Counter(number for numbers in served for number in numbers)
    missing = [number for number in range(case.samples) if number not in counts]
    number, often = counts.most_common(1)[0] if counts else (0, 0)
    if missing and often > 1 and sizes[0] * case.world_size >= case.samples:
        holders = ", ".join(str(rank) for rank, numbers in enumerate(served) if number in numbers)
        return (
            f"sample {missing[0]} is served by nobody, sample {number} {often} times (rank {holders}): "
            "did each rank shuffle in its own order?"
        )
    if missing:
        return f"sample {missing[0]} is served by nobody: what does not divide is padded with the first ones again"
    return None


def _samples(number: int) -> str:
    return f"{number} sample{'s' * (number != 1)}"


def _wrong_order(case: Epochs, given: Given, reports: Sequence[Report]) -> str | None:
    want = [_torch_s(case, given, epoch) for epoch in case.epochs]
    got = [[report.served[place] for report in reports] for place in range(len(case.epochs))]
    if got == want:
        return None
    first = [number for turn in zip(*got[0], strict=True) for number in turn][: case.samples]
    if first == list(range(case.samples)) and case.samples > 3:
        return "the samples are in their own order: shuffle them"
    if len(got) > 1 and got[0] == got[1] and case.samples > 3:
        return (
            f"epoch {case.epochs[1]} has the order of epoch {case.epochs[0]}: "
            "shuffle by seed + epoch, or every epoch is the same"
        )
    place = next(place for place, (mine, right) in enumerate(zip(got, want, strict=True)) if mine != right)
    order = _shuffled(given, case.epochs[place])
    length = len(got[place][0])
    padded = (order * case.world_size)[: length * case.world_size]
    if got[place] == [padded[rank * length : (rank + 1) * length] for rank in range(case.world_size)]:
        return "right order, cut in blocks: deal it out like cards, rank r gets r, r + p, r + 2p, ..."
    rank = next(rank for rank in range(case.world_size) if got[place][rank] != want[place][rank])
    return (
        f"each sample is served, but not in PyTorch's order: in epoch {case.epochs[place]} rank {rank} serves "
        f"{got[place][rank][:6]}, PyTorch's sampler {want[place][rank][:6]}"
    )


def _shuffled(given: Given, epoch: int) -> list[int]:
    order: list[int] = torch.randperm(
        given.samples, generator=torch.Generator().manual_seed(given.seed + epoch)
    ).tolist()
    return order


def _torch_s(case: Epochs, given: Given, epoch: int) -> list[list[int]]:
    served = []
    for rank in range(case.world_size):
        sampler = DistributedSampler(case.samples, rank=rank, world_size=case.world_size, seed=given.seed)
        sampler.set_epoch(epoch)
        served.append(list(sampler))
    return served


SAMPLES = ProbeExercise(
    key="03.5",
    title="who reads which samples",
    inputs=draw,
    probe=attempt,
    verdict=verdict,
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
        "All ranks must shuffle in the same way, so nothing in the shuffling may depend on the rank: "
        "torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).",
        "Each rank gets -(-n // world_size) samples, n / world_size rounded up. "
        "Lengthen the order by its own first entries until it divides; for few samples more than once round.",
        "order[rank::world_size] deals out like cards.",
    ),
)
