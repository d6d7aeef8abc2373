"""Ranks that work on copies of one model compare what they hold, outside the ledger; all raise, or none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.errors import four_parts

_T = TypeVar("_T")
_MISSING = "nothing of that name"
_MOST_NAMES = 4


def same_model(operation: str, model: nn.Module, options: Mapping[str, object], group: ProcessGroup) -> None:
    """Raise the same ValueError on all ranks unless names, shapes, dtypes, requires_grad and options agree."""
    mine = {name: repr(value) for name, value in options.items()} | _describe(model)
    name, values = _first_difference(mine, group)
    if values:
        rule = "all ranks wrap the same model in the same way"
        raise ValueError(four_parts(operation, f"{name} is {values}", rule, "build it from one configuration"))


def same_values(operation: str, model: nn.Module, group: ProcessGroup) -> None:
    """Raise the same ValueError on all ranks unless parameters and buffers are equal, bit by bit."""
    hashes = {name: _digest(tensor) for name, tensor in _tensors(model).items()}
    name, values = _first_difference(hashes, group)
    if values:
        values = f"{name} has the hash {values}"
        rule = "with init_sync=False every rank brings the same values"
        raise ValueError(
            four_parts(operation, values, rule, "pass init_sync=True, or load the same weights on every rank")
        )


def same_shares(operation: str, tensors: Mapping[str, Tensor], share: int, group: ProcessGroup) -> None:
    """Raise the same ValueError on all ranks unless those that work on one share of a batch were given the same."""
    mine = share, {name: _digest(tensor) for name, tensor in tensors.items()}
    everyone = [mine] * group.size()
    dist.all_gather_object(everyone, mine, group=group)
    first: dict[int, tuple[int, dict[str, str]]] = {}
    for rank, (number, hashes) in zip(dist.get_process_group_ranks(group), everyone, strict=True):
        one, wanted = first.setdefault(number, (rank, hashes))
        for name, found in hashes.items():
            if found != wanted[name]:
                values = f"the batch's {name} have the hash {wanted[name]} on rank {one} and {found} on rank {rank}"
                rule = "ranks that share a model's matrices or layers compute one batch together"
                raise ValueError(four_parts(operation, values, rule, "give all ranks the same batch"))


def no_problem(
    operation: str, problem: str, rule: str, way_out: str, group: ProcessGroup | None, *, compare: bool
) -> None:
    """Raise a ValueError if this rank has a problem, or, with `compare`, if any rank has one.

    With `compare` all ranks of the group, if there is one, take part and raise the same. Without, they do not talk, and
    each knows only of its own.
    """
    found = dict.fromkeys(filter(None, gathered(problem, group if compare else None)))
    if found:
        raise ValueError(four_parts(operation, " and ".join(found), rule, way_out))


def gathered(mine: _T, group: ProcessGroup | None) -> list[_T]:
    """What all ranks of a group have, in its order; None: this process is alone."""
    found = [mine] * (1 if group is None else group.size())
    if group is not None:
        dist.all_gather_object(found, mine, group=group)
    return found


def listing(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _describe(model: nn.Module) -> dict[str, str]:
    """What is fixed about each parameter and buffer."""
    parameters = {
        name: f"a {'trained' if p.requires_grad else 'frozen'} parameter of {_kind(p)}"
        for name, p in model.named_parameters()
    }
    return parameters | {name: f"a buffer of {_kind(buffer)}" for name, buffer in model.named_buffers()}


def _digest(tensor: Tensor) -> str:
    """A hash of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()[:12]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _kind(tensor: Tensor) -> str:
    kind = f"shape {tuple(tensor.shape)} and dtype {str(tensor.dtype).removeprefix('torch.')}"
    return kind + " on meta" * tensor.is_meta


def _first_difference(mine: dict[str, str], group: ProcessGroup) -> tuple[str, str]:
    """The first name under which a rank has something else than the group's first rank, and what each has."""
    everyone = [mine] * group.size()
    dist.all_gather_object(everyone, mine, group=group)
    first, *others = dist.get_process_group_ranks(group)
    for rank, theirs in zip(others, everyone[1:], strict=True):
        for name in [*everyone[0], *theirs]:
            pair = (everyone[0].get(name, _MISSING), theirs.get(name, _MISSING))
            if pair[0] != pair[1]:
                return name, f"{pair[0]} on rank {first} and {pair[1]} on rank {rank}"
        for place, (one, other) in enumerate(zip(everyone[0], theirs, strict=True)):
            if one != other:
                return f"entry {place} of the model", f"{one} on rank {first} and {other} on rank {rank}"
    return "", ""
