"""Parameters that are one in the model and lie on several ranks: each copy gets the sum of all copies' gradients.

A tied embedding is such a one: the first stage looks tokens up in it, the last stage's head multiplies by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib import comm


def canonical_names(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter the first name of the same parameter."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


class Ties:
    """One rank's copies; `holders` are all ranks of the group that hold one, in their order."""

    def __init__(self, copies: Mapping[str, nn.Parameter], holders: Mapping[str, Sequence[int]], group: ProcessGroup):
        names = [name for name in sorted(holders) if name in copies and len(holders[name]) > 1]
        self.group = group
        self.held = [(copies[name], holders[name]) for name in names if copies[name].requires_grad]

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Within the block a backward pass runs; at its end what it added to one copy is added to the others too.

        Cost: each holder sends every other one the parameter's bytes, once, whatever the number of micro-batches.
        """
        before = [parameter.grad for parameter, _ in self.held]
        for parameter, _ in self.held:
            parameter.grad = None  # else what an earlier pass summed would be summed again
        yield
        for (parameter, holders), earlier in zip(self.held, before, strict=True):
            total = _sum(parameter, holders, self.group)
            parameter.grad = total if earlier is None else earlier + total


def _sum(parameter: nn.Parameter, holders: Sequence[int], group: ProcessGroup) -> Tensor:
    """The holders' gradients, added in the same order by all, so that copies stay equal bit by bit."""
    mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    here, names = group.rank(), dist.get_process_group_ranks(group)
    parts = {rank: mine if rank == here else torch.empty_like(mine) for rank in holders}
    others = [rank for rank in holders if rank != here]
    under_way = [comm.irecv(parts[rank], names[rank], group) for rank in others]
    under_way += [comm.isend(mine, names[rank], group) for rank in others]
    for handle in under_way:
        handle.wait()
    return torch.stack([parts[rank] for rank in holders]).sum(0)
