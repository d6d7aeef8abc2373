"""The numbers that a trainer's model begins with, where it was built on meta: see `course_lib.parallel.table.meta`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.parallel.table.local import own_part
from course_lib.parallel.table.meta import without_numbers
from course_lib.training.trainer import Trainer

Rule = Callable[[str, Tensor], object]  # fills a whole tensor in place, by its name in the model


def drawn(rule: Rule) -> Callable[[Trainer], None]:
    """For `Trainer(init=…)`: a rule fills one tensor after the other, in the model's order whatever the layout.

    The first rank's numbers are everybody's. They are drawn in float32 whatever the model's dtype, so that a seed gives
    one model. Cost: a broadcast of each tensor. Memory: the parts and two copies of one tensor.
    """
    return lambda trainer: _draw(trainer, rule)


@torch.no_grad()
def _draw(trainer: Trainer, rule: Rule) -> None:
    local = trainer.local
    everyone, here = local.everyone, {**local.parameters, **local.buffers}
    for name in local.absent:
        shape, dtype = local.layout.places[name].shape, local.dtypes[name]
        begun_as = torch.float32 if dtype.is_floating_point else dtype
        numbers = without_numbers(torch.empty(shape, dtype=begun_as, device=local.device))
        rule(name, numbers)
        numbers = numbers.to(dtype)
        if everyone is not None:
            numbers = comm.broadcast(numbers, src=dist.get_process_group_ranks(everyone)[0], group=everyone)
        if name in here:
            own_part(here[name]).copy_(local.part(name, numbers))
    trainer.engine.ends.updated()
