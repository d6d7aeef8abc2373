"""09.4: ring attention's backward, where gradients of keys and values travel with these and come home a hop later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.kit.parts import Advice, Parts, parts_exercise
from course_lib.checks.kit.spec import Level
from course_lib.checks.kit.step import Cause
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

_NAMES = ("the gradient of q", "the gradient of k", "the gradient of v")
_Positions = Sequence[Sequence[int]]
_Three = tuple[Tensor, Tensor, Tensor]


def _drawn(case: Text, seed: int) -> Parts:
    *qkv, gradient = case.drawn(seed)
    q, k, v = (x.requires_grad_() for x in qkv)
    out = whole_attention(q, k, v)
    gradients = torch.autograd.grad(out, (q, k, v), gradient)
    future = torch.ones(case.length, case.length, dtype=torch.bool).triu(1)
    lse = (q @ k.mT * DIM**-0.5).masked_fill(future, -torch.inf).logsumexp(-1)
    positions = case.positions()
    given = [x.detach() for x in (q, k, v, out, lse, gradient)]
    return Parts(
        arguments=[(*(x[:, own].clone() for x in given), positions) for own in positions],
        wanted=[tuple(x[:, own].clone() for x in gradients) for own in positions],
    )


def _of_all_keys(scores: Tensor, lse: Tensor) -> Tensor:
    return (scores - lse.unsqueeze(-1)).exp()


def _of_the_block(scores: Tensor, lse: Tensor) -> Tensor:
    """Weights that add up to one in each block."""
    return scores.softmax(-1).nan_to_num()  # of a row that sees nothing here


def _over_all_keys(gradient: Tensor, out: Tensor, weights: Tensor, of_weights: Tensor) -> Tensor:
    return (gradient * out).sum(-1, keepdim=True)


def _over_the_block(gradient: Tensor, out: Tensor, weights: Tensor, of_weights: Tensor) -> Tensor:
    return (weights * of_weights).sum(-1, keepdim=True)


def _left_out(gradient: Tensor, out: Tensor, weights: Tensor, of_weights: Tensor) -> Tensor:
    return torch.zeros_like(gradient[..., :1])


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    gradient: Tensor,
    positions: _Positions,
    *,
    mask: Callable[[_Positions, int, int], Tensor] = seen,
    weigh: Callable[[Tensor, Tensor], Tensor] = _of_all_keys,
    mean: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = _over_all_keys,
    used: Callable[[Tensor, Tensor], Tensor] = lambda came, own: came,
    travels: bool = True,  # the gradients of keys and values
    home: bool = True,
    of_query: Callable[[Sequence[Tensor]], Tensor] = lambda terms: torch.stack(list(terms)).sum(0),
    scales: tuple[float, float] = (DIM**-0.5, DIM**-0.5),  # of the scores, and of their gradient
) -> _Three:
    """Right, unless a part is chosen otherwise."""
    rank, p = dist.get_rank(), dist.get_world_size()
    own = came = torch.stack([k, v])
    terms, of_both = [], torch.zeros_like(own)
    for step in range(p):
        source, count = (rank - step) % p, len(positions[(rank - step - 1) % p])
        keys, values = used(came, own)
        scores = (q @ keys.mT * scales[0]).masked_fill(~mask(positions, rank, source), -torch.inf)
        weights, of_weights = weigh(scores, lse), gradient @ values.mT
        of_scores = weights * (of_weights - mean(gradient, out, weights, of_weights)) * scales[1]
        terms.append(of_scores @ keys)
        of_both = of_both + torch.stack([of_scores.mT @ q, weights.mT @ gradient])
        if step < p - 1:
            came = passed_on(came, count)
        if travels and (home or step < p - 1):
            of_both = passed_on(of_both, count)
    return of_query(terms), of_both[0], of_both[1]


def _own_queries_alone(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, gradient: Tensor, positions: _Positions
) -> _Three:
    """The gradient of q is right; those of k and v have this rank's own term alone."""
    rank = dist.get_rank()
    mine = _backward(q, k, v, out, lse, gradient, positions)
    scores = (q @ k.mT * DIM**-0.5).masked_fill(~seen(positions, rank, rank), -torch.inf)
    weights = _of_all_keys(scores, lse)
    of_scores = weights * (gradient @ v.mT - (gradient * out).sum(-1, keepdim=True)) * DIM**-0.5
    return mine[0], of_scores.mT @ q, weights.mT @ gradient


def _sent(case: Text, book: Ledger) -> str | None:
    more = (
        "that is one hop of keys and values more than needed. After p - 1 of them every rank has had them, and only "
        "their gradients have to come home"
    )
    return wrong_hops(case, book, [case.sends(rank) + case.kv_bytes() for rank in range(case.world_size)], more)


_CAUSES: tuple[Cause, ...] = (
    (lambda case: 1 / case.world_size, "divided by the number of ranks? Here each term of a sum counts whole"),
)

_BACKWARD = parts_exercise(
    key="09.4",
    title="ring attention, backward",
    names=_NAMES,
    draw=_drawn,
    asked=lambda case: (),
    slips={
        "what a rank returns are the gradients of the next rank's keys and values. They are one hop from home: after "
        "the last term has been added, they are sent on once more": partial(_backward, home=False),
        "the gradients of k and v have this rank's own term alone. Queries of other ranks have seen these keys, too": (
            _own_queries_alone
        ),
        "the terms of all blocks were added up on the rank that made them. Each belongs to the keys of another rank, "
        "so it has to travel with them": partial(_backward, travels=False),
        "the rank's own keys and values were used in each step: what came in was passed on and not read": (
            partial(_backward, used=lambda came, own: own)
        ),
        "keys have travelled, and values have stayed at home": (
            partial(_backward, used=lambda came, own: torch.stack([came[0], own[1]]))
        ),
        "each block's weights add up to 1 by themselves. What a key weighs in the whole softmax says "
        "exp(score - lse)": partial(_backward, weigh=_of_the_block),
        "the mean that a score's gradient is compared with was taken over each block. It runs over all keys, and is "
        "(gradient * out).sum(-1)": partial(_backward, mean=_over_the_block),
        "the mean over all keys is missing in the gradient of the scores: weight times (gradient of the weight - "
        "mean)": partial(_backward, mean=_left_out),
        "the gradient of q is the term of the block that came last. The terms of all blocks add up": (
            partial(_backward, of_query=lambda terms: terms[-1])
        ),
        "the gradient of q has the term of the rank's own block alone. The terms of all blocks add up": (
            partial(_backward, of_query=lambda terms: terms[0])
        ),
        "each block was masked as if it were causal by itself, row against column. What counts are the positions in "
        "the text, as in 09.3": partial(_backward, mask=own_triangle),
        "no key is masked. A key after a query had no weight in forward, and gets no gradient": (
            partial(_backward, mask=everything)
        ),
        "only the rank's own block is masked. Others have positions behind a query as well": (
            partial(_backward, mask=own_block_alone)
        ),
        "the mask is that of another rank's positions. What comes from the rank before you has in step s been rank "
        "(rank - s) % p's": partial(_backward, mask=of_the_other_side),
        "scores were divided by the root of D, and their gradient was not": (
            partial(_backward, scales=(DIM**-0.5, 1.0))
        ),
        "scores were not divided by the root of a head's numbers": partial(_backward, scales=(1.0, 1.0)),
    },
    advice=Advice(
        causes=dict.fromkeys(_NAMES, _CAUSES),
        nan=lambda case: (
            "exp(score - lse) of a masked score is 0, and never nan. Was a softmax taken of a row that sees nothing in "
            "a block, or a torch.empty read before its numbers had come in?"
        ),
        sent=_sent,
    ),
    levels={
        "values": Level(
            points=3,
            cases=VALUES,
            praise="each key has the terms of all queries that saw it, and its gradient is at home",
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
            praise="p - 1 hops of keys and values, p at most of their gradients, and no byte more",
        ),
    },
    hints=(
        "Take 09.3's loop. In step s the keys of rank (rank - s) % p are here, and beside them stands the gradient of "
        "just these keys: at first zeros, for your own. Add your term to it before you pass it on.",
        "Of one block: `weights = exp(scores - lse)`, with -inf where a query does not see a key. The gradient of the "
        "weights is gradient @ values.mT. A product backward is two products: what came in times the other factor.",
        "Let g be the scores' gradient, divided by the root of D like the scores. The terms are g @ keys for q, "
        "g.mT @ q for k and weights.mT @ gradient for v. That of q stays, for queries do not travel.",
        "Two messages a step: keys and values stacked, and their gradients stacked. After the last step nobody wants "
        "the keys any more, and the gradients make one hop yet. How many positions has what you receive?",
    ),
)
