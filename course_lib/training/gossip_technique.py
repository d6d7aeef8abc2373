"""Gossip: after each update a rank takes a weighted mean of its own weights and its neighbours', and nobody all's.

trainer = Trainer(model, config, mesh=make_mesh(dp=8), apply=(gossip("one_peer_exponential"),))
"""

from __future__ import annotations

import torch

from course_lib.less.topologies import mixing
from course_lib.parallel.lossy.exchange import Rule, Tensors, next_turns, turn_of
from course_lib.parallel.lossy.neighbours import mixed
from course_lib.parallel.table import agreement
from course_lib.training.own_weights import begin_own_weights, exchanged, near_copies, put, row_of
from course_lib.training.setup import Setup, Technique

TRACKER, LAST = "tracker", "last_gradient"


def gossip(topology: str, *, track: bool = False) -> Technique:
    """Decentralised SGD: x <- W (x - rate g), where row r of W says whom rank r hears, and with which weights.

    `topology` is one of `less.topologies`; where it has several matrices each update takes the next. Over the ranks
    the mean of the weights is that of training without a loss as long as gradients are; how far ranks are apart,
    the spectral gap says. With `track` each rank steps by an estimate of the mean gradient in place of its own, which
    goes round as the weights do, so that different data no longer pull the ranks apart.

    Along which axis, what a trainer says of weights, and what a checkpoint has: as `local`.

    Cost: the weights that are trained, and with `track` as many numbers again, to each neighbour in each update; the
    copies of a cluster share that (`own_weights.exchanged`). What is tracked are the clipped gradients.
    Source: Lian et al. 2017, D-PSGD; Ying et al. 2021, exponential graphs; Nedic et al. 2017, DIGing (tracking).
    Raises: ValueError for an unknown topology or one that these ranks cannot form, and as `local`.
    """

    def apply(setup: Setup) -> None:
        rules: dict[str, Rule] = {TRACKER: "own", LAST: "own"} if track else {}
        group = begin_own_weights(setup, "gossip", rules)
        agreement.same_model("gossip", setup.model, {"topology": topology, "track": track}, group)
        matrices, near = mixing(topology, group.size()), near_copies(setup)
        here, memory, ends = setup.local, setup.apart.memory, setup.engine.ends

        def all_mixed(rows: Tensors, turn: int) -> Tensors:
            return exchanged(rows, near, lambda row: mixed(row, matrices[turn % len(matrices)], group))

        def step_by_tracker() -> None:
            """Bring the estimate up to date, and let the optimizer have it for its gradient."""
            gradients = {name: g.flatten().clone() for name, g in here.gradients().items()}
            trackers = gradients
            if memory.kinds[LAST]:
                heard = all_mixed(memory.kinds[TRACKER], max(turn_of(memory, name) for name in gradients))
                trackers = {name: heard[name] + g - memory.kinds[LAST][name] for name, g in gradients.items()}
            for name, gradient in here.gradients().items():
                memory.keep(TRACKER, name, trackers[name].clone())
                memory.keep(LAST, name, gradients[name])
                gradient.copy_(trackers[name].view_as(gradient))

        def meet() -> None:
            rows = {name: row_of(p) for name, p in here.parameters.items() if p.requires_grad}
            turn = max(next_turns(memory, rows).values(), default=0)  # the same of all
            for name, row in all_mixed(rows, turn).items():
                put(here.parameters[name], row)

        if track:
            ends.stepping = torch.no_grad()(step_by_tracker)
        ends.stepped = torch.no_grad()(meet)

    return apply
