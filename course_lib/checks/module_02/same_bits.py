"""02.9: averages that are right to rounding on every rank, and not the same on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import Tensor

from course_lib.checks.kit.judge import write_exercise
from course_lib.checks.kit.signature import Puzzle, diagnose
from course_lib.checks.kit.spec import FP32, Case, Level
from course_lib.checks.module_02 import inputs
from course_lib.checks.module_02.ring import COUNTED
from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.traffic import CommTime

_HUGE = 2.0**60  # beside it a small number is lost, in float64 as well


@dataclass(frozen=True, kw_only=True)
class Rough(Case):
    """Numbers whose sums are rounded; where they `cancel`, two ranks have a huge one and its negative."""

    cancel: bool = False

    def __str__(self) -> str:
        return f"{super().__str__()} that {'cancel' if self.cancel else 'are not whole'}"

    def whole(self, seed: int, rank: int) -> Tensor:
        """Other numbers on each rank and for each seed."""
        p, generator = self.world_size, torch.Generator().manual_seed(seed * 1009 + self.length)
        rows = torch.randn(p, self.length, generator=generator)
        if self.cancel:
            pair = torch.rand(p, self.length, generator=generator).argsort(0)[:2]
            rows.scatter_(0, pair, torch.tensor([[_HUGE], [-_HUGE]]).expand(2, self.length))
        return rows[rank].clone()


def _as_often_as_a_gather(case: Case) -> CommTime:
    """Whole tensors, once around."""
    p = case.world_size
    return comm_time("all_gather", "ring", world_size=p, length=p * case.length, itemsize=FP32)


def _average(case: Case, seed: int) -> Puzzle:
    return replace(inputs.everything_everywhere(case, seed, chunks=1), divisor=case.world_size)


def _compare(results: Sequence[Tensor], puzzle: Puzzle) -> str | None:
    """Whole numbers are judged as elsewhere; others must be right to rounding, and then alike in every bit."""
    rows = torch.stack([torch.cat(blocks) for blocks in puzzle.blocks])
    if torch.equal(rows, rows.round()):
        return diagnose(results, puzzle)
    return _wrong(results, rows) or _unlike(results, rows)


def _wrong(results: Sequence[Tensor], rows: Tensor) -> str | None:
    """Beyond what any order of adding may round."""
    exact, most = rows.double().mean(0), rows.double().abs().sum(0) * torch.finfo(rows.dtype).eps
    for rank, result in enumerate(results):
        off = ((result.double() - exact).abs() > most).nonzero()
        if len(off):
            i = int(off[0])
            return f"rank {rank}, number {i} is {result[i]:.7g}, and the average is {exact[i]:.7g}"
    return None


def _unlike(results: Sequence[Tensor], rows: Tensor) -> str | None:
    """The first rank whose averages are not rank 0's, and how the two have added, if an order of adding tells."""
    for rank, result in enumerate(results):
        differ = (result != results[0]).nonzero().flatten().tolist()
        if differ:
            seen = f"right to rounding, but {len(differ)} of {len(result)} numbers differ between ranks 0 and {rank}"
            first, other = _added(results[0], 0, rows), _added(result, rank, rows)
            if first and other:
                return f"{seen}: rank 0 has added {first}, rank {rank} has added {other}, and every addition rounds"
            i = differ[0]
            return f"{seen}: number {i} is {results[0][i]:.9g} on rank 0, and {result[i]:.9g} on rank {rank}"
    return None


def _added(result: Tensor, rank: int, rows: Tensor) -> str:
    """The order in which one addition after the other gives these bits, at best one that begins with the rank's own."""
    for dtype, said in ((rows.dtype, ""), (torch.float64, " in float64")):
        for order in sorted(permutations(range(len(rows))), key=lambda order: (order[0] != rank, order)):
            total = torch.zeros_like(rows[0], dtype=dtype)
            for source in order:
                total = total + rows[source]
            if torch.equal((total / len(rows)).to(result.dtype), result):
                return f"ranks {', '.join(map(str, order))} in this order{said}"
    return ""


_SAME_AVERAGE = write_exercise(
    key="02.9",
    title="find the bug: one model becomes three",
    arguments=inputs.own_tensor,
    puzzle=_average,
    shape=inputs.whole_shape,
    cost=_as_often_as_a_gather,
    compare=_compare,
    levels={
        "values": Level(
            points=1,
            cases=(Case(world_size=3, length=24), Case(world_size=4, length=26), Case(world_size=1, length=5)),
            praise="right on 3, 4 and 1 ranks, where the numbers are whole",
        ),
        "bits": Level(
            points=2,
            again=True,
            cases=(
                Rough(world_size=3, length=1001),
                Rough(world_size=4, length=1001),
                Rough(world_size=4, length=101, cancel=True),
            ),
            praise="the same bits on all ranks, also where large numbers cancel",
        ),
        "steps": Level(points=1, cases=COUNTED, praise="still in p-1 steps, with no more bytes than the suspect"),
    },
    hints=(
        "The test compares each rank with one device, and allows some rounding. Compare the ranks with one another "
        "instead, without any tolerance: torch.equal of each rank's result and rank 0's. Do it on 2, 3 and 4 ranks.",
        "On two ranks all is well, and on three only rank 2 is off. A computer rounds after every addition. Write down "
        "for each of three ranks which tensor it adds first, second and third.",
        "Ranks 0 and 1 both begin with a + b or b + a, which round alike, and add c last. Rank 2 begins with c. Any "
        "order will do, if it is the same on every rank.",
        "Let a list have a place for each rank's tensor, the own one too, as parts[rank] = x. Fill the other places "
        "with what comes in, and add up the list from its first place to its last.",
    ),
)
