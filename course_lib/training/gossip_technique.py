"""Gossip: after each update a rank takes a weighted mean of its own weights and its neighbours', and nobody all's.

trainer = Trainer(model, config, mesh=make_mesh(dp=8), apply=(gossip("one_peer_exponential"),))
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.less.topologies import mixing
from course_lib.parallel.lossy.exchange import Memories, Rule
from course_lib.parallel.lossy.neighbours import mixed
from course_lib.parallel.table import agreement
from course_lib.training.own_weights import begin_own_weights, put, row_of
from course_lib.training.setup import Setup, Technique

_UPDATES, TRACKER, LAST = "updates", "tracker", "last_gradient"


def gossip(topology: str, *, track: bool = False) -> Technique:
    """Decentralised SGD: x <- W (x - rate g), where row r of W says whom rank r hears, and with which weights.

    `topology` is one of `less.topologies`; where it has several matrices each update takes the next. Over the ranks
    the mean of the weights is that of training without a loss as long as gradients are; how far ranks are apart,
    the spectral gap says. With `track` each rank steps by an estimate of the mean gradient in place of its own, which
    goes round as the weights do, so that different data no longer pull the ranks apart.

    Along which axis, what a trainer says of weights, and what a checkpoint has: as `local`.

    Cost: the weights that are trained, and with `track` as many numbers again, to each neighbour in each update.
    Source: Lian et al. 2017, D-PSGD; Ying et al. 2021, exponential graphs; Nedic et al. 2017, DIGing (tracking).
    Raises: ValueError for an unknown topology or one that these ranks cannot form, and as `local`.
    """

    def apply(setup: Setup) -> None:
        rules: dict[str, Rule] = {_UPDATES: "apart"}
        if track:
            rules |= {TRACKER: "own", LAST: "own"}
        group = begin_own_weights(setup, "gossip", rules)
        agreement.same_model("gossip", setup.model, {"topology": topology, "track": track}, group)
        matrices = mixing(topology, group.size())
        local, memory, ends = setup.local, setup.apart.memory, setup.engine.ends

        def now() -> Tensor:
            """The matrix of this update."""
            return matrices[_updates(memory) % len(matrices)]

        def step_by_tracker() -> None:
            """Bring the estimate up to date, and let the optimizer have it for its gradient."""
            gradients = {name: g.flatten().clone() for name, g in local.gradients().items()}
            if _is_first(memory):
                trackers = gradients
            else:
                heard = _all_mixed(memory.kinds[TRACKER], now(), group)
                news = {name: g - memory.kinds[LAST][name] for name, g in gradients.items()}
                trackers = {name: heard[name] + news[name] for name in gradients}
            for name, gradient in local.gradients().items():
                memory.keep(TRACKER, name, trackers[name].clone())
                memory.keep(LAST, name, gradients[name])
                gradient.copy_(trackers[name].view_as(gradient))

        def meet() -> None:
            trained = {name: p for name, p in local.parameters.items() if p.requires_grad}
            rows = {name: row_of(parameter) for name, parameter in trained.items()}
            for name, row in _all_mixed(rows, now(), group).items():
                put(trained[name], row)
            so_far = torch.tensor(_updates(memory) + 1)
            for name in trained:
                memory.keep(_UPDATES, name, so_far)

        if track:
            ends.completed = torch.no_grad()(step_by_tracker)
        ends.stepped = torch.no_grad()(meet)

    return apply


def _updates(memory: Memories) -> int:
    """Updates so far, which are the same of all parameters."""
    return int(next(iter(memory.kinds[_UPDATES].values()), torch.tensor(0)))


def _is_first(memory: Memories) -> bool:
    return not memory.kinds[LAST]


def _all_mixed(rows: dict[str, Tensor], weights: Tensor, group: ProcessGroup) -> dict[str, Tensor]:
    """Rows of several parameters, mixed in one message to each neighbour for each dtype."""
    found: dict[str, Tensor] = {}
    for dtype in dict.fromkeys(row.dtype for row in rows.values()):
        some = {name: row for name, row in rows.items() if row.dtype == dtype}
        flat = mixed(torch.cat(list(some.values())), weights, group)
        found |= dict(zip(some, flat.split([len(row) for row in some.values()]), strict=True))
    return found
