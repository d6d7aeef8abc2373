"""The numbers that a trainer's model begins with, where it was built on meta: see `course_lib.parallel.table.meta`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import comm
from course_lib.parallel.table.local import own_part
from course_lib.parallel.table.meta import without_numbers
from course_lib.savers.nf4 import encode_nf4
from course_lib.savers.origins import CODES, begin_adapter, origins_of
from course_lib.training.trainer import Trainer

Rule = Callable[[str, Tensor], object]  # fills a whole tensor in place, by its name in the model


def drawn(rule: Rule) -> Callable[[Trainer], None]:
    """For `Trainer(init=…)`: a rule fills one tensor after the other, in the model's order whatever the layout.

    The first rank's numbers are everybody's. They are drawn in float32 whatever the model's dtype, so that a seed gives
    one model, and that with adapters too: these are drawn after it. Cost: a broadcast of each tensor. Memory: the parts
    and two copies of one tensor.
    """

    def fill(trainer: Trainer) -> None:
        _draw(trainer, rule)
        draw_adapters(trainer)

    return fill


def draw_adapters(trainer: Trainer) -> None:
    """Fill the adapters of a model that was built on meta, and nothing else."""
    known, local = origins_of(trainer.skeleton), trainer.local
    for name in local.absent:
        if name not in known:
            numbers = _first_ranks(trainer, begin_adapter, name, local.layout.places[name].shape, local.dtypes[name])
            _put(trainer, name, numbers)
    trainer.engine.ends.updated()


def _draw(trainer: Trainer, rule: Rule) -> None:
    known, local = origins_of(trainer.skeleton), trainer.local
    for name in local.absent:
        if name not in known:
            continue
        before = known[name]
        if before.coded is None:
            shape, dtype = local.layout.places[name].shape, local.dtypes[name]
            _put(trainer, name, _first_ranks(trainer, rule, before.name, shape, dtype))
        elif name.endswith(CODES[0]):  # with which all four come
            weight = _first_ranks(trainer, rule, before.name, before.coded.shape, before.coded.dtype)
            put_in_codes(trainer, name, weight)
    trainer.engine.ends.updated()


@torch.no_grad()
def _first_ranks(trainer: Trainer, rule: Rule, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A whole tensor as the rule fills it on the first rank."""
    everyone = trainer.local.everyone
    begun_as = torch.float32 if dtype.is_floating_point else dtype
    numbers = without_numbers(torch.empty(tuple(shape), dtype=begun_as, device=trainer.local.device))
    rule(name, numbers)
    numbers = numbers.to(dtype)
    if everyone is not None:
        numbers = comm.broadcast(numbers, src=dist.get_process_group_ranks(everyone)[0], group=everyone)
    return numbers


@torch.no_grad()
def _put(trainer: Trainer, name: str, whole: Tensor) -> None:
    """Take this rank's part of a whole tensor, if it has any."""
    local = trainer.local
    here = local.parameters.get(name, local.buffers.get(name))
    if here is not None:
        own_part(here).copy_(local.part(name, whole))


def put_in_codes(trainer: Trainer, name: str, weight: Tensor) -> None:
    """Take this rank's part of the codes of a whole weight; `name` is that of any of the four tensors of codes."""
    found, owner = encode_nf4(weight), name.rpartition(".")[0]
    for kind in CODES:
        _put(trainer, f"{owner}.{kind}", getattr(found, kind))
