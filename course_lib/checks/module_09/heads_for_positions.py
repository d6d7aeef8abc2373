"""09.6: positions change for heads and back, where several ranks read one head of keys: forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_lib import comm
from course_lib.checks.kit.parts import Advice, Noted, Parts, Report, generator, parts_exercise
from course_lib.checks.kit.said import plural, wrong_means
from course_lib.checks.kit.spec import FP64, Level
from course_lib.checks.module_09.on_a_ring import DIM, Text
from course_lib.comm import ledger

_NAMES = ("the output", "the gradient of q", "the gradient of k", "the gradient of v")
_Positions = Sequence[Sequence[int]]
_Heads = Sequence[Tensor]  # by rank, which heads it has
_Reads = Callable[[Tensor, int, int], Tensor]
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Turned:
    """So many heads of queries and of keys, and positions over the ranks; with `count` the bytes are looked at."""

    world_size: int
    heads: int
    kv_heads: int
    length: int
    order: Literal["contiguous", "zigzag", "striped"]
    count: bool = False
    look: bool = False  # at the ledger against a collective's formula; here there is none

    def __str__(self) -> str:
        ranks, kv = plural(self.world_size, "rank"), plural(self.kv_heads, "kv head")
        return f"{self.heads} query heads and {kv} on {ranks}, {plural(self.length, 'position')}, {self.order}"

    def positions(self) -> list[list[int]]:
        """Each rank's."""
        return Text(world_size=self.world_size, length=self.length, order=self.order).positions()


def _of_its_group(heads: Tensor, group: int, kv_heads: int) -> Tensor:
    """The kv heads that heads of queries read."""
    return heads // group


def _cut_heads(heads: int, kv_heads: int, ranks: int, reads: _Reads = _of_its_group) -> tuple[_Heads, _Heads]:
    """By rank: heads of queries, and those of keys that they read."""
    of_queries = torch.arange(heads).tensor_split(ranks)
    return of_queries, [reads(own, heads // kv_heads, kv_heads).unique() for own in of_queries]


def _drawn(case: Turned, seed: int) -> Parts:
    source = generator(seed, case.world_size, case.heads, case.kv_heads, case.length)
    q, gradient = torch.randn(2, case.heads, case.length, DIM, generator=source)
    k, v = torch.randn(2, case.kv_heads, case.length, DIM, generator=source)
    held = [(2 * x).requires_grad_() for x in (q, k, v)]
    q, k, v = held
    group = case.heads // case.kv_heads
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    gradients = torch.autograd.grad(out, held, gradient)
    positions = case.positions()
    targets = [_target(case, rank, copied=False) if case.count else 0 for rank in range(case.world_size)]
    return Parts(
        arguments=[
            (*(x.detach()[:, own].clone() for x in (*held, gradient)), positions, target)
            for own, target in zip(positions, targets, strict=True)
        ],
        wanted=[tuple(x.detach()[:, own].clone() for x in (out, *gradients)) for own in positions],
        drive=_drive,
    )


def _target(case: Turned, rank: int, *, copied: bool) -> int:
    """Bytes that a rank has to send; `copied`: if each head of queries has keys of its own on the way."""
    of_queries, of_keys = (list(map(len, one)) for one in _cut_heads(case.heads, case.kv_heads, case.world_size))
    here = list(map(len, case.positions()))
    several = [a + (a if copied else k) for a, k in zip(of_queries, of_keys, strict=True)]
    others = [other for other in range(case.world_size) if other != rank]
    # A head's q, k, v and the output's gradient go to it; the output and the gradients of q, k and v come from it.
    return sum(2 * (several[other] * here[rank] + several[rank] * here[other]) for other in others) * DIM * FP64


def _drive(
    answer: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, positions: _Positions, target: int
) -> Noted:
    """Runs on a rank: use the answer, and look how much this rank sends."""
    results = answer(q, k, v, gradient, positions)
    sent = sum(event.nbytes for event in ledger.current() if event.kind == "send")
    return Noted(results, {"sent": sent, "target": target})


def _noted(case: Turned, reports: Sequence[Report]) -> str | None:
    for rank, report in enumerate(reports):
        sent, target = report.notes["sent"], report.notes["target"]
        if case.count and sent > target:
            copied = sent == _target(case, rank, copied=True)
            why = (
                "keys and values travel once for each query head that reads them: send a kv head to a rank once"
                if copied
                else "to each rank the heads that it works on, and the kv heads that these read, and nothing twice"
            )
            return f"values right, but rank {rank} sends {sent} bytes, and {target} are enough: {why}"
    return None


def _terms_added(whole: Tensor, heads: Tensor, part: Tensor, sharers: Tensor) -> None:
    whole[heads] += part


def _last_one_kept(whole: Tensor, heads: Tensor, part: Tensor, sharers: Tensor) -> None:
    whole[heads] = part


def _averaged(whole: Tensor, heads: Tensor, part: Tensor, sharers: Tensor) -> None:
    whole[heads] += part / sharers[heads].view(-1, 1, 1)


def _summed_before(whole: Tensor, heads: Tensor, part: Tensor, sharers: Tensor) -> None:
    """As if the ranks that share a head had added up their terms first."""
    whole[heads] += part * sharers[heads].view(-1, 1, 1)


def _turned(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    positions: _Positions,
    *,
    put: Callable[[Tensor, Tensor, Tensor, Tensor], None] = _terms_added,
    reads: _Reads = _of_its_group,
    causal: bool = True,
    sort: bool = True,  # what has come, into the sequence's order
    sort_gradient: bool = True,
    home: Callable[[_Positions], _Positions] = lambda positions: positions,
    scale: float | None = None,
) -> _Four:
    """Right, unless a part is chosen otherwise."""
    rank, p, kv = dist.get_rank(), dist.get_world_size(), len(k)
    of_queries, of_keys = _cut_heads(len(q), kv, p, reads)
    gathered = torch.tensor([at for mine in positions for at in mine])
    order, ways_home = gathered.argsort(), home(positions)
    sharers = torch.bincount(torch.cat(list(of_keys)), minlength=kv)

    def to_heads(x: Tensor, heads: _Heads, sort: bool = sort) -> Tensor:
        shapes = [(len(heads[rank]), len(mine), DIM) for mine in positions]
        came = torch.cat(comm.all_to_all_uneven([x[own] for own in heads], shapes), 1)
        return came[:, order] if sort else came

    def to_positions(x: Tensor, heads: _Heads, many: int) -> Tensor:
        shapes = [(len(own), len(positions[rank]), DIM) for own in heads]
        whole = x.new_zeros(many, len(positions[rank]), DIM)
        outgoing = [x[:, list(mine)] for mine in ways_home]
        for own, part in zip(heads, comm.all_to_all_uneven(outgoing, shapes), strict=True):
            put(whole, own, part, sharers if many == kv else torch.ones(many))
        return whole

    held = [to_heads(x, heads).requires_grad_() for x, heads in ((q, of_queries), (k, of_keys), (v, of_keys))]
    places = torch.searchsorted(of_keys[rank], reads(of_queries[rank], len(q) // kv, kv))
    out = scaled_dot_product_attention(held[0], held[1][places], held[2][places], is_causal=causal, scale=scale)
    gradients = torch.autograd.grad(out, held, to_heads(gradient, of_queries, sort_gradient))
    of_q, of_k, of_v = (
        to_positions(x, heads, many)
        for x, heads, many in zip(gradients, (of_queries, of_keys, of_keys), (len(q), kv, kv), strict=True)
    )
    return to_positions(out.detach(), of_queries, len(q)), of_q, of_k, of_v


def _in_runs(positions: _Positions) -> _Positions:
    """As if each rank had a run of neighbours."""
    ends = [0]
    for mine in positions:
        ends.append(ends[-1] + len(mine))
    return [range(start, end) for start, end in zip(ends, ends[1:], strict=False)]


_ULYSSES = parts_exercise(
    key="09.6",
    title="heads for positions, and kv heads that ranks share",
    names=_NAMES,
    draw=_drawn,
    asked=lambda case: [],
    slips={
        "no key is masked. A query sees its own position and those before it": partial(_turned, causal=False),
        "what comes from the ranks lies rank by rank, and it was taken for the sequence's order. Sort it by position": (
            partial(_turned, sort=False, sort_gradient=False)
        ),
        "the output's gradient was not sorted by position, as queries and keys were": (
            partial(_turned, sort_gradient=False)
        ),
        "results went home as if each rank had a run of neighbours. Rank j gets those of positions[j], in that order": (
            partial(_turned, home=_in_runs)
        ),
        "scores were not divided by the root of a head's numbers": partial(_turned, scale=1.0),
        "all query heads of a rank read the first kv head that it got. Head h reads kv head h // (A // K)": (
            partial(_turned, reads=lambda heads, group, kv: heads[:1].expand(len(heads)) // group)
        ),
        "head h reads kv head h // (A // K), and here it reads h % K": (
            partial(_turned, reads=lambda heads, group, kv: heads % kv)
        ),
        "of a kv head that several ranks have, one gradient was kept. Each of them has a term, and the terms add up": (
            partial(_turned, put=_last_one_kept)
        ),
        "the gradients of a kv head that several ranks have were averaged. Each of them has a term, and the terms "
        "add up": partial(_turned, put=_averaged),
        "the gradient of a kv head that several ranks have counts more than once: it is the sum of their terms, each "
        "once": partial(_turned, put=_summed_before),
    },
    advice=Advice(
        noted=_noted,
        sent=lambda case, book: wrong_means(book, "comm's collectives, not torch.distributed's own"),
    ),
    levels={
        "values": Level(
            points=2,
            cases=(
                Turned(world_size=2, heads=4, kv_heads=4, length=8, order="zigzag"),
                Turned(world_size=4, heads=8, kv_heads=8, length=12, order="striped"),
            ),
            praise="each rank has had all positions of its heads, and nobody more",
        ),
        "shared": Level(
            points=2,
            cases=(
                Turned(world_size=4, heads=8, kv_heads=2, length=12, order="zigzag"),
                Turned(world_size=4, heads=4, kv_heads=1, length=8, order="contiguous"),
                Turned(world_size=2, heads=6, kv_heads=3, length=8, order="zigzag"),
            ),
            praise="a kv head is read on several ranks, and its gradient is the sum of their terms",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=(
                Turned(world_size=4, heads=6, kv_heads=2, length=13, order="zigzag"),
                Turned(world_size=3, heads=5, kv_heads=1, length=10, order="striped"),
                Turned(world_size=3, heads=8, kv_heads=4, length=11, order="zigzag"),
            ),
            praise="also where ranks have unequally many heads and positions",
        ),
        "bytes": Level(
            points=1,
            cases=(
                Turned(world_size=4, heads=8, kv_heads=2, length=12, order="zigzag", count=True),
                Turned(world_size=4, heads=6, kv_heads=2, length=13, order="striped", count=True),
                Turned(world_size=1, heads=4, kv_heads=2, length=6, order="contiguous", count=True),
            ),
            praise="and every head travels to the ranks that work on it, once",
        ),
    },
    hints=(
        "torch.arange(A).tensor_split(p) gives each rank's query heads. Divide them by A // K, rounding down, and you "
        "have the kv heads that they read; `.unique()` has each once. Two ranks may get the same one.",
        "To rank j goes x[heads of j], and from rank j comes what it has of your heads: as many positions as "
        "positions[j] has. Put side by side they lie rank by rank; argsort of all positions brings them into order.",
        "Once q, k and v are there, attention is that of one device. Set requires_grad_() on what has come, compute, "
        "and torch.autograd.grad(out, (q, k, v), gradient) has all three gradients; `gradient` travels as q did.",
        "On the way back rank j gets x[:, positions[j]]. Add what comes to a tensor of zeros, at the heads of the rank "
        "that sent it: `whole[heads] += part`. Where two ranks had a kv head, both terms are in it then.",
    ),
)
