"""09.8: rows on their way to experts of other ranks, what these make of them on its way back, and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Noted, Parts, Report, cut, generator, parts_exercise
from course_lib.checks.kit.said import plural, wrong_means
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.kit.step import Cause
from course_lib.comm import ledger
from course_lib.split import split_sizes

NAMES = ("the output", "the rows' gradient", "the experts' gradient")
_INS, _OUTS = 5, 3  # features of a row, and of what an expert makes of it
_Three = tuple[Tensor, Tensor, Tensor]
_Way = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """So many experts over the ranks, as `torch.tensor_split` cuts them; `idle`: some get no rows, and a rank has none.

    With `count` the bytes are looked at as well, by the drive: how many are enough depends on what is drawn.
    """

    world_size: int
    experts: int
    idle: bool = False
    count: bool = False
    look: bool = False  # at the ledger against a collective's formula; here there is none

    def __str__(self) -> str:
        text = f"{plural(self.experts, 'expert')} on {plural(self.world_size, 'rank')}"
        return f"{text}, some of them without rows" if self.idle else text


def _counts(case: Mixture, seed: int) -> Tensor:
    """Of each rank and expert: how many of the rank's rows are for it."""
    source = generator(seed, case.world_size, case.experts, case.idle)
    counts = torch.randint(1, 4, (case.world_size, case.experts), generator=source)
    if case.idle:
        of_last_rank = split_sizes(case.experts, case.world_size)[-1]
        counts[:, case.experts - of_last_rank :] = 0
        counts[:, 0] = 0
        counts[case.world_size // 2] = 0
        counts[0, 1] += 1  # so that not all are
    return counts


def _drawn(case: Mixture, seed: int) -> Parts:
    p, counts = case.world_size, _counts(case, seed)
    source = generator(seed, case.world_size, case.experts, 1)
    weights = torch.randn(case.experts, _INS, _OUTS, generator=source)
    gradients = torch.zeros_like(weights)
    arguments: list[tuple[Any, ...]] = []
    wanted, outputs = [], []
    for mine in counts:
        expert = torch.arange(case.experts).repeat_interleave(mine)
        rows = torch.randn(len(expert), _INS, generator=source)
        gradient = torch.randn(len(expert), _OUTS, generator=source)
        outputs.append(
            (torch.einsum("ni,nio->no", rows, weights[expert]), torch.einsum("no,nio->ni", gradient, weights[expert]))
        )
        gradients.index_add_(0, expert, rows.unsqueeze(2) * gradient.unsqueeze(1))
        arguments.append((rows, mine.clone(), gradient))
    targets = _targets(counts)
    for rank, (own, of_weights) in enumerate(zip(cut(weights, p), cut(gradients, p), strict=True)):
        rows, mine, gradient = arguments[rank]
        arguments[rank] = (rows, mine, own, gradient, targets[rank] if case.count else 0)
        wanted.append((*outputs[rank], of_weights))
    return Parts(arguments=arguments, wanted=wanted, drive=_drive)


def _targets(counts: Tensor) -> list[int]:
    """Bytes that each rank has to send: counts, then rows and what became of them, forward and backward."""
    here = split_sizes(counts.shape[1], len(counts))
    matrix = torch.stack([part.sum(1) for part in counts.split(here, 1)], 1)  # from rank, to rank
    away = matrix - matrix.diag().diag()
    leaving, coming = away.sum(1), away.sum(0)
    rows = (leaving + coming) * (_INS + _OUTS) * FP64
    return [int(sent) + (counts.shape[1] - mine) * FP64 for sent, mine in zip(rows, here, strict=True)]


def _drive(
    answer: Callable[..., _Three], rows: Tensor, counts: Tensor, weights: Tensor, gradient: Tensor, target: int
) -> Noted:
    """Runs on a rank: use the answer, and look how much this rank sends."""
    results = answer(rows, counts, weights, gradient)
    sent = sum(event.nbytes for event in ledger.current() if event.kind == "send")
    return Noted(results, {"sent": sent, "target": target})


def _noted(case: Mixture, reports: Sequence[Report]) -> str | None:
    for rank, report in enumerate(reports):
        sent, target = report.notes["sent"], report.notes["target"]
        if case.count and sent > target:
            return (
                f"values right, but rank {rank} sends {sent} bytes, and {target} are enough: the counts of other "
                "ranks' experts as int64, then each row to the rank of its expert and its result back, and the same "
                "for their gradients"
            )
    return None


def _same(x: Tensor) -> Tensor:
    return x


def _through(
    rows: Tensor,
    counts: Tensor,
    weights: Tensor,
    gradient: Tensor,
    *,
    sort: bool = True,
    back: Callable[[Tensor, Tensor], Tensor] = lambda x, order: x[order.argsort()],
    sort_gradient: bool = True,
    own_rows: bool = False,
    of_weights: _Way = _same,
    of_rows: _Way = _same,
) -> _Three:
    """Right, unless a part is chosen otherwise."""
    p, rank, experts = dist.get_world_size(), dist.get_rank(), len(counts)
    here = split_sizes(experts, p)
    mine, sent = here[rank], list(counts.split(here))
    got = torch.stack(comm.all_to_all_uneven(sent, [(mine,)] * p))  # from rank, of expert
    leaving, coming = [int(one.sum()) for one in sent], got.sum(1).tolist()

    def to_experts(x: Tensor) -> Tensor:
        return torch.cat(comm.all_to_all_uneven(list(x.split(leaving)), [(n, x.shape[1]) for n in coming]))

    def home(x: Tensor) -> Tensor:
        return torch.cat(comm.all_to_all_uneven(list(x.split(coming)), [(n, x.shape[1]) for n in leaving]))

    expert = torch.arange(mine).repeat(p).repeat_interleave(got.flatten())
    order = expert.argsort(stable=True) if sort else torch.arange(len(expert))
    sizes = got.sum(0).tolist()
    x, g = to_experts(rows)[order], to_experts(gradient)[order if sort_gradient else slice(None)]
    y = torch.cat([a @ w for a, w in zip(x.split(sizes), weights, strict=True)])
    x_gradient = torch.cat([a @ w.T for a, w in zip(g.split(sizes), weights, strict=True)])
    w_gradient = torch.stack([a.T @ b for a, b in zip(x.split(sizes), g.split(sizes), strict=True)])
    if own_rows:
        parts = (one.split(counts.tolist()) for one in (rows, gradient))
        first = sum(here[:rank])
        both = list(zip(*parts, strict=True))[first : first + mine]
        w_gradient = torch.stack([a.T @ b for a, b in both])
    return home(back(y, order)), of_rows(home(back(x_gradient, order))), of_weights(w_gradient)


_CAUSES: tuple[Cause, ...] = (
    (
        lambda case: 1 / case.world_size,
        "divided by the number of ranks? An expert has seen the rows of all ranks, so its gradient is whole as it is",
    ),
)

_EXPERTS = parts_exercise(
    key="09.8",
    title="rows to their experts and back",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [],
    slips={
        "rows arrive by rank, and they were taken for sorted by expert: those of one expert stand in several places": (
            lambda *given: _through(*given, sort=False)
        ),
        "results went home in the order of experts. They have to stand as the rows came, by rank": (
            lambda *given: _through(*given, back=lambda x, order: x)
        ),
        "results went home sorted once more. The order is to be undone: x[order.argsort()]": (
            lambda *given: _through(*given, back=lambda x, order: x[order])
        ),
        "the gradients arrived by rank and were not sorted by expert, as the rows were": (
            lambda *given: _through(*given, sort_gradient=False)
        ),
        "the experts' gradient counts this rank's own rows alone, and other ranks' rows were there, too": (
            lambda *given: _through(*given, own_rows=True)
        ),
    },
    advice=Advice(
        causes={NAMES[2]: _CAUSES},
        noted=_noted,
        sent=lambda case, book: wrong_means(book, "comm's collectives, not torch.distributed's own"),
    ),
    levels={
        "values": Level(
            points=2,
            cases=(Mixture(world_size=2, experts=4), Mixture(world_size=4, experts=8)),
            praise="each row meets its expert, and comes back to its own place; the gradients went the same ways",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(
                Mixture(world_size=3, experts=7),
                Mixture(world_size=4, experts=6),
                Mixture(world_size=2, experts=3),
            ),
            praise="also where some ranks have an expert more than others",
        ),
        "idle": Level(
            points=1,
            cases=(
                Mixture(world_size=4, experts=6, idle=True),
                Mixture(world_size=3, experts=7, idle=True),
                Mixture(world_size=1, experts=3),
            ),
            praise="and where a rank has no rows, or nobody wants its experts",
        ),
        "bytes": Level(
            points=1,
            cases=(
                Mixture(world_size=4, experts=6, count=True),
                Mixture(world_size=3, experts=7, idle=True, count=True),
            ),
            praise="and no row travels further than to its expert and home",
        ),
    },
    hints=(
        "First the counts: cut them as the experts are cut, and send each rank its part. What comes says how many rows "
        "each rank has for each of your experts. Stack it: one row for each rank, one column for each expert.",
        "Rows for a rank stand together already, for they are sorted by expert. So rows.split(...) with the sums of "
        "the parts of counts is what to send, and the stacked counts summed over columns say what will come.",
        "What has arrived stands by rank, then by expert. Number the arrived rows by expert, with "
        "torch.arange(...).repeat(p).repeat_interleave(...), and argsort(stable=True) gives the order. "
        "result[order.argsort()] undoes it.",
        "Backward: send the gradients to the experts just as the rows were sent. For an expert with rows x and "
        "gradients g, the weight's gradient is x.T @ g, and g @ weight.T goes home just as the results did.",
    ),
)
