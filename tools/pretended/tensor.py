"""A tensor that says it lies on a GPU: its numbers are in main memory, its manners are those of CUDA.

For Python it is on `cuda:r`. What CUDA refuses, it refuses: an operation on tensors of both kinds, `.numpy()`, random
numbers of a CPU's generator. For PyTorch's own code it is on `lazy:0`, a device that autograd knows in every build, and
that nothing else uses: what PyTorch makes beside such a tensor, as buckets or gradients, is such a tensor too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

aten = torch.ops.aten
_INSIDE = torch.device("lazy", 0)
GENERATOR = torch.Generator()
_NOTHING = nullcontext()
_COPIES = {aten.copy_.default, aten._foreach_copy_.default}
_MIXES = _COPIES | {  # whatever CUDA lets the two kinds of memory do together
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}
_ROWS = {aten.cat.default, aten.stack.default, aten.equal.default}  # a CPU's single number is no exception in these


class GpuTensor(Tensor):
    """Its memory is an ordinary tensor's, which each operation takes for the time that it lasts."""

    gpu: ClassVar[int] = 0  # this process's, as `torch.cuda.set_device` said
    is_cuda = True
    is_cpu = False
    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:
        """The GPU of this process: a rank has one."""
        return torch.device("cuda", GpuTensor.gpu)

    def get_device(self) -> int:
        """Its number."""
        return GpuTensor.gpu

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return _INSIDE
        return computed(func, args, dict(kwargs or {}))

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """To a GPU there is no way: it is there."""
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(
            *args, **{name: value for name, value in kwargs.items() if name != "copy"}
        )
        options = {"dtype": dtype or self.dtype, "non_blocking": non_blocking, "copy": kwargs.get("copy", False)}
        if memory_format is not None:
            options["memory_format"] = memory_format
        if device is not None and not on_gpu(device):
            options["device"] = device
        return super().to(**options)

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        """It is there."""
        return self

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        """A copy in main memory."""
        return self.to("cpu")

    def tolist(self) -> Any:
        """Copied first, as CUDA does."""
        return self.detach().cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        """CUDA's own refusal."""
        way_out = "Use Tensor.cpu() to copy the tensor to host memory first."
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. {way_out}")

    __array__ = numpy

    def __getitem__(self, place: Any) -> Tensor:
        """A list of places stays in main memory, where CUDA takes it from too."""
        return super().__getitem__(_places(place))

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        """Beside this one."""
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    def pin_memory(self, *_: Any) -> Tensor:
        """CUDA's own refusal."""
        raise RuntimeError(f"cannot pin 'torch.cuda.{self.dtype}' only dense CPU tensors can be pinned")

    def record_stream(self, _: Any) -> None:
        """There is one stream."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In a file, a tensor that any machine reads."""
        return self.detach().cpu().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copy._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = copy
        return copy

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.detach().cpu()!r}"[:-1] + f", device='{self.device}')"


GpuTensor.__name__ = "Tensor"  # errors name it


def _places(given: Any) -> Any:
    """Each list among them as a tensor."""
    if isinstance(given, tuple):
        return tuple(map(_places, given))
    return torch.tensor(given, device="cpu") if isinstance(given, list) else given


def on_gpu(device: torch.device | str | int | None) -> bool:
    """Whether it names a GPU, by the name inside or outside."""
    if device is None:
        return False
    return isinstance(device, int) or torch.device(device).type in ("cuda", "lazy")


def of(memory: Tensor) -> GpuTensor:
    """The same numbers, on the GPU from now on."""
    made: GpuTensor = Tensor._make_subclass(GpuTensor, memory, False, dispatch_device=True)
    return made


def memory_of(x: Tensor) -> Tensor:
    """An ordinary tensor of the same memory."""
    memory = torch.empty(0, dtype=x.dtype, device="cpu")
    memory.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())
    if x.is_conj():
        memory = torch._conj(memory)
    return torch._neg_view(memory) if x.is_neg() else memory


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operation does with the numbers; its results lie where CUDA's would."""
    found = list(_tensors((*args, *kwargs.values())))
    _refuse_mixture(func, args, kwargs, found)
    outside: dict[int, tuple[GpuTensor, Tensor]] = {}

    def unwrapped(x: Tensor) -> Tensor:
        if type(x) is not GpuTensor:
            return x
        memory = memory_of(x)
        outside[id(memory)] = (x, memory)
        return memory

    device = kwargs.get("device")
    leaves = device is not None and not on_gpu(device)
    if device is not None and not leaves:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    with random_numbers() if torch.Tag.nondeterministic_seeded in func.tags else _NOTHING:
        result = func(*_mapped(unwrapped, args), **{name: _mapped(unwrapped, value) for name, value in kwargs.items()})

    def wrapped(x: Tensor) -> Tensor:
        if id(x) in outside:
            return _as_now(*outside[id(x)])
        if hasattr(x, "trigger_wait"):  # a functional collective's result, which is still under way
            x = x.trigger_wait()
        return x if leaves or type(x) is GpuTensor else of(x)

    return _mapped(wrapped, result)


@contextmanager
def random_numbers() -> Iterator[None]:
    """Within the block, those of the GPU, which are not those of the CPU: each has its own, whatever the seed."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(GENERATOR.get_state())
    try:
        yield
    finally:
        GENERATOR.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


def seed_gpu(seed: int, *_: Any) -> None:
    """`torch.cuda.manual_seed`, which `torch.manual_seed` calls."""
    GENERATOR.manual_seed(seed + 1)


def _tensors(given: Iterable[Any]) -> Iterator[Tensor]:
    for one in given:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _mapped(change: Callable[[Tensor], Tensor], given: Any) -> Any:
    """The same lists, with every tensor changed."""
    if isinstance(given, Tensor):
        return change(given)
    return type(given)(_mapped(change, one) for one in given) if type(given) in (list, tuple) else given


def _as_now(x: GpuTensor, memory: Tensor) -> GpuTensor:
    """An operation in place may have changed the shape as well."""
    same = (x.size(), x.stride(), x.storage_offset()) == (memory.size(), memory.stride(), memory.storage_offset())
    if not same:
        with torch._C._DisableTorchDispatch():
            x.data = of(memory)
    return x


def _refuse_mixture(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """Raise as CUDA does."""
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type == "cpu":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    others = [x for x in tensors if type(x) is not GpuTensor]
    if not others or len(others) == len(tensors):
        return
    if func in _MIXES:
        if type(args[0]) is not GpuTensor and func not in _COPIES:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        return
    strict = func in _ROWS or func.namespace == "c10d" or _writes_main_memory(func, args)
    if strict or any(x.dim() for x in others):
        devices = f"cuda:{GpuTensor.gpu} and {others[0].device}"
        text = f"Expected all tensors to be on the same device, but found at least two devices, {devices}!"
        raise RuntimeError(f"{text} ({func})")


def _writes_main_memory(func: Any, args: tuple[Any, ...]) -> bool:
    in_place = func._schema.name.endswith("_") and bool(args)
    return in_place and isinstance(args[0], Tensor) and type(args[0]) is not GpuTensor


def keep_factories() -> list[object]:
    """Let what is made on a GPU be made so; returns what must stay alive."""
    library = torch.library.Library("aten", "IMPL")
    for key in ("CUDA", "Lazy"):
        library.impl("empty.memory_format", _empty, key, allow_override=True)
        library.impl("empty_strided", _empty_strided, key, allow_override=True)
    return [library]


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    like = {} if memory_format is None else {"memory_format": memory_format}
    return of(torch.empty(size, dtype=dtype, device="cpu", **like))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return of(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def placed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and its like, which PyTorch fills in main memory first, past everything that can be watched."""

    def made(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
        device = torch.empty(0).device if device is None and not isinstance(data, Tensor) else device
        options.pop("pin_memory", None)
        if isinstance(data, GpuTensor) and (device is None or on_gpu(device)):
            return data.to(**options)
        if isinstance(data, GpuTensor):
            data = data.cpu()
        x = make(data, *args, device="cpu" if on_gpu(device) else device, **options)
        x = x.to(torch.device(device)) if on_gpu(device) else x
        return x.requires_grad_() if requires_grad else x

    return made
