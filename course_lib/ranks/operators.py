"""Where all of PyTorch meets on its way to other ranks: the few operators of `c10d`, and a look before each call.

An operator's call passes one dispatch key after the other, down to that of the device. `BackendSelect` is the last one
before it, it is passed in every mode of autograd, and no collective uses it: so a look is hung up there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

ALIKE = {  # by operator of c10d: what a learner calls it, and the argument whose tensors are alike on all ranks
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors"),
    "broadcast_": ("broadcast", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "allgather_": ("all_gather", "input_tensors"),
    "_allgather_base_": ("all_gather_into_tensor", "input_tensor"),
    "allgather_coalesced_": ("all_gather", "input_list"),
    "allgather_into_tensor_coalesced_": ("all_gather_into_tensor", "inputs"),
    "reduce_scatter_": ("reduce_scatter", "output_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_tensor", "outputs"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "alltoall_": ("all_to_all", ""),  # ranks may send each other different lengths: see `_PARTS`
    "alltoall_base_": ("all_to_all_single", ""),
    "barrier": ("barrier", ""),
}
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_kept: list[object] = []  # the library whose operators these are: they are gone with it

Look = Callable[[dict[str, Any], ProcessGroup], None]  # (the call's arguments by name, its group)


def before_each(operators: Iterable[str], look_of: Callable[[str], Look]) -> None:
    """From now on, a look comes before each call of these operators in this process."""
    library = torch.library.Library("c10d", "IMPL")
    _kept.append(library)
    for operator in operators:
        library.impl(operator, _Looked(operator, look_of(operator)), "BackendSelect", with_keyset=True)


class _Looked:
    """An operator that is looked at before it does what it always did."""

    def __init__(self, operator: str, look: Look) -> None:
        self._operator, self._look = getattr(torch.ops.c10d, operator).default, look
        self._names = [argument.name for argument in self._operator._schema.arguments]

    def __call__(self, keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> Any:
        given = dict(zip(self._names, args, strict=False)) | options
        self._look(given, ProcessGroup.unbox(given["process_group"]))
        return self._operator.redispatch(keys & _BELOW, *args, **options)  # which lets Python's other threads run


def tensors_in(found: Any) -> Iterator[Tensor]:
    """The tensors of an argument, however deep its lists are."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from tensors_in(one)
