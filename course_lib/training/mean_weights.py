"""For a while a trainer's ranks all have the mean of their weights: to evaluate it, or to hand it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from course_lib.parallel.table.local import own_part
from course_lib.training.trainer import Trainer


@contextmanager
def at_the_mean(trainer: Trainer) -> Iterator[None]:
    """Within the block every rank has the mean, at its end its own weights again; where they are equal, nothing moves.

    The mean is what `local` and `gossip` are about; a rank's own weights have fitted its own data.
    Memory: a copy of this rank's part of the weights.
    """
    apart = trainer.apart
    if not apart.own_weights:
        yield
        return
    mine = {name: own_part(trainer.local.parameters[name].detach()) for name in trainer.trained}
    before = {name: x.clone() for name, x in mine.items()}
    _fill(trainer, mine, apart.mean(mine))
    try:
        yield
    finally:
        _fill(trainer, mine, before)


def _fill(trainer: Trainer, mine: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, x in mine.items():
            x.copy_(new[name])
    trainer.engine.ends.updated()
