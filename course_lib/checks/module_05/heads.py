"""05.6: which heads of queries, keys and values a rank has, and what becomes of heads that lie on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Asked, Parts, generator, parts_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import Level

NAMES = ("the query heads", "the kv heads", "the kv heads' gradient", "the norm of all kv gradients")
HEAD = 5  # numbers of a head's gradient
_groups: dict[int, Any] = {}  # on a rank: copies -> those with the same heads, made once per pool


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Heads of queries and of keys on so many ranks, and which of the results are looked at."""

    world_size: int
    queries: int
    keys: int
    asks: tuple[int, ...] = (0, 1)
    look: bool = False

    @property
    def copies(self) -> int:
        """On how many ranks a kv head lies."""
        return max(1, self.world_size // self.keys)

    @property
    def each(self) -> int:
        """The kv heads of a rank."""
        return max(1, self.keys // self.world_size)

    def of(self, rank: int) -> list[int]:
        """A rank's kv heads."""
        first = rank // self.copies * self.each
        return [*range(first, first + self.each)]

    def __str__(self) -> str:
        return f"{plural(self.world_size, 'rank')}, {self.queries} query heads, {plural(self.keys, 'kv head')}"


def _drawn(case: Heads, seed: int) -> Parts:
    """Each rank's own part of its kv heads' gradients, from its own queries."""
    p, mine = case.world_size, case.queries // case.world_size
    source = generator(seed, p, case.queries, case.keys)
    terms = [torch.randn(case.each, HEAD, generator=source) for _ in range(p)]
    shared = [torch.stack(terms[r // case.copies * case.copies :][: case.copies]).sum(0) for r in range(p)]
    norm = torch.cat(shared[:: case.copies]).norm()
    return Parts(
        arguments=[(case.queries, case.keys, term) for term in terms],
        wanted=[
            (torch.arange(rank * mine, (rank + 1) * mine), torch.tensor(case.of(rank)), shared[rank], norm)
            for rank in range(p)
        ],
        terms=[{NAMES[2]: term} for term in terms],
        made=lambda: (_those_with_the_same(case.copies),),
    )


def _those_with_the_same(copies: int) -> Any:
    """On a rank: the group of those that have its kv heads; a rank of its own where nothing is copied."""
    if copies not in _groups:
        p = dist.get_world_size()
        made = [dist.new_group(list(range(first, first + copies))) for first in range(0, p, copies)]
        _groups[copies] = made[dist.get_rank() // copies]
    return _groups[copies]


def _share(
    queries: int,
    keys: int,
    gradient: Tensor,
    group: ProcessGroup,
    *,
    kv: Callable[[int, int, int], list[int] | None] = lambda rank, p, keys: None,
    summed: Callable[[Tensor, ProcessGroup], Tensor] = lambda x, group: comm.all_reduce(x, group=group),
    counted: Callable[[int], float] = lambda copies: copies,
) -> tuple[Sequence[int], Sequence[int], Tensor, Tensor]:
    """Right, unless a part is chosen otherwise."""
    rank, p = dist.get_rank(), dist.get_world_size()
    mine, copies, each = queries // p, max(1, p // keys), max(1, keys // p)
    first = rank // copies * each
    heads = kv(rank, p, keys) or range(first, first + each)
    whole = summed(gradient, group)
    squares = comm.all_reduce(whole.square().sum() / counted(copies))
    return range(rank * mine, (rank + 1) * mine), heads, whole, squares.sqrt()


def _dealt(rank: int, p: int, keys: int) -> list[int]:
    return [rank % keys] if keys <= p else [*range(rank, keys, p)]


_HEADS = parts_exercise(
    key="05.6",
    title="heads that lie on several ranks",
    names=NAMES,
    draw=_drawn,
    asked=lambda case: [
        *[Asked("all_reduce", case.each * HEAD, ranks=case.copies)] * (2 in case.asks and case.copies > 1),
        *[Asked("all_reduce", 1)] * (3 in case.asks),
    ],
    only=lambda case: case.asks,
    slips={
        "kv heads were dealt out like cards. A rank's query heads are neighbours, so the kv heads for them are too": (
            lambda *given: _share(*given, kv=_dealt)
        ),
        "copies were dealt out like cards, rank % kv heads. Query heads that share a kv head are neighbours, so copies "
        "of it are on neighbouring ranks: rank // copies": (
            lambda *given: _share(*given, kv=lambda rank, p, keys: None if keys >= p else [rank % keys])
        ),
        "every rank has all kv heads, and needs those of its own queries alone: *neighbouring* queries share one, "
        "`q // (n_heads // n_kv_heads)`, not every n_kv_heads-th": (
            lambda *given: _share(*given, kv=lambda rank, p, keys: [*range(keys)])
        ),
        "the copies' terms were added up over all ranks, those of other heads among them: add them up in the group "
        "that you are given": lambda *given: _share(*given, summed=lambda x, group: comm.all_reduce(x)),
        "each head is counted in the norm once for every copy of it": lambda *given: _share(
            *given, counted=lambda c: 1
        ),
        "the norm is that of one copy's terms: were the gradients added up first?": lambda *given: (
            *_share(*given)[:3],
            _share(*given, summed=lambda x, group: x)[3],
        ),
        "the norm was taken of the terms, before the copies were added up": lambda *given: (
            *_share(*given)[:3],
            _share(*given, summed=lambda x, group: x, counted=lambda copies: 1)[3],
        ),
        "that is the square of the norm": lambda *given: (*_share(*given)[:3], _share(*given)[3].square()),
        "the norm is that of this rank's kv heads; the others have other heads": lambda *given: (
            *_share(*given)[:3],
            _share(*given)[2].norm(),
        ),
        "the norms of the ranks' heads were added up: it is their squares that add up": lambda *given: (
            *_share(*given)[:3],
            comm.all_reduce(_share(*given)[2].norm() / max(1, dist.get_world_size() // given[1])),
        ),
        "the squares were added up in the group alone, which has copies of the same heads: the norm is of all kv "
        "heads, so it takes all ranks": lambda *given: (
            *_share(*given)[:3],
            comm.all_reduce(given[2].square().sum(), group=given[3]).sqrt(),
        ),
    },
    advice=Advice(
        causes={
            NAMES[2]: (
                (lambda case: 1 / case.copies, "an average over the copies, where their terms add up"),
                (lambda case: case.copies, "the copies are added up more than once"),
            ),
            NAMES[3]: (
                (
                    lambda case: case.copies**-0.5,
                    lambda case: (
                        f"its square is 1/{case.copies} of the right one. Each head brings its squares once from each "
                        f"of its {case.copies} copies: add up over all ranks, and divide by {case.copies} before the "
                        "root"
                    ),
                ),
            ),
        },
        traffic="the copies of a head add up its gradient among themselves, and one number travels for the norm",
    ),
    levels={
        "heads": Level(
            points=1,
            cases=(
                Heads(world_size=2, queries=8, keys=4),
                Heads(world_size=4, queries=8, keys=2),
                Heads(world_size=4, queries=8, keys=1),
            ),
            praise="a rank has the kv heads that its own queries ask, copied where there are fewer than ranks",
        ),
        "gradient": Level(
            points=2,
            again=True,
            cases=(
                Heads(world_size=4, queries=8, keys=2, asks=(2,)),
                Heads(world_size=4, queries=4, keys=1, asks=(2,)),
                Heads(world_size=2, queries=4, keys=2, asks=(2,)),
            ),
            praise="copies of a head add up what their own queries made, so they stay one head",
        ),
        "norm": Level(
            points=1,
            cases=(
                Heads(world_size=4, queries=8, keys=2, asks=(3,)),
                Heads(world_size=3, queries=6, keys=1, asks=(2, 3), look=True),
            ),
            praise="each head once in the norm, however many ranks have it",
        ),
        "edges": Level(
            points=1,
            cases=(
                Heads(world_size=3, queries=12, keys=6, asks=(0, 1, 2, 3)),
                Heads(world_size=4, queries=4, keys=4, asks=(0, 1, 2, 3)),
                Heads(world_size=1, queries=4, keys=2, asks=(0, 1, 2, 3)),
            ),
            praise="right for as many heads as ranks, for 3 ranks, and on one",
        ),
    },
    hints=(
        "Query heads q with the same q // (queries // kv heads) share a kv head. Write them down for 8 query heads, "
        "2 kv heads and 4 ranks, and see which kv head each rank's queries ask.",
        "Fewer kv heads than ranks: copies = p // kv heads, and rank // copies is the head. Else each rank has "
        "kv heads // p of them, one after the other.",
        "A copied head's gradient has a term from the queries of each rank that has a copy: "
        "comm.all_reduce(gradient, group=group) adds them up on all of these ranks.",
        "For the norm add up the squares over all ranks. A head on `copies` ranks comes `copies` times, so each brings "
        "its squares divided by that.",
    ),
)
