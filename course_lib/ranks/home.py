"""The default device of a rank that computes on a GPU: what a cell makes lies there, with the numbers of the CPU.

A GPU has random numbers of its own: after `torch.manual_seed(0)` it would give a model other weights than the notebook
and the text have. So random numbers are drawn on the CPU, by its generator or the one that is given, and then lie on
the GPU. Whoever names a device gets what PyTorch does there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import DeviceContext, _device_constructors

_DRAWN = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
_DRAWN_IN_PLACE = {  # by name: other libraries hand on functions of their own under the names of torch.nn.init
    *(f"{name}_" for name in ("normal", "uniform", "random", "bernoulli", "exponential", "log_normal")),
    *(f"{name}_" for name in ("trunc_normal", "kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal")),
}


class Home(DeviceContext):
    """`torch.set_default_device`, but that asks a CPU's generator for a GPU's numbers, and fails.

    A process that a rank forks, as a DataLoader's worker, may not touch the GPU: it has no home but main memory.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._process = os.getpid()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if os.getpid() != self._process:
            return func(*args, **given)
        if func in _DRAWN and given.get("device") is None and given.get("out") is None and _of_cpu(given):
            return self._drawn(func, args, given)
        if getattr(func, "__name__", "") in _DRAWN_IN_PLACE and _of_cpu(given):
            x = args[0] if args else given.pop("tensor")  # as torch.nn.init hands it on
            return _drawn_in_place(func, x, args[1:], given) if x.is_cuda else func(x, *args[1:], **given)
        return super().__torch_function__(func, types, args, given)

    def _drawn(self, func: Callable[..., Tensor], args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
        learns = given.pop("requires_grad", False)
        if func in _device_constructors():
            given["device"] = "cpu"
        else:  # torch.normal: it draws where its means lie
            args = tuple(x.cpu() if isinstance(x, Tensor) else x for x in args)
        return func(*args, **given).to(self.device).requires_grad_(learns)


def _drawn_in_place(func: Callable[..., Tensor], x: Tensor, args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
    there = x.detach().to("cpu")
    vars(there).update(vars(x))  # transformers draws nothing into what says that it has been read from a file
    drawn = func(there, *args, **given)
    with torch.no_grad() if isinstance(func, FunctionType) else nullcontext():  # of torch.nn.init, or in its place
        return x.copy_(drawn)


def _of_cpu(given: Mapping[str, Any]) -> bool:
    generator = given.get("generator")
    return generator is None or generator.device.type == "cpu"
