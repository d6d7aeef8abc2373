"""Our attention over shared sequences and our way to experts against the same on torch's functional collectives.

The peer's collectives are those that autograd knows, all_gather_single_autograd and all_to_all_single_autograd. They
have no ring of which the gradients take one hop more, so our ring is held against torch's gathered keys and values,
which compute the same. Forward and backward; no layer around attention, and experts that leave rows as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from all_reduce import slowest
from measure import Comparison, Verdict, in_turn, mean_ratio
from page import TIMES, Benchmark, comparison_row, gate_row, table
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import (
    all_gather_single_autograd,
    all_to_all_single,
    all_to_all_single_autograd,
)

from course_lib import comm
from course_lib.models.decoder import causal
from course_lib.parallel.experts.spread import Spread
from course_lib.parallel.sequence.gathered import gathered_attention
from course_lib.parallel.sequence.ring_attention import ring_attention
from course_lib.parallel.sequence.shared import SharedSequence
from course_lib.parallel.sequence.ulysses import ulysses_attention
from course_lib.ranks import run_ranks

WORLD_SIZES = (2, 4)
LENGTHS = (512, 2048)  # of a sequence, or rows of all ranks together
ROUNDS = 15
BATCH, HEADS, KV_HEADS, HEAD_SIZE = 1, 8, 4, 32
EXPERTS, HIDDEN = 8, 256
WAYS = {  # ours, and what it is held against
    "ring": "all_gather_single_autograd",
    "all_gather": "all_gather_single_autograd",
    "ulysses": "all_to_all_single_autograd",
    "experts": "all_to_all_single_autograd",
}
GATES = {"ring": 0.4, "all_gather": 0.9, "ulysses": 0.7, "experts": 0.9}  # the ring's blocks are no fused kernel
OURS = {"ring": ring_attention, "all_gather": gathered_attention, "ulysses": ulysses_attention}


@dataclass(frozen=True, kw_only=True)
class ExchangeCell:
    """One number of ranks, one length, one way."""

    world_size: int
    length: int
    way: str
    comparison: Comparison


def compare() -> list[ExchangeCell]:
    """Every number of ranks with every length."""
    import all_reduce
    import context_experts
    import measure

    measure.travel_along(all_reduce, context_experts, measure)
    return [cell for world_size in WORLD_SIZES for length in LENGTHS for cell in compare_at(world_size, length, ROUNDS)]


def compare_at(world_size: int, length: int, rounds: int) -> list[ExchangeCell]:
    """Seconds of forward and backward by every way, of ours and of torch's, in turn."""
    by_rank = run_ranks(take_turns, world_size, length, rounds, timeout=600)
    return [
        ExchangeCell(
            world_size=world_size,
            length=length,
            way=way,
            comparison=Comparison(
                name=f"{world_size} ranks, {length}, {way}",
                ours_s=slowest([times[f"our {way}"] for times in by_rank]),
                peer_s=slowest([times[f"their {way}"] for times in by_rank]),
            ),
        )
        for way in WAYS
    ]


def take_turns(length: int, rounds: int) -> dict[str, list[float]]:
    """On a rank: each round's seconds of every way, ours and torch's side by side."""
    group = dist.group.WORLD
    torch.manual_seed(group.rank())
    works = {**attentions(length, group), **experts(length // group.size(), group)}
    with comm.settings(guard=False, ledger=False):
        check(works)
        return in_turn({who: partial(timed, work, group) for who, work in works.items()}, rounds)


Work = Callable[[], tuple[Tensor, ...]]  # forward and backward: the result and the gradients


def timed(work: Work, group: ProcessGroup) -> float:
    """Seconds of one forward and backward."""
    dist.barrier(group)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def check(works: dict[str, Work]) -> None:
    """Refuse to time other numbers than torch's; it warms all up too."""
    for way in WAYS:
        pairs = zip(works[f"our {way}"](), works[f"their {way}"](), strict=True)
        assert all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4) for ours, theirs in pairs), way


def attentions(length: int, group: ProcessGroup) -> dict[str, Work]:
    """The three ways, each with the order of positions that suits it: work is even in zigzag, or by heads."""
    here = length // group.size()
    q, k, v = (torch.randn(BATCH, n, here, HEAD_SIZE, requires_grad=True) for n in (HEADS, KV_HEADS, KV_HEADS))
    gradient = torch.randn(BATCH, HEADS, here, HEAD_SIZE)
    theirs = {"ring": gathered_by_torch, "all_gather": gathered_by_torch, "ulysses": turned_by_torch}
    found = {}
    for way, ours in OURS.items():
        shared = SharedSequence(group=group, order="contiguous" if way == "ulysses" else "zigzag")
        shared.told(length)
        for who, attend in (("our", ours), ("their", theirs[way])):
            found[f"{who} {way}"] = partial(both_ways, partial(attend, shared=shared), (q, k, v), gradient)
    return found


def both_ways(forward: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor, ...]:
    """The result and the gradients of all inputs."""
    result = forward(*inputs)
    return result.detach(), *torch.autograd.grad(result, inputs, gradient)


def gathered_by_torch(q: Tensor, k: Tensor, v: Tensor, shared: SharedSequence) -> Tensor:
    """Each rank gathers keys and values; backward adds up what all ranks have of their gradients."""
    both = all_gather_single_autograd(torch.stack([k, v]), 3, shared.group)
    mine, all_of_them = shared.positions(q.device), torch.tensor(shared.cut.all_positions())
    return F.scaled_dot_product_attention(q, both[0], both[1], attn_mask=mine[:, None] >= all_of_them, enable_gqa=True)


def turned_by_torch(q: Tensor, k: Tensor, v: Tensor, shared: SharedSequence) -> Tensor:
    """Positions against heads, where both divide, and back."""
    p = shared.size

    def sent(x: Tensor) -> Tensor:
        return all_to_all_single_autograd(x, None, None, shared.group)

    def to_heads(x: Tensor) -> Tensor:  # (B, A, S/p, D) -> (B, A/p, S, D)
        arrived = sent(x.transpose(0, 1).contiguous())  # by head, which is by rank
        return arrived.unflatten(0, (p, -1)).permute(2, 1, 0, 3, 4).flatten(2, 3)

    all_q, all_kv = to_heads(q), to_heads(torch.cat([k, v], -1))
    mixed = causal(all_q, *all_kv.chunk(2, -1))
    of_ranks = mixed.unflatten(2, (p, -1)).permute(2, 1, 0, 3, 4).flatten(0, 1).contiguous()
    return sent(of_ranks).transpose(0, 1)


def experts(rows: int, group: ProcessGroup) -> dict[str, Work]:
    """To experts and back; some are chosen more than others."""
    x, gradient = torch.randn(rows, HIDDEN, requires_grad=True), torch.randn(rows, HIDDEN)
    chosen = torch.multinomial(torch.arange(1.0, EXPERTS + 1), rows, replacement=True)
    counts = torch.bincount(chosen, minlength=EXPERTS)
    ours = Spread(group, EXPERTS)
    return {
        "our experts": partial(both_ways, lambda x: ours.dispatch(x, counts, lambda rows, _: rows), (x,), gradient),
        "their experts": partial(both_ways, partial(dispatched_by_torch, counts=counts, group=group), (x,), gradient),
    }


def dispatched_by_torch(rows: Tensor, counts: Tensor, group: ProcessGroup) -> Tensor:
    """Counts, rows, their order by expert, and the way back."""
    here = EXPERTS // group.size()
    table = all_to_all_single(counts, None, None, group).view(-1, here)
    leaving, coming = counts.view(-1, here).sum(1).tolist(), table.sum(1).tolist()
    arrived = all_to_all_single_autograd(rows, coming, leaving, group)
    order = torch.arange(here).repeat(len(coming)).repeat_interleave(table.flatten()).argsort(stable=True)
    return all_to_all_single_autograd(arrived[order][order.argsort()], leaving, coming, group)


def verdicts(cells: list[ExchangeCell]) -> list[Verdict]:
    """Of each way, the geometric mean over ranks and lengths."""
    return [
        Verdict(
            figure=f"{way}, forward and backward, against torch's {theirs}",
            ratio=mean_ratio([cell.comparison for cell in cells if cell.way == way]),
            gate=GATES[way],
            goal=1.0,
        )
        for way, theirs in WAYS.items()
    ]


def sections(cells: list[ExchangeCell]) -> list[str]:
    """A row for each number of ranks, length and way."""
    rows = [comparison_row(f"{c.world_size} | {c.length} | {c.way}", c.comparison) for c in cells]
    about = (
        f"{HEADS} heads of queries and {KV_HEADS} of keys, {HEAD_SIZE} numbers each; "
        f"rows of {HIDDEN} to {EXPERTS} experts; guard and ledger off"
    )
    return [
        f"## Shared sequences and spread experts against torch's functional collectives ({about})",
        table([["ranks", "positions or rows", "way", *TIMES], *rows]),
    ]


BENCHMARK = Benchmark(
    lesson=9,
    title="shared sequences and experts against torch's functional collectives",
    compare=compare,
    gates=lambda cells: [gate_row(verdict) for verdict in verdicts(cells)],
    sections=sections,
)
