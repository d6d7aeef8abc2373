"""`torch.cuda` of a machine with so many GPUs as an environment variable says, and NCCL's place taken by gloo."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._device import _device_constructors

from course_lib.ranks import plain, stacks
from tools.pretended import tensor
from tools.pretended.tensor import GpuTensor

GPUS = "COURSE_PRETENDED_GPUS"
ASKED: list[str] = []  # the back ends by which this process's default group was asked for
_NAME = "pretended GPU"
_kept: list[object] = []


def pretend() -> None:
    """Let torch believe it; for as long as this process lives."""
    gpus = int(os.environ[GPUS])
    for name, value in _machine(gpus).items():
        setattr(torch.cuda, name, value)
    if not gpus:
        return
    stacks.LIBRARIES += (os.path.dirname(__file__) + os.sep,)  # a report passes over these files, as over CUDA
    _give_guard()
    _kept.extend(tensor.keep_factories())
    _device_constructors()  # remembers the functions that they are, before two of them are replaced
    torch.empty = _unpinned(torch.empty)
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, tensor.placed(getattr(torch, name)))
    torch.__future__.set_swap_module_params_on_conversion(True)  # a moved parameter stays the same object, as on CUDA
    plain.Pickler.dispatch_table.maps[0][GpuTensor] = _reduced
    plain.Unpickler.find_class = _found  # type: ignore[method-assign]
    _take_gloo_for_nccl()


def _machine(gpus: int) -> dict[str, Any]:
    """What is asked of `torch.cuda`, by the package and by PyTorch itself."""
    generators = (tensor.GENERATOR,) * gpus
    numbers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: gpus > 0,
        "device_count": lambda: gpus,
        "current_device": lambda: GpuTensor.gpu,
        "is_initialized": lambda: gpus > 0,
        "is_current_stream_capturing": lambda: False,
        "get_device_name": lambda *_: _NAME,
        "get_device_capability": lambda *_: (9, 0),
        "get_rng_state": lambda *_: tensor.GENERATOR.get_state(),
        "max_memory_allocated": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "mem_get_info": lambda *_: (2**36, 2**36),
        "current_stream": lambda *_: _Stream(),
    }
    silent = "_lazy_init init synchronize empty_cache reset_peak_memory_stats"
    nothing = dict.fromkeys(silent.split(), lambda *_, **__: None)
    seeding = {"manual_seed": tensor.seed_gpu, "manual_seed_all": tensor.seed_gpu}
    own = {
        "set_device": _set_device,
        "set_rng_state": lambda state, *_: tensor.GENERATOR.set_state(state),
        "default_generators": generators,
        "Stream": _Stream,
        "Event": _Stream,
    }
    return {**numbers, **nothing, **seeding, **own, "stream": _Around, "device": _Around}


def _set_device(device: Any) -> None:
    GpuTensor.gpu = device if isinstance(device, int) else torch.device(device).index or 0


class _Stream:
    """The one stream, and every event of it: all that was asked has been done."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", GpuTensor.gpu)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: _Stream()


class _Around(nullcontext[None]):
    """A block on some GPU or some stream: there is one of each."""

    def __init__(self, *_: Any) -> None:
        super().__init__()


def _give_guard() -> None:
    """Let PyTorch's own code have the guard for CUDA that its builds for CUDA have on a machine without a GPU.

    It takes the place of one that counts no devices; a build without CUDA has none, so it is lent that of `lazy`.
    """
    library = ctypes.CDLL(_shared_library("c10"))
    guards = (ctypes.c_void_p * 22).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, lazy = 1, 17
    guards[cuda] = guards[cuda] or guards[lazy]
    torch._C._ensureCUDADeviceGuardSet()


def _shared_library(name: str) -> str:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    return next(
        os.path.join(folder, file) for file in os.listdir(folder) if file in (f"lib{name}.so", f"lib{name}.dylib")
    )


def _reduced(x: Tensor) -> Any:
    return plain.reduced_parameter(x) if isinstance(x, nn.Parameter) else plain.reduced(x)


def _unpinned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Without a driver nobody can pin memory."""
    return lambda *given, pin_memory=False, **options: empty(*given, **options)


_find_class = plain.Unpickler.find_class


def _found(unpickler: plain.Unpickler, module: str, name: str) -> Any:
    """What a rank gets from the notebook: a tensor's memory is loaded, and then lies on the GPU."""
    if (module, name) == ("torch.storage", "_load_from_bytes"):
        return _loaded
    found = _find_class(unpickler, module, name)
    if name == "_rebuild_tensor_v2" and unpickler._device.type == "cuda":
        return lambda *given: found(*given).to(unpickler._device)
    return found


def _loaded(file: bytes) -> Any:
    return torch.load(io.BytesIO(file), map_location="cpu", weights_only=False)


def _take_gloo_for_nccl() -> None:
    """Join the group with gloo in NCCL's place; asked about GPU tensors, it says that it is NCCL."""
    join, backend_of = dist.init_process_group, dist.ProcessGroup._get_backend

    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        ASKED.append(str(backend))
        join(backend and backend.replace("nccl", "gloo"), *args, **options)

    def get_backend(group: dist.ProcessGroup, device: torch.device) -> Any:
        found = backend_of(group, device)
        own = torch.device(device).type == "cuda" and "nccl" in ASKED[0]
        return SimpleNamespace(name=lambda: "nccl") if own else found

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    dist.ProcessGroup._get_backend = get_backend  # type: ignore[method-assign]
