"""Models that are built on PyTorch's meta device: names and shapes without numbers, which come when they are cut.

with all_on_meta(): model = Decoder(config)  # in no memory, however large; torch.device("meta") does it too

Techniques cut such a model as any other. Only then each rank gives memory to its own parts, and the trainer's `init`
fills them: no rank ever holds the whole model.
Source: Zhao et al. 2023, PyTorch FSDP, section 4.1 (deferred initialisation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """Leaves a weight as it is where `torch.nn.init` would fill it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def all_on_meta() -> Iterator[None]:
    """Build a model of names and shapes, buffers included, and draw nothing.

    On meta PyTorch draws by functions in Python, for which it imports its compiler: a second, for no number.
    """
    with torch.device("meta"), _Undrawn():
        yield


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build a model with its parameters on meta and its buffers in memory.

    A model of `transformers` computes buffers when it is built, such as its rotary angles, and no checkpoint has them.

    Memory: one parameter at a time, which nobody writes to.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    with patch.object(nn.Module, "register_parameter", on_meta):
        yield


def give_memory(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Let what is on meta have memory, each the same object as before; what shared memory there shares it here.

    Numbers that are missing are NaN, until somebody fills them.
    """
    made: dict[int, Tensor] = {}
    for x in tensors:
        if not x.is_meta:
            continue
        storage = x.untyped_storage()
        if storage._cdata not in made:
            made[storage._cdata] = without_numbers(
                torch.empty(storage.nbytes() // x.element_size(), dtype=x.dtype, device=device)
            )
        found = made[storage._cdata].as_strided(x.shape, x.stride(), x.storage_offset())
        kept = nn.Parameter(found, x.requires_grad) if isinstance(x, nn.Parameter) else found
        torch.utils.swap_tensors(x, kept)


def give_memory_to_dtensors(model: nn.Module, device: torch.device) -> None:
    """The same for a model that PyTorch distributed, whose wrappers must hear of it; ties are lost."""
    model._apply(lambda x: without_numbers(torch.empty_like(x, device=device)) if x.is_meta else x)


def without_numbers(x: Tensor) -> Tensor:
    """The same, full of NaN, so that what nobody fills is seen; integers cannot say so."""
    return x.fill_(torch.nan) if x.is_floating_point() else x
