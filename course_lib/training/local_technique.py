"""Averages of weights in place of gradients, and not in every step: local SGD, FedAvg, DiLoCo.

trainer = Trainer(model, config, mesh=make_mesh(across=2, dp=2), apply=(replicate(), local(50, Nesterov(0.7, 0.9))))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.parallel.lossy.exchange import Memories, next_turns
from course_lib.parallel.table import agreement
from course_lib.training.own_weights import begin_own_weights, exchanged, near_copies, put, row_of
from course_lib.training.setup import Setup, Technique

_ANCHOR, _MOMENTUM = "anchor", "momentum"


@dataclass(frozen=True)
class Nesterov:
    """The outer optimizer of DiLoCo: the way that the mean of the weights has gone is a gradient for it.

    `lr` 1 and `momentum` 0 is the mean itself.
    """

    lr: float = 0.7
    momentum: float = 0.9


def local(every: int, outer: Nesterov | None = None) -> Technique:
    """Each rank trains for itself, and after every so many updates all take the mean of their weights.

    With `outer` they do not take the mean: the way from the last common weights to it is a gradient, by which these
    take a step. On a mesh with an axis "across" it is clusters that train for themselves, inside which gradients are
    averaged as `replicate`, `zero` or `fully_shard` do; else the ranks along "dp". The optimizer's states stay each
    rank's own, its gradients are clipped by their own norm, and buffers stay its own.

    What a trainer says of weights and gradients is the mean over the ranks. A checkpoint has the mean, and each rank's.

    Cost: an all-reduce of the weights that are trained, in every `every`-th update; of a cluster's copies each sends a
    stretch of them, and gathers the others' (`own_weights.exchanged`).
    Source: McMahan et al. 2017, FedAvg; Stich 2019, Local SGD; Douillard et al. 2023, DiLoCo, algorithm 1.
    Raises: ValueError for `every` below 1, and along an axis over which gradients are averaged already.
    """
    if every < 1:
        raise ValueError(four_parts("local", f"every={every}", "ranks meet after some updates", "give every >= 1"))

    def apply(setup: Setup) -> None:
        group = begin_own_weights(setup, "local", {_ANCHOR: "alike", _MOMENTUM: "alike"})
        agreement.same_model("local", setup.model, {"every": every, "outer": outer}, group)
        here, memory, near = setup.local, setup.apart.memory, near_copies(setup)

        def trained() -> dict[str, nn.Parameter]:
            return {name: parameter for name, parameter in here.parameters.items() if parameter.requires_grad}

        def remember_where_it_began() -> None:
            """Before the first update after a meeting all ranks have the same weights."""
            for name, parameter in trained().items():
                memory.of(_ANCHOR, name, row_of(parameter).clone)

        def meet() -> None:
            turns = next_turns(memory, trained())  # the same of all
            if any((turn + 1) % every for turn in turns.values()):
                return
            rows = {name: row_of(parameter) for name, parameter in trained().items()}
            means = exchanged(
                rows, near, lambda row: comm.all_reduce_(row, op=ReduceOp.AVG, algorithm="ring", group=group)
            )
            for name, mean in means.items():
                put(here.parameters[name], mean if outer is None else outer_step(mean, name, outer, memory))

        if outer is not None:
            setup.engine.ends.stepping = remember_where_it_began
        setup.engine.ends.stepped = torch.no_grad()(meet)

    return apply


def outer_step(mean: Tensor, name: str, outer: Nesterov, memory: Memories) -> Tensor:
    """The new common weights: a step of Nesterov's momentum from the old ones, as torch.optim.SGD takes it."""
    anchor = memory.kinds[_ANCHOR][name]
    gradient = anchor - mean  # it points back: a step of size 1 without momentum leads to the mean
    momentum = outer.momentum * memory.row(_MOMENTUM, name, anchor) + gradient
    new = anchor - outer.lr * (gradient + outer.momentum * momentum)
    memory.keep(_MOMENTUM, name, momentum)
    memory.keep(_ANCHOR, name, new)
    return new.clone()
