"""Averages of weights in place of gradients, and not in every step: local SGD, FedAvg, DiLoCo.

trainer = Trainer(model, config, mesh=make_mesh(across=2, dp=2), apply=(replicate(), local(50, Nesterov(0.7, 0.9))))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts
from course_lib.parallel.lossy.exchange import Memories, Rule
from course_lib.parallel.table import agreement
from course_lib.training.own_weights import begin_own_weights, mean_row, near_copies, put, row_of
from course_lib.training.setup import Setup, Technique

_UPDATES, _ANCHOR, _MOMENTUM = "updates", "anchor", "momentum"


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
    stretch of them, and gathers the others' (`own_weights.mean_row`).
    Source: McMahan et al. 2017, FedAvg; Stich 2019, Local SGD; Douillard et al. 2023, DiLoCo, algorithm 1.
    Raises: ValueError for `every` below 1, and along an axis over which gradients are averaged already.
    """
    if every < 1:
        raise ValueError(four_parts("local", f"every={every}", "ranks meet after some updates", "give every >= 1"))

    def apply(setup: Setup) -> None:
        rules: dict[str, Rule] = {_UPDATES: "apart", _ANCHOR: "alike", _MOMENTUM: "alike"}
        group = begin_own_weights(setup, "local", rules)
        agreement.same_model("local", setup.model, {"every": every, "outer": outer}, group)
        here, memory, near = setup.local, setup.apart.memory, near_copies(setup)

        def remember_where_it_began() -> None:
            """Before the first update after a meeting all ranks have the same weights."""
            if outer is not None:
                for name, parameter in here.parameters.items():
                    if parameter.requires_grad:
                        memory.of(_ANCHOR, name, row_of(parameter).clone)

        def meet() -> None:
            trained = {name: p for name, p in here.parameters.items() if p.requires_grad}
            if not _is_due(memory, trained, every):
                return
            for name, mean in _means(trained, group, near).items():
                put(trained[name], mean if outer is None else outer_step(mean, name, outer, memory))

        setup.engine.ends.completed, setup.engine.ends.stepped = remember_where_it_began, torch.no_grad()(meet)

    return apply


def _is_due(memory: Memories, trained: dict[str, torch.nn.Parameter], every: int) -> bool:
    """Count this update, of every parameter, as Adam does its steps; whether it is one after which ranks meet."""
    due = False
    for name in trained:
        so_far = memory.of(_UPDATES, name, lambda: torch.zeros((), dtype=torch.int64)) + 1
        memory.keep(_UPDATES, name, so_far)
        due = int(so_far) % every == 0
    return due


def _means(trained: dict[str, torch.nn.Parameter], group: ProcessGroup, near: ProcessGroup | None) -> dict[str, Tensor]:
    """Of this rank's parts of the weights, in one message for each dtype."""
    found: dict[str, Tensor] = {}
    for dtype in dict.fromkeys(parameter.dtype for parameter in trained.values()):
        rows = {name: row_of(parameter) for name, parameter in trained.items() if parameter.dtype == dtype}
        flat = mean_row(torch.cat(list(rows.values())), group, near)
        parts = flat.split([len(row) for row in rows.values()])
        found |= dict(zip(rows, parts, strict=True))
    return found


def outer_step(mean: Tensor, name: str, outer: Nesterov, memory: Memories) -> Tensor:
    """The new common weights: a step of Nesterov's momentum from the old ones, as torch.optim.SGD takes it."""
    anchor = memory.kinds[_ANCHOR][name]
    gradient = anchor - mean  # it points back: a step of size 1 without momentum leads to the mean
    momentum = outer.momentum * memory.row(_MOMENTUM, name, anchor) + gradient
    new = anchor - outer.lr * (gradient + outer.momentum * momentum)
    memory.keep(_MOMENTUM, name, momentum)
    memory.keep(_ANCHOR, name, new)
    return new.clone()
