"""09.3: ring attention's forward, where keys and values go round and each row keeps its softmax up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit.parts import Advice, Parts, parts_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.module_09.on_a_ring import (
    DIM,
    HOPS,
    UNEVEN,
    VALUES,
    Text,
    everything,
    of_the_other_side,
    own_block_alone,
    own_triangle,
    passed_on,
    seen,
    whole_attention,
    wrong_hops,
)
from course_lib.comm.ledger import Ledger

_Positions = Sequence[Sequence[int]]
_Blocks = Sequence[tuple[Tensor, Tensor]]  # of each block what it alone gives, and the log of the sum of its powers


def _drawn(case: Text, seed: int) -> Parts:
    q, k, v, _ = case.drawn(seed)
    positions = case.positions()
    output = whole_attention(q, k, v)
    return Parts(
        arguments=[(*(x[:, own].clone() for x in (q, k, v)), positions) for own in positions],
        wanted=[(output[:, own],) for own in positions],
        drive=_alone,
    )


def _alone(function: Callable[..., Any], *arguments: Any) -> tuple[Any]:
    """Runs on a rank: the one result."""
    return (function(*arguments),)


def _merged(blocks: _Blocks) -> Tensor:
    logs = torch.stack([log for _, log in blocks])
    weights = (logs - logs.logsumexp(0)).exp().unsqueeze(-1)
    return (weights * torch.stack([out for out, _ in blocks])).sum(0)


def _averaged(blocks: _Blocks) -> Tensor:
    """Of the blocks in which a row sees something."""
    some = torch.stack([log.isfinite() for _, log in blocks]).unsqueeze(-1)
    return torch.stack([out for out, _ in blocks]).sum(0) / some.sum(0)


def _added(blocks: _Blocks) -> Tensor:
    return torch.stack([out for out, _ in blocks]).sum(0)


def _by_last_log(blocks: _Blocks) -> Tensor:
    return blocks[-1][0]


def _by_rank(positions: _Positions, rank: int, source: int) -> Tensor:
    full = everything(positions, rank, source)
    return full & (source < rank) if source != rank else seen(positions, rank, source)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: _Positions,
    *,
    mask: Callable[[_Positions, int, int], Tensor] = seen,
    hops: int = 0,
    used: Callable[[Tensor, Tensor], Tensor] = lambda came, own: came,
    finish: Callable[[_Blocks], Tensor] = _merged,
    scale: float = DIM**-0.5,
) -> Tensor:
    """Right, unless a part is chosen otherwise; `hops` are more or fewer than there should be."""
    rank, p = dist.get_rank(), dist.get_world_size()
    own = came = torch.stack([k, v])
    blocks = []
    for step in range(p + hops):
        source = (rank - step) % p
        came = passed_on(came, len(positions[source])) if step else came
        keys, values = used(came, own)
        scores = (q @ keys.mT * scale).masked_fill(~mask(positions, rank, source), -torch.inf)
        log = scores.logsumexp(-1)
        powers = (scores - log.nan_to_num(neginf=0.0).unsqueeze(-1)).exp()
        blocks.append((powers @ values, log))
    return finish(blocks)


def _sent(case: Text, book: Ledger) -> str | None:
    more = "that is one hop more than needed. After p - 1 of them the next hop brings a rank its own keys"
    return wrong_hops(case, book, [case.sends(rank) for rank in range(case.world_size)], more)


_FORWARD = parts_exercise(
    key="09.3",
    title="ring attention, forward",
    names=("the output",),
    draw=_drawn,
    asked=lambda case: (),
    slips={
        "each block was masked as if it were causal by itself, row against column. What counts are the positions in "
        "the text, those of this rank's queries and those of the source's keys": partial(_attend, mask=own_triangle),
        "no key is masked. A query sees its own position and those before it": partial(_attend, mask=everything),
        "only the rank's own block is masked. Others have positions behind a query as well": (
            partial(_attend, mask=own_block_alone)
        ),
        "blocks were taken or left out whole, by the number of their rank. In this order a rank has positions at both "
        "ends": partial(_attend, mask=_by_rank),
        "the mask is that of another rank's positions. What comes from the rank before you has in step s been rank "
        "(rank - s) % p's": partial(_attend, mask=of_the_other_side),
        "the blocks' outputs were averaged. Each is a softmax of its own, so weigh it by the sum of its powers": (
            partial(_attend, finish=_averaged)
        ),
        "the blocks' outputs were added up, each divided by its own sum already. Divide once, by the sum of all": (
            partial(_attend, finish=_added)
        ),
        "that is the output of the block that came last": partial(_attend, finish=_by_last_log),
        "the rank's own keys and values were used in each step: what came in was passed on and not read": (
            partial(_attend, used=lambda came, own: own)
        ),
        "keys have travelled, and values have stayed at home": (
            partial(_attend, used=lambda came, own: torch.stack([came[0], own[1]]))
        ),
        "the last block is missing: after the rank's own one there are p - 1 others, and each takes a hop": (
            partial(_attend, hops=-1)
        ),
        "the first block counts twice: after p - 1 hops the next one brings a rank its own keys": (
            partial(_attend, hops=1)
        ),
        "scores were not divided by the root of a head's numbers": partial(_attend, scale=1.0),
    },
    advice=Advice(
        nan=lambda case: (
            "a row that sees nothing in a block has a max of -inf there, and -inf minus -inf is nan. Or was a "
            "torch.empty read before its numbers had come in?"
        ),
        sent=_sent,
    ),
    levels={
        "values": Level(
            points=3,
            cases=VALUES,
            praise="attention to the whole sequence, of which each rank was sent one block at a time",
        ),
        "uneven": Level(
            points=2,
            again=True,
            cases=UNEVEN,
            praise="right for any positions, and for ranks that have more of them than others",
        ),
        "ring": Level(
            points=1,
            cases=HOPS,
            praise="p - 1 hops, each to the next rank, and no byte more",
        ),
    },
    hints=(
        "In step 0 the keys are your own. After s hops to the next rank, whose keys are here? So how many positions "
        "does the message have that you receive, and which mask belongs to it?",
        "The mask of a block: a query at position a sees a key at position b if b <= a. Fill the other scores with "
        "-inf before the max.",
        "Between blocks a row needs its max, its sum and its out, as in 09.2. Begin with your own block: there each "
        "row sees itself at least, so its max is finite from then on.",
        "One hop: into = torch.empty(...); receiving = comm.irecv(into, before); comm.isend(x, after).wait(); "
        "receiving.wait(). If all ranks send first and wait for that, all of them wait. Stack keys and values, and one "
        "message carries both.",
    ),
)
