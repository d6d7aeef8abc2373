"""What calls compute, and which of their tensors live on, wherever these are kept."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from course_lib.checks.kit.work import Watch

_LETS_GO_S, _LOOK_S = 0.5, 0.005


class Metered(NamedTuple):
    """Of one call: operations in products of matrices, and whether autograd went backward."""

    flops: int
    autograd: bool


class Meter(Watch):
    """Notes the memory behind every tensor that a measured call makes; whoever keeps one, it is seen.

    An object's attributes would not do: a closure, a class or autograd's graph can keep tensors as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[StorageWeakRef, int] = {}
        self.autograd = False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.autograd |= torch._C._current_graph_task_id() >= 0  # >= 0: called by autograd's engine
        self.note(one for one in tree_leaves(result) if isinstance(one, Tensor))
        return result

    def note(self, tensors: Iterable[Tensor]) -> None:
        """Measure these too, that are made elsewhere."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.storages[StorageWeakRef(storage)] = storage.nbytes()

    def measure(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Metered]:
        """Call a function."""
        self.autograd = False
        with self, FlopCounterMode(display=False) as counter:
            result = function(*arguments)
        return result, Metered(counter.get_total_flops(), self.autograd)

    def live_bytes(self, besides: Iterable[Tensor], at_most: int | None = None) -> int:
        """Bytes that are kept somewhere; those of `besides` do not count.

        A thread of gloo lets go of a call's tensors after the call has returned, and needs Python's lock for that. So
        whoever knows what may be left says `at_most`: if more is there, it has half a second to go.
        """
        gc.collect()
        others = {StorageWeakRef(tensor.untyped_storage()) for tensor in besides}
        live, until = self._live_besides(others), time.monotonic() + _LETS_GO_S
        while at_most is not None and live > at_most and time.monotonic() < until:
            time.sleep(_LOOK_S)
            live = self._live_besides(others)
        return live

    def _live_besides(self, others: Container[StorageWeakRef]) -> int:
        return sum(size for storage, size in self.storages.items() if storage not in others and not storage.expired())
